"""Neural building blocks that more than one model uses."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.nn.dropout import Dropout
    from resid.nn.fields import FieldTables, item_and_fields
    from resid.nn.transformer import CausalLayer, EncoderLayer, pad_right

__all__ = ["CausalLayer", "Dropout", "EncoderLayer", "FieldTables", "item_and_fields", "pad_right"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dropout": "Dropout",
        "fields": "FieldTables item_and_fields",
        "transformer": "CausalLayer EncoderLayer pad_right",
    },
)
