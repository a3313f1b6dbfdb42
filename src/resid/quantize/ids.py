"""Semantic IDs, the output of the Q-stage: the codes of all items, and the tree of their prefixes as arrays."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from resid.core.checksums import SEAL, is_sealed, seal_file
from resid.core.display import html_table
from resid.core.errors import InputError, as_path, counted, first_line
from resid.core.files import atomic_file
from resid.data.dataset import Dataset

_READABLE = ("1", "2")  # formats of the file; the last one is written
_SHOWN = 10  # items in a notebook


class SemanticIds:
    """The semantic IDs of a catalogue, and the lookup from IDs to items.

    Parameters
    ----------
    codes
        Shape (items, levels), from 0.
    level_sizes
        The number of codes of every level; by default the largest code plus one.
    item_ids
        The item ids; by default the item indices.
    facts
        How the IDs were made; saved with them.

    Attributes
    ----------
    codes : ndarray of int32, shape (items, levels)
    level_sizes : tuple of int
    item_ids : polars.Series
    facts : dict

    Notes
    -----
    Prefixes are the nodes of a tree. The nodes of a depth are numbered in lexicographic order, so the children of a node are
    a slice: see ``children(depth, node)``. Depth 0 is the root, and the nodes of the last depth are the IDs.
    """

    def __init__(
        self,
        codes: ArrayLike,
        level_sizes: Sequence[int] | None = None,
        item_ids: Sequence[Any] | pl.Series | None = None,
        facts: Mapping[str, Any] | None = None,
    ) -> None:
        given = np.asarray(codes)
        if given.ndim != 2 or not given.size:
            raise InputError(f"codes must have the shape (items, levels), not {given.shape}.")
        if given.dtype.kind not in "iu" or given.max() >= 2**31:
            raise InputError(f"codes must be integers below 2^31, not {given.dtype}.")
        self.codes: NDArray[np.int32] = np.ascontiguousarray(given, dtype=np.int32)
        most = self.codes.max(axis=0) + 1
        self.level_sizes = tuple(int(size) for size in (most if level_sizes is None else level_sizes))
        if len(self.level_sizes) != self.codes.shape[1]:
            raise InputError(
                f"codes have {self.codes.shape[1]} levels, but {len(self.level_sizes)} level sizes were given."
            )
        if (most > self.level_sizes).any() or self.codes.min() < 0:
            raise InputError(f"codes must be at least 0 and below the level sizes, {self.level_sizes}.")
        self.facts = dict(facts or {})
        names = range(len(self.codes)) if item_ids is None else item_ids
        self.item_ids = pl.Series("item", names)
        if len(self.item_ids) != len(self.codes):
            raise InputError(f"there are codes for {len(self.codes):,} items but {len(self.item_ids):,} item ids.")
        if (repeated := self.item_ids.is_duplicated()).any():
            raise InputError(f"the item id {self.item_ids.filter(repeated)[0]!r} occurs more than once.")

    def __len__(self) -> int:
        return len(self.codes)

    def __repr__(self) -> str:
        sizes = ", ".join(f"{size:,}" for size in self.level_sizes)
        return f"SemanticIds({counted(len(self), 'item')}, {'levels' if self.levels > 1 else 'level'} of {sizes})"

    def _repr_html_(self) -> str:
        table = self.table().head(_SHOWN)
        return html_table(repr(self), table.columns, table.iter_rows())

    def named(self, item_ids: Sequence[Any] | pl.Series) -> "SemanticIds":
        """Return the same IDs with these item ids."""
        return SemanticIds(self.codes, self.level_sizes, item_ids, self.facts)

    def head(self, count: int) -> "SemanticIds":
        """Return the IDs of the first items; those of a Dataset come before those that were added to a model."""
        return SemanticIds(self.codes[:count], self.level_sizes, self.item_ids.head(count), self.facts)

    def require_data(self, data: Dataset, file: Path | None = None) -> None:
        """Raise an `InputError`, which names the file, unless these are the IDs of the Dataset's items in index order.

        IDs without item ids match any Dataset of the same size.
        """
        own, wanted, where = self.item_ids.cast(str), data.item_ids.cast(str), f"{file}: " if file else ""
        if len(own) != len(wanted):
            raise InputError(f"{where}these are the IDs of other items: {len(own):,} IDs for {len(wanted):,} items.")
        other = (own != wanted).arg_true()
        if len(other) and (own != pl.Series(range(len(own))).cast(str)).any():
            raise InputError(
                f"{where}these are the IDs of other items, or in another order: item {other[0]} is {own[other[0]]} in the IDs and "
                f"{wanted[other[0]]} in the Dataset."
            )
        if self.facts.get("data", data.fingerprint) != data.fingerprint:
            raise InputError(f"{where}these IDs belong to another Dataset, or it was prepared again.")

    @cached_property
    def digest(self) -> str:
        """A checksum of codes and level sizes."""
        return hashlib.sha256(repr(self.level_sizes).encode() + self.codes.tobytes()).hexdigest()

    @property
    def levels(self) -> int:
        """The number of codes of an ID."""
        return len(self.level_sizes)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Item indices sorted by ID, ties in index order; shape (items,)."""
        return np.lexsort(self.codes.T[::-1])

    @cached_property
    def _tree(self) -> tuple[list[NDArray[np.int32]], list[NDArray[np.int64]]]:
        """The codes of the nodes of every depth from 1, and the first child of every node of every depth."""
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
                f"depth {depth} is out of range; IDs with {self.levels} codes allow {least} to {most} here."
            )

    def nodes(self, depth: int) -> int:
        """Return the number of distinct prefixes of a length."""
        self._require_depth(depth, 0, self.levels)
        return 1 if depth == 0 else len(self._tree[0][depth - 1])

    def first_child(self, depth: int) -> NDArray[np.int64]:
        """Return the first child of every node of a depth among the nodes of the next, followed by their number.

        Shape (nodes + 1,).
        """
        self._require_depth(depth, 0, self.levels - 1)
        return self._tree[1][depth]

    def node_codes(self, depth: int) -> NDArray[np.int32]:
        """Return the last code of every prefix of a length from 1, shape (nodes,)."""
        self._require_depth(depth, 1, self.levels)
        return self._tree[0][depth - 1]

    def parent_of(self, depth: int) -> NDArray[np.int64]:
        """Return the parent of every prefix of a length from 1, shape (nodes,)."""
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
        """The first item of every ID in `order`, followed by the number of items; shape (IDs + 1,)."""
        return self._tree[1][-1]

    def children(self, depth: int, node: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the codes that follow a prefix, and the nodes of the next depth that they lead to."""
        if not 0 <= node < self.nodes(depth):
            raise InputError(f"there is no node {node} at depth {depth}, which has {self.nodes(depth):,} nodes.")
        first, last = self.first_child(depth)[node : node + 2]
        return self.node_codes(depth + 1)[first:last], np.arange(first, last)

    def step(self, depth: int, nodes: ArrayLike, codes: ArrayLike) -> NDArray[np.int64]:
        """Return the child of each node by its code, -1 where no item has that prefix; any shape."""
        nodes, codes = np.asarray(nodes, dtype=np.int64), np.asarray(codes, dtype=np.int64)
        keys = self.keys(depth)
        wanted = nodes * self.level_sizes[depth] + codes
        place = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
        possible = (nodes >= 0) & (codes >= 0) & (codes < self.level_sizes[depth])
        return np.where((keys[place] == wanted) & possible, place, -1)

    def keys(self, depth: int) -> NDArray[np.int64]:
        """Return parent and code of every node of the next depth as one number, ascending; shape (nodes,)."""
        self._require_depth(depth, 0, self.levels - 1)
        return self._keys[depth]

    @cached_property
    def _keys(self) -> list[NDArray[np.int64]]:
        return [self.parent_of(depth) * size + self.node_codes(depth) for depth, size in enumerate(self.level_sizes, 1)]

    def find(self, codes: ArrayLike) -> list[NDArray[np.int64]]:
        """Return the item indices with each ID, shape (IDs, levels); an empty array where there are none."""
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
        """Return unique IDs, with one more level that numbers the items that share their codes, as in TIGER."""
        begin = self.first_item
        last = np.empty(len(self), dtype=np.int32)
        last[self.order] = np.arange(len(self)) - np.repeat(begin[:-1], np.diff(begin))
        level_sizes = (*self.level_sizes, int(last.max()) + 1)
        return SemanticIds(np.column_stack([self.codes, last]), level_sizes, self.item_ids, self.facts)

    def table(self) -> pl.DataFrame:
        """Return a table with the columns item, c1, c2 and so on."""
        columns = {f"c{level + 1}": self.codes[:, level] for level in range(self.levels)}
        return pl.DataFrame({"item": self.item_ids, **columns})

    def save(self, path: str | Path) -> None:
        """Write the table as Parquet atomically; level sizes and facts are in its metadata."""
        path = Path(path)
        if path.is_dir() or path.suffix.lower() != ".parquet":
            raise InputError(f"{path}: IDs are saved as Parquet; name a file that ends with .parquet.")
        metadata = {
            "format": _READABLE[-1],
            "sizes": ",".join(map(str, self.level_sizes)),
            "facts": json.dumps(self.facts),
            "checksum": SEAL,
        }
        with atomic_file(path) as partial:
            self.table().write_parquet(partial, metadata=metadata)
            seal_file(partial)

    @classmethod
    def load(cls, path: str | Path) -> "SemanticIds":
        """Read what `save` wrote."""
        if not as_path(path).exists():
            raise InputError(f"{path}: there is no such file; 'resid quantize' writes one.")
        try:
            # Before anything is parsed: Polars ends the process at some damaged files.
            sealed = is_sealed(Path(path))
            table, metadata = pl.read_parquet(path, glob=False), pl.read_parquet_metadata(path)
            if "sizes" not in metadata:
                raise ValueError("its metadata do not contain the level sizes; another program wrote it")
            if (version := metadata.get("format", "1")) not in _READABLE:
                raise ValueError(f"format {version!r} is not supported; update resid")
            if version != "1" and not sealed:
                raise ValueError("its checksum is missing")
            level_sizes = [int(size) for size in metadata["sizes"].split(",")]
            facts = json.loads(metadata.get("facts", "{}"))
            return cls(table.drop("item").to_numpy(), level_sizes, table["item"], facts)
        except (OSError, KeyError, ValueError, pl.exceptions.PolarsError) as error:
            raise InputError(
                f"{path}: this file has no valid semantic IDs ({first_line(error)}); quantize again."
            ) from error
