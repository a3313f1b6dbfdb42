"""What the trained recommenders of this folder have in common: a history becomes a vector, and the nearest items come back.

A network (`SequentialModel`) says how a history becomes a query and what it is trained on. Around it, `VectorRecommender`
trains, ranks the catalogue, saves and loads.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Self, TypeVar

import numpy as np
import polars as pl
import torch
import torch.nn.functional as f
from lightning_fabric import Fabric
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.artifact import Bundle
from resid.data.batches import PADDING, Batch, Batches, SequenceBatches
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.encode.embeddings import ItemEmbeddings
from resid.core.errors import InputError, TrainingError
from resid.evaluate import NOT_FOUND
from resid.nn import FieldTables, item_and_fields
from resid.nn.losses import binary, draw_candidates, sampled_softmax, whole_softmax
from resid.core.progress import Progress
from resid.recommend.base import Catalogue, Indices, Scores, last_items, leave_out
from resid.sequential.settings import SequentialSettings
from resid.recommend.trained import TrainedRecommender

_SCORES = 2**24  # that are in memory at a time: users times items


class SequentialModel(nn.Module, ABC):
    """Base of the networks: the tables of item vectors, and the loss of queries that should find their targets.

    Parameters
    ----------
    codes
        The field codes of every item, the item-ID first, shape (items, J); without fields J is 1.
    sizes
        The number of codes of each field, J of them.
    settings
        See `SequentialSettings`.
    """

    def __init__(self, codes: NDArray[np.integer], sizes: Sequence[int], settings: SequentialSettings) -> None:
        super().__init__()
        self.settings, self.sizes = settings, tuple(sizes)
        self.loss_kind = settings.loss_for(len(codes))
        # Tables whose rows are not all used in a step; those of a full softmax are.
        self.sparse = [self.loss_kind != "softmax" and size > settings.full_softmax_up_to for size in sizes]
        self.tables = FieldTables(codes, self.sizes, settings.width, self.sparse)

    @property
    def outputs(self) -> FieldTables:
        """The tables whose vectors are compared with queries; mostly those that are read."""
        return self.tables

    @abstractmethod
    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """Return what to look for after each history, shape (users, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, one item at least; shape (users, length).
        users
            Whose they are, -1 for a user who is not known; shape (users,). Most models do not look at it.
        """

    def loss(self, queries: Tensor, targets: Tensor, generator: torch.Generator) -> Tensor:
        """Return the mean loss of queries, shape (n, width), that should find items, shape (n,)."""
        queries = self.scaled(queries)
        if self.loss_kind == "softmax":
            return whole_softmax(queries, self.candidates(), targets)
        settings, count = self.settings, len(self.outputs.codes)
        how = (1, 1) if self.loss_kind == "binary" else (settings.negatives, settings.share_negatives)
        drawn = draw_candidates(len(queries), count, *how, generator).to(targets.device)
        function = binary if self.loss_kind == "binary" else sampled_softmax
        return function(queries, targets, self.candidates(targets), self.candidates(drawn), drawn).mean()

    def scaled(self, queries: Tensor) -> Tensor:
        """Return queries of which a product with a candidate is the score."""
        if self.settings.similarity == "dot":
            return queries
        return f.normalize(queries, dim=-1) * math.sqrt(self.settings.width)

    def candidates(self, items: Tensor | None = None) -> Tensor:
        """Return the vectors of items, all by default, that queries are compared with; any shape to (..., width)."""
        tables = self.outputs
        if self.settings.target == "id":
            own = tables.embeddings()[0]
            vectors = own.weight if items is None else own(items)
        else:
            vectors = tables.all_vectors() if items is None else tables.vectors(items)
        return vectors if self.settings.similarity == "dot" else f.normalize(vectors, dim=-1)


_S = TypeVar("_S", bound=SequentialSettings)
_M = TypeVar("_M", bound=SequentialModel)


class VectorRecommender(TrainedRecommender[_S, _M]):
    """Base of the recommenders: a subclass says which network, which batches and which settings."""

    _candidates: "_Candidates | None"  # once they were needed

    @abstractmethod
    def _network(self, codes: NDArray[np.integer], sizes: Sequence[int]) -> _M:
        """Build the network for the items of `catalogue_`."""

    def fit(
        self,
        data: Dataset,
        folder: str | Path | None = None,
        *,
        fabric: Fabric | None = None,
        trackers: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Self:
        """Train on the training windows; stop early by the NDCG@10 of validation users, whole catalogue, seen items kept.

        Parameters
        ----------
        data
            The Dataset.
        folder, fabric, trackers, progress
            See `resid.train.train`.
        """
        self.fitted = False
        catalogue = Catalogue.of(data)
        if self.settings.fields:
            require_fields(data)
        self._know(data)
        self._build(catalogue, *item_and_fields(data, fields=self.settings.fields))
        configuration = {"sizes": list(self.sizes_.values())}
        self._train(data, configuration, folder, fabric=fabric, trackers=trackers, progress=progress)
        self._candidates = None  # those of the last epoch; the best one's weights are back
        self.fitted = True
        return self

    def _know(self, data: Dataset) -> None:
        """Take from a Dataset what the network depends on besides its items; most depend on nothing."""

    def _validate(self, watched: Split) -> dict[str, float]:
        self._candidates = None  # those of the epoch before
        return super()._validate(watched)

    def _build(self, catalogue: Catalogue, codes: NDArray[np.integer], sizes: dict[str, int]) -> None:
        self.catalogue_, self.sizes_ = catalogue, sizes
        self._candidates = None
        self.model_ = self._seeded(lambda: self._network(codes, list(sizes.values())))

    @torch.inference_mode()
    def top(
        self,
        histories: Indices,
        k: int,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        users: Indices | None = None,
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`; a score is what the model compares by, a cosine times the root of the width by default.

        Parameters
        ----------
        users
            Whose histories these are, for a model that knows users; shape (users,).
        """
        more = k + histories.shape[1] if exclude_seen else k
        found = min(more, len(self.catalogue_))
        items = np.full((len(histories), more), -1, dtype=np.int64)
        scores = np.full((len(histories), more), -np.inf, dtype=np.float32)
        for some, values in self._scores(self._queries(histories, users), self._item_vectors().all):
            if allowed is not None:
                values = values.masked_fill(torch.from_numpy(~allowed).to(values.device), -torch.inf)
            best, place = values.topk(found, dim=1)
            items[some, :found], scores[some, :found] = place.cpu().numpy(), best.cpu().numpy()
        items[np.isneginf(scores)] = -1
        return leave_out(items, scores, histories, k) if exclude_seen else (items, scores)

    @torch.inference_mode()
    def _ranks(self, batch: Batch, k: int, **options: Any) -> tuple[Indices, Indices]:
        """Count the items that are scored higher than the target, which is cheaper than to find the best; without options."""
        kept, dropped = (np.full(len(batch), NOT_FOUND, dtype=np.int64) for _ in range(2))
        queries = self._queries(batch.histories, batch.users)
        targets = torch.from_numpy(batch.targets).to(queries.device)
        seen = torch.from_numpy(np.sort(batch.histories, axis=1)).to(queries.device)
        seen[:, 1:] = seen[:, 1:].masked_fill(seen[:, 1:] == seen[:, :-1], PADDING)  # an item counts once
        # As many more as a history has items: with these dropped, the target may still be among the k best.
        left = self._in_reach(queries, targets, k + batch.histories.shape[1])
        for some, values in self._scores(queries[left], self._item_vectors().all):
            users = left[some]
            wanted, had = targets[users, None], seen[users]
            own = values.gather(1, wanted)
            # An item with the same score is above the target if it comes first in the catalogue.
            number = torch.arange(values.shape[1], device=values.device)
            better, alike = _count(torch.gt, values, own), _count(torch.ge, values, own)
            if (alike - better > 1).any():  # more than the target itself
                better += ((values == own) & (number < wanted)).sum(dim=1)
            score = values.gather(1, had.clamp_min(0))
            above = (score > own) | ((score == own) & (had < wanted))
            # A target that was seen is left out with the rest.
            fresh = torch.where((had == wanted).any(dim=1), NOT_FOUND, better - (above & (had != PADDING)).sum(dim=1))
            places = users.cpu().numpy()
            kept[places], dropped[places] = better.cpu().numpy(), fresh.cpu().numpy()
        return np.where(kept < k, kept, NOT_FOUND), np.where(dropped < k, dropped, NOT_FOUND)

    def _in_reach(self, queries: Tensor, targets: Tensor, limit: int) -> Tensor:
        """Return which of the users have fewer than `limit` items above their target, as far as a part of the catalogue tells.

        The most popular items are scored first, for they are above most targets: few users are left for the whole catalogue.
        """
        candidates = self._item_vectors()
        own = (queries * candidates.all[targets]).sum(dim=1)
        if not torch.isfinite(own).all():
            raise TrainingError("the model's scores are not numbers any more; lower the learning rate.")
        # How far two ways of adding up the same product can be apart.
        rounding = torch.finfo(own.dtype).eps * queries.shape[1] * queries.norm(dim=1) * candidates.longest
        bound = (own + rounding)[:, None]
        left = torch.arange(len(queries), device=queries.device)
        if torch.get_float32_matmul_precision() != "highest":  # then products are rounded further
            return left
        for count in (len(candidates.popular) // 4, len(candidates.popular)):
            if count >= limit:
                parts = self._scores(queries[left], candidates.popular[:count])
                above = [_count(torch.gt, values, bound[left[some]]) for some, values in parts]
                left = left[torch.cat(above) < limit] if above else left
        return left

    def _queries(self, histories: Indices, users: Indices | None) -> Tensor:
        self.model_.eval()
        device = self.model_.tables.codes.device
        read = torch.from_numpy(last_items(histories, self.catalogue_)).to(device)
        known = torch.from_numpy(users).to(device) if users is not None else None
        return self.model_.scaled(self.model_.query(read, known))

    def _scores(self, queries: Tensor, candidates: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield the scores of items for a few users after the others, shape (users, items), and which users."""
        step = max(1, _SCORES // len(candidates))
        for first in range(0, len(queries), step):
            yield slice(first, first + step), queries[first : first + step] @ candidates.T

    def _item_vectors(self) -> "_Candidates":
        found = self._candidates or _Candidates(self.model_.candidates().detach(), self.catalogue_.by_popularity)
        self._candidates = found
        return found

    def embed(self, data: Dataset) -> ItemEmbeddings:
        """Return, for every item, the vectors of its item-ID and of its fields that the model reads, side by side.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        """
        self.require_data(data)
        tables, width = self.model_.tables, self.settings.width
        with torch.inference_mode():
            parts = [table(tables.codes[:, field]) for field, table in enumerate(tables.embeddings())]
            vectors = torch.cat(parts, dim=1).cpu().numpy()
        columns = {name: (field * width, (field + 1) * width) for field, name in enumerate(self.sizes_)}
        return ItemEmbeddings(vectors, columns, data.fingerprint)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        codes = self.model_.tables.codes.cpu().numpy().astype(np.int32)
        facts, weights, tables = super()._bundle()
        return facts | {"sizes": self.sizes_}, {"codes": codes, **weights}, tables

    def _rebuild(self, bundle: Bundle, catalogue: Catalogue) -> None:
        self._build(catalogue, bundle.arrays["codes"], bundle.facts["sizes"])


class _Candidates:
    """The items' vectors as they are compared: all of them, shape (items, width), and what ranks need besides."""

    def __init__(self, vectors: Tensor, by_popularity: Indices) -> None:
        self.all, self.by_popularity = vectors, by_popularity

    @cached_property
    def popular(self) -> Tensor:
        """The vectors of the most popular quarter of the items, the most popular first."""
        some = torch.from_numpy(self.by_popularity[: len(self.all) // 4].copy())
        return self.all[some.to(self.all.device)]

    @cached_property
    def longest(self) -> float:
        """The norm of the longest vector."""
        return float(self.all.norm(dim=1).max())


def _count(compare: Callable[..., Tensor], values: Tensor, own: Tensor) -> Tensor:
    """Return for how many items a comparison holds, shape (users,); sums of decimals are faster than those of truths."""
    parts = torch.split(values, 2**23, dim=1)  # decimals count up to twice this
    return torch.stack([compare(part, own, out=torch.empty_like(part)).sum(dim=1).long() for part in parts]).sum(dim=0)


def windows(data: Dataset, settings: SequentialSettings) -> Batches:
    """Return the training windows, one sample per target."""
    return Batches(data.train, settings.batch_size_for(len(data.train)), seed=settings.seed)


def whole_histories(
    data: Dataset, settings: SequentialSettings, split: Split | None = None, *, stride: int | None = 1
) -> SequenceBatches:
    """Return the training histories, whose every item is a target with the same items before it as in its window."""
    split, longest = split or data.train, data.settings.max_length
    size = settings.batch_size_for(len(split))
    return SequenceBatches(split, size, longest, stride=stride, count_targets=True, seed=settings.seed)


def require_fields(data: Dataset) -> None:
    """Raise an `InputError` if items have no fields."""
    if not data.field_names:
        raise InputError("the Dataset has no fields; prepare it with --fields, or take the variant without them.")
