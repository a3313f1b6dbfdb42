"""Metrics beyond accuracy: what the recommended lists have in common, how popular and how diverse their items are.

Lists are item indices, best first, -1 where there is no item; shape (lists, k). There is one list per target of a split.
"""

import math

import numpy as np
from numpy.typing import NDArray

from resid.data.dataset import Dataset
from resid.data.splits import Split

Lists = NDArray[np.int64]
HEAD_SHARE = 0.8  # of the training interactions, that the most popular items have; the other items are the long tail
_PAIRS_AT_A_TIME = 2**20


def beyond_accuracy(items: Lists, data: Dataset, windows: Split, cutoffs: tuple[int, ...] = (10,)) -> dict[str, float]:
    """Return all metrics of lists at every cutoff, for example ``coverage@10``.

    Parameters
    ----------
    items
        The list of every window, shape (windows, k). Items that the Dataset does not have, as they were added to the model, do not
        count.
    data
        The Dataset, whose training part says how popular items are.
    windows
        The windows of the split, whose histories are compared with the lists.
    cutoffs
        The numbers of items of a list that count.

    Returns
    -------
    dict
        Without metrics that are not defined: diversity without fields or of lists of one item.
    """
    items = np.where(items < data.n_items, items, -1)
    counts, tail = data.training_counts, long_tail(data.training_counts)
    information = -data.catalogue.log_shares.astype(np.float64) / np.log(2)
    found: dict[str, float] = {}
    for k in cutoffs:
        top = items[:, :k]
        found |= {
            f"coverage@{k}": coverage(top, data.n_items),
            f"gini@{k}": gini(top, data.n_items),
            f"novelty@{k}": mean_of_items(top, information),
            f"diversity@{k}": intra_list_diversity(top, data.fields),
            f"long_tail@{k}": mean_of_items(top, tail.astype(np.float64)),
            f"popularity_lift@{k}": popularity_lift(top, counts, windows),
        }
    return {name: value for name, value in found.items() if math.isfinite(value)}


def coverage(items: Lists, n_items: int) -> float:
    """Return the share of the catalogue that is in at least one list."""
    return len(np.unique(items[items >= 0])) / n_items


def gini(items: Lists, n_items: int) -> float:
    """Return the Gini coefficient of how often each item of the catalogue is recommended.

    0 if all items are recommended equally often, close to 1 if all lists have the same few items:
    Σ (2i − n − 1) x_i / (n Σ x_i), where x_1 ≤ … ≤ x_n are how often the n items of the catalogue are recommended.
    """
    often = np.sort(np.bincount(items[items >= 0], minlength=n_items)).astype(np.float64)
    weights = 2 * np.arange(1, n_items + 1) - n_items - 1
    return float(weights @ often / (n_items * often.sum())) if often.sum() else math.nan


def mean_of_items(items: Lists, values: NDArray[np.float64]) -> float:
    """Return the mean over lists of the mean value of their items; lists without items do not count.

    Parameters
    ----------
    items
        Shape (lists, k).
    values
        Of all items, shape (n_items,). Novelty is the mean of the self-information −log₂ p of items, where p is the share of
        an item in the training interactions with add-one smoothing. Of ones for the long tail, it is the share of the long tail.
    """
    real = items >= 0
    sizes = real.sum(axis=1)
    sums = np.where(real, values[items], 0.0).sum(axis=1)[sizes > 0]
    return float((sums / sizes[sizes > 0]).mean()) if len(sums) else math.nan


def long_tail(counts: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Return which items are in the long tail, shape (n_items,).

    These are the items outside of the head: the fewest most popular items that have at least 80% of the training interactions.
    Equally popular items enter the head in catalogue order.
    """
    order = np.argsort(-counts, kind="stable")
    reached = np.cumsum(counts[order])
    tail = np.ones(len(counts), dtype=bool)
    tail[order[: np.searchsorted(reached, HEAD_SHARE * counts.sum()) + 1]] = False
    return tail


def popularity_lift(items: Lists, counts: NDArray[np.int64], windows: Split) -> float:
    """Return how much more popular recommended items are than the items of histories: GAP(lists) / GAP(histories) − 1.

    GAP, the group average popularity, is the mean over lists of the mean training count of their items, here of all windows as
    one group. Histories are complete, with repeated items. 0 is no change, 1 is twice as popular.

    Parameters
    ----------
    items
        Shape (windows, k).
    counts
        Training counts of all items, shape (n_items,).
    windows
        With the histories.

    References
    ----------
    Abdollahpouri et al., "The Unfairness of Popularity Bias in Recommendation", 2019.
    """
    summed = np.concatenate([[0], np.cumsum(counts[windows.sequence])])
    in_histories = ((summed[windows.end] - summed[windows.first]) / (windows.end - windows.first)).mean()
    return mean_of_items(items, counts.astype(np.float64)) / float(in_histories) - 1 if in_histories else math.nan


def intra_list_diversity(items: Lists, fields: NDArray[np.int32]) -> float:
    """Return the mean over lists of the mean distance of two of their items.

    The distance of two items is the share of fields in which they differ. Two sets of tags differ by 1 − Jaccard similarity.
    "Missing" is a value like any other. Lists with fewer than two items do not count.

    Parameters
    ----------
    items
        Shape (lists, k).
    fields
        Codes, as in `Dataset.fields`: shape (n_items, n_fields) or (n_items, n_fields, n_values).
    """
    first, second = np.triu_indices(items.shape[1], 1)
    if not fields.shape[1] or not len(first):
        return math.nan
    total, lists = 0.0, 0
    for some in np.array_split(items, 1 + items.shape[0] * len(first) // _PAIRS_AT_A_TIME):
        one, other = some[:, first], some[:, second]  # (lists, pairs)
        real = (one >= 0) & (other >= 0)
        distances = np.zeros(real.shape)
        for field in range(fields.shape[1]):
            distances += _distances(np.asarray(fields[:, field]), one, other)
        pairs = real.sum(axis=1)
        sums = np.where(real, distances, 0.0).sum(axis=1)[pairs > 0]
        total += float((sums / pairs[pairs > 0]).sum()) / fields.shape[1]
        lists += len(sums)
    return total / lists if lists else math.nan


def _distances(codes: NDArray[np.int32], one: Lists, other: Lists) -> NDArray[np.float64]:
    """Return how much pairs of items differ in one field, whose codes are of shape (n_items,) or (n_items, n_values)."""
    if codes.ndim == 1 or not codes[:, 1:].any():  # one value each
        single = codes.reshape(len(codes), -1)[:, 0]
        differs: NDArray[np.bool_] = single[one] != single[other]
        return differs.astype(np.float64)
    sizes = (codes > 0).sum(axis=1)
    a, b = codes[one], codes[other]  # (lists, pairs, n_values)
    common = ((a[..., :, None] == b[..., None, :]) & (a > 0)[..., :, None]).sum(axis=(-2, -1))
    union = sizes[one] + sizes[other] - common
    distances: NDArray[np.float64] = 1.0 - np.where(union > 0, common / np.maximum(union, 1), 1.0)
    return distances
