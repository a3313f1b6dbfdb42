"""E-stage: item embeddings from histories and fields."""

from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.encoder import FAMAE, FamaeSettings
from resid.encode.metrics import quality

__all__ = ["FAMAE", "Encoder", "FamaeSettings", "ItemEmbeddings", "quality"]
