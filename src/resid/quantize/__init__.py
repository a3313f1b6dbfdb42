"""Q-stage: item vectors become short sequences of discrete codes."""

from resid.quantize.base import Quantizer
from resid.quantize.gaoq import GAOQ
from resid.quantize.ids import SemanticIds
from resid.quantize.kmeans import BalancedKMeans

__all__ = ["GAOQ", "BalancedKMeans", "Quantizer", "SemanticIds"]
