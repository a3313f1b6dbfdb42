"""Export of a fitted model to other systems: Parquet tables, ONNX, a folder of `transformers`. One file per format."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.export.write import FORMATS, export

__all__ = ["FORMATS", "export"]

__getattr__, __dir__ = lazy_names(__name__, {"write": "FORMATS export"})
