"""Neural parts that more than one model uses."""

from resid.nn.dropout import Dropout
from resid.nn.transformer import EncoderLayer

__all__ = ["Dropout", "EncoderLayer"]
