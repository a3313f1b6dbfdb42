"""Neural parts that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.fields import FieldTables
from resid.nn.transformer import CausalLayer, EncoderLayer, padded_right

__all__ = ["CausalLayer", "Dropout", "EncoderLayer", "FieldTables", "padded_right"]
