"""What models are trained on, batch by batch: windows of histories, or rows of a matrix.

Batches are shuffled by seed and able to continue where they were; windows of similar length come together.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, Generic, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from resid.data.splits import Split
from resid.core.errors import InputError

PADDING = -1  # stands before a history that is shorter than the longest of its batch


@dataclass(eq=False)  # not frozen: Fabric moves a batch to a device by setting its fields
class _Rows:
    """Arrays with a row for every sample of a batch."""

    index: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.index)

    def share(self, rank: int, of: int) -> Self:
        """Return the part of one of several processes; a batch too small to be shared goes to each of them whole."""
        if len(self) < of:
            return self
        return type(self)(**{field.name: getattr(self, field.name)[rank::of] for field in fields(self)})


@dataclass(eq=False)
class Batch(_Rows):
    """Some windows of a split.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Which windows of the split these are.
    users : ndarray of int64, shape (batch,)
    histories : ndarray of int64, shape (batch, longest history)
        Item indices, the most recent last; `PADDING` on the left.
    targets : ndarray of int64, shape (batch,)
    negatives : ndarray of int64, shape (batch, negatives)
        Drawn uniformly from all items but the target.
    """

    users: NDArray[np.int64]
    histories: NDArray[np.int64]
    targets: NDArray[np.int64]
    negatives: NDArray[np.int64]


@dataclass(eq=False)
class SequenceBatch(_Rows):
    """Some pieces of histories.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Which pieces these are.
    items : ndarray of int64, shape (batch, longest piece)
        Item indices in their order; `PADDING` on the right.
    first_target : ndarray of int64, shape (batch,)
        Where in the piece the first target stands, 1 at least; all items from there on are targets of those before them.
    """

    items: NDArray[np.int64]
    first_target: NDArray[np.int64]

    @property
    def are_targets(self) -> NDArray[np.bool_]:
        """Which items after the first of their piece are targets, shape (batch, longest piece - 1)."""
        place = np.arange(1, self.items.shape[1])
        targets: NDArray[np.bool_] = (self.items[:, 1:] != PADDING) & (place >= self.first_target[:, None])
        return targets


@dataclass(eq=False)
class VectorBatch(_Rows):
    """Some rows of a matrix.

    Attributes
    ----------
    index : ndarray of int64, shape (batch,)
        Which rows these are.
    vectors : ndarray of float32, shape (batch, d)
    """

    vectors: NDArray[np.float32]


_B = TypeVar("_B", bound=_Rows)


class EpochBatches(ABC, Generic[_B]):
    """The batches of one epoch after the other.

    The order of an epoch, and all that is random in a batch, are functions of the seed, the epoch and the batch's number,
    so the position is all there is to save, and to continue is exact.
    """

    def __init__(self, samples: int, fingerprint: str, batch_size: int, seed: int) -> None:
        if batch_size < 1:
            raise InputError(f"the setting 'batch_size' cannot be {batch_size}; it must be at least 1.")
        self.samples = samples
        self.fingerprint = fingerprint
        self.batch_size = batch_size
        self.seed = seed
        self.epoch = 0
        self.next_batch = 0

    def __len__(self) -> int:
        return -(-self.samples // self.batch_size)

    def __iter__(self) -> Iterator[_B]:
        """Yield the rest of the current epoch; then the next epoch is the current one."""
        plan = self._plan()
        while self.next_batch < len(self):
            number = self.next_batch
            self.next_batch += 1  # the batch counts as taken once it is handed out
            yield self.batch(plan[number], number)
        self.epoch, self.next_batch = self.epoch + 1, 0

    def state_dict(self) -> dict[str, Any]:
        """Return the position, and what it depends on."""
        return {"epoch": self.epoch, "next_batch": self.next_batch, **self._identity()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue at a position; refuse one that was taken with other data or settings."""
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(
                    f"cannot continue: '{name}' was {state.get(name)} and is {value}; use the same settings."
                )
        self.epoch, self.next_batch = state["epoch"], state["next_batch"]

    def _identity(self) -> dict[str, Any]:
        return {"data": self.fingerprint, "batch_size": self.batch_size, "seed": self.seed}

    @abstractmethod
    def _plan(self) -> list[NDArray[np.int64]]:
        """Return the samples of every batch of the current epoch, as many batches as `len` says."""

    @abstractmethod
    def batch(self, index: NDArray[np.int64], number: int = 0) -> _B:
        """Return samples as one batch; `number` decides what is random in it."""


class VectorBatches(EpochBatches[VectorBatch]):
    """Rows of a matrix, shuffled.

    Parameters
    ----------
    vectors
        Shape (rows, d), float32.
    batch_size
        How many rows a batch has; the last of an epoch may have fewer.
    seed
        Decides the order.
    passes
        How often an epoch goes through all rows.
    """

    def __init__(self, vectors: NDArray[np.float32], batch_size: int, *, seed: int = 0, passes: int = 1) -> None:
        content = hashlib.sha256(np.ascontiguousarray(vectors).data).hexdigest()
        super().__init__(passes * len(vectors), content, batch_size, seed)
        self.vectors = vectors
        self.passes = passes

    def _identity(self) -> dict[str, Any]:
        return {**super()._identity(), "passes": self.passes}

    def _plan(self) -> list[NDArray[np.int64]]:
        random = np.random.default_rng([self.seed, self.epoch])
        order = np.concatenate([random.permutation(len(self.vectors)) for _ in range(self.passes)])
        return _cut(order, self.batch_size)

    def batch(self, index: NDArray[np.int64], number: int = 0) -> VectorBatch:
        """Return rows as one batch."""
        return VectorBatch(index, self.vectors[index])


class Batches(EpochBatches[Batch]):
    """Windows of a split, those of similar length together.

    Parameters
    ----------
    split
        The windows.
    batch_size
        How many windows a batch has; the last of an epoch may have fewer.
    shuffle
        False sorts the windows by length, the same every epoch: for evaluation, with the least padding.
    seed
        Decides order and negatives.
    negatives
        How many negatives to draw per window.
    pool
        When shuffled, windows are sorted by length within random pools of this many batches: a larger pool means
        less padding, a smaller one batches that are more mixed.
    """

    def __init__(
        self,
        split: Split,
        batch_size: int,
        *,
        shuffle: bool = True,
        seed: int = 0,
        negatives: int = 0,
        pool: int = 50,
    ) -> None:
        super().__init__(len(split), split.fingerprint, batch_size, seed)
        for name, value, least in (("negatives", negatives, 0), ("pool", pool, 1)):
            if value < least:
                raise InputError(f"the setting '{name}' cannot be {value}; it must be at least {least}.")
        if negatives and split.n_items < 2:
            raise InputError("negatives need a catalogue of at least two items; this one has one.")
        self.split = split
        self.shuffle = shuffle
        self.negatives = negatives
        self.pool = pool

    def _identity(self) -> dict[str, Any]:
        more = {name: getattr(self, name) for name in ("shuffle", "negatives", "pool")}
        return {**super()._identity(), "split": self.split.name, **more}

    def _plan(self) -> list[NDArray[np.int64]]:
        lengths = self.split.end - self.split.begin
        if not self.shuffle:
            return _cut(np.argsort(lengths, kind="stable"), self.batch_size)
        random = np.random.default_rng([self.seed, self.epoch])
        batches = _cut(_by_length(lengths, self.pool * self.batch_size, random), self.batch_size)
        return [batches[number] for number in random.permutation(len(batches))]

    def batch(self, index: NDArray[np.int64], number: int = 0) -> Batch:
        """Return the windows `index` of the split as one batch, with the negatives of the batch `number`."""
        split = self.split
        begin, end = split.begin[index], split.end[index]
        positions = end[:, None] - np.arange((end - begin).max(), 0, -1)  # (batch, longest history)
        inside = positions >= begin[:, None]
        histories = np.where(inside, split.sequence[np.where(inside, positions, 0)], PADDING)
        targets = split.sequence[end].astype(np.int64)
        # Draw from one item fewer, then step over the target: uniform over all others.
        random = np.random.default_rng([self.seed, self.epoch, number])
        negatives = random.integers(0, max(split.n_items - 1, 1), size=(len(index), self.negatives))
        negatives += negatives >= targets[:, None]
        return Batch(index, split.users[index].astype(np.int64), histories.astype(np.int64), targets, negatives)


class SequenceBatches(EpochBatches[SequenceBatch]):
    """The training part of every history whole, so that each of its items can be a target in the same pass.

    A history that is longer than the longest piece is cut into several, from its end. Every item but a history's first is
    a target once.

    Parameters
    ----------
    split
        The training windows, from which the pieces are put together.
    batch_size
        How many pieces a batch has; the last of an epoch may have fewer.
    max_length
        The most items of a piece, the last of which is a target alone.
    stride
        How many targets a piece has that is not the first of its history; all that it can have by default. With 1, every
        target has the same items before it as in its window, at the cost of one piece for each target of a long history.
    count_targets
        `batch_size` counts targets instead of pieces: a batch has about so many, two long pieces at least. The loss of a
        batch is mostly the mean over its targets, so that they all weigh the same.
    seed
        Decides the order.
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
            raise InputError(f"the stride must be from 1 to {max_length - 1}, the targets of a piece, not {stride}.")
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
        random = np.random.default_rng([self.seed, self.epoch])
        pieces = -(-len(self.begin) // max(1, len(self))) if self.count_targets else self.batch_size  # of a batch
        order = _by_length(self.end - self.begin, self.pool * pieces, random)
        batches = _cut(order, self.batch_size)
        if self.count_targets:
            targets = (self.end - self.first_target)[order]
            middle = np.cumsum(targets) - targets / 2  # of each piece, among all targets
            bounds = np.arange(1, len(self)) * (len(self.split) / len(self))
            batches = np.split(order, np.searchsorted(middle, bounds))
        return [batches[number] for number in random.permutation(len(batches))]

    def batch(self, index: NDArray[np.int64], number: int = 0) -> SequenceBatch:
        """Return pieces as one batch."""
        begin, end = self.begin[index], self.end[index]
        positions = begin[:, None] + np.arange((end - begin).max())
        inside = positions < end[:, None]
        items = np.where(inside, self.split.sequence[np.where(inside, positions, 0)], PADDING)
        return SequenceBatch(index, items.astype(np.int64), self.first_target[index] - begin)


def _pieces(
    split: Split, max_length: int, stride: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Return where pieces of histories begin and end, and where their targets begin, which are those of the windows."""
    # Windows of a user follow each other, each one target further; where they do not, a new run begins.
    order = np.lexsort((split.end, split.users))
    end, users = split.end[order], split.users[order]
    new = np.r_[True, (users[1:] != users[:-1]) | (end[1:] != end[:-1] + 1)] if len(end) else np.zeros(0, dtype=bool)
    first, last = end[new], end[np.r_[new[1:], True]] if len(end) else end
    start = split.begin[order][new]  # of the history before the first target; one item, but for an added target
    room = np.maximum(max_length - (first - start), 1)  # targets of a run's first piece
    step = np.minimum(stride, room)
    later = -(-np.maximum(last - first + 1 - room, 0) // step)  # pieces besides the first
    run = np.repeat(np.arange(len(first)), later + 1)
    number = np.arange(len(run)) - np.repeat(np.cumsum(later + 1) - later - 1, later + 1)  # from the end
    stops = last[run] - number * step[run]  # the last target of each piece
    begins = np.maximum(start[run], stops - (max_length - 1))
    return begins, stops + 1, np.where(number < later[run], stops - step[run] + 1, first[run])


def _by_length(lengths: NDArray[np.int64], pool: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return samples in a random order, those of each pool of so many sorted by length."""
    order = random.permutation(len(lengths))
    pools = np.arange(len(order)) // pool
    return order[np.lexsort((lengths[order], pools))]


def _cut(order: NDArray[np.int64], size: int) -> list[NDArray[np.int64]]:
    return np.split(order, range(size, len(order), size)) if len(order) else []
