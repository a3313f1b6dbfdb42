"""The base of the trained sequential recommenders: a history becomes a query vector, and the nearest items are ranked.

A network (`SequentialModel`) maps a history to a query and defines the training loss. `SequentialRecommender` trains it and
ranks the catalogue.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError, TrainingError
from resid.core.runtime import Runtime
from resid.data.batches import PADDING, Batch, Batches, SequenceBatches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.data.splits import Split
from resid.evaluate.metrics import NOT_FOUND, Ranking
from resid.nn import FieldTables, item_and_fields, normalize
from resid.nn.losses import binary_loss, full_softmax_loss, sample_negatives, sampled_softmax_loss
from resid.recommend.histories import Indices, Scores, recent_items, without_seen
from resid.recommend.items import Grown, nearest_items
from resid.recommend.trained import TrainedRecommender
from resid.sequential.settings import SequentialSettings
from resid.train import TrainableModule

_MAX_SCORES = 2**24  # in memory at a time: users times items


class SequentialModel(TrainableModule, ABC):
    """Base class of the networks: item embedding tables, and the loss of queries against their target items.

    Parameters
    ----------
    codes
        The field codes of every item, the item ID first, shape (items, J); without fields J is 1.
    field_sizes
        The vocabulary size of each field, length J.
    settings
        See `SequentialSettings`.
    """

    def __init__(self, codes: NDArray[np.integer], field_sizes: Sequence[int], settings: SequentialSettings) -> None:
        super().__init__()
        self.settings, self.field_sizes = settings, tuple(field_sizes)
        self.loss_kind = settings.loss_for(len(codes))
        # A step of the full softmax uses all rows of a table; otherwise large tables have sparse gradients.
        self.sparse = [self.loss_kind != "softmax" and size > settings.full_softmax_limit for size in field_sizes]
        self.tables = FieldTables(codes, self.field_sizes, settings.width, self.sparse)

    @property
    def outputs(self) -> FieldTables:
        """The tables of the candidates; by default the same as the input tables."""
        return self.tables

    @abstractmethod
    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """Return the query vector of each history, shape (users, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, at least one item each; shape (users, length).
        users
            User indices, -1 for unknown users; shape (users,). Most models ignore them.
        """

    def loss(self, queries: Tensor, targets: Tensor, rng: torch.Generator) -> Tensor:
        """Return the mean loss of queries, shape (n, width), against target items, shape (n,)."""
        queries = self.scale_queries(queries)
        if self.loss_kind == "softmax":
            return full_softmax_loss(queries, self.candidates(), targets)
        settings, n_items = self.settings, len(self.outputs.codes)
        sizes = (1, 1) if self.loss_kind == "binary" else (settings.n_negatives, settings.negative_group_size)
        negatives = sample_negatives(len(queries), n_items, *sizes, rng).to(targets.device)
        loss = binary_loss if self.loss_kind == "binary" else sampled_softmax_loss
        return loss(queries, targets, self.candidates(targets), self.candidates(negatives), negatives).mean()

    def scale_queries(self, queries: Tensor) -> Tensor:
        """Return queries whose dot product with a candidate is the score."""
        if self.settings.similarity == "dot":
            return queries
        return normalize(queries) * math.sqrt(self.settings.width)

    def candidates(self, items: Tensor | None = None) -> Tensor:
        """Return the candidate vectors of items, all by default; any shape to (..., width)."""
        tables = self.outputs
        if self.settings.target == "id":
            table = tables.embeddings()[0]
            vectors = table.weight if items is None else table(items)
        else:
            vectors = tables.all_vectors() if items is None else tables.vectors(items)
        return vectors if self.settings.similarity == "dot" else normalize(vectors)


_S = TypeVar("_S", bound=SequentialSettings)
_M = TypeVar("_M", bound=SequentialModel)


class SequentialRecommender(TrainedRecommender[_S, _M]):
    """Base class of the recommenders: a subclass defines the network, the batches and the settings."""

    _candidates: "_Candidates | None" = None  # computed when needed
    field_sizes_: dict[str, int]  # vocabulary size of every field that the network reads, the item ID first

    @abstractmethod
    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> _M:
        """Build the network for the items of `catalogue_`."""

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if the settings need fields and the Dataset has none."""
        if self.settings.use_fields and not data.field_names:
            raise InputError("the Dataset has no fields; prepare it with --fields, or use the recipe without fields.")

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Train on the training windows; early stopping on the NDCG@10 of validation users, seen items kept.

        Parameters
        ----------
        data
            The Dataset.
        runtime
            Folder, devices, trackers and progress.
        """
        require_dataset(data)
        self.check(data)
        self.fitted = False
        self._read_users(data)
        self._build(data.catalogue, *item_and_fields(data, fields=self.settings.use_fields))
        self._train(data, {"field_sizes": list(self.field_sizes_.values())}, runtime)
        self._candidates = None  # computed from the weights of the last epoch; the best weights are loaded now
        self.fitted = True
        return self

    def _read_users(self, data: Dataset) -> None:
        """Read what the network needs to know about users; nothing, for most."""

    def _validate(self, users: Split) -> dict[str, float]:
        self._candidates = None  # computed from the weights of the previous epoch
        return super()._validate(users)

    def _build(self, catalogue: Catalogue, codes: NDArray[np.integer], field_sizes: dict[str, int]) -> None:
        self.catalogue_, self.field_sizes_ = catalogue, field_sizes
        self._candidates = None
        self.model_ = self._seeded(lambda: self._network(codes, list(field_sizes.values())))

    def _rebuild(self) -> None:
        self._build(self.catalogue_, self.model_.tables.codes.cpu().numpy(), self.field_sizes_)

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
        """See `Recommender.top`; the score is the similarity of query and item, by default √width · cosine.

        Parameters
        ----------
        users
            User indices, for models with user embeddings; shape (users,).
        """
        more = k + histories.shape[1] if exclude_seen else k
        found = min(more, len(self.catalogue_))
        items = np.full((len(histories), more), -1, dtype=np.int64)
        scores = np.full((len(histories), more), -np.inf, dtype=np.float32)
        allowed = self.catalogue_.among_recommendable(allowed)
        for some, values in self._scores(self._queries(histories, users), self._item_vectors().all):
            if allowed is not None:
                values = values.masked_fill(torch.from_numpy(~allowed).to(values.device), -torch.inf)
            best, place = values.topk(found, dim=1)
            items[some, :found], scores[some, :found] = place.cpu().numpy(), best.cpu().numpy()
        items[np.isneginf(scores)] = -1
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    @torch.inference_mode()
    def _ranks(self, batch: Batch, k: int, **options: Any) -> tuple[Indices, Indices]:
        """Count the items that score higher than the target, which is cheaper than finding the best items."""
        kept, dropped = (np.full(len(batch), NOT_FOUND, dtype=np.int64) for _ in range(2))
        queries = self._queries(batch.histories, batch.users)
        targets = torch.from_numpy(batch.targets).to(queries.device)
        seen = torch.from_numpy(np.sort(batch.histories, axis=1)).to(queries.device)
        seen[:, 1:] = seen[:, 1:].masked_fill(seen[:, 1:] == seen[:, :-1], PADDING)  # count a repeated item once
        # Dropping seen items can lift a target by the length of its history.
        left = self._within_reach(queries, targets, k + batch.histories.shape[1])
        recommendable = torch.from_numpy(self.catalogue_.recommendable).to(queries.device)
        left = left[recommendable[targets[left]]]
        for some, values in self._scores(queries[left], self._item_vectors().all):
            if len(self.catalogue_.withdrawn):
                values = values.masked_fill(~recommendable, -torch.inf)
            users = left[some]
            target, history = targets[users, None], seen[users]
            own = values.gather(1, target)
            # Ties are ranked in catalogue order.
            index = torch.arange(values.shape[1], device=values.device)
            better, not_worse = _count(torch.gt, values, own), _count(torch.ge, values, own)
            if (not_worse - better > 1).any():  # more than the target itself
                better += ((values == own) & (index < target)).sum(dim=1)
            score = values.gather(1, history.clamp_min(0))
            above = (score > own) | ((score == own) & (history < target))
            # A target that was seen is dropped as well.
            unseen = better - (above & (history != PADDING)).sum(dim=1)
            unseen = torch.where((history == target).any(dim=1), NOT_FOUND, unseen)
            places = users.cpu().numpy()
            kept[places], dropped[places] = better.cpu().numpy(), unseen.cpu().numpy()
        return np.where(kept < k, kept, NOT_FOUND), np.where(dropped < k, dropped, NOT_FOUND)

    def _rankings(self, batch: Batch, k: int, **options: Any) -> tuple[Ranking, Ranking]:
        """Return the best items, with the ranks that are counted: these have ties in catalogue order."""
        lists = super()._rankings(batch, k, **{"users": batch.users} | options)
        kept, dropped = (replace(found, ranks=ranks) for found, ranks in zip(lists, self._ranks(batch, k), strict=True))
        return kept, dropped

    def _within_reach(self, queries: Tensor, targets: Tensor, limit: int) -> Tensor:
        """Return the users who have fewer than `limit` items above their target among the most popular items.

        Popular items rank above most targets, so few users are left for the whole catalogue.
        """
        candidates = self._item_vectors()
        own = (queries * candidates.all[targets]).sum(dim=1)
        if not torch.isfinite(own).all():
            raise TrainingError("the scores of the model are not finite; lower learning_rate.")
        # The largest difference between two orders of summation of the same dot product.
        rounding = torch.finfo(own.dtype).eps * queries.shape[1] * queries.norm(dim=1) * candidates.longest
        bound = (own + rounding)[:, None]
        left = torch.arange(len(queries), device=queries.device)
        if torch.get_float32_matmul_precision() != "highest":  # then products are rounded more coarsely
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
        recent = torch.from_numpy(recent_items(histories, self.catalogue_)).to(device)
        user_indices = torch.from_numpy(users).to(device) if users is not None else None
        return self.model_.scale_queries(self.model_.query(recent, user_indices))

    def _scores(self, queries: Tensor, candidates: Tensor) -> Iterator[tuple[slice, Tensor]]:
        """Yield slices of users and their scores, shape (users, items)."""
        step = max(1, _MAX_SCORES // len(candidates))
        for first in range(0, len(queries), step):
            yield slice(first, first + step), queries[first : first + step] @ candidates.T

    def _item_vectors(self) -> "_Candidates":
        found = self._candidates or _Candidates(self.model_.candidates().detach(), self.catalogue_.by_popularity)
        self._candidates = found
        return found

    def _own_vectors(self) -> NDArray[np.float32]:
        vectors: NDArray[np.float32] = self._item_vectors().all.cpu().numpy()
        return vectors

    def _set_catalogue(self, catalogue: Catalogue) -> None:
        super()._set_catalogue(catalogue)
        self._candidates = None

    def _item_tables(self) -> list[nn.Embedding]:
        return [self.model_.tables.embeddings()[0]]

    def grow(self, new: NewItems) -> Grown:
        """See `Recommender.grow`; a model that scores items by their fields has vectors for new ones."""
        self.check_growth()
        artifact, sizes = self.to_artifact(), dict(self.field_sizes_)
        sizes["item"] += len(new)
        grown = new.grow(
            artifact,
            appended=self._new_rows(new),
            arrays={"codes": new.append_codes(artifact.arrays["codes"])},
            facts={"field_sizes": sizes},
        )
        with torch.no_grad():
            vectors = type(self)._unpack(grown).model_.candidates().numpy()
        return Grown(grown, nearest_items(vectors[-len(new) :], vectors[: -len(new)]))

    def check_growth(self) -> None:
        """See `Part.check_growth`."""
        s = self.settings
        if not s.use_fields or s.target == "id":
            reason = "reads no item fields" if not s.use_fields else "scores items by their ids alone (target='id')"
            raise InputError(f"this {type(self).__name__} {reason} and cannot take new items; fit it again.")

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        codes = self.model_.tables.codes.cpu().numpy().astype(np.int32)
        return {
            **content,
            "facts": {**content["facts"], "field_sizes": self.field_sizes_},
            "arrays": {"codes": codes, **content["arrays"]},
        }

    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        self._build(catalogue, artifact.arrays["codes"], artifact.facts["field_sizes"])


class _Candidates:
    """The candidate vectors of all items, shape (items, width), and what ranking derives from them."""

    def __init__(self, vectors: Tensor, by_popularity: Indices) -> None:
        self.all, self.by_popularity = vectors, by_popularity

    @cached_property
    def popular(self) -> Tensor:
        """The vectors of the most popular quarter of the items, most popular first."""
        some = torch.from_numpy(self.by_popularity[: len(self.all) // 4].copy())
        return self.all[some.to(self.all.device)]

    @cached_property
    def longest(self) -> float:
        """The largest norm of a vector."""
        return float(self.all.norm(dim=1).max())


def _count(compare: Callable[..., Tensor], values: Tensor, own: Tensor) -> Tensor:
    """Return the number of items for which a comparison holds, shape (users,); float sums are faster than boolean ones."""
    parts = torch.split(values, 2**23, dim=1)  # float32 counts exactly up to twice this
    return torch.stack([compare(part, own, out=torch.empty_like(part)).sum(dim=1).long() for part in parts]).sum(dim=0)


def windows(data: Dataset, settings: SequentialSettings) -> Batches:
    """Return the training windows, one sample per target."""
    return Batches(data.train, settings.batch_size_for(len(data.train)), seed=settings.seed)


def whole_histories(
    data: Dataset, settings: SequentialSettings, split: Split | None = None, *, stride: int | None = 1
) -> SequenceBatches:
    """Return the training histories; with a stride of 1, every target has the same context as in its window."""
    split, longest = split or data.train, data.settings.max_length
    size = settings.batch_size_for(len(split))
    return SequenceBatches(split, size, longest, stride=stride, count_targets=True, seed=settings.seed)
