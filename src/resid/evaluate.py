"""How good recommendations are: Recall and NDCG on the whole catalogue, with intervals, and for parts of the users."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from resid.data.dataset import Dataset
from resid.data.splits import Split

_EDGES = (5, 10, 20)  # history lengths at which slices end
_DRAWS = 1_000  # samples of the bootstrap


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


def gains(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, NDArray[np.float64]]:
    """Return Recall@K and NDCG@K of every user, from the ranks of their targets, counted from 0; each of shape (users,).

    One item is relevant, so Recall@K is 1 for a rank below K, and NDCG@K is 1 / log₂(rank + 2) there.
    """
    places = np.asarray(ranks, dtype=np.float64)
    recall = {f"recall@{k}": (places < k).astype(np.float64) for k in cutoffs}
    return recall | {f"ndcg@{k}": np.where(places < k, 1 / np.log2(places + 2), 0.0) for k in cutoffs}


def ranking_metrics(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, float]:
    """Return the means of Recall@K and NDCG@K over users, from the ranks of their targets, counted from 0."""
    return {name: float(values.mean()) for name, values in gains(ranks, cutoffs).items()}


def intervals(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of the means, by drawing users again and again with replacement."""
    random = np.random.default_rng(seed)
    found = {}
    for name, values in gains(ranks, cutoffs).items():
        # Users with the same value are alike, so it is enough to draw how many there are of each.
        levels, counts = np.unique(values, return_counts=True)
        means = random.multinomial(len(values), counts / len(values), size=_DRAWS) @ levels / len(values)
        low, high = np.quantile(means, [0.025, 0.975])
        found[name] = (float(low), float(high))
    return found


def slices(data: Dataset, windows: Split) -> dict[str, NDArray[np.bool_]]:
    """Return parts of the windows by the length of the history and by how often training saw the target.

    Returns
    -------
    dict
        Which windows belong to each part, shape (windows,): ``history 1–5`` and so on; ``target unseen``, that no training
        history contains; ``target rare`` and ``target popular``, the half of the other interactions with the less and with
        the more frequent items.
    """
    lengths = windows.end - windows.begin
    parts = {}
    for low, high in zip((0, *_EDGES), (*_EDGES, np.inf), strict=True):
        name = f"history {low + 1}–{high:.0f}" if np.isfinite(high) else f"history over {low}"
        parts[name] = (lengths > low) & (lengths <= high)
    counts = training_counts(data)
    often = counts[windows.targets]
    ordered = np.sort(counts)
    # The count up to which items have half of all interactions.
    middle = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)] if len(ordered) else 0
    parts["target unseen"] = often == 0
    parts["target rare"] = (often > 0) & (often <= middle)
    parts["target popular"] = often > middle
    return parts


def training_counts(data: Dataset) -> NDArray[np.int64]:
    """Return how often each item stands in the training part of the histories, shape (items,)."""
    training = np.ones(len(data.sequence), dtype=bool)
    stops = np.asarray(data.offsets[1:])
    training[stops - 1] = training[stops - 2] = False
    return np.bincount(data.sequence[training], minlength=data.n_items)
