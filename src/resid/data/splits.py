"""Leave-one-out: the last item of a history is the test target, the one before it the validation target.

A window is a target and at most ``max_length - 1`` items before it. Windows are not stored: each is two positions
in the sequence of all histories.
"""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Items = NDArray[np.int32]

_HELD_OUT = (("validation", 2), ("test", 1))  # how far from the end of its history the target stands


@dataclass(frozen=True, eq=False)
class Split:
    """The windows of training, validation or test.

    Attributes
    ----------
    name : str
    sequence : ndarray of int32, shape (n_interactions,)
        The Dataset's sequence of item indices.
    begin, end : ndarray of int64, shape (n_windows,)
        Window w has the history ``sequence[begin[w]:end[w]]`` and the target ``sequence[end[w]]``.
    first : ndarray of int64, shape (n_windows,)
        Where the user's first interaction is, which may be before the window.
    users : ndarray of int32, shape (n_windows,)
        Whose window it is.
    n_items : int
        The size of the catalogue, from which negatives are drawn.
    fingerprint : str
        That of the Dataset.
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
        """Which items occur in the windows, as target or in a history, shape (n_items,)."""
        covered = np.bincount(self.begin, minlength=len(self.sequence) + 1)
        covered -= np.bincount(self.end + 1, minlength=len(self.sequence) + 1)
        occurring = np.zeros(self.n_items, dtype=bool)
        occurring[self.sequence[np.cumsum(covered[:-1]) > 0]] = True
        return occurring

    def sample(self, count: int, seed: int = 0) -> "Split":
        """Return at most `count` windows, drawn without replacement, in their order."""
        if count >= len(self):
            return self
        drawn = np.sort(np.random.default_rng(seed).choice(len(self), count, replace=False))
        return self.take(drawn)

    def take(self, index: NDArray[Any]) -> "Split":
        """Return some windows, by their numbers or by a boolean for each."""
        return replace(self, **{name: getattr(self, name)[index] for name in ("begin", "end", "first", "users")})

    @property
    def unbounded(self) -> "Split":
        """The same targets with all that their users had before, however much."""
        return replace(self, begin=self.first)

    def window(self, index: int) -> tuple[Items, int]:
        """Return the history and the target of one window, as item indices."""
        end = self.end[index]
        return np.asarray(self.sequence[self.begin[index] : end]), int(self.sequence[end])


def split_windows(
    sequence: Items,
    offsets: Positions,
    n_items: int,
    max_length: int,
    *,
    add_unseen_targets: bool = False,
    fingerprint: str = "",
) -> dict[str, Split]:
    """Return the windows of train, validation and test.

    Parameters
    ----------
    sequence
        Item indices of all histories, shape (n_interactions,).
    offsets
        Where each user's history begins, shape (n_users + 1,); every history has at least three items.
    n_items
        Size of the catalogue.
    max_length
        The most items a window has, its target included.
    add_unseen_targets
        Also train on the validation and test windows whose target no training history contains.
    fingerprint
        That of the Dataset.
    """
    starts, stops = np.asarray(offsets[:-1]), np.asarray(offsets[1:])
    n_users = len(starts)
    counts = stops - starts - 3  # every item but the first and the last two is a training target
    before = np.cumsum(counts) - counts
    users = np.repeat(np.arange(n_users, dtype=np.int32), counts)
    targets = np.arange(counts.sum()) + np.repeat(starts + 1 - before, counts)
    everyone = np.arange(n_users, dtype=np.int32)
    if add_unseen_targets:
        unseen = unseen_targets(sequence, offsets, n_items)
        targets = np.concatenate([targets, *((stops - back)[unseen[name]] for name, back in _HELD_OUT)])
        users = np.concatenate([users, *(everyone[unseen[name]] for name, _ in _HELD_OUT)])

    def split(name: str, end: Positions, users: NDArray[np.int32]) -> Split:
        begin = np.maximum(starts[users], end - (max_length - 1))
        return Split(name, sequence, begin, end, starts[users], users, n_items, fingerprint)

    return {
        "train": split("train", targets, users),
        **{name: split(name, stops - back, everyone) for name, back in _HELD_OUT},
    }


def unseen_targets(sequence: Items, offsets: Positions, n_items: int) -> dict[str, NDArray[np.bool_]]:
    """Tell, for validation and test, whose target no training history contains; each of shape (n_users,)."""
    stops = np.asarray(offsets[1:])
    seen = np.zeros(n_items, dtype=bool)
    seen[sequence[in_training(sequence, offsets)]] = True
    return {name: ~seen[sequence[stops - back]] for name, back in _HELD_OUT}


def in_training(sequence: Items, offsets: Positions) -> NDArray[np.bool_]:
    """Tell which interactions belong to the training part of their history, shape (n_interactions,)."""
    training = np.ones(len(sequence), dtype=bool)
    for _, back in _HELD_OUT:
        training[np.asarray(offsets[1:]) - back] = False
    return training
