"""Recall and NDCG of rankings with one relevant item each, on the whole catalogue."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def ranks_of(items: NDArray[np.int64], targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each target among the items recommended, counted from 0; their number where it is not there.

    Parameters
    ----------
    items
        The best first, -1 for none, shape (users, k).
    targets
        Shape (users,).
    """
    found = items == targets[:, None]
    ranks: NDArray[np.int64] = np.where(found.any(axis=1), found.argmax(axis=1), items.shape[1])
    return ranks


def ranking_metrics(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, float]:
    """Return Recall@K and NDCG@K of targets at these ranks, counted from 0.

    One item is relevant, so Recall@K is the share of ranks below K, and NDCG@K the mean of 1 / log₂(rank + 2) of those.
    """
    places = np.asarray(ranks, dtype=np.float64)
    gains = 1 / np.log2(places + 2)
    metrics = {f"recall@{k}": float((places < k).mean()) for k in cutoffs}
    return metrics | {f"ndcg@{k}": float(np.where(places < k, gains, 0.0).mean()) for k in cutoffs}
