"""Neural parts that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.fields import FieldTables, item_and_fields
from resid.nn.transformer import CausalLayer, EncoderLayer, padded_right

__all__ = ["CausalLayer", "Dropout", "EncoderLayer", "FieldTables", "item_and_fields", "padded_right"]
