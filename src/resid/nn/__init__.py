"""Neural building blocks that more than one model uses."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.nn.dropout import Dropout
    from resid.nn.fields import FieldTables, is_value, item_and_fields, mean_rows, value_weights, with_item_ids
    from resid.nn.normalization import normalize
    from resid.nn.transformer import CausalLayer, EncoderLayer, pad_right

__all__ = [
    "CausalLayer",
    "Dropout",
    "EncoderLayer",
    "FieldTables",
    "is_value",
    "item_and_fields",
    "mean_rows",
    "normalize",
    "pad_right",
    "value_weights",
    "with_item_ids",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "dropout": "Dropout",
        "fields": "FieldTables is_value item_and_fields mean_rows value_weights with_item_ids",
        "normalization": "normalize",
        "transformer": "CausalLayer EncoderLayer pad_right",
    },
)
