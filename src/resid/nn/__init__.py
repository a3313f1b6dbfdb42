"""Neural building blocks that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.fields import FieldTables, item_and_fields
from resid.nn.transformer import CausalLayer, EncoderLayer, check_heads, pad_right

__all__ = ["CausalLayer", "Dropout", "EncoderLayer", "FieldTables", "check_heads", "item_and_fields", "pad_right"]
