"""E-stage: item embeddings from histories and fields."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.encode.base import Encoder
    from resid.encode.din import DINEncoder, DINModel, DINNetwork
    from resid.encode.embeddings import ItemEmbeddings
    from resid.encode.famae import FAMAE
    from resid.encode.famae_model import FamaeModel
    from resid.encode.item_tables import BERT4RecEncoder, SASRecEncoder
    from resid.encode.metrics import embedding_quality
    from resid.encode.settings import DINSettings, FamaeSettings, TextSettings
    from resid.encode.text import TextEncoder

__all__ = [
    "FAMAE",
    "BERT4RecEncoder",
    "DINEncoder",
    "DINModel",
    "DINNetwork",
    "DINSettings",
    "Encoder",
    "FamaeModel",
    "FamaeSettings",
    "ItemEmbeddings",
    "SASRecEncoder",
    "TextEncoder",
    "TextSettings",
    "embedding_quality",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Encoder",
        "din": "DINEncoder DINModel DINNetwork",
        "embeddings": "ItemEmbeddings",
        "famae": "FAMAE",
        "famae_model": "FamaeModel",
        "item_tables": "BERT4RecEncoder SASRecEncoder",
        "metrics": "embedding_quality",
        "settings": "DINSettings FamaeSettings TextSettings",
        "text": "TextEncoder",
    },
)
