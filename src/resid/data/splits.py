"""Splits: which items of a history are training, validation and test targets, and the windows of these targets.

A history has three parts, one after the other. In leave-one-out, its last item is the test part and the item before it the
validation part. In a time split, the parts end at two points in time that are the same for all users (`time_split`).

A window is a target and at most ``max_length - 1`` items before it. Windows are not stored: each is a pair of positions
in the sequence of all histories.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]
Items = NDArray[np.int32]
Users = NDArray[np.int32]
UnseenTargets = Literal["keep", "drop", "train"]

HELD_OUT = ("validation", "test")  # in the order of time


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
    users: Users
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


@dataclass(frozen=True, eq=False)
class Histories:
    """All histories, and where their validation and test parts begin; everything that knows the split asks this class.

    Attributes
    ----------
    sequence : ndarray of int32, shape (n_interactions,)
        Item indices of all histories, one user after another.
    offsets : ndarray of int64, shape (n_users + 1,)
        Start of every user's history.
    n_items : int
        Size of the catalogue.
    boundaries : ndarray of int64, shape (n_users, 2), or None
        Time split: where the validation part and the test part of every user begin in `sequence`. None is leave-one-out, for
        which every history has at least three items.
    targets : {"first", "all"}
        Whether the first or every item of a validation or test part is a target; both parts have one item in leave-one-out.
    """

    sequence: Items
    offsets: Positions
    n_items: int
    boundaries: Positions | None = None
    targets: Literal["first", "all"] = "all"

    @cached_property
    def _bounds(self) -> Positions:
        """Where training, validation and test begin, and where the history ends; shape (n_users, 4)."""
        starts, stops = np.asarray(self.offsets[:-1]), np.asarray(self.offsets[1:])
        if self.boundaries is None:
            return np.column_stack([starts, stops - 2, stops - 1, stops])
        return np.column_stack([starts, self.boundaries, stops])

    @cached_property
    def in_training(self) -> NDArray[np.bool_]:
        """Which interactions belong to the training part of their history, shape (n_interactions,)."""
        ends = np.repeat(self._bounds[:, 1], np.diff(self.offsets))
        training: NDArray[np.bool_] = np.arange(len(self.sequence)) < ends
        return training

    @cached_property
    def training_targets(self) -> tuple[Positions, Users]:
        """The position and the user of every training target: all items of the training part but the first."""
        return _ranges(self._bounds[:, 0] + 1, self._bounds[:, 1])

    def held_out(self, name: str) -> tuple[Positions, Users]:
        """Return the position and the user of every target of ``"validation"`` or ``"test"`` that has a history."""
        positions, users = self._all_held_out(name)
        has_history = positions > self._bounds[users, 0]
        return positions[has_history], users[has_history]

    def count_without_history(self, name: str) -> int:
        """Return how many targets are left out because they are the first item of their user, which only time splits have."""
        return len(self._all_held_out(name)[0]) - len(self.held_out(name)[0])

    def _all_held_out(self, name: str) -> tuple[Positions, Users]:
        part = 1 + HELD_OUT.index(name)
        begin, end = self._bounds[:, part], self._bounds[:, part + 1]
        return _ranges(begin, np.minimum(end, begin + 1) if self.targets == "first" else end)

    @cached_property
    def unseen(self) -> dict[str, NDArray[np.bool_]]:
        """Which targets of validation and test no training history contains, in the order of `held_out`.

        The training part is the same for both: a test target that is also an unseen validation target counts as unseen.
        """
        seen = np.zeros(self.n_items, dtype=bool)
        seen[self.sequence[self.in_training]] = True
        return {name: ~seen[self.sequence[self.held_out(name)[0]]] for name in HELD_OUT}

    def training_counts(self, unseen_targets: UnseenTargets = "keep") -> NDArray[np.int64]:
        """Return how often each item occurs in training, including targets that are added to it; shape (n_items,)."""
        counts = np.bincount(self.sequence[self.in_training], minlength=self.n_items)
        if self._adds(unseen_targets):
            for name in HELD_OUT:
                added = self.held_out(name)[0][self.unseen[name]]
                counts += np.bincount(self.sequence[added], minlength=self.n_items)
        return counts

    def _adds(self, unseen_targets: UnseenTargets) -> bool:
        """Return whether unseen targets are added to training; in a time split, nothing later ever is."""
        return unseen_targets != "keep" and self.boundaries is None

    def count_tied_targets(self, tied: NDArray[np.bool_]) -> dict[str, int]:
        """Return, for validation and test, how many targets the order of the file decides.

        These are targets with the timestamp of another item of the same history. `tied` tells which interactions have the
        timestamp of the one before them, shape (n_interactions,).
        """
        baskets = np.cumsum(~tied) - 1  # interactions of one user at one time have the same number
        differs = np.zeros(len(self.sequence), dtype=bool)
        differs[1:] = tied[1:] & (self.sequence[1:] != self.sequence[:-1])
        mixed = np.bincount(baskets, weights=differs) > 0
        return {name: int(mixed[baskets[self.held_out(name)[0]]].sum()) for name in HELD_OUT}

    def count_repeated_targets(self) -> dict[str, int]:
        """Return, for validation and test, how many targets are the same item as the one before them."""
        positions = {name: self.held_out(name)[0] for name in HELD_OUT}
        return {name: int((self.sequence[at] == self.sequence[at - 1]).sum()) for name, at in positions.items()}

    def windows(
        self, max_length: int, *, unseen_targets: UnseenTargets = "keep", fingerprint: str = ""
    ) -> dict[str, Split]:
        """Return the windows of the training, validation and test splits.

        Parameters
        ----------
        max_length
            Maximum number of items in a window, including its target.
        unseen_targets
            What to do with validation and test targets that no training history contains. ``"keep"`` evaluates them.
            ``"train"`` evaluates them and also adds their windows to the training split. ``"drop"`` moves their windows
            from the evaluation to the training split. If a test target is moved and the validation target of the same user
            is not, the history of the moved window leaves the validation target out, so that training never sees an item
            that is still to be predicted. In a time split, ``"drop"`` only removes them from the evaluation.
        fingerprint
            Fingerprint of the Dataset.
        """
        starts = self._bounds[:, 0]
        targets, users = self.training_targets
        evaluated = {name: self.held_out(name) for name in HELD_OUT}
        training_sequence, unseen = self.sequence, self.unseen if unseen_targets != "keep" else {}
        if self._adds(unseen_targets):
            added = {name: evaluated[name][0][unseen[name]] for name in HELD_OUT}
            if unseen_targets == "drop":
                # Where only the test target is moved, it takes the place of the validation target in training.
                validation = evaluated["validation"][0][unseen["test"] & ~unseen["validation"]]
                training_sequence = np.array(self.sequence)
                training_sequence[validation] = self.sequence[validation + 1]
                training_sequence[validation + 1] = self.sequence[validation]
                added["test"] = added["test"] - ~unseen["validation"][unseen["test"]]
            targets = np.concatenate([targets, *added.values()])
            users = np.concatenate([users, *(evaluated[name][1][unseen[name]] for name in HELD_OUT)])
        if unseen_targets == "drop":
            evaluated = {name: (at[~unseen[name]], of[~unseen[name]]) for name, (at, of) in evaluated.items()}

        def split(name: str, sequence: Items, end: Positions, users: Users) -> Split:
            begin = np.maximum(starts[users], end - (max_length - 1))
            return Split(name, sequence, begin, end, starts[users], users, self.n_items, fingerprint)

        return {
            "train": split("train", training_sequence, targets, users),
            **{name: split(name, self.sequence, *evaluated[name]) for name in HELD_OUT},
        }


def _ranges(begin: Positions, end: Positions) -> tuple[Positions, Users]:
    """Return the positions from `begin` to `end` (exclusive) of every user, and the user of each position."""
    counts = np.maximum(end - begin, 0)
    users = np.repeat(np.arange(len(begin), dtype=np.int32), counts)
    return np.arange(counts.sum()) + np.repeat(begin - (np.cumsum(counts) - counts), counts), users
