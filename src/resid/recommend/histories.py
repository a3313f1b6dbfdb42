"""Histories: checking what users pass to `recommend`, arranging it in batches, and removing seen items from rankings."""

import itertools
import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import InputError, counted, shown
from resid.data.batches import PADDING
from resid.data.catalogue import Catalogue, as_list, is_hashable
from resid.data.where import Where, matching_items

log = logging.getLogger(__name__)

BATCH_USERS = 256  # users that are processed at a time

Indices = NDArray[np.int64]
Scores = NDArray[np.float32]


def check_histories(histories: Sequence[Any]) -> tuple[bool, list[Sequence[Any]]]:
    """Return whether a single history was given, and the histories as lists of item ids."""
    if isinstance(histories, (str, bytes)):
        raise InputError(
            f"a history is a list of item ids, not the string {shown(histories)}; pass [{shown(histories)}]."
        )
    rows = as_list(histories)
    if rows is None:
        raise InputError(f"histories must be lists of item ids, or one such list, not a {type(histories).__name__}.")
    if unordered := [row for row in rows if isinstance(row, (set, frozenset, dict))]:
        raise InputError(f"a history is a list of item ids, oldest first, not a {type(unordered[0]).__name__}.")
    lists = [as_list(row) for row in rows]
    found = [row for row in lists if row is not None]
    if found and len(found) < len(rows):
        raise InputError(
            "histories must be lists of item ids, or one such list; some of these are lists and some are not."
        )
    single = bool(rows) and not found
    return single, [rows] if single else list(found)


def check_users(users: Sequence[Any], count: int) -> list[Any]:
    """Return the user ids of `count` histories, or raise an `InputError`."""
    listed = as_list(users)
    if listed is None or len(listed) != count or not all(map(is_hashable, listed)):
        raise InputError(
            f"'users' must be a list with one user id for each of the {count:,} histories, not {shown(users)}."
        )
    return listed


def known_items(rows: list[Sequence[Any]], catalogue: Catalogue) -> list[Indices]:
    """Return histories as item indices without unknown items, and log how many were skipped."""
    found = [catalogue.find(row) for row in rows]
    known = [indices[indices >= 0] for indices in found]
    unknown = [item for row, indices in zip(rows, found, strict=True) for item in itertools.compress(row, indices < 0)]
    if unknown:
        integers = catalogue.item_ids.dtype.is_integer()
        fits = isinstance(unknown[0], (int, np.integer) if integers else str)
        hint = "" if fits else f"; the ids of the catalogue are {'integers' if integers else 'strings'}"
        log.warning("Skipped %s (e.g. %s)%s", counted(len(unknown), "unknown item id"), shown(unknown[0]), hint)
    if len(rows) == 1 and not len(rows[0]):
        log.warning("The history is empty; showing the most popular items")
    elif empty := sum(not len(indices) for indices in known):
        verb = "has no known item and gets" if empty == 1 else "have no known item and get"
        log.warning("%s %s the most popular items", counted(empty, "history", "histories"), verb)
    return known


def allowed_items(
    catalogue: Catalogue, allow: Iterable[Any] | None, deny: Iterable[Any] | None, where: Where | None = None
) -> NDArray[np.bool_] | None:
    """Return which items may be recommended, shape (n_items,); None if all of them may."""
    if allow is None and deny is None and where is None:
        return None
    allowed = np.full(len(catalogue), allow is None)
    for name, ids, value in (("allow", allow, True), ("deny", deny, False)):
        # Here the order does not matter.
        listed = [] if ids is None else list(ids) if isinstance(ids, (set, frozenset)) else as_list(ids)
        if listed is None:
            raise InputError(f"'{name}' is a list of item ids, not {shown(ids)}; pass [{shown(ids)}].")
        indices = catalogue.find(listed)
        allowed[indices[indices >= 0]] = value
        if unknown := list(itertools.compress(listed, indices < 0)):
            count = counted(len(unknown), "unknown item id")
            log.warning("Skipped %s of '%s' (e.g. %s)", count, name, shown(unknown[0]))
    if where is not None:
        allowed &= matching_items(catalogue, where)
    if not allowed.any():
        given = {"allow": allow, "deny": deny, "where": where}
        names = " and ".join(f"'{name}'" for name in given if name != "where" or where is not None)
        raise InputError(f"{names} exclude every item of the catalogue; change one of them.")
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
