"""The generators as a user meets them: fit one to a Dataset and its semantic IDs, ask it for items."""

import hashlib
from abc import abstractmethod
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

import numpy as np
import polars as pl
import torch
from lightning_fabric import Fabric
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from resid.core.artifact import Bundle
from resid.data.batches import Batches, SequenceBatches
from resid.data.dataset import Dataset
from resid.core.errors import InputError
from resid.generate.decode import all_ids, beam_search, items_of
from resid.generate.exchange import from_transformers, to_transformers
from resid.generate.onepass import OnePassModel
from resid.generate.t5 import T5Model
from resid.generate.tree import PrefixTables
from resid.core.progress import Progress
from resid.quantize.ids import SemanticIds
from resid.recommend.base import Catalogue, Indices, Scores, last_items, leave_out
from resid.core.settings import checked
from resid.train import RecommenderSettings, check_heads
from resid.recommend.trained import TrainedRecommender


@checked
class GeneratorSettings(RecommenderSettings):
    """What the settings of all generators have in common.

    Parameters
    ----------
    width, layers, heads, hidden, dropout
        Of the Transformer.
    read_vectors
        Add the items' vectors, their principal components projected, to the tokens of the history, where vectors are given.
    beam
        Prefixes that are kept at each level of decoding.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `RecommenderSettings`.
    """

    width: Annotated[int, Field(ge=4)] = 128
    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    hidden: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    read_vectors: bool = True
    beam: Annotated[int, Field(ge=1)] = 50
    validation_users: Annotated[int, Field(ge=1)] = 5_000

    @property
    def uses_vectors(self) -> bool:
        """Whether the items' vectors are used for anything."""
        return self.read_vectors

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)


@checked
class OnePassSettings(GeneratorSettings):
    """Settings of the one-pass generator.

    Parameters
    ----------
    smoothing
        Share of a target's probability that training gives to all codes alike.
    forget
        Chance of an item of the history not to be read in a step of training.
    write_vectors
        Score a code also by the mean vector of the items that it leads to, where vectors are given.
    read_items
        Add to the token of an item a vector of its own, which is learnt with the rest.
    width, layers, heads, hidden, dropout, read_vectors, beam, validation_users
        See `GeneratorSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`; a step takes histories that have about `batch_size` targets together.
    """

    layers: Annotated[int, Field(ge=1)] = 2
    epochs: Annotated[int, Field(ge=1)] = 20
    batch_size: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    forget: Annotated[float, Field(ge=0, lt=1)] = 0.1
    write_vectors: bool = True
    read_items: bool = True
    patience: Annotated[int, Field(ge=0)] = 5

    @property
    def uses_vectors(self) -> bool:
        """Whether the items' vectors are used for anything."""
        return self.read_vectors or self.write_vectors


@checked
class T5Settings(GeneratorSettings):
    """Settings of the T5 generator, those of the paper.

    Parameters
    ----------
    head_width
        Of an attention head.
    width, layers, heads, hidden, dropout, read_vectors, beam, validation_users
        See `GeneratorSettings`; so many layers in the encoder and in the decoder.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`. The paper does not say how it warms up and clips; here over 1,000 steps and to a norm of 1.
    """

    head_width: Annotated[int, Field(ge=1)] = 32
    read_vectors: bool = False
    epochs: Annotated[int, Field(ge=1)] = 500
    batch_size: Annotated[int, Field(ge=1)] = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 5e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 1_000
    clip: Annotated[float, Field(ge=0)] = 1.0
    evaluate_every: Annotated[int, Field(ge=1)] = 5
    patience: Annotated[int, Field(ge=0)] = 10


_S = TypeVar("_S", bound=GeneratorSettings)
_M = TypeVar("_M", OnePassModel, T5Model)


class _Generator(TrainedRecommender[_S, _M]):
    """Base of the generators: a subclass says which network, which batches and which settings."""

    ids_: SemanticIds

    @abstractmethod
    def _network(self, codes: Tensor, sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> _M: ...

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
            The items' vectors, shape (items, d), for the settings that speak of vectors.
        folder, fabric, trackers, progress
            See `resid.train.train`.
        """
        catalogue = Catalogue.of(data)
        ids.require_data(data)
        used = _checked(vectors, data.n_items) if vectors is not None and self.settings.uses_vectors else None
        self.fitted = False
        self._build(catalogue, ids, _reduced(used, self.settings.width) if used is not None else None)
        configuration = {
            "sizes": list(ids.sizes),
            "ids": _digest(ids.codes),
            "vectors": _digest(used) if used is not None else None,
        }
        self._train(data, configuration, folder, fabric=fabric, trackers=trackers, progress=progress)
        self.fitted = True
        return self

    def _build(self, catalogue: Catalogue, ids: SemanticIds, vectors: NDArray[np.float32] | None) -> None:
        self.catalogue_, self.ids_ = catalogue, ids.named(catalogue.item_ids)
        self.__dict__.pop("_all_tables", None)
        self._last_tables: tuple[bytes, tuple[PrefixTables, Indices]] | None = None
        dense = torch.tensor(vectors) if vectors is not None else None
        codes = torch.from_numpy(ids.codes)
        self.model_ = self._seeded(lambda: self._network(codes, ids.sizes, dense, catalogue.max_history))

    @property
    def semantic_ids(self) -> pl.DataFrame:
        """The IDs of all items, a table with the columns item, c1, c2 and so on."""
        return self.ids_.table()

    def top(
        self,
        histories: Indices,
        k: int,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        beam: int | None = None,
        constrained: bool = True,
        exact: bool = False,
    ) -> tuple[Indices, Scores]:
        """Return the k most probable items after each history and their log-probabilities, shape (users, k).

        Items that share an ID follow each other, the most popular first.

        Parameters
        ----------
        histories, k, exclude_seen
            See `Recommender.top`.
        allowed
            Which items may be recommended, shape (items,); all by default. Only their IDs are written.
        beam
            Prefixes that are kept; by default the settings', and as many as are needed for k items.
        constrained
            Write only IDs that an item has.
        exact
            Score the whole catalogue instead of searching it.
        """
        if beam is not None and (isinstance(beam, bool) or not isinstance(beam, (int, np.integer)) or beam < 1):
            raise InputError(f"beam must be a whole number from 1, not {beam!r}.")
        tables, numbers = self._tables(allowed)
        more = k + (max(self.catalogue_.max_history, histories.shape[1]) if exclude_seen else 0)
        if exact:
            beams = all_ids(self.model_, self._read(histories), tables, more)
        else:
            width = max(more, beam or self.settings.beam)
            beams = beam_search(self.model_, self._read(histories), tables, width, constrained=constrained)
        items, scores = items_of(beams, tables, more)
        items = np.where(items >= 0, numbers[items], -1)
        return leave_out(items, scores, histories, k) if exclude_seen else (items, scores)

    def invalid_share(self, histories: Indices) -> float:
        """Return the share of free beams that end at an ID that no item has; what the paper drops."""
        beams = beam_search(
            self.model_, self._read(histories), self._all_tables[0], self.settings.beam, constrained=False
        )
        return float((beams.nodes < 0).float().mean())

    def _read(self, histories: Indices) -> Tensor:
        self.model_.eval()
        return torch.from_numpy(last_items(histories, self.catalogue_)).to(self.model_.codes.device)

    def _tables(self, allowed: NDArray[np.bool_] | None) -> tuple[PrefixTables, Indices]:
        """Return the tree of the IDs that may be written, and the numbers of its items in the catalogue."""
        if allowed is None:
            return self._all_tables
        if len(allowed) != len(self.ids_) or not allowed.any():
            raise InputError(
                f"allowed must say for each of {len(self.ids_):,} items whether it is, and allow one at least."
            )
        asked = allowed.tobytes()
        if self._last_tables is None or self._last_tables[0] != asked:  # the next batch mostly asks for the same
            order = self.catalogue_.by_popularity
            self._last_tables = asked, self._tree(order[allowed[order]])
        return self._last_tables[1]

    @cached_property
    def _all_tables(self) -> tuple[PrefixTables, Indices]:
        return self._tree(self.catalogue_.by_popularity)

    def _tree(self, numbers: Indices) -> tuple[PrefixTables, Indices]:
        # Items of one ID stay in this order.
        return PrefixTables(SemanticIds(self.ids_.codes[numbers], self.ids_.sizes), self.model_.codes.device), numbers

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        facts, arrays, _ = super()._bundle()
        if self.model_.vectors is not None:
            arrays["vectors"] = self.model_.vectors.cpu().numpy()
        return facts | {"sizes": list(self.ids_.sizes), "ids": self.ids_.facts}, arrays, {"ids": self.ids_.table()}

    def _rebuild(self, bundle: Bundle, catalogue: Catalogue) -> None:
        codes = bundle.tables["ids"].drop("item").to_numpy(writable=True)
        ids = SemanticIds(codes, bundle.facts["sizes"], catalogue.item_ids, bundle.facts["ids"])
        self._build(catalogue, ids, bundle.arrays.get("vectors"))


def _checked(vectors: NDArray[np.float32], items: int) -> NDArray[np.float32]:
    """Return the items' vectors, or say why they cannot be that."""
    dense = np.asarray(vectors)
    if dense.ndim != 2 or len(dense) != items or not np.issubdtype(dense.dtype, np.floating):
        raise InputError(
            f"the vectors must be a matrix of decimals with a row for each of {items:,} items, not one of the shape "
            f"{dense.shape} and the type {dense.dtype}."
        )
    if not np.isfinite(dense).all():
        row = int(np.argmin(np.isfinite(dense).all(axis=1)))
        raise InputError(f"the vector of item {row} has a value that is no number; encode again.")
    return dense


def _reduced(vectors: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return the principal components of vectors, at most `width` of them, with a mean square of 1."""
    dense = np.asarray(vectors, dtype=np.float32)
    dense = dense - dense.mean(axis=0)
    if dense.shape[1] > width:
        _, axes = np.linalg.eigh((dense.T @ dense).astype(np.float64))  # ascending
        dense = dense @ axes[:, : -width - 1 : -1].astype(np.float32)
    scale = max(float(np.sqrt(np.square(dense, dtype=np.float64).mean())), 1e-12)
    reduced: NDArray[np.float32] = (dense / scale).astype(np.float32, copy=False)
    return reduced


def _digest(array: NDArray[Any]) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]


class OnePassGenerator(_Generator[OnePassSettings, OnePassModel]):
    """A causal Transformer over items whose every position is a target; see `OnePassModel`.

    Parameters
    ----------
    settings
        See `OnePassSettings`.
    """

    name = "onepass"
    settings_class = OnePassSettings

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
            read_vectors=s.read_vectors,
            write_vectors=s.write_vectors,
            read_items=s.read_items,
        )

    def _batches(self, data: Dataset) -> SequenceBatches:
        return SequenceBatches(
            data.train,
            int(self.settings.batch_size),
            data.settings.max_length,
            count_targets=True,
            seed=self.settings.seed,
        )


class T5Generator(_Generator[T5Settings, T5Model]):
    """The paper's generator; see `T5Model`.

    Parameters
    ----------
    settings
        See `T5Settings`.
    """

    name = "t5"
    settings_class = T5Settings

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
            max_length=max_length,
            vectors=vectors,
        )

    def to_transformers(self) -> Any:
        """Return `transformers`' `T5ForConditionalGeneration` with the same weights."""
        self._require_fit()
        return to_transformers(self.model_)

    def from_transformers(self, model: Any) -> Self:
        """Take the weights of a `T5ForConditionalGeneration` of the same shape."""
        self._require_fit()
        from_transformers(self.model_, model)
        return self

    def _batches(self, data: Dataset) -> Batches:
        return Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed)
