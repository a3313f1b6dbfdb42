"""The generators as a user meets them: fit one to a Dataset and its semantic IDs, ask it for items."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Generic, Self, TypeVar

import numpy as np
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from resid.data.batches import Batches, EpochBatches, SequenceBatches
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.errors import InputError
from resid.evaluate import ranking_metrics, ranks_of
from resid.generate.decode import PrefixTables, beam_search, items_of
from resid.generate.onepass import OnePassModel
from resid.generate.t5 import T5Model, from_transformers, to_transformers
from resid.progress import Progress
from resid.quantize.ids import SemanticIds
from resid.train import TrainSettings, train

_MONITOR = "ndcg@10"  # decides which epoch is best
_USERS = 256  # users that are decoded at a time


@dataclass(frozen=True)
class GeneratorSettings(TrainSettings):
    """What the settings of all generators have in common.

    Parameters
    ----------
    width, layers, heads, hidden, dropout
        Of the Transformer.
    read_vectors
        Add the items' vectors, projected, to the tokens of the history, where vectors are given.
    beam
        Prefixes that are kept at each level of decoding.
    validation_users
        At most so many users are decoded after every epoch, always the same ones.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, patience, seed
        See `TrainSettings`.
    """

    width: Annotated[int, Field(ge=4)] = 128
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    hidden: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    read_vectors: bool = True
    beam: Annotated[int, Field(ge=1)] = 50
    validation_users: Annotated[int, Field(ge=1)] = 5_000

    def __post_init__(self) -> None:
        if self.width % self.heads:
            raise ValueError(f"the width, {self.width}, must be a multiple of the heads, {self.heads}")


@dataclass(frozen=True)
class OnePassSettings(GeneratorSettings):
    """Settings of the one-pass generator.

    Parameters
    ----------
    smoothing
        Share of a target's probability that training gives to all codes alike.
    forget
        Chance of an item of the history not to be read in a step of training.
    width, layers, heads, hidden, dropout, read_vectors, beam, validation_users
        See `GeneratorSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, patience, seed
        See `TrainSettings`.
    """

    epochs: Annotated[int, Field(ge=1)] = 60
    batch_size: Annotated[int, Field(ge=1)] = 256
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.4
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    forget: Annotated[float, Field(ge=0, lt=1)] = 0.1
    patience: Annotated[int, Field(ge=0)] = 8


@dataclass(frozen=True)
class T5Settings(GeneratorSettings):
    """Settings of the T5 generator, those of the paper.

    Parameters
    ----------
    head_width
        Of an attention head.
    width, layers, heads, hidden, dropout, read_vectors, beam, validation_users
        See `GeneratorSettings`; so many layers in the encoder and in the decoder.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, patience, seed
        See `TrainSettings`. The paper does not say how it warms up and clips; here over 1,000 steps and to a norm of 1.
    """

    head_width: Annotated[int, Field(ge=1)] = 32
    read_vectors: bool = False
    epochs: Annotated[int, Field(ge=1)] = 500
    batch_size: Annotated[int, Field(ge=1)] = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 5e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 1_000
    clip: Annotated[float, Field(ge=0)] = 1.0
    patience: Annotated[int, Field(ge=0)] = 10


_S = TypeVar("_S", bound=GeneratorSettings)


class _Generator(ABC, Generic[_S]):
    """Base of the generators: a subclass says which network, which batches and which settings."""

    name: str
    model_: OnePassModel | T5Model

    def __init__(self, settings: _S | None = None) -> None:
        self.settings: _S = settings or self._defaults()

    @abstractmethod
    def _defaults(self) -> _S: ...

    @abstractmethod
    def _network(self, codes: Tensor, sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> Any: ...

    @abstractmethod
    def _batches(self, data: Dataset) -> EpochBatches[Any]: ...

    def fit(
        self,
        data: Dataset,
        ids: SemanticIds,
        vectors: NDArray[np.float32] | None = None,
        folder: str | Path | None = None,
        *,
        fabric: Fabric | None = None,
        trackers: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Self:
        """Train on the training windows; stop early by the NDCG@10 of beams on validation users.

        Parameters
        ----------
        data
            The Dataset.
        ids
            The IDs of its items, in their order.
        vectors
            The items' vectors, shape (items, d), for `read_vectors`.
        folder, fabric, trackers, progress
            See `resid.train.train`.
        """
        if len(ids) != data.n_items:
            raise InputError(
                f"there are {len(ids):,} IDs and {data.n_items:,} items in the Dataset; they do not belong."
            )
        self._build(data, ids, vectors)
        watched = data.validation.sample(self.settings.validation_users)
        self.history_ = train(
            self.model_,
            self._batches(data),
            self.settings,
            folder,
            evaluate=lambda: ranking_metrics(self.ranks(watched), (5, 10)),
            monitor=_MONITOR,
            configuration={
                "model": self.name,
                "sizes": list(ids.sizes),
                "ids": _digest(ids.codes),
                "vectors": None if self.model_.vectors is None else _digest(self.model_.vectors.cpu().numpy()),
            },
            fabric=fabric,
            trackers=trackers,
            progress=progress,
        )
        self.best_epoch_ = int(max(self.history_, key=lambda record: record[_MONITOR])["epoch"])
        return self

    def _build(self, data: Dataset, ids: SemanticIds, vectors: NDArray[np.float32] | None) -> None:
        self.ids_ = ids
        dense = None
        if self.settings.read_vectors and vectors is not None:
            dense = torch.tensor(np.asarray(vectors), dtype=torch.float32)
            dense = dense / dense.square().mean().sqrt().clamp_min(1e-12)  # of the size of the other parts
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            longest = data.settings.max_length - 1
            self.model_ = self._network(torch.from_numpy(ids.codes), ids.sizes, dense, longest)

    def recommend(
        self,
        histories: Tensor,
        k: int = 10,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        beam: int | None = None,
        constrained: bool = True,
    ) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the k most probable items after each history and their log-probabilities, shape (users, k).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (users, length).
        k
            How many items; -1 stands where there are fewer.
        exclude_seen
            Leave out the items of the history.
        allowed
            Which items may be recommended, shape (items,); all by default. Only their IDs are written.
        beam
            Prefixes that are kept; by default the settings', and as many as are needed for k items. As many as items
            scores the whole catalogue exactly.
        constrained
            Write only IDs that an item has.
        """
        self.model_.eval()
        histories = histories.to(self.model_.codes.device)
        tables, numbers = self._tables(allowed)
        more = k + (histories.shape[1] if exclude_seen else 0)
        beams = beam_search(
            self.model_, histories, tables, max(more, beam or self.settings.beam), constrained=constrained
        )
        items, scores = items_of(beams, tables, more)
        items = np.where(items >= 0, numbers[items], -1)
        if exclude_seen:
            seen = (items[:, :, None] == histories.cpu().numpy()[:, None]).any(axis=2) & (items >= 0)
            order = np.argsort(seen | (items < 0), axis=1, kind="stable")[:, :k]
            items = np.take_along_axis(np.where(seen, -1, items), order, axis=1)
            scores = np.take_along_axis(np.where(seen, -np.inf, scores), order, axis=1)
        return items, scores

    def _tables(self, allowed: NDArray[np.bool_] | None) -> tuple[PrefixTables, NDArray[np.int64]]:
        """Return the tree of the IDs that may be written, and the numbers of its items in the catalogue."""
        device = self.model_.codes.device
        if allowed is None:
            return PrefixTables(self.ids_, device), np.arange(len(self.ids_))
        numbers = np.flatnonzero(allowed)
        if len(allowed) != len(self.ids_) or not len(numbers):
            raise InputError(
                f"allowed must say for each of {len(self.ids_):,} items whether it is, and allow one at least."
            )
        return PrefixTables(SemanticIds(self.ids_.codes[numbers], self.ids_.sizes), device), numbers

    def ranks(self, windows: Split, k: int = 10) -> NDArray[np.int64]:
        """Return the rank of every window's target among the k best items, counted from 0; k where it is not there."""
        ranks = np.full(len(windows), k, dtype=np.int64)
        training = self.model_.training
        for batch in Batches(windows, _USERS, shuffle=False):
            items, _ = self.recommend(torch.from_numpy(batch.histories), k)
            ranks[batch.index] = ranks_of(items, batch.targets)
        self.model_.train(training)
        return ranks


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]


class OnePassGenerator(_Generator[OnePassSettings]):
    """A causal Transformer over items whose every position is a target; see `OnePassModel`.

    Parameters
    ----------
    settings
        See `OnePassSettings`.
    """

    name = "onepass"

    def _defaults(self) -> OnePassSettings:
        return OnePassSettings()

    def _network(self, codes: Tensor, sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> OnePassModel:
        s = self.settings
        return OnePassModel(
            codes,
            sizes,
            width=s.width,
            hidden=s.hidden,
            heads=s.heads,
            layers=s.layers,
            dropout=s.dropout,
            max_length=max_length,
            smoothing=s.smoothing,
            forget=s.forget,
            vectors=vectors,
        )

    def _batches(self, data: Dataset) -> SequenceBatches:
        return SequenceBatches(
            data.train, int(self.settings.batch_size), data.settings.max_length, seed=self.settings.seed
        )


class T5Generator(_Generator[T5Settings]):
    """The paper's generator; see `T5Model`.

    Parameters
    ----------
    settings
        See `T5Settings`.
    """

    name = "t5"
    model_: T5Model

    def _defaults(self) -> T5Settings:
        return T5Settings()

    def _network(self, codes: Tensor, sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> T5Model:
        s = self.settings
        return T5Model(
            codes,
            sizes,
            width=s.width,
            hidden=s.hidden,
            heads=s.heads,
            head_width=s.head_width,
            layers=s.layers,
            dropout=s.dropout,
            vectors=vectors,
        )

    def to_transformers(self) -> Any:
        """Return `transformers`' `T5ForConditionalGeneration` with the same weights."""
        return to_transformers(self.model_)

    def from_transformers(self, model: Any) -> Self:
        """Take the weights of a `T5ForConditionalGeneration` of the same shape."""
        from_transformers(self.model_, model)
        return self

    def _batches(self, data: Dataset) -> Batches:
        return Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed)
