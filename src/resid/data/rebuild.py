"""Rebuild user histories from published windows; the computation behind `published`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

_ROWS_AT_A_TIME = 500_000

Integers = NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """All published windows; `history` holds their histories one after another, as item indices."""

    user_ids: pl.Series  # (users,) sorted
    user: Integers  # (rows,) index into user_ids
    time: NDArray[Any]  # (rows,)
    target: NDArray[np.int32]  # (rows,)
    history: NDArray[np.int32]
    start: Integers  # (rows,) where the row's history begins in `history`
    length: Integers  # (rows,)
    split: NDArray[np.int8]  # (rows,) 0, 1, 2: train, valid, test
    files: list[Path]
    file: NDArray[np.int32]  # (rows,) index into files
    number: Integers  # (rows,) row number in the file, from 1

    def name(self, row: int) -> str:
        """Return the file and the row number, for error messages."""
        return f"{self.files[self.file[row]]}, row {self.number[row]:,}"

    def window(self, row: int) -> tuple[tuple[int, ...], int]:
        """Return the history and the target of a row."""
        begin = self.start[row]
        return tuple(self.history[begin : begin + self.length[row]].tolist()), int(self.target[row])


def rebuild_histories(rows: Rows) -> tuple[NDArray[np.int32], Integers, Integers, dict[int, str], int]:
    """Rebuild the history of every user.

    The history of a user is the history of the first window, followed by the targets of all windows in chronological
    order. Every window must then be the end of the history before its target, the target of valid the second-last item
    and that of test the last.

    Returns
    -------
    sequence, offsets
        As in `Dataset`.
    users
        The user of every history.
    faults
        The users who are left out because their rows contradict each other, and why.
    duplicates
        Number of exact duplicates among the rows, which are ignored.
    """
    faults = _repeated_users(rows)
    order = np.lexsort((rows.split, rows.length, rows.time, rows.user))
    order = order[~np.isin(rows.user[order], list(faults))]
    broken = np.unique(rows.user[order][~_fits(rows, order, *_concatenate(rows, order))])
    # Timestamps may be equal, and rows may occur twice: then the histories tell the order.
    duplicates, repaired = 0, [order[~np.isin(rows.user[order], broken)]]
    in_question = order[np.isin(rows.user[order], broken)]
    for members in np.split(in_question, np.flatnonzero(np.diff(rows.user[in_question])) + 1) if len(broken) else ():
        chain, misfit, repeated = _chain([rows.window(row) for row in members])
        duplicates += repeated
        if misfit is None:
            repaired.append(members[chain])
        else:
            faults[int(rows.user[members[0]])] = (
                f"{rows.name(members[misfit])}: the history does not match the earlier rows of user "
                f"{rows.user_ids[int(rows.user[members[0]])]!r}"
            )
    order = np.concatenate(repaired)
    order = order[np.argsort(rows.user[order], kind="stable")]
    order = order[~np.isin(rows.user[order], list(misplaced := _misplaced(rows, order)))]
    sequence, _, offsets = _concatenate(rows, order)
    return sequence, offsets, np.unique(rows.user[order]), faults | misplaced, duplicates


def _repeated_users(rows: Rows) -> dict[int, str]:
    """Return the users with more than one row in valid or test."""
    faults = {}
    for split in (1, 2):
        members = np.flatnonzero(rows.split == split)
        members = members[np.argsort(rows.user[members], kind="stable")]
        for place in np.flatnonzero(np.diff(rows.user[members]) == 0):
            first, second = members[place], members[place + 1]
            user = int(rows.user[first])
            faults[user] = f"{rows.name(second)}: user {rows.user_ids[user]!r} has another row in {rows.name(first)}"
    return faults


def _concatenate(rows: Rows, order: Integers) -> tuple[NDArray[np.int32], Integers, Integers]:
    """Concatenate the first history and the targets of every user.

    Returns the sequence, the position of every row's target in it, and the offsets of the users.
    """
    first = np.flatnonzero(np.r_[True, np.diff(rows.user[order]) > 0]) if len(order) else np.zeros(0, dtype=np.int64)
    windows = np.diff(np.r_[first, len(order)])  # per user
    before = rows.length[order[first]]  # items before the first target
    offsets = np.concatenate([[0], np.cumsum(windows + before)])
    position = np.arange(len(order)) + np.repeat(np.cumsum(before), windows)
    sequence = np.empty(offsets[-1], dtype=np.int32)
    sequence[position] = rows.target[order]
    within = np.arange(before.sum()) - np.repeat(np.cumsum(before) - before, before)
    sequence[np.repeat(offsets[:-1], before) + within] = rows.history[
        np.repeat(rows.start[order[first]], before) + within
    ]
    return sequence, position, offsets


def _fits(
    rows: Rows, order: Integers, sequence: NDArray[np.int32], position: Integers, offsets: Integers
) -> NDArray[np.bool_]:
    """Return which rows have the history that the sequence has before their target; shape (rows,)."""
    fits = np.ones(len(order), dtype=bool)
    user = np.searchsorted(offsets, position, side="right") - 1
    for begin in range(0, len(order), _ROWS_AT_A_TIME):
        part = slice(begin, begin + _ROWS_AT_A_TIME)
        length, start = rows.length[order[part]], rows.start[order[part]]
        row = np.repeat(np.arange(len(length)), length)
        within = np.arange(length.sum()) - np.repeat(np.cumsum(length) - length, length)
        expected = position[part][row] - length[row] + within
        inside = expected >= offsets[user[part]][row]
        same = inside & (sequence[np.where(inside, expected, 0)] == rows.history[start[row] + within])
        fits[part] = np.bincount(row[~same], minlength=len(length)) == 0
    fits[(rows.length[order] == 0) & (position > offsets[user])] = False
    return fits


def _chain(windows: list[tuple[tuple[int, ...], int]]) -> tuple[list[int], int | None, int]:
    """Order the windows of a user so that every history is the end of what comes before its target.

    This is unambiguous if the histories are complete, or if they are cut but no item occurs twice. Returns the order, the
    first window that does not fit, if there is one, and the number of duplicates.
    """
    distinct = {window: index for index, window in reversed(list(enumerate(windows)))}
    waiting = sorted(distinct.values())
    chain: list[int] = []
    sequence = min((windows[index][0] for index in waiting), key=len)
    while waiting:
        # The longest history first: while histories are complete, it is the only one that fits.
        fitting = [index for index in waiting if _ends_with(sequence, windows[index][0])]
        if not fitting:
            return chain, waiting[0], len(windows) - len(distinct)
        following = max(fitting, key=lambda index: len(windows[index][0]))
        chain.append(following)
        waiting.remove(following)
        sequence = (*sequence, windows[following][1])
    return chain, None, len(windows) - len(distinct)


def _ends_with(sequence: tuple[int, ...], history: tuple[int, ...]) -> bool:
    return sequence[len(sequence) - len(history) :] == history if history else not sequence


def _misplaced(rows: Rows, order: Integers) -> dict[int, str]:
    """Return the users whose row in valid is not their second-last, or whose row in test is not their last."""
    user = rows.user[order]
    last = np.searchsorted(user, user, side="right") - 1
    faults = {}
    for split, distance, word in ((1, 1, "second-last"), (2, 0, "last")):
        for row in order[(rows.split[order] == split) & (last - np.arange(len(order)) != distance)]:
            owner = int(rows.user[row])
            faults[owner] = f"{rows.name(row)}: not the {word} interaction of user {rows.user_ids[owner]!r}"
    return faults
