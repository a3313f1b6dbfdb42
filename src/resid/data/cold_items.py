"""The protocol ``cold-items``: the items that appeared last are hidden from a Dataset, and added to the model that was fitted.

The items whose first interaction is the latest are removed with all of their interactions. What is left is a Dataset of its own, with
its own training, validation and test parts, on which a model is fitted as on any other. The hidden items are then added to the model
(`resid items add`), and the test targets of the whole Dataset, old and new items, are ranked.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, counted, shown
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems, new_items_of
from resid.data.prepare import build_dataset
from resid.data.settings import MIN_INTERACTIONS
from resid.data.splits import Histories, Split

BY_TIME = "time of the first interaction"
BY_POSITION = "earliest position in a history, relative to its length, as the data has no times"


@dataclass(frozen=True, eq=False)
class ColdItems:
    """A Dataset, and the same without the items that appeared last.

    Attributes
    ----------
    data : Dataset
        The whole Dataset.
    known : Dataset
        Without the new items; users with too few other interactions are left out.
    is_new : ndarray of bool, shape (n_items,)
        Which items of `data` are new.
    share : float
        The share of the items that was asked for.
    order : str
        What tells when an item appeared: `BY_TIME` or `BY_POSITION`.
    """

    data: Dataset
    known: Dataset
    is_new: NDArray[np.bool_]
    share: float
    order: str

    def new_items(self, catalogue: Any) -> NewItems:
        """Return the hidden items as they are added to a model with the catalogue of `known`."""
        table = self.data.item_table.filter(pl.Series(self.is_new))
        return new_items_of(table, catalogue, "the hidden items")

    @cached_property
    def windows(self) -> Split:
        """The test windows of the whole Dataset with the item indices of a model to which the new items were added."""
        places = np.empty(self.data.n_items, dtype=np.int32)
        places[~self.is_new] = np.arange(self.known.n_items)
        places[self.is_new] = self.known.n_items + np.arange(self.is_new.sum())
        return replace(self.data.test, sequence=places[self.data.sequence], users=self._users, fingerprint="")

    @property
    def targets_are_new(self) -> NDArray[np.bool_]:
        """Which targets of `windows` are new items, shape (windows,)."""
        return self.windows.targets >= self.known.n_items

    def windows_without(self) -> tuple[Split, NDArray[np.int64]]:
        """Return the windows whose target is old with the new items removed from the history, and which of `windows` they are.

        Windows without any old item in the history are left out.
        """
        windows = self.windows
        kept = windows.sequence < self.known.n_items
        before = np.concatenate([[0], np.cumsum(kept)])  # old interactions before each position
        first, end = before[windows.first], before[windows.end]
        index = np.flatnonzero(~self.targets_are_new & (end > first))
        begin = np.maximum(first, end - (self.data.settings.max_length - 1))
        places = {"begin": begin[index], "end": end[index], "first": first[index], "users": windows.users[index]}
        return replace(windows, sequence=windows.sequence[kept], n_items=self.known.n_items, **places), index

    @property
    def _users(self) -> NDArray[np.int32]:
        """The user index in `known` of every test window, -1 for users that it does not have."""
        users = self.known.user_indices(self.data.user_ids)[self.data.test.users]
        return users.astype(np.int32)

    def facts(self) -> dict[str, Any]:
        """Return what a reader needs to know about the protocol, ready for JSON."""
        targets = self.targets_are_new
        return {
            "name": "cold-items",
            "share": self.share,
            "order": self.order,
            "items": {"new": int(self.is_new.sum()), "old": self.known.n_items},
            "hidden_interactions": int(self.is_new[self.data.sequence].sum()),
            "targets": {"new": int(targets.sum()), "old": int((~targets).sum())},
            "users_left_out_of_training": self.data.n_users - self.known.n_users,
        }


def hide_newest(data: Dataset, share: float = 0.1) -> ColdItems:
    """Hide the items of a Dataset that appeared last.

    Items are ordered by the time of their first interaction. If the Dataset has no times (`Dataset.first_seen`), by their earliest
    position in a history, relative to its length: 0 is the first item of a history, 1 the last. Ties are ordered by the mean
    position, then by index.

    Parameters
    ----------
    data
        The Dataset.
    share
        The share of the items to hide, between 0 and 1.

    Raises
    ------
    InputError
        If the share is invalid, or there is nothing left to train on, to validate, or to test.
    """
    require_dataset(data)
    if isinstance(share, bool) or not isinstance(share, (int, float)) or not 0 < share < 1:
        raise InputError(
            f"the share of new items must be more than 0 and less than 1, for example 0.1, not {shown(share)}."
        )
    count = round(share * data.n_items)
    if not 0 < count < data.n_items:
        raise InputError(
            f"a share of {share} of {counted(data.n_items, 'item')} is {count}; choose another share, or a Dataset with more items."
        )
    is_new = newest_items(data, share)
    cold = ColdItems(
        data, _without(data, is_new), is_new, float(share), BY_POSITION if data.first_seen is None else BY_TIME
    )
    for name, part in (("train", cold.known.train), ("validation", cold.known.validation)):
        if not len(part):
            raise InputError(
                f"without the newest {share:.0%} of the items, the Dataset has no window for {name}; hide fewer."
            )
    new = cold.targets_are_new
    if new.all() or not new.any():
        which = "new" if new.all() else "old"
        raise InputError(
            f"all {len(new):,} test targets are {which} items, so there is nothing to compare; choose another share."
        )
    return cold


def newest_items(data: Dataset, share: float, *, in_training: bool = False) -> NDArray[np.bool_]:
    """Return which items appeared last, shape (n_items,); see `hide_newest` for the order.

    Parameters
    ----------
    data
        The Dataset.
    share
        The share of the items.
    in_training
        Only among the items that occur in training. Positions are those in the training part of the histories; the times are those of the
        first interactions in the whole log, as the Dataset has no others.
    """
    counted_in = data.in_training if in_training else np.ones(data.n_interactions, dtype=bool)
    users, items = np.repeat(np.arange(data.n_users), np.diff(data.offsets)), np.asarray(data.sequence)
    lengths = np.bincount(users[counted_in], minlength=data.n_users)
    relative = (np.arange(len(items)) - data.offsets[users]) / np.maximum(lengths[users] - 1, 1)
    relative, items = relative[counted_in], items[counted_in]
    earliest = np.ones(data.n_items)
    np.minimum.at(earliest, items, relative)
    counts = np.bincount(items, minlength=data.n_items)
    mean = np.bincount(items, weights=relative, minlength=data.n_items) / np.maximum(counts, 1)
    first = earliest if data.first_seen is None else data.first_seen
    among = np.flatnonzero(counts) if in_training else np.arange(data.n_items)
    order = among[np.lexsort((mean[among], first[among]))]
    newest = np.zeros(data.n_items, dtype=bool)
    newest[order[len(among) - round(share * len(among)) :]] = True
    return newest


def _without(data: Dataset, hidden: NDArray[np.bool_]) -> Dataset:
    """Return the Dataset without some items, all of their interactions, and users who then have too few."""
    users = np.repeat(np.arange(data.n_users), np.diff(data.offsets))
    kept = ~hidden[data.sequence]
    left = np.bincount(users[kept], minlength=data.n_users)
    least = MIN_INTERACTIONS if data.boundaries is None else 1
    stays = left >= least
    if not stays.any():
        raise InputError(f"without the hidden items, no user has {counted(least, 'interaction')} left; hide fewer.")
    kept &= stays[users]
    before = np.concatenate([[0], np.cumsum(kept)])  # kept interactions before each position
    places = (np.cumsum(~hidden) - 1).astype(np.int32)
    boundaries = None if data.boundaries is None else before[data.boundaries[stays]]
    sequence = places[np.asarray(data.sequence)[kept]]
    offsets = before[np.append(data.offsets[:-1][stays], data.n_interactions)]
    histories = Histories(sequence, offsets, int((~hidden).sum()), boundaries, data.settings.targets)
    people, items = ({"user": data.user_ids.filter(pl.Series(stays))}, data.item_table.filter(pl.Series(~hidden)))
    counts = {"users": int(stays.sum()), "items": len(items), "interactions": len(sequence)}
    steps = [*data.steps, {"step": "newest items hidden", **counts}]
    # Unseen targets stay: moved to training, a test target of the whole Dataset could be trained on.
    settings = data.settings.replace(unseen_targets="keep")
    known = build_dataset(pl.DataFrame(people), items, data.field_names, histories, settings, steps, {})
    known.first_seen = None if data.first_seen is None else data.first_seen[~hidden]
    return known
