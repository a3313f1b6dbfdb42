"""Comparison of methods under one protocol: rows, processes, results, significance, tables, tuning."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.comparison.comparison import Comparison, compare, read_comparison
    from resid.comparison.significance import bootstrap_p_values, holm
    from resid.comparison.tables import latex, markdown

__all__ = ["Comparison", "bootstrap_p_values", "compare", "holm", "latex", "markdown", "read_comparison"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "comparison": "Comparison compare read_comparison",
        "significance": "bootstrap_p_values holm",
        "tables": "latex markdown",
    },
)
