"""E-stage: item embeddings from histories and fields."""

from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.famae import FAMAE
from resid.encode.famae_model import FamaeModel, FamaeSettings
from resid.encode.item_tables import BERT4RecEncoder, SASRecEncoder
from resid.encode.metrics import embedding_quality
from resid.encode.text import TextEncoder, TextSettings

__all__ = [
    "FAMAE",
    "BERT4RecEncoder",
    "Encoder",
    "FamaeModel",
    "FamaeSettings",
    "ItemEmbeddings",
    "SASRecEncoder",
    "TextEncoder",
    "TextSettings",
    "embedding_quality",
]
