"""Neural parts that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.fields import FieldTables
from resid.nn.transformer import CausalLayer, EncoderLayer

__all__ = ["CausalLayer", "Dropout", "EncoderLayer", "FieldTables"]
