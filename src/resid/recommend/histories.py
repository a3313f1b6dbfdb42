"""Histories: checking what users pass to `recommend`, arranging it in batches, and removing seen items from rankings."""

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.data.batches import PADDING
from resid.data.catalogue import Catalogue

log = logging.getLogger(__name__)

BATCH_USERS = 256  # users that are processed at a time

Indices = NDArray[np.int64]
Scores = NDArray[np.float32]


def check_histories(histories: Sequence[Any]) -> tuple[bool, list[Sequence[Any]]]:
    """Return whether a single history was given, and the histories as lists of item ids."""
    if isinstance(histories, (str, bytes)):
        raise InputError(f"a history is a list of item ids, not the string {histories!r}; pass [{histories!r}].")
    ordered = isinstance(histories, Iterable) and not isinstance(histories, (set, frozenset, dict))
    if not ordered or hasattr(histories, "columns"):
        raise InputError(f"histories must be lists of item ids, or one such list, not a {type(histories).__name__}.")
    rows = list(histories)
    lists = [isinstance(row, Iterable) and not isinstance(row, (str, bytes)) for row in rows]
    if rows and any(lists) != all(lists):
        raise InputError(
            "histories must be lists of item ids, or one such list; some of these are lists and some are not."
        )
    found: list[Sequence[Any]] = [rows] if rows and not lists[0] else [list(row) for row in rows]
    for row in found:
        if nested := [item for item in row if isinstance(item, (list, dict, set, np.ndarray))]:
            raise InputError(f"a history is a list of item ids; {nested[0]!r} is not an item id.")
    return bool(rows) and not lists[0], found


def check_users(users: Sequence[Any], count: int) -> list[Any]:
    """Return the user ids of `count` histories, or raise an `InputError`."""
    listed = list(users) if isinstance(users, Iterable) and not isinstance(users, (str, bytes)) else []
    if len(listed) != count or any(isinstance(user, (list, dict, set, np.ndarray)) for user in listed):
        raise InputError(f"'users' must be a list with one user id for each of the {count:,} histories, not {users!r}.")
    return listed


def known_items(rows: list[Sequence[Any]], catalogue: Catalogue) -> list[Indices]:
    """Return histories as item indices without unknown items, and log how many were skipped."""
    found = [catalogue.find(row) for row in rows]
    known = [indices[indices >= 0] for indices in found]
    if skipped := sum(len(all_) - len(some) for all_, some in zip(found, known, strict=True)):
        example = next(
            item for row, indices in zip(rows, found, strict=True) for item in np.asarray(row, object)[indices < 0]
        )
        integers = catalogue.item_ids.dtype.is_integer()
        hint = (
            ""
            if isinstance(example, int if integers else str)
            else f"; its ids are {'integers' if integers else 'strings'}"
        )
        log.warning("skipped %d items that are not in the catalogue, the first is %r%s", skipped, example, hint)
    if empty := sum(not len(indices) for indices in known):
        log.warning("%d histories have no item of the catalogue and get the most popular items", empty)
    return known


def allowed_items(
    catalogue: Catalogue, allow: Iterable[Any] | None, deny: Iterable[Any] | None
) -> NDArray[np.bool_] | None:
    """Return which items may be recommended, shape (n_items,); None if all of them may."""
    if allow is None and deny is None:
        return None
    allowed = np.full(len(catalogue), allow is None)
    for name, ids, value in (("allow", allow, True), ("deny", deny, False)):
        if isinstance(ids, (str, bytes)) or not isinstance(ids, Iterable | None):
            raise InputError(f"'{name}' is a list of item ids, not {ids!r}; pass [{ids!r}].")
        listed = list(ids) if ids is not None else []
        indices = catalogue.find(listed)
        allowed[indices[indices >= 0]] = value
        if (indices < 0).any():
            first = listed[int((indices < 0).argmax())]
            log.warning("%d items of '%s' are not in the catalogue, the first is %r", (indices < 0).sum(), name, first)
    if not allowed.any():
        raise InputError("'allow' and 'deny' exclude every item of the catalogue; change one of them.")
    return allowed


def recent_items(histories: Indices, catalogue: Catalogue) -> Indices:
    """Return the part of histories that models read, shape (users, max_history at most), after checking them.

    Parameters
    ----------
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    catalogue
        Of the model.
    """
    rows = np.asarray(histories)
    valid = rows.ndim == 2 and rows.shape[1] and rows.dtype.kind in "iu"
    if not valid or rows.min(initial=0) < PADDING or rows.max(initial=0) >= len(catalogue) or (rows[:, -1] < 0).any():
        raise InputError(
            f"histories must be item indices from 0 to {len(catalogue) - 1}, shape (users, length), with {PADDING} as padding "
            "on the left; 'recommend' takes item ids."
        )
    return np.ascontiguousarray(rows[:, -catalogue.max_history :], dtype=np.int64)


def without_seen(items: Indices, scores: Scores, histories: Indices, k: int) -> tuple[Indices, Scores]:
    """Return the first k items of every ranking that are not in its history, and their scores; shape (users, k)."""
    left = np.full((len(items), k), -1, dtype=np.int64)
    values = np.full((len(items), k), -np.inf, dtype=np.float32)
    for row in range(len(items)):
        unseen = np.flatnonzero((items[row] >= 0) & ~np.isin(items[row], histories[row]))[:k]
        left[row, : len(unseen)], values[row, : len(unseen)] = items[row, unseen], scores[row, unseen]
    return left, values


def batches_by_length(known: list[Indices], max_history: int, *, whole: bool) -> Iterator[tuple[Indices, Indices]]:
    """Yield users with histories of similar length, and their histories as one array with `PADDING` on the left.

    Histories are cut to their last `max_history` items. With `whole` they are not cut but padded to one of a few lengths,
    so that the result does not depend on the other histories of the batch.
    """
    lengths = np.array([len(indices) for indices in known], dtype=np.int64)
    if not whole:
        lengths = np.minimum(lengths, max_history)
    sizes = np.where(lengths == 0, 0, round_length(lengths, max_history))
    for size in np.unique(sizes):
        members = np.flatnonzero(sizes == size)
        members = members[np.argsort(lengths[members], kind="stable")]
        for users in np.split(members, range(BATCH_USERS, len(members), BATCH_USERS)):
            width = int(lengths[users].max()) if size <= max_history else int(size)
            batch = np.full((len(users), width), PADDING, dtype=np.int64)
            for row, user in enumerate(users):
                batch[row, width - lengths[user] :] = known[user][len(known[user]) - lengths[user] :]
            yield users, batch


def round_length(lengths: Indices, max_history: int) -> Indices:
    """Round lengths up to `max_history` times a power of two."""
    rounded: Indices = max_history * 2 ** np.ceil(np.log2(np.maximum(lengths, max_history) / max_history)).astype(
        np.int64
    )
    return rounded


def most_popular(catalogue: Catalogue, users: int, k: int, allowed: NDArray[np.bool_] | None) -> tuple[Indices, Scores]:
    """Return the k most popular items and the logarithm of their shares for every user, shape (users, k)."""
    order = catalogue.by_popularity
    best = (order if allowed is None else order[allowed[order]])[:k]
    items, scores = np.full(k, -1, dtype=np.int64), np.full(k, -np.inf, dtype=np.float32)
    items[: len(best)], scores[: len(best)] = best, catalogue.log_shares[best]
    return np.tile(items, (users, 1)), np.tile(scores, (users, 1))


def as_ids(items: Indices, item_ids: pl.Series) -> NDArray[Any]:
    """Return item ids for item indices, None for -1; any shape."""
    ids = np.empty(items.shape, dtype=object)
    ids[items >= 0] = item_ids.gather(items[items >= 0]).to_list()
    return ids
