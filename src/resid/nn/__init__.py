"""Neural parts that more than one model uses."""

from resid.nn.transformer import EncoderLayer

__all__ = ["EncoderLayer"]
