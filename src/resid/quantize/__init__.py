"""Q-stage: item embeddings become short sequences of discrete codes."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
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

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Quantizer",
        "gaoq": "GAOQ",
        "hierarchical": "HierarchicalKMeans",
        "ids": "SemanticIds",
        "kmeans": "BalancedKMeans",
        "letter": "LETTER",
        "quality": "id_quality",
        "residual": "RQKMeans",
        "rqvae": "RQVAE",
    },
)
