"""Q-stage: item embeddings become short sequences of discrete codes."""

from resid.quantize.base import Quantizer
from resid.quantize.gaoq import GAOQ
from resid.quantize.hierarchical import HierarchicalKMeans
from resid.quantize.ids import SemanticIds
from resid.quantize.kmeans import BalancedKMeans
from resid.quantize.letter import LETTER
from resid.quantize.quality import id_quality
from resid.quantize.residual import RQKMeans
from resid.quantize.rqvae import RQVAE

__all__ = [
    "GAOQ",
    "LETTER",
    "RQVAE",
    "BalancedKMeans",
    "HierarchicalKMeans",
    "Quantizer",
    "RQKMeans",
    "SemanticIds",
    "id_quality",
]
