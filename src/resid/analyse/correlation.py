"""Correlations for figures with few points."""

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats


def pearson(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Pearson's correlation; None for fewer than three points, or if all are equal in x or y."""
    return _found(stats.pearsonr, x, y)


def spearman(x: ArrayLike, y: ArrayLike) -> float | None:
    """Return Spearman's rank correlation; None as for `pearson`."""
    return _found(stats.spearmanr, x, y)


def _found(correlation: object, x: ArrayLike, y: ArrayLike) -> float | None:
    a, b = np.asarray(x, dtype=float), np.asarray(y, dtype=float)
    if len(a) < 3 or not np.ptp(a) or not np.ptp(b):
        return None
    return float(correlation(a, b).statistic)  # type: ignore[operator]


def shown(value: float | None) -> str:
    """Return a correlation as it is written in a title or a sentence."""
    return "–" if value is None else f"{value:+.2f}".replace("-", "−")
