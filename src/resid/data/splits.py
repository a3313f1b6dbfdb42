"""Leave-one-out splits: the last item of a history is the test target, the one before it the validation target.

A window is a target and at most ``max_length - 1`` items before it. Windows are not stored: each is a pair of positions
in the sequence of all histories.
"""

from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Items = NDArray[np.int32]

_HELD_OUT = (("validation", 2), ("test", 1))  # split, and the distance of its target from the end of the history


@dataclass(frozen=True, eq=False)
class Split:
    """The windows of the training, validation or test split.

    Attributes
    ----------
    name : str
    sequence : ndarray of int32, shape (n_interactions,)
        Item indices that `begin` and `end` refer to.
    begin, end : ndarray of int64, shape (n_windows,)
        Window w has the history ``sequence[begin[w]:end[w]]`` and the target ``sequence[end[w]]``.
    first : ndarray of int64, shape (n_windows,)
        Position of the user's first interaction, which may be before the window.
    users : ndarray of int32, shape (n_windows,)
        User index of every window.
    n_items : int
        Size of the catalogue.
    fingerprint : str
        Fingerprint of the Dataset.
    """

    name: str
    sequence: Items
    begin: Positions
    end: Positions
    first: Positions
    users: NDArray[np.int32]
    n_items: int
    fingerprint: str = ""

    def __len__(self) -> int:
        return len(self.end)

    @property
    def targets(self) -> Items:
        """The target of every window, shape (n_windows,)."""
        return np.asarray(self.sequence[self.end])

    @property
    def occurring_items(self) -> NDArray[np.bool_]:
        """Which items occur in the windows, as a target or in a history; shape (n_items,)."""
        covered = np.bincount(self.begin, minlength=len(self.sequence) + 1)
        covered -= np.bincount(self.end + 1, minlength=len(self.sequence) + 1)
        occurring = np.zeros(self.n_items, dtype=bool)
        occurring[self.sequence[np.cumsum(covered[:-1]) > 0]] = True
        return occurring

    def sample(self, count: int, seed: int = 0) -> "Split":
        """Return at most `count` windows, sampled without replacement, in their original order."""
        if count >= len(self):
            return self
        drawn = np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))
        return self.take(drawn)

    def take(self, index: NDArray[Any]) -> "Split":
        """Return some of the windows, selected by position or by a boolean mask."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("begin", "end", "first", "users")})

    @property
    def unbounded(self) -> "Split":
        """The same targets with the complete history of their users, regardless of `max_length`."""
        return replace(self, begin=self.first)

    def window(self, index: int) -> tuple[Items, int]:
        """Return the history and the target of one window as item indices."""
        end = self.end[index]
        return np.asarray(self.sequence[self.begin[index] : end]), int(self.sequence[end])


def split_windows(
    sequence: Items,
    offsets: Positions,
    n_items: int,
    max_length: int,
    *,
    unseen_targets: Literal["keep", "drop", "train"] = "keep",
    fingerprint: str = "",
) -> dict[str, Split]:
    """Return the windows of the training, validation and test splits.

    Parameters
    ----------
    sequence
        Item indices of all histories, shape (n_interactions,).
    offsets
        Start of every user's history, shape (n_users + 1,); every history has at least three items.
    n_items
        Size of the catalogue.
    max_length
        Maximum number of items in a window, including its target.
    unseen_targets
        What to do with validation and test targets that no training history contains. ``"keep"`` evaluates them.
        ``"train"`` evaluates them and also adds their windows to the training split. ``"drop"`` moves their windows
        from the evaluation to the training split. If a test target is moved and the validation target of the same user
        is not, the history of the moved window leaves the validation target out, so that training never sees an item
        that is still to be predicted.
    fingerprint
        Fingerprint of the Dataset.
    """
    starts, stops = np.asarray(offsets[:-1]), np.asarray(offsets[1:])
    counts = stops - starts - 3  # every item but the first and the last two is a training target
    before = np.cumsum(counts) - counts
    users = np.repeat(np.arange(len(starts), dtype=np.int32), counts)
    targets = np.arange(counts.sum()) + np.repeat(starts + 1 - before, counts)
    everyone = np.arange(len(starts), dtype=np.int32)
    evaluated = {name: everyone for name, _ in _HELD_OUT}
    training_sequence = sequence
    if unseen_targets != "keep":
        unseen = find_unseen_targets(sequence, offsets, n_items)
        added = {name: (stops - back)[unseen[name]] for name, back in _HELD_OUT}
        if unseen_targets == "drop":
            evaluated = {name: everyone[~unseen[name]] for name, _ in _HELD_OUT}
            # Where only the test target is moved, it takes the place of the validation target in training.
            validation = stops[unseen["test"] & ~unseen["validation"]] - 2
            training_sequence = np.array(sequence)
            training_sequence[validation] = sequence[validation + 1]
            training_sequence[validation + 1] = sequence[validation]
            added["test"] = (stops - 1 - ~unseen["validation"])[unseen["test"]]
        targets = np.concatenate([targets, *added.values()])
        users = np.concatenate([users, *(everyone[unseen[name]] for name, _ in _HELD_OUT)])

    def split(name: str, sequence: Items, end: Positions, users: NDArray[np.int32]) -> Split:
        begin = np.maximum(starts[users], end - (max_length - 1))
        return Split(name, sequence, begin, end, starts[users], users, n_items, fingerprint)

    return {
        "train": split("train", training_sequence, targets, users),
        **{name: split(name, sequence, (stops - back)[evaluated[name]], evaluated[name]) for name, back in _HELD_OUT},
    }


def find_unseen_targets(sequence: Items, offsets: Positions, n_items: int) -> dict[str, NDArray[np.bool_]]:
    """Return, for validation and test, which users have a target that no training history contains.

    Both arrays have the shape (n_users,). The training part is the same for both: a test target that is also an unseen
    validation target counts as unseen.
    """
    stops = np.asarray(offsets[1:])
    seen = np.zeros(n_items, dtype=bool)
    seen[sequence[in_training(sequence, offsets)]] = True
    return {name: ~seen[sequence[stops - back]] for name, back in _HELD_OUT}


def count_tied_targets(sequence: Items, offsets: Positions, tied: NDArray[np.bool_]) -> dict[str, int]:
    """Return, for validation and test, how many targets the order of the file decides.

    These are targets with the timestamp of another item of the same history. `tied` tells which interactions have the
    timestamp of the one before them, shape (n_interactions,).
    """
    baskets = np.cumsum(~tied) - 1  # interactions of one user at one time have the same number
    differs = np.zeros(len(sequence), dtype=bool)
    differs[1:] = tied[1:] & (sequence[1:] != sequence[:-1])
    mixed = np.bincount(baskets, weights=differs) > 0
    return {name: int(mixed[baskets[np.asarray(offsets[1:]) - back]].sum()) for name, back in _HELD_OUT}


def count_repeated_targets(sequence: Items, offsets: Positions) -> dict[str, int]:
    """Return, for validation and test, how many targets are the same item as the one before them."""
    ends = np.asarray(offsets[1:])
    return {name: int((sequence[ends - back] == sequence[ends - back - 1]).sum()) for name, back in _HELD_OUT}


def in_training(sequence: Items, offsets: Positions) -> NDArray[np.bool_]:
    """Return which interactions belong to the training part of their history, shape (n_interactions,)."""
    training = np.ones(len(sequence), dtype=bool)
    for _, back in _HELD_OUT:
        training[np.asarray(offsets[1:]) - back] = False
    return training
