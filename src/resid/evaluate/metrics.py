"""Metrics of ranks: Recall, NDCG and MRR of one relevant item per list, with bootstrap intervals over users."""

from dataclasses import dataclass
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


@dataclass(frozen=True, eq=False)
class Ranking:
    """What a model recommends for the windows of a split, under one rule for seen items.

    Attributes
    ----------
    ranks : ndarray of int64, shape (windows,)
        Rank of the target, counted from 0; `NOT_FOUND` beyond k.
    items : ndarray of int64, shape (windows, k)
        The best items, best first; -1 for none.
    scores : ndarray of float32, shape (windows, k)
        Their scores; -inf for none.
    """

    ranks: NDArray[np.int64]
    items: NDArray[np.int64]
    scores: NDArray[np.float32]

    @classmethod
    def empty(cls, windows: int, k: int) -> "Ranking":
        """Return a ranking without items."""
        shape = windows, k
        return cls(
            np.full(windows, NOT_FOUND, dtype=np.int64),
            np.full(shape, -1, dtype=np.int64),
            np.full(shape, -np.inf, dtype=np.float32),
        )


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


def mean_reciprocal_ranks(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, float]:
    """Return MRR@K from the ranks of targets, counted from 0: the mean of 1 / (rank + 1), or 0 for a rank from K on."""
    places = np.asarray(ranks, dtype=np.float64)
    return {f"mrr@{k}": float(np.where(places < k, 1 / (places + 1), 0.0).mean()) for k in cutoffs}


def intervals(
    ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0, *, users: NDArray[Any] | None = None
) -> dict[str, tuple[float, float]]:
    """Return 95% bootstrap intervals of the means.

    Parameters
    ----------
    ranks
        Of the targets, counted from 0, shape (targets,).
    cutoffs
        The K of Recall@K and NDCG@K.
    seed
        Of the bootstrap.
    users
        The user of every target, if users may have several: users are drawn, with all of their targets.
    """
    return {name: _interval(values, seed, users) for name, values in gains(ranks, cutoffs).items()}


def paired_differences(
    ranks: ArrayLike,
    others: ArrayLike,
    cutoffs: tuple[int, ...] = (5, 10),
    seed: int = 0,
    *,
    users: NDArray[Any] | None = None,
) -> dict[str, dict[str, Any]]:
    """Compare two rankings of the same targets by a paired bootstrap over users.

    Parameters
    ----------
    ranks, others
        Ranks of the same users' targets, counted from 0, shape (targets,).
    cutoffs
        The K of Recall@K and NDCG@K.
    seed
        Of the bootstrap.
    users
        The user of every target, as for `intervals`.

    Returns
    -------
    dict
        For every metric the mean ``difference`` of the first to the second ranking and its 95% ``interval``.
    """
    second = gains(others, cutoffs)
    differences = {name: values - second[name] for name, values in gains(ranks, cutoffs).items()}
    return {n: {"difference": float(v.mean()), "interval": _interval(v, seed, users)} for n, v in differences.items()}


def _interval(values: NDArray[np.float64], seed: int, users: NDArray[Any] | None = None) -> tuple[float, float]:
    """Return the 95% bootstrap interval of a mean over targets, for which users are drawn."""
    # A new generator per metric, so that its interval does not depend on the other cutoffs.
    rng = np.random.default_rng(seed)
    _, owners, sizes = np.unique(
        np.arange(len(values)) if users is None else users, return_inverse=True, return_counts=True
    )
    if sizes.max(initial=1) > 1:
        sums, n_users = np.bincount(owners, weights=values), len(sizes)
        means = np.empty(_BOOTSTRAP_SAMPLES)
        for sample in range(_BOOTSTRAP_SAMPLES):
            drawn = rng.integers(n_users, size=n_users)
            means[sample] = sums[drawn].sum() / sizes[drawn].sum()
    else:
        # Users with the same value are interchangeable, so only their numbers are drawn.
        levels, counts = np.unique(values, return_counts=True)
        means = rng.multinomial(len(values), counts / len(values), size=_BOOTSTRAP_SAMPLES) @ levels / len(values)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)
