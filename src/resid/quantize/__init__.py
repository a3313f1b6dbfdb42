"""Q-stage: item vectors become short sequences of discrete codes."""

from resid.quantize.base import Quantizer
from resid.quantize.gaoq import GAOQ
from resid.quantize.hierarchical import HierarchicalKMeans
from resid.quantize.ids import SemanticIds
from resid.quantize.kmeans import BalancedKMeans
from resid.quantize.residual import RQKMeans

__all__ = ["GAOQ", "BalancedKMeans", "HierarchicalKMeans", "Quantizer", "RQKMeans", "SemanticIds"]
