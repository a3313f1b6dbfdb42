"""Which differences between the rows of a table are real: a paired bootstrap over users, corrected by Holm's method."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

_SAMPLES = 5_000
_CHUNK = 100  # samples that are drawn at once


def bootstrap_p_values(differences: NDArray[np.floating[Any]], users: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Return two-sided p-values of mean differences by a bootstrap over users.

    A p-value is twice the smaller share of the samples in which the mean is at most, or at least, zero. A user with several
    targets is drawn with all of them. All columns have the same samples.

    Parameters
    ----------
    differences
        Of two methods at every target, shape (targets, comparisons).
    users
        The user of every target, counted from 0, shape (targets,).
    """
    n_users, n_comparisons = int(users.max()) + 1, differences.shape[1]
    sums = np.zeros((n_users, n_comparisons))  # of a user's targets; the sign of a sum is that of the mean
    np.add.at(sums, users, differences)
    rng = np.random.default_rng(0)
    below, above = np.ones(n_comparisons), np.ones(n_comparisons)  # the sample itself counts, so no p-value is zero
    for begin in range(0, _SAMPLES, _CHUNK):
        drawn = rng.integers(n_users, size=(min(_CHUNK, _SAMPLES - begin), n_users))
        counts = np.stack([np.bincount(row, minlength=n_users) for row in drawn])
        means = counts @ sums  # (samples, comparisons), up to a factor
        below += (means <= 0).sum(axis=0)
        above += (means >= 0).sum(axis=0)
    p_values: NDArray[np.float64] = np.minimum(1.0, 2 * np.minimum(below, above) / (_SAMPLES + 1))
    return p_values


def holm(p_values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return p-values that are corrected for their number by the step-down method of Holm (1979), shape (comparisons,)."""
    order, count = np.argsort(p_values, kind="stable"), len(p_values)
    corrected = np.minimum(1.0, np.maximum.accumulate(p_values[order] * (count - np.arange(count))))
    result = np.empty(count)
    result[order] = corrected
    return result


def against_best_rival(
    gains: dict[str, dict[str, NDArray[np.float64]]], users: NDArray[np.integer[Any]]
) -> dict[str, dict[str, dict[str, Any]]]:
    """Compare every row with its best rival: the best row, or for that row itself the second.

    Parameters
    ----------
    gains
        Row → metric → its value at every target, averaged over seeds, shape (targets,).
    users
        The user of every target, counted from 0, shape (targets,).

    Returns
    -------
    dict
        Row → metric → the ``rival``, the mean ``difference`` to it, and its p-value ``p``, corrected for the number of rivals of
        the best row; empty if there is one row.
    """
    names = list(gains)
    if len(names) < 2:
        return {name: {} for name in names}
    metrics = list(gains[names[0]])
    means = {metric: np.array([gains[name][metric].mean() for name in names]) for metric in metrics}
    orders = {metric: np.argsort(-values, kind="stable") for metric, values in means.items()}
    columns = [
        gains[names[orders[metric][0]]][metric] - gains[names[rival]][metric]
        for metric in metrics
        for rival in orders[metric][1:]
    ]
    p_values = bootstrap_p_values(np.column_stack(columns), users).reshape(len(metrics), -1)
    found: dict[str, dict[str, dict[str, Any]]] = {name: {} for name in names}
    for metric, uncorrected in zip(metrics, p_values, strict=True):
        best, *rivals = orders[metric]
        corrected = holm(uncorrected)
        pairs = [
            (best, rivals[0], corrected[0]),
            *((rival, best, p) for rival, p in zip(rivals, corrected, strict=True)),
        ]
        for row, rival, p in pairs:
            difference = float(means[metric][row] - means[metric][rival])
            found[names[row]][metric] = {"rival": names[rival], "difference": difference, "p": float(p)}
    return found
