"""How good recommendations are: metrics of ranks, evaluation of a recommender, the cost of methods."""

from resid.evaluate.evaluation import Evaluation, evaluate, slices
from resid.evaluate.metrics import NOT_FOUND, gains, intervals, paired_differences, ranking_metrics, ranks_of

__all__ = [
    "NOT_FOUND",
    "Evaluation",
    "evaluate",
    "gains",
    "intervals",
    "paired_differences",
    "ranking_metrics",
    "ranks_of",
    "slices",
]
