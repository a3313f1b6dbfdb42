"""Semantic IDs: what the Q-stage hands to the G-stage. Codes of items, and the tree of their prefixes as arrays."""

import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from resid.data.dataset import Dataset
from resid.core.errors import InputError, as_path, explain_full_disk


class SemanticIds:
    """The IDs of a catalogue, and the way back from IDs to items.

    Parameters
    ----------
    codes
        Shape (items, levels), from 0.
    sizes
        How many codes each level has; by default as many as occur.
    item_ids
        The items' own ids; by default their numbers.
    facts
        What is known about how the IDs were made; kept in their file.

    Attributes
    ----------
    codes : ndarray of int32, shape (items, levels)
    sizes : tuple of int
    item_ids : polars.Series
    facts : dict

    Notes
    -----
    Prefixes are nodes of a tree. Those of one depth are numbered in lexicographic order, so the children of a node are
    neighbours: ``children(depth, node)`` is a slice. Depth 0 is the root, and the nodes of the last depth are the IDs.
    """

    def __init__(
        self,
        codes: ArrayLike,
        sizes: Sequence[int] | None = None,
        item_ids: Sequence[Any] | pl.Series | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        given = np.asarray(codes)
        if given.ndim != 2 or not given.size:
            raise InputError(f"codes must have the shape (items, levels), not {given.shape}.")
        if given.dtype.kind not in "iu" or given.max() >= 2**31:
            raise InputError(f"codes must be whole numbers below 2^31, not {given.dtype}.")
        self.codes: NDArray[np.int32] = np.ascontiguousarray(given, dtype=np.int32)
        most = self.codes.max(axis=0) + 1
        self.sizes = tuple(int(size) for size in (most if sizes is None else sizes))
        if len(self.sizes) != self.codes.shape[1]:
            raise InputError(f"codes have {self.codes.shape[1]} levels, but {len(self.sizes)} sizes were given.")
        if (most > self.sizes).any() or self.codes.min() < 0:
            raise InputError(f"codes must be from 0 to below the sizes of the levels, {self.sizes}.")
        self.facts = dict(facts or {})
        names = range(len(self.codes)) if item_ids is None else item_ids
        self.item_ids = pl.Series("item", names)
        if len(self.item_ids) != len(self.codes):
            raise InputError(f"there are {len(self.codes):,} codes and {len(self.item_ids):,} item ids.")
        if (repeated := self.item_ids.is_duplicated()).any():
            raise InputError(f"the item id {self.item_ids.filter(repeated)[0]!r} stands more than once.")

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        return f"SemanticIds({len(self):,} items, levels of {', '.join(f'{size:,}' for size in self.sizes)})"

    def named(self, item_ids: Sequence[Any] | pl.Series) -> "SemanticIds":
        """Return the same IDs with the items' own ids, in their order."""
        return SemanticIds(self.codes, self.sizes, item_ids, self.facts)

    def require_data(self, data: Dataset, file: Path | None = None) -> None:
        """Raise an `InputError`, which names the file, unless these are the IDs of a Dataset's items in their order.

        IDs whose items have numbers alone, as by default, may be those of any items.
        """
        own, wanted, where = self.item_ids.cast(str), data.item_ids.cast(str), f"{file}: " if file else ""
        if len(own) != len(wanted):
            raise InputError(f"{where}these are IDs of other items: {len(own):,} IDs and {len(wanted):,} items.")
        other = (own != wanted).arg_true()
        if len(other) and (own != pl.Series(range(len(own))).cast(str)).any():
            raise InputError(
                f"{where}these are IDs of other items, or in another order: item {other[0]} is {own[other[0]]} there and "
                f"{wanted[other[0]]} in the Dataset."
            )
        if self.facts.get("data", data.fingerprint) != data.fingerprint:
            raise InputError(f"{where}these IDs were made for another Dataset, or it was prepared again since.")

    @property
    def levels(self) -> int:
        """How many codes an ID has."""
        return len(self.sizes)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """The items, sorted by their IDs; items of one ID in the order of the catalogue. Shape (items,)."""
        return np.lexsort(self.codes.T[::-1])

    @cached_property
    def _tree(self) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int64]]]:
        """The codes of the nodes of every depth from 1, and where the children of the nodes of every depth begin."""
        ordered = self.codes[self.order]
        new = np.zeros(len(ordered), dtype=bool)
        new[0] = True
        begins = [np.array([0])]  # the first item of every node, depth by depth
        node_codes: list[NDArray[np.int32]] = []
        first_child: list[NDArray[np.int64]] = []
        for level in range(self.levels):
            new[1:] |= ordered[1:, level] != ordered[:-1, level]
            here = np.flatnonzero(new)
            node_codes.append(ordered[here, level])
            first_child.append(np.append(np.searchsorted(here, begins[-1]), len(here)))
            begins.append(here)
        first_child.append(np.append(begins[-1], len(ordered)))  # of the IDs: their items
        return node_codes, first_child

    def _require_depth(self, depth: int, least: int, most: int) -> None:
        if not least <= depth <= most:
            raise InputError(
                f"depth {depth} cannot be asked for; IDs of {self.levels} codes have {least} to {most} here."
            )

    def nodes(self, depth: int) -> int:
        """Return the number of different prefixes of a length."""
        self._require_depth(depth, 0, self.levels)
        return 1 if depth == 0 else len(self._tree[0][depth - 1])

    def first_child(self, depth: int) -> NDArray[np.int64]:
        """Return where the children of every node of a depth begin among the nodes of the next, and the end of the last.

        Shape (nodes + 1,).
        """
        self._require_depth(depth, 0, self.levels - 1)
        return self._tree[1][depth]

    def node_codes(self, depth: int) -> NDArray[np.int32]:
        """Return the last code of every prefix of a length from 1, shape (nodes,)."""
        self._require_depth(depth, 1, self.levels)
        return self._tree[0][depth - 1]

    def parent_of(self, depth: int) -> NDArray[np.int64]:
        """Return the node one code shorter of every prefix of a length from 1, shape (nodes,)."""
        begin = self.first_child(depth - 1)
        return np.repeat(np.arange(len(begin) - 1), np.diff(begin))

    def node_of(self, depth: int) -> NDArray[np.int64]:
        """Return the node of every item at a depth, shape (items,)."""
        self._require_depth(depth, 0, self.levels)
        node = np.arange(self.nodes(self.levels)).repeat(np.diff(self.first_item))  # of the items in their order
        for above in range(self.levels, depth, -1):
            node = self.parent_of(above)[node]
        nodes = np.empty(len(self), dtype=np.int64)
        nodes[self.order] = node
        return nodes

    @property
    def first_item(self) -> NDArray[np.int64]:
        """Where the items of every ID begin in `order`, and where the last ones end; shape (IDs + 1,)."""
        return self._tree[1][-1]

    def children(self, depth: int, node: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the codes that may follow a prefix, and the nodes of the next depth that they lead to."""
        if not 0 <= node < self.nodes(depth):
            raise InputError(f"there is no node {node} at depth {depth}, which has {self.nodes(depth):,}.")
        first, last = self.first_child(depth)[node : node + 2]
        return self.node_codes(depth + 1)[first:last], np.arange(first, last)

    def step(self, depth: int, nodes: ArrayLike, codes: ArrayLike) -> NDArray[np.int64]:
        """Go from nodes of a depth to the next by a code each; -1 where no item has that prefix. Any shape."""
        nodes, codes = np.asarray(nodes, dtype=np.int64), np.asarray(codes, dtype=np.int64)
        keys = self.keys(depth)
        wanted = nodes * self.sizes[depth] + codes
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        possible = (nodes >= 0) & (codes >= 0) & (codes < self.sizes[depth])
        return np.where((keys[place] == wanted) & possible, place, -1)

    def keys(self, depth: int) -> NDArray[np.int64]:
        """Return the parent of every node of the next depth and its code as one number, ascending; shape (nodes,)."""
        self._require_depth(depth, 0, self.levels - 1)
        return self._keys[depth]

    @cached_property
    def _keys(self) -> list[NDArray[np.int64]]:
        return [self.parent_of(depth) * size + self.node_codes(depth) for depth, size in enumerate(self.sizes, 1)]

    def find(self, codes: ArrayLike) -> list[NDArray[np.int64]]:
        """Return the items of each ID, shape (IDs, levels); none where no item has it."""
        wanted = np.atleast_2d(np.asarray(codes, dtype=np.int64))
        if wanted.shape[-1] != self.levels:
            raise InputError(f"an ID has {self.levels} codes, not {wanted.shape[-1]}.")
        nodes = np.zeros(len(wanted), dtype=np.int64)
        for level in range(self.levels):
            nodes = self.step(level, nodes, wanted[:, level])
        begin = self.first_item
        return [self.order[begin[node] : begin[node + 1]] if node >= 0 else self.order[:0] for node in nodes]

    @property
    def unique(self) -> bool:
        """Whether no two items share an ID."""
        return self.nodes(self.levels) == len(self)

    def deduplicated(self) -> "SemanticIds":
        """Return IDs with one more level: the number of an item among those that share its codes, 0 for most.

        What TIGER appends, so that no two items share an ID.
        """
        begin = self.first_item
        last = np.empty(len(self), dtype=np.int32)
        last[self.order] = np.arange(len(self)) - np.repeat(begin[:-1], np.diff(begin))
        sizes = (*self.sizes, int(last.max()) + 1)
        return SemanticIds(np.column_stack([self.codes, last]), sizes, self.item_ids, self.facts)

    def table(self) -> pl.DataFrame:
        """Return a table with the columns item, c1, c2 and so on."""
        columns = {f"c{level + 1}": self.codes[:, level] for level in range(self.levels)}
        return pl.DataFrame({"item": self.item_ids, **columns})

    def save(self, path: str | Path) -> None:
        """Write the table as Parquet; the sizes of the levels and the facts are in its metadata."""
        path = Path(path)
        if path.is_dir():
            raise InputError(f"{path}: this is a folder; name a file for the IDs.")
        metadata = {"sizes": ",".join(map(str, self.sizes)), "facts": json.dumps(self.facts)}
        partial = path.with_name(f".{path.name}.partial")
        path.parent.mkdir(parents=True, exist_ok=True)
        with explain_full_disk(path.parent):
            try:
                self.table().write_parquet(partial, metadata=metadata)
                partial.replace(path)
            finally:
                partial.unlink(missing_ok=True)

    @classmethod
    def load(cls, path: str | Path) -> "SemanticIds":
        """Read what `save` wrote."""
        if not as_path(path).exists():
            raise InputError(f"{path}: there is no such file; 'resid quantize' writes one.")
        try:
            table = pl.read_parquet(path, glob=False)
            metadata = pl.read_parquet_metadata(path)
            if "sizes" not in metadata:
                raise ValueError("its metadata do not tell the sizes of the levels; another program wrote it")
            sizes = [int(size) for size in metadata["sizes"].split(",")]
            return cls(table.drop("item").to_numpy(), sizes, table["item"], json.loads(metadata.get("facts", "{}")))
        except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
            raise InputError(f"{path}: no semantic IDs are here ({error}); quantize again.") from error
