"""What the service tells about a catalogue: single items, search, and the branches of the tree of IDs."""

import math
from collections.abc import Sequence
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl

from resid.core.errors import InputError, shown
from resid.data.catalogue import item_label, parse_ids
from resid.recommend import Recommender
from resid.serve.models import Branch, Child, FoundItems, Item, Similar, SimilarItems


class UnknownError(InputError):
    """There is no such item, prefix or model."""


class View:
    """The items and IDs of a model.

    Parameters
    ----------
    model
        The model; nothing here ranks by it.
    """

    def __init__(self, model: Recommender) -> None:
        self._model, self._catalogue, self._ids = model, model.catalogue_, model.ids_
        self._dtype = self._catalogue.item_ids.dtype
        self._columns = [name for name in self._catalogue.items.columns if name != "item"]

    def parse(self, ids: Sequence[Any]) -> list[Any]:
        """Return item ids of a request with the type that the catalogue's have."""
        return parse_ids(ids, self._dtype)

    def unknown(self, ids: Sequence[Any]) -> int:
        """Return how many item ids are not in the catalogue."""
        return int((self._catalogue.find(ids) < 0).sum())

    def codes(self, indices: Sequence[int]) -> Sequence[list[int] | None]:
        """Return the semantic IDs of item indices; None if the model has no IDs."""
        return [None] * len(indices) if self._ids is None else self._ids.codes[indices].tolist()

    def indices(self, ids: Sequence[Any]) -> list[int]:
        """Return the indices of known item ids."""
        indices: list[int] = self._catalogue.find(ids).tolist()
        return indices

    def recommended(self, ids: Sequence[Any], scores: Sequence[float], *, details: bool) -> list[dict[str, Any]]:
        """Return recommended items, None for none, as entries of an answer; see `resid.serve.models.Recommendation`."""
        found = [(item, score) for item, score in zip(ids, scores, strict=True) if item is not None]
        indices = self.indices([item for item, _ in found])
        entries: list[dict[str, Any]] = [
            {"item": item, "score": score, "id": codes}
            for (item, score), codes in zip(found, self.codes(indices), strict=True)
        ]
        if details:
            for entry, index in zip(entries, indices, strict=True):
                entry["details"] = self.item(index)
        return entries

    def why(self, history: Sequence[Any], items: Sequence[Any]) -> list[dict[str, Any]]:
        """Return why items are recommended after a history; see `resid.serve.models.Why`."""
        return [
            {name: value for name, value in each.to_dict().items() if name != "item"}
            for each in self._model.explain(history, items)
        ]

    def item(self, index: int) -> Item:
        """Return everything about an item index."""
        row = self._catalogue.items.row(index, named=True)
        return Item(
            item=row["item"],
            title=item_label(row, self._catalogue.field_names),
            id=self.codes([index])[0],
            fields={name: _plain(row[name]) for name in self._columns},
            interactions=int(self._catalogue.counts[index]),
            withdrawn=not self._catalogue.recommendable[index],
        )

    def index_of(self, text: str) -> int:
        """Return the index of an item id.

        Raises
        ------
        UnknownError
            If there is none.
        """
        (index,) = self._catalogue.find(self.parse([text]))
        if index < 0:
            raise UnknownError(f"there is no item {shown(text)} in the catalogue.")
        return int(index)

    def similar(self, text: str, k: int) -> SimilarItems:
        """Return the k items that are most similar to the item with an id."""
        identity = self._catalogue.item_ids[self.index_of(text)]
        items, cosines, shared = self._model.similar([identity], min(k, len(self._catalogue)))
        found = [item for item in items[0] if item is not None]
        levels = [None] * len(found) if shared is None else shared[0, : len(found)].tolist()
        listed = [
            Similar(item=self.item(index), cosine=float(cosine), shared=level)
            for index, cosine, level in zip(self.indices(found), cosines[0, : len(found)], levels, strict=True)
        ]
        return SimilarItems(item=identity, similar=listed)

    @cached_property
    def _texts(self) -> pl.Series:
        """The id and the texts of every item, in lower case and in the order of popularity."""
        frame = self._catalogue.items
        parts = [pl.col("item").cast(pl.String)]
        for name in self._columns:
            dtype = frame.schema[name]
            if dtype == pl.List(pl.String):
                parts.append(pl.col(name).list.join(" "))
            elif isinstance(dtype, (pl.String, pl.Categorical, pl.Enum)):
                parts.append(pl.col(name).cast(pl.String))
        texts = frame.select(pl.concat_str(parts, separator=" ", ignore_nulls=True).str.to_lowercase()).to_series()
        return texts.gather(self._order)

    @cached_property
    def _order(self) -> np.ndarray[Any, np.dtype[np.int64]]:
        return np.argsort(-self._catalogue.counts, kind="stable")

    def search(self, words: str, limit: int, offset: int) -> FoundItems:
        """Return the items whose id or texts contain all words, the most popular first; one with that id before all."""
        matches = pl.repeat(True, len(self._catalogue), eager=True)
        for word in words.lower().split():
            matches &= self._texts.str.contains(word, literal=True)
        places = self._order[matches.arg_true().to_numpy()]
        (exact,) = self._catalogue.find(self.parse([words.strip()]))
        if exact >= 0:
            places = np.concatenate([[exact], places[places != exact]])
        return FoundItems(total=len(places), items=[self.item(int(place)) for place in places[offset : offset + limit]])

    def branch(self, prefix: Sequence[int], limit: int, offset: int) -> Branch:
        """Return what is under a prefix of IDs: the codes that follow, and the items of a whole ID.

        Raises
        ------
        UnknownError
            If the model has no IDs, or no item has the prefix.
        """
        ids = self._ids
        if ids is None:
            raise UnknownError("this model has no semantic IDs.")
        node = 0
        for depth, code in enumerate(prefix):
            # step computes in 64 bits
            node = int(ids.step(depth, node, code)) if depth < ids.levels and code < 2**31 else -1
            if node < 0:
                raise UnknownError(f"no item has an ID that begins with {shown('-'.join(map(str, prefix)))}.")
        depth = len(prefix)
        first, last = self._items_of(depth, node, node + 1)
        branch = Branch(prefix=list(prefix), levels=ids.levels, total=last - first, n_children=0, children=[], items=[])
        if depth == ids.levels:
            members = ids.order[first:last]
            branch.items = [self.item(int(index)) for index in members[offset : offset + limit]]
            return branch
        codes, nodes = ids.children(depth, node)
        branch.n_children = len(codes)
        for code, child in list(zip(codes, nodes, strict=True))[offset : offset + limit]:
            begin, end = self._items_of(depth + 1, int(child), int(child) + 1)
            members = ids.order[begin:end]
            best = members[np.argmax(self._catalogue.counts[members])]
            branch.children.append(Child(code=int(code), total=end - begin, example=self.item(int(best))))
        return branch

    def _items_of(self, depth: int, first: int, last: int) -> tuple[int, int]:
        """Return the slice of ``ids.order`` with the items of the nodes from `first` to before `last`."""
        ids = self._ids
        assert ids is not None  # noqa: S101 - for the type checker
        for level in range(depth, ids.levels):
            begin = ids.first_child(level)
            first, last = int(begin[first]), int(begin[last])
        return int(ids.first_item[first]), int(ids.first_item[last])


def _plain(value: Any) -> Any:
    """Return a table's value as one of JSON."""
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, (list, pl.Series)):
        return [_plain(each) for each in value]
    return str(value)
