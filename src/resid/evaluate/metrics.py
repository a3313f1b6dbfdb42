"""Metrics of ranks: Recall and NDCG of one relevant item per user, with bootstrap intervals."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

NOT_FOUND = int(np.iinfo(np.int64).max)  # rank of a target that is not recommended
_BOOTSTRAP_SAMPLES = 1_000


def ranks_of(items: NDArray[np.int64], targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each target among the recommended items, counted from 0; `NOT_FOUND` if it is missing.

    Parameters
    ----------
    items
        Best first, -1 for none, shape (users, k).
    targets
        Shape (users,).
    """
    found = items == targets[:, None]
    ranks: NDArray[np.int64] = np.where(found.any(axis=1), found.argmax(axis=1), NOT_FOUND)
    return ranks


def gains(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, NDArray[np.float64]]:
    """Return Recall@K and NDCG@K of every user from the ranks of their targets, counted from 0; each of shape (users,).

    With one relevant item, Recall@K is 1 for a rank below K, and NDCG@K is 1 / log₂(rank + 2).
    """
    places = np.asarray(ranks, dtype=np.float64)
    recall = {f"recall@{k}": (places < k).astype(np.float64) for k in cutoffs}
    return recall | {f"ndcg@{k}": np.where(places < k, 1 / np.log2(places + 2), 0.0) for k in cutoffs}


def ranking_metrics(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, float]:
    """Return the mean Recall@K and NDCG@K over users from the ranks of their targets, counted from 0."""
    return {name: float(values.mean()) for name, values in gains(ranks, cutoffs).items()}


def intervals(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return 95% bootstrap intervals of the means over users."""
    return {name: _interval(values, seed) for name, values in gains(ranks, cutoffs).items()}


def paired_differences(
    ranks: ArrayLike, others: ArrayLike, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0
) -> dict[str, dict[str, Any]]:
    """Compare two rankings of the same targets by a paired bootstrap over users.

    Parameters
    ----------
    ranks, others
        Ranks of the same users' targets, counted from 0, shape (users,).
    cutoffs
        The K of Recall@K and NDCG@K.
    seed
        Of the bootstrap.

    Returns
    -------
    dict
        For every metric the mean ``difference`` of the first to the second ranking and its 95% ``interval``.
    """
    second = gains(others, cutoffs)
    differences = {name: values - second[name] for name, values in gains(ranks, cutoffs).items()}
    return {n: {"difference": float(v.mean()), "interval": _interval(v, seed)} for n, v in differences.items()}


def _interval(values: NDArray[np.float64], seed: int) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean over users."""
    # A new generator per metric, so that its interval does not depend on the other cutoffs.
    rng = np.random.default_rng(seed)
    # Users with the same value are interchangeable, so only their numbers are drawn.
    levels, counts = np.unique(values, return_counts=True)
    means = rng.multinomial(len(values), counts / len(values), size=_BOOTSTRAP_SAMPLES) @ levels / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
