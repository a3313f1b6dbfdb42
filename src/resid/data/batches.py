"""Batches that models are trained on: windows of histories, pieces of histories, or rows of a matrix.

The order of the batches depends on the seed and the epoch alone, so training resumes exactly. Samples of similar length
are batched together.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.data.splits import Split

PADDING = -1  # fills up samples that are shorter than the longest of their batch


@dataclass(eq=False)  # not frozen: Fabric moves a batch to a device by setting its fields
class _Rows:
    """Arrays with one row per sample of a batch."""

    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    @property
    def weight(self) -> int:
        """The number of training targets in the batch."""
        return len(self)

    def share(self, rank: int, of: int) -> Self:
        """Return the share of one of several processes; a batch with fewer rows than processes is not divided."""
        if len(self) < of:
            return self
        return type(self)(**{field.name: getattr(self, field.name)[rank::of] for field in fields(self)})


@dataclass(eq=False)
class Batch(_Rows):
    """A batch of windows.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Positions of the windows in the split.
    users : ndarray of int64, shape (batch,)
    histories : ndarray of int64, shape (batch, longest history)
        Item indices, most recent last, with `PADDING` on the left.
    targets : ndarray of int64, shape (batch,)
    """

    users: NDArray[np.int64]
    histories: NDArray[np.int64]
    targets: NDArray[np.int64]


@dataclass(eq=False)
class SequenceBatch(_Rows):
    """A batch of pieces of histories.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Positions of the pieces in `SequenceBatches`.
    items : ndarray of int64, shape (batch, longest piece)
        Item indices, most recent last, with `PADDING` on the right.
    first_target : ndarray of int64, shape (batch,)
        Position of the first target within the piece, at least 1. It and all items after it are targets.
    """

    items: NDArray[np.int64]
    first_target: NDArray[np.int64]

    @property
    def are_targets(self) -> NDArray[np.bool_]:
        """Which items after the first of their piece are targets, shape (batch, longest piece - 1)."""
        position = np.arange(1, self.items.shape[1])
        targets: NDArray[np.bool_] = (self.items[:, 1:] != PADDING) & (position >= self.first_target[:, None])
        return targets

    @property
    def weight(self) -> int:
        """The number of training targets in the batch."""
        return int(self.are_targets.sum())


@dataclass(eq=False)
class VectorBatch(_Rows):
    """A batch of rows of a matrix.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Positions of the rows in the matrix.
    vectors : ndarray of float32, shape (batch, d)
    """

    vectors: NDArray[np.float32]


_B = TypeVar("_B", bound=_Rows)


class EpochBatches(ABC, Generic[_B]):
    """An iterable over the batches of one epoch after another.

    The order of an epoch is a function of the seed and the epoch, so the position is the only state to save, and training
    resumes exactly.

    Attributes
    ----------
    passes : int
        Number of passes over the data per epoch; training reports them as epochs of their own.
    """

    passes = 1

    def __init__(self, samples: int, fingerprint: str, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise InputError(f"invalid value {batch_size} for 'batch_size': it must be at least 1.")
        self.samples = samples
        self.fingerprint = fingerprint
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.next_batch = 0

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[_B]:
        """Yield the remaining batches of the current epoch, then advance to the next epoch."""
        plan = self._plan()
        while self.next_batch < len(self):
            self.next_batch += 1  # before the yield: a batch counts as done once the caller has it
            yield self.batch(plan[self.next_batch - 1])
        self.epoch, self.next_batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and the data and settings that it depends on."""
        return {"epoch": self.epoch, "next_batch": self.next_batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume at a saved position; raise an `InputError` if it belongs to other data or settings."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"cannot resume: '{name}' was {state.get(name)} and is now {value}; use the same data and settings."
                )
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]

    def _identity(self) -> dict[str, Any]:
        return {"data": self.fingerprint, "batch_size": self.batch_size, "seed": self.seed}

    @abstractmethod
    def _plan(self) -> list[NDArray[np.int64]]:
        """Return the samples of every batch of the current epoch, `len(self)` batches."""

    @abstractmethod
    def batch(self, index: NDArray[np.int64]) -> _B:
        """Return some samples as one batch."""


class VectorBatches(EpochBatches[VectorBatch]):
    """Rows of a matrix, shuffled.

    Parameters
    ----------
    vectors
        Shape (rows, d), float32.
    batch_size
        Number of rows per batch; the last batch of an epoch may have fewer.
    seed
        Seed of the order.
    passes
        Number of passes over all rows per epoch.
    """

    def __init__(self, vectors: NDArray[np.float32], batch_size: int, *, seed: int = 0, passes: int = 1) -> None:
        content = hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
        super().__init__(passes * len(vectors), content, batch_size, seed)
        self.vectors = vectors
        self.passes = passes

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "passes": self.passes}

    def _plan(self) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        order = np.concatenate([rng.permutation(len(self.vectors)) for _ in range(self.passes)])
        return _cut(order, self.batch_size)

    def batch(self, index: NDArray[np.int64]) -> VectorBatch:
        """Return some rows as one batch."""
        return VectorBatch(index, self.vectors[index])


class Batches(EpochBatches[Batch]):
    """Windows of a split, batched by similar length.

    Parameters
    ----------
    split
        The windows.
    batch_size
        Number of windows per batch; the last batch of an epoch may have fewer.
    shuffle
        If False, the windows are sorted by length in every epoch, which needs the least padding; for evaluation.
    seed
        Seed of the order.
    pool
        Shuffled windows are sorted by length within random pools of this many batches. A larger pool needs less
        padding, a smaller one mixes the batches better.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        pool: int = 50,
    ) -> None:
        super().__init__(len(split), split.fingerprint, batch_size, seed)
        if pool < 1:
            raise InputError(f"invalid value {pool} for 'pool': it must be at least 1.")
        self.split = split
        self.shuffle = shuffle
        self.pool = pool

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "split": self.split.name, "shuffle": self.shuffle, "pool": self.pool}

    def _plan(self) -> list[NDArray[np.int64]]:
        lengths = self.split.end - self.split.begin
        if not self.shuffle:
            return _cut(np.argsort(lengths, kind="stable"), self.batch_size)
        rng = np.random.default_rng([self.seed, self.epoch])
        batches = _cut(_by_length(lengths, self.pool * self.batch_size, rng), self.batch_size)
        return [batches[number] for number in rng.permutation(len(batches))]

    def batch(self, index: NDArray[np.int64]) -> Batch:
        """Return some windows of the split as one batch."""
        split = self.split
        begin, end = split.begin[index], split.end[index]
        positions = end[:, None] - np.arange((end - begin).max(), 0, -1)  # (batch, longest history)
        inside = positions >= begin[:, None]
        histories = np.where(inside, split.sequence[np.where(inside, positions, 0)], PADDING)
        users, targets = split.users[index], split.sequence[end]
        return Batch(index, users.astype(np.int64), histories.astype(np.int64), targets.astype(np.int64))


class SequenceBatches(EpochBatches[SequenceBatch]):
    """The training part of every history in one piece, so that all of its items are targets of one causal pass.

    A history longer than `max_length` is cut into several pieces, starting from its end. Every training target is the
    target of exactly one piece.

    Parameters
    ----------
    split
        The training windows that the pieces are built from.
    batch_size
        Number of pieces per batch; the last batch of an epoch may have fewer.
    max_length
        Maximum number of items in a piece, including the last target.
    stride
        Number of targets in a piece that is not the first of its history; by default as many as fit. With 1, every target
        has the same history as in its window, at the cost of one piece per target of a long history.
    count_targets
        Whether `batch_size` is the approximate number of targets per batch instead of the number of pieces, at least two
        pieces of `max_length`. The loss is usually the mean over the targets of a batch, so all targets weigh the same.
    seed
        Seed of the order.
    pool
        Pieces are sorted by length within random pools of this many batches.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        max_length: int,
        *,
        stride: int | None = None,
        count_targets: bool = False,
        seed: int = 0,
        pool: int = 50,
    ) -> None:
        self.stride = max_length - 1 if stride is None else stride
        if not 1 <= self.stride < max_length:
            raise InputError(f"invalid value {stride} for 'stride': it must be between 1 and {max_length - 1}.")
        self.begin, self.end, self.first_target = _pieces(split, max_length, self.stride)
        samples = len(split) if count_targets else len(self.begin)
        super().__init__(
            samples, split.fingerprint, max(batch_size, 2 * max_length) if count_targets else batch_size, seed
        )
        self.split, self.max_length, self.count_targets, self.pool = split, max_length, count_targets, pool

    def _identity(self) -> dict[str, Any]:
        more = {name: getattr(self, name) for name in ("max_length", "stride", "count_targets", "pool")}
        return {**super()._identity(), **more}

    def _plan(self) -> list[NDArray[np.int64]]:
        rng = np.random.default_rng([self.seed, self.epoch])
        pieces = -(-len(self.begin) // max(1, len(self))) if self.count_targets else self.batch_size  # per batch
        order = _by_length(self.end - self.begin, self.pool * pieces, rng)
        batches = _cut(order, self.batch_size)
        if self.count_targets:
            targets = (self.end - self.first_target)[order]
            middle = np.cumsum(targets) - targets / 2  # position of each piece's middle among all targets
            bounds = np.arange(1, len(self)) * (len(self.split) / len(self))
            batches = np.split(order, np.searchsorted(middle, bounds))
        return [batches[number] for number in rng.permutation(len(batches))]

    def batch(self, index: NDArray[np.int64]) -> SequenceBatch:
        """Return some pieces as one batch."""
        begin, end = self.begin[index], self.end[index]
        positions = begin[:, None] + np.arange((end - begin).max())
        inside = positions < end[:, None]
        items = np.where(inside, self.split.sequence[np.where(inside, positions, 0)], PADDING)
        return SequenceBatch(index, items.astype(np.int64), self.first_target[index] - begin)


def long_pieces(split: Split, n_targets: int, max_length: int, seed: int) -> SequenceBatches:
    """Return the training histories in pieces in which every target sees its history, or three quarters of a window of it.

    Parameters
    ----------
    split
        The training windows.
    n_targets
        Approximate number of targets per batch.
    max_length
        Maximum number of items in a piece, including the last target.
    seed
        Seed of the order.
    """
    return SequenceBatches(split, n_targets, max_length, stride=max(1, max_length // 4), count_targets=True, seed=seed)


def _pieces(
    split: Split, max_length: int, stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where the pieces begin and end, and where their targets begin, so that they cover the windows' targets."""
    # A run is a sequence of windows of one user whose targets follow each other directly.
    order = np.lexsort((split.end, split.users))
    end, users = split.end[order], split.users[order]
    new = np.r_[True, (users[1:] != users[:-1]) | (end[1:] != end[:-1] + 1)] if len(end) else np.zeros(0, dtype=bool)
    first, last = end[new], end[np.r_[new[1:], True]] if len(end) else end
    start = split.begin[order][new]  # begin of the first target's history
    room = np.maximum(max_length - (first - start), 1)  # maximum number of targets in the first piece of a run
    step = np.minimum(stride, room)
    later = -(-np.maximum(last - first + 1 - room, 0) // step)  # number of pieces after the first
    run = np.repeat(np.arange(len(first)), later + 1)
    number = np.arange(len(run)) - np.repeat(np.cumsum(later + 1) - later - 1, later + 1)  # counted from the end
    stops = last[run] - number * step[run]  # the last target of each piece
    begins = np.maximum(start[run], stops - (max_length - 1))
    return begins, stops + 1, np.where(number < later[run], stops - step[run] + 1, first[run])


def _by_length(lengths: NDArray[np.int64], pool: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the samples in random order, sorted by length within pools of `pool` samples."""
    order = rng.permutation(len(lengths))
    pools = np.arange(len(order)) // pool
    return order[np.lexsort((lengths[order], pools))]


def _cut(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return np.split(order, range(size, len(order), size)) if len(order) else []
