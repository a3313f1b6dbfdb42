"""The base of generators: fit to a Dataset and its semantic IDs, decode IDs to items."""

import hashlib
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from types import MappingProxyType
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.errors import InputError, counted, first_line
from resid.core.runtime import Runtime
from resid.data.batches import Batches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.data.splits import Split
from resid.encode.embeddings import ItemEmbeddings
from resid.generate.decode import Beams, Decodable, beam_items, beam_search, score_all
from resid.generate.new_items import id_parts, same_map
from resid.generate.prefix_tree import PrefixTree, UntrainedCodes
from resid.generate.settings import GeneratorSettings
from resid.quantize.ids import SemanticIds
from resid.quantize.room import Room
from resid.recommend.histories import BATCH_USERS, Indices, Scores, recent_items, without_seen
from resid.recommend.items import Grown, nearest_items
from resid.recommend.trained import TrainedRecommender
from resid.train import TrainableModule

_INVALID_SHARE_USERS = 2_000  # whose unconstrained beams are counted
_EXACT_ITEMS = 256  # up to so many allowed items, all of them are scored: beams that wide cost little


class GeneratorModel(TrainableModule, Decodable):
    """The network of a generator: trainable and decodable.

    Attributes
    ----------
    codes : Tensor
        The IDs of all items, shape (items, levels).
    vectors : Tensor or None
        Reduced item embeddings, shape (items, d).
    """

    codes: Tensor
    vectors: Tensor | None


_S = TypeVar("_S", bound=GeneratorSettings)
_M = TypeVar("_M", bound=GeneratorModel)


class Generator(TrainedRecommender[_S, _M]):
    """Base class of generators: a subclass defines the network, the batches and the settings."""

    ids_: SemanticIds
    _n_decoded: int | None = None  # set by an update
    _last_tree: tuple[bytes, tuple[PrefixTree, Indices]] | None = None
    decodings: ClassVar[Mapping[str, dict[str, Any]]] = MappingProxyType(
        {"beam": {}, "exact": {"exact": True}, "free": {"constrained": False}}
    )

    @abstractmethod
    def _network(self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> _M:
        """Build the network."""

    def fit(
        self,
        data: Dataset,
        ids: SemanticIds,
        embeddings: ItemEmbeddings | NDArray[np.float32] | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Self:
        """Train on the training windows; early stopping on the beam-search NDCG@10 of validation users.

        Parameters
        ----------
        data
            The Dataset.
        ids
            The IDs of its items, in index order.
        embeddings
            The item embeddings, shape (items, d), if the settings use them.
        runtime
            Folder, devices, trackers and progress.
        """
        require_dataset(data)
        ids.require_data(data)
        if isinstance(embeddings, ItemEmbeddings):
            embeddings.require_data(data)
        used = embeddings is not None and self.settings.uses_embeddings
        vectors = check_vectors(np.asarray(embeddings), data.n_items) if used else None
        self.fitted = False
        self._n_decoded = None
        self._build(data.catalogue, ids, reduce_vectors(vectors, self.settings.width) if vectors is not None else None)
        configuration = {
            "level_sizes": list(ids.level_sizes),
            "ids": ids.digest,
            "embeddings": digest(vectors) if vectors is not None else None,
            **self._configuration(),
        }
        self._train(data, configuration, runtime)
        self.fitted = True
        return self

    def _configuration(self) -> dict[str, Any]:
        """Return what else identifies the training of a subclass."""
        return {}

    def _build(self, catalogue: Catalogue, ids: SemanticIds, vectors: NDArray[np.float32] | None) -> None:
        self.catalogue_, self.ids_ = catalogue, ids.named(catalogue.item_ids)
        self._forget_trees()
        dense = torch.tensor(vectors) if vectors is not None else None
        codes = torch.from_numpy(ids.codes)
        self.model_ = self._seeded(lambda: self._network(codes, ids.level_sizes, dense, catalogue.max_history))

    def top(
        self,
        histories: Indices,
        k: int,
        *,
        exclude_seen: bool = False,
        allowed: NDArray[np.bool_] | None = None,
        beam_size: int | None = None,
        constrained: bool = True,
        exact: bool = False,
    ) -> tuple[Indices, Scores]:
        """Return the k most probable items after each history and their log-probabilities, shape (users, k).

        Items with the same ID are consecutive, most popular first.

        Parameters
        ----------
        histories, k, exclude_seen
            See `Recommender.top`.
        allowed
            Which items may be recommended, shape (n_items,); by default all that are not withdrawn. Only their IDs are generated.
        beam_size
            Number of prefixes that are kept; by default the settings', and at least as many as k items need. If no more than
            256 items are allowed, the default keeps all of them, which is exact.
        constrained
            Generate only IDs that an item has.
        exact
            Score the whole catalogue instead of searching.
        """
        more, beams = self.search_size(histories, k, exclude_seen, beam_size, exact)
        tree, numbers = self.tree(allowed)
        if allowed is not None and beams is not None and beam_size is None and len(numbers) <= _EXACT_ITEMS:
            beams = max(beams, len(numbers))
        items, scores = self._best(histories, more, tree, numbers, beams, constrained)
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    def search_size(
        self, histories: Indices, k: int, exclude_seen: bool, beam_size: int | None, exact: bool
    ) -> tuple[int, int | None]:
        """Return how many items `top` has to find, and the beam size, None for exact scoring."""
        self._check_beam_size(beam_size)
        more = k + (max(self.catalogue_.max_history, histories.shape[1]) if exclude_seen else 0)
        return more, None if exact else max(more, beam_size or self.settings.beam_size)

    def _best(
        self,
        histories: Indices,
        k: int,
        tree: PrefixTree,
        numbers: Indices,
        beam_size: int | None,
        constrained: bool,
    ) -> tuple[Indices, Scores]:
        """Return the k best items of a tree and their scores, shape (users, k); see `top`.

        Parameters
        ----------
        tree, numbers
            As `tree` returns them.
        beam_size
            Number of prefixes that are kept; None scores all items of the tree.
        """
        recent = self.recent(histories)
        if beam_size is None:
            beams = score_all(self.model_, recent, tree, k)
        else:
            beams = beam_search(self.model_, recent, tree, beam_size, constrained=constrained)
        items, scores = beam_items(beams, tree, k)
        return np.where(items >= 0, numbers[items], -1), scores

    @staticmethod
    def _check_beam_size(beam_size: Any) -> None:
        integer = isinstance(beam_size, (int, np.integer)) and not isinstance(beam_size, bool)
        if beam_size is not None and (not integer or beam_size < 1):
            raise InputError(f"beam_size must be a positive integer, not {beam_size!r}.")

    def invalid_share(self, windows: Split) -> float:
        """Return the share of unconstrained beams that end at an ID that no item has, for a sample of windows."""
        tree, _ = self._full_tree
        invalid = total = 0
        for batch in Batches(windows.sample(_INVALID_SHARE_USERS), BATCH_USERS, shuffle=False):
            histories = self.recent(batch.histories)
            for beams in self._free_beams(histories, tree):
                invalid, total = invalid + int((beams.nodes < 0).sum()), total + beams.nodes.numel()
        return invalid / total

    def _free_beams(self, histories: Tensor, tree: PrefixTree) -> list[Beams]:
        """Return the unconstrained beams of every network that generates an ID."""
        return [beam_search(self.model_, histories, tree, self.settings.beam_size, constrained=False)]

    def recent(self, histories: Indices) -> Tensor:
        """Return the items that the network reads, shape (users, length), and switch it to evaluation mode."""
        if self.model_.training:  # it visits all modules
            self.model_.eval()
        return torch.from_numpy(recent_items(histories, self.catalogue_)).to(self.model_.codes.device)

    def tree(self, allowed: NDArray[np.bool_] | None) -> tuple[PrefixTree, Indices]:
        """Return the prefix tree of the allowed items, and their indices in the catalogue."""
        if allowed is None or allowed is self.catalogue_.recommendable:
            return self._full_tree
        if len(allowed) != len(self.ids_) or not allowed.any():
            raise InputError(
                f"'allowed' must have one boolean for each of {len(self.ids_):,} items, and allow at least one."
            )
        key, last = allowed.tobytes(), self._last_tree
        if last is None or last[0] != key:
            order = self.catalogue_.by_popularity
            last = key, self._make_tree(order[allowed[order]])
            self._last_tree = last  # the next batch mostly allows the same items
        return last[1]  # not self._last_tree, which another thread may have replaced

    @cached_property
    def _full_tree(self) -> tuple[PrefixTree, Indices]:
        return self._make_tree(self.catalogue_.by_popularity)

    def _set_catalogue(self, catalogue: Catalogue) -> None:
        super()._set_catalogue(catalogue)
        self._forget_trees()

    def room(self) -> Room | None:
        """See `Recommender.room`."""
        from resid.quantize.base import Quantizer  # here, as scikit-learn and numba take seconds to import

        quantizer = self.parts_.get("quantizer")
        return quantizer.room() if isinstance(quantizer, Quantizer) else None

    def grow(self, new: NewItems) -> Grown:
        """See `Recommender.grow`: the encoder embeds new items, and the quantizer gives them free IDs."""
        name, encoder, quantizer = id_parts(self)
        vectors = encoder.embed_listed(new)
        try:
            codes = quantizer.extend(vectors, distinct=True)
        except ValueError as error:
            raise InputError(f"no room for {counted(len(new), 'new item')}: {first_line(error)}.") from error
        artifact, known = self.to_artifact(), encoder.item_vectors()
        appended = self._new_rows(new)
        if "vectors" in artifact.arrays:
            fitted = self.catalogue_.n_fitted
            reduced = same_map(known[:fitted], artifact.arrays["vectors"][:fitted], vectors)
            appended = {**appended, "vectors": reduced}
        ids = SemanticIds(codes, self.ids_.level_sizes, new.items["item"]).table()
        table = pl.concat([self.ids_.table(), ids])
        parts = {name: encoder.grow(new, vectors), "quantizer": quantizer.to_artifact()}
        grown = new.grow(artifact, appended=appended, tables={"ids": table}, parts=parts)
        return Grown(grown, nearest_items(vectors, known), codes, quantizer.room())

    def _forget_trees(self) -> None:
        """Forget the prefix trees, as the IDs are others now."""
        for name in ("_full_tree", "_untrained", "trained_items"):
            self.__dict__.pop(name, None)
        self._last_tree = None

    def _make_tree(self, numbers: Indices) -> tuple[PrefixTree, Indices]:
        ids = SemanticIds(self.ids_.codes[numbers], self.ids_.level_sizes)  # items with the same ID stay in this order
        tree = PrefixTree(ids, self.model_.codes.device)
        if self.catalogue_.added:
            tree.replace_untrained(self._untrained, numbers)
        return tree, numbers

    @cached_property
    def _untrained(self) -> UntrainedCodes:
        return UntrainedCodes(self.ids_, self.trained_items)

    @cached_property
    def trained_items(self) -> NDArray[np.bool_]:
        """Which items the model was fitted to or has been updated with, shape (items,); the others were added."""
        place, catalogue = np.arange(len(self.catalogue_)), self.catalogue_
        trained: NDArray[np.bool_] = (place < catalogue.n_fitted) | ((place < self.n_decoded) & (catalogue.counts > 0))
        return trained

    @property
    def n_decoded(self) -> int:
        """The number of items that the decoders know: those of the fit and, after an update, those added before it."""
        return self._n_decoded or self.catalogue_.n_fitted

    def _rebuild(self) -> None:
        vectors = self.model_.vectors
        self._build(self.catalogue_, self.ids_, vectors.cpu().numpy() if vectors is not None else None)

    def _take_in_added(self) -> None:
        if self.n_decoded < len(self.catalogue_):
            weights, self._n_decoded = self.model_.state_dict(), len(self.catalogue_)
            self._rebuild()
            self.model_.load_state_dict(weights)

    def _own_vectors(self) -> NDArray[np.float32] | None:
        return None if self.model_.vectors is None else self.model_.vectors.cpu().numpy()

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        vectors = {} if self.model_.vectors is None else {"vectors": self.model_.vectors.cpu().numpy()}
        return {
            "facts": {
                **content["facts"],
                "level_sizes": self.ids_.level_sizes,
                "ids": self.ids_.facts,
                **({"n_decoded": self._n_decoded} if self._n_decoded else {}),
            },
            "arrays": {**content["arrays"], **vectors},
            "tables": {**content["tables"], "ids": self.ids_.table()},
        }

    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        codes = artifact.tables["ids"].drop("item").to_numpy(writable=True)
        ids = SemanticIds(codes, artifact.facts["level_sizes"], catalogue.item_ids, artifact.facts["ids"])
        self._n_decoded = artifact.facts.get("n_decoded")
        self._build(catalogue, ids, artifact.arrays.get("vectors"))


def check_vectors(vectors: NDArray[Any], n_items: int) -> NDArray[np.float32]:
    """Return the item embeddings, or raise an `InputError`."""
    if vectors.ndim != 2 or len(vectors) != n_items or not np.issubdtype(vectors.dtype, np.floating):
        raise InputError(
            f"the embeddings must be a floating-point matrix with one row for each of {n_items:,} items, not an array of "
            f"shape {vectors.shape} and type {vectors.dtype}."
        )
    if not np.isfinite(vectors).all():
        row = int(np.argmin(np.isfinite(vectors).all(axis=1)))
        raise InputError(f"the embedding of item {row} is not finite; encode again.")
    return vectors


def reduce_vectors(vectors: NDArray[np.float32], width: int) -> NDArray[np.float32]:
    """Return at most `width` principal components of vectors, scaled to a mean square of 1."""
    dense = np.asarray(vectors, dtype=np.float32)
    dense = dense - dense.mean(axis=0)
    if dense.shape[1] > width:
        _, axes = np.linalg.eigh((dense.T @ dense).astype(np.float64))  # ascending
        dense = dense @ axes[:, : -width - 1 : -1].astype(np.float32)
    scale = max(float(np.sqrt(np.square(dense, dtype=np.float64).mean())), 1e-12)
    reduced: NDArray[np.float32] = (dense / scale).astype(np.float32, copy=False)
    return reduced


def digest(array: NDArray[Any]) -> str:
    """Return a short checksum of an array."""
    return hashlib.sha256(np.ascontiguousarray(array).data).hexdigest()[:16]
