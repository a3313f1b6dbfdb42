"""Similar items, and why an item is recommended: by item vectors and by the shared prefix of semantic IDs."""

from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.core.part import Part
from resid.data.catalogue import Catalogue, as_list
from resid.quantize.ids import SemanticIds
from resid.recommend.histories import Indices, Scores, check_histories, known_items

_MAX_SCORES = 2**24  # in memory at a time: items times items


@runtime_checkable
class HasItemVectors(Protocol):
    """A part that has a vector of every item, as encoders do."""

    def item_vectors(self) -> NDArray[np.float32]:
        """Return the vectors of all items, shape (items, d), or raise an `InputError` if there are none."""


@dataclass(frozen=True)
class Neighbor:
    """An item next to another.

    Attributes
    ----------
    item : str or int
        Its id.
    similarity : float or None
        The cosine of the vectors of the two items; None if the model has no item vectors.
    shared_prefix : int or None
        How many leading codes of their semantic IDs are equal; None if the model has no IDs.
    """

    item: Any
    similarity: float | None
    shared_prefix: int | None


@dataclass(frozen=True)
class Explanation:
    """Why an item is recommended after a history.

    Attributes
    ----------
    item : str or int
        Its id.
    prefix : tuple of int
        The longest prefix of its semantic ID that an item of the history shares; empty if there is none.
    nearest : tuple of Neighbor
        The items of the history, nearest first: by vectors, otherwise by the shared prefix and then the most recent ones.
    contributions : dict
        What each score adds to the score of the item, if the model blends several; their sum is the item's score.
    """

    item: Any
    prefix: tuple[int, ...]
    nearest: tuple[Neighbor, ...]
    contributions: dict[str, float]

    def to_dict(self) -> dict[str, Any]:
        """Return the explanation as JSON values."""
        return {
            "item": self.item,
            "prefix": list(self.prefix),
            "nearest": [vars(neighbor) for neighbor in self.nearest],
            "contributions": self.contributions,
        }


def unit_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return vectors of length 1, shape (items, d), whose dot products are cosines."""
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    units: NDArray[np.float32] = (vectors / np.maximum(norms, 1e-12)).astype(np.float32, copy=False)
    return units


def shared_prefixes(ids: SemanticIds, items: Indices, others: Indices) -> Indices:
    """Return how many leading codes the IDs of items and others share; any shapes that broadcast."""
    equal = ids.codes[items] == ids.codes[others]  # (..., levels)
    shared: Indices = equal.cumprod(axis=-1).sum(axis=-1, dtype=np.int64)
    return shared


def similar_items(
    units: NDArray[np.float32], items: Indices, k: int, among: NDArray[np.bool_]
) -> tuple[Indices, Scores]:
    """Return the k items with the largest cosine to each item, without itself, and the cosines; shape (items, k).

    Parameters
    ----------
    units
        See `unit_vectors`.
    items
        Item indices, shape (n,).
    k
        At most the size of the catalogue; places without an item are -1 and -inf.
    among
        Which items may be found, shape (n_items,).
    """
    found = np.full((len(items), k), -1, dtype=np.int64)
    values = np.full((len(items), k), -np.inf, dtype=np.float32)
    step, count = max(1, _MAX_SCORES // len(units)), min(k, len(units) - 1)
    for first in range(0, len(items), step):
        some = items[first : first + step]
        cosines = units[some] @ units.T
        cosines[np.arange(len(some)), some] = -np.inf
        cosines[:, ~among] = -np.inf
        best = np.argpartition(-cosines, count - 1, axis=1)[:, :count] if count else np.empty((len(some), 0), np.int64)
        scores = np.take_along_axis(cosines, best, axis=1)
        order = np.lexsort((best, -scores), axis=1)  # ties in index order
        found[first : first + step, :count] = np.take_along_axis(best, order, axis=1)
        values[first : first + step, :count] = np.take_along_axis(scores, order, axis=1)
    return np.where(values > -np.inf, found, -1), values


def history_neighbors(
    units: NDArray[np.float32] | None,
    ids: SemanticIds | None,
    history: Indices,
    item: int,
    names: pl.Series,
    n: int,
) -> tuple[tuple[int, ...], tuple[Neighbor, ...]]:
    """Return the longest shared prefix of an item and its history, and the nearest items of the history.

    Parameters
    ----------
    units, ids
        Vectors of length 1 and IDs of all items; None if there are none.
    history
        Item indices, oldest first, shape (length,).
    item
        An item index.
    names
        The item ids.
    n
        Number of items.
    """
    recent = history[::-1][np.sort(np.unique(history[::-1], return_index=True)[1])]  # each item once, most recent first
    shared = shared_prefixes(ids, np.array(item), recent) if ids is not None else None
    cosines = units[recent] @ units[item] if units is not None else None
    keys = [values for values in (shared, cosines) if values is not None]  # the last key decides first
    order = np.lexsort([-key for key in keys]) if keys else np.arange(len(recent))
    neighbors = tuple(
        Neighbor(
            names[int(recent[place])],
            float(cosines[place]) if cosines is not None else None,
            int(shared[place]) if shared is not None else None,
        )
        for place in order[:n]
    )
    longest = int(shared.max(initial=0)) if shared is not None else 0
    prefix = tuple(int(code) for code in ids.codes[item][:longest]) if ids is not None else ()
    return prefix, neighbors


class ExplainedModel:
    """What every recommender can say about its items: vectors, similar items, and why they are recommended."""

    catalogue_: Catalogue
    ids_: SemanticIds | None
    parts_: Mapping[str, Part]

    @abstractmethod
    def _require_fit(self) -> None: ...

    @abstractmethod
    def _known_indices(self, items: Iterable[Any]) -> Indices: ...

    @abstractmethod
    def _check_k(self, k: Any) -> None: ...

    def similar(self, items: Any, k: int = 10) -> tuple[NDArray[Any], Scores, Indices | None]:
        """Return the k items whose vectors have the largest cosine with those of each item.

        Parameters
        ----------
        items
            A list of item ids, or one id.
        k
            Number of items.

        Returns
        -------
        similar, cosines, shared_prefix
            Item ids, cosines, and the number of leading codes that the semantic IDs share, None without IDs; shape (items, k),
            or (k,) for one id. The vectors are those of the encoder, or else the model's own; see `item_vectors`.
        """
        self._require_fit()
        self._check_k(k)
        single = as_list(items) is None
        indices = self._known_indices([items] if single else items)
        found, cosines = similar_items(self._unit_vectors, indices, k, self.catalogue_.recommendable)
        shared = None
        if self.ids_ is not None:
            shared = np.where(found >= 0, shared_prefixes(self.ids_, indices[:, None], found), 0)
        names = self.catalogue_.ids_of(found)
        return (names[0], cosines[0], None if shared is None else shared[0]) if single else (names, cosines, shared)

    def explain(self, history: Sequence[Any], items: Any, *, n_nearest: int = 3) -> Any:
        """Explain why items are recommended after a history; see `Explanation`.

        Parameters
        ----------
        history
            Item ids, oldest first.
        items
            A list of item ids, or one id.
        n_nearest
            Number of items of the history.

        Returns
        -------
        Explanation or list of Explanation
            One for one id.
        """
        self._require_fit()
        single = as_list(items) is None
        indices = self._known_indices([items] if single else items)
        _, rows = check_histories([list(history)] if as_list(history) is not None else history)
        (known,) = known_items(rows, self.catalogue_)
        units = self._unit_vectors if self._vectors_or_none is not None else None
        parts = self.contributions(known[None], indices[None]) if len(known) else {}
        names = self.catalogue_.item_ids
        found = []
        for place, index in enumerate(indices):
            prefix, nearby = history_neighbors(units, self.ids_, known, int(index), names, n_nearest)
            contributions = {name: float(values[0, place]) for name, values in parts.items()}
            found.append(Explanation(names[int(index)], prefix, nearby, contributions))
        return found[0] if single else found

    def contributions(self, histories: Indices, items: Indices) -> dict[str, Scores]:
        """Return what each score adds to the score of items, if the model blends several; empty if it does not.

        Parameters
        ----------
        histories
            See `top`.
        items
            Item indices, shape (users, n).

        Returns
        -------
        dict
            By the name of the score, each of shape (users, n); their sum is the score.
        """
        return {}

    def item_vectors(self) -> NDArray[np.float32]:
        """Return a vector of every item, shape (n_items, d): the encoder's, or else the model's own.

        Raises
        ------
        InputError
            If the model has none.
        """
        self._require_fit()
        if self._vectors_or_none is None:
            raise InputError(
                f"this {type(self).__name__} has no item vectors to compare; use a model with an encoder or an item table."
            )
        return self._vectors_or_none

    @cached_property
    def _vectors_or_none(self) -> NDArray[np.float32] | None:
        for name in self.parts_:
            if name.endswith("encoder") and isinstance(part := self.parts_[name], HasItemVectors):
                try:
                    vectors = part.item_vectors()
                except InputError:  # an encoder that does not keep them
                    continue
                if len(vectors) == len(self.catalogue_):
                    return vectors
        return self._own_vectors()

    def _own_vectors(self) -> NDArray[np.float32] | None:
        """Return the item vectors of the model itself, shape (n_items, d); None if it has none."""
        return None

    @cached_property
    def _unit_vectors(self) -> NDArray[np.float32]:
        return unit_vectors(self.item_vectors())

    def _forget_vectors(self) -> None:
        """Forget the item vectors, as the model is another one now."""
        for name in ("_vectors_or_none", "_unit_vectors"):
            self.__dict__.pop(name, None)
