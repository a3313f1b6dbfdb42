"""Neural building blocks that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.fields import FieldTables, is_value, item_and_fields, mean_rows, value_weights, with_item_ids
from resid.nn.transformer import CausalLayer, EncoderLayer, check_heads, pad_right

__all__ = [
    "CausalLayer",
    "Dropout",
    "EncoderLayer",
    "FieldTables",
    "check_heads",
    "is_value",
    "item_and_fields",
    "mean_rows",
    "pad_right",
    "value_weights",
    "with_item_ids",
]
