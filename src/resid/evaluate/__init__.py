"""How good recommendations are: metrics of ranks, evaluation of a recommender, the cost of methods."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.evaluate.beyond_accuracy import beyond_accuracy
    from resid.evaluate.cold_items import ColdEvaluation, evaluate_cold_items
    from resid.evaluate.evaluation import Evaluation, evaluate, ranks_in_table, slices
    from resid.evaluate.metrics import (
        NOT_FOUND,
        gains,
        intervals,
        mean_reciprocal_ranks,
        paired_differences,
        ranking_metrics,
        ranks_of,
    )

__all__ = [
    "NOT_FOUND",
    "ColdEvaluation",
    "Evaluation",
    "beyond_accuracy",
    "evaluate",
    "evaluate_cold_items",
    "gains",
    "intervals",
    "mean_reciprocal_ranks",
    "paired_differences",
    "ranking_metrics",
    "ranks_in_table",
    "ranks_of",
    "slices",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "beyond_accuracy": "beyond_accuracy",
        "cold_items": "ColdEvaluation evaluate_cold_items",
        "evaluation": "Evaluation evaluate ranks_in_table slices",
        "metrics": "NOT_FOUND gains intervals mean_reciprocal_ranks paired_differences ranking_metrics ranks_of",
    },
)
