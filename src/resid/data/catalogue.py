"""The catalogue: what fitted models keep of a Dataset, so that they work without it."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, one_line, shown
from resid.data.codes import bin_codes, values_in_order
from resid.data.settings import FieldKind, PrepareSettings

_INTEGER = re.compile(r"-?\d{1,20}")
_LABEL = 80  # characters of an item's label


@dataclass(frozen=True, eq=False)
class Catalogue:
    """The items of a Dataset, how their fields are read, and how often training saw them.

    Attributes
    ----------
    items : polars.DataFrame
        One row per item, in index order: the column ``item`` with the ids, then the fields and kept columns.
    field_names : tuple of str
    counts : ndarray of int64, shape (n_items,)
        How often each item occurs in the training part of the histories.
    settings : PrepareSettings
        How the tables were prepared.
    fingerprint : str
        The fingerprint of the Dataset.
    edges : dict
        The edges between the bins of every field that is a number.
    added : int
        The number of items at the end that were added to a model after its fit. Their values are not in the vocabularies.
    withdrawn : ndarray of int64
        The indices of the items that must not be recommended, ascending. They stay known in histories.
    """

    items: pl.DataFrame
    field_names: tuple[str, ...]
    counts: NDArray[np.int64]
    settings: PrepareSettings
    fingerprint: str
    edges: Mapping[str, tuple[float, ...]] = field(default_factory=dict)
    added: int = 0
    withdrawn: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))

    def __post_init__(self) -> None:
        if self.counts.shape != (len(self.items),):
            raise InputError(f"there are {len(self.items):,} items but {len(self.counts):,} training counts.")

    def __len__(self) -> int:
        return len(self.items)

    @property
    def n_fitted(self) -> int:
        """The number of items of the Dataset, which the model was fitted to; those that were added come after them."""
        return len(self) - self.added

    @property
    def max_history(self) -> int:
        """The number of most recent items of a history that models read."""
        return self.settings.max_length - 1

    @property
    def item_ids(self) -> pl.Series:
        """The item ids in index order."""
        return self.items["item"]

    @cached_property
    def _positions(self) -> dict[Any, int]:
        return {identity: index for index, identity in enumerate(self.item_ids)}

    def find(self, ids: Iterable[Any]) -> NDArray[np.int64]:
        """Return the index of every item id, -1 for an unknown id."""
        return lookup(self._positions, ids)

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        """The item ids in index order and None after the last, where the index -1 leads."""
        names = np.empty(len(self) + 1, dtype=object)
        names[:-1] = list(self._positions)
        return names

    def ids_of(self, indices: NDArray[np.int64]) -> NDArray[np.object_]:
        """Return the item ids of item indices, None for -1; any shape."""
        return self._names[indices]

    @cached_property
    def by_popularity(self) -> NDArray[np.int64]:
        """The items that may be recommended by descending training count, ties in index order."""
        order = np.argsort(-self.counts, kind="stable")
        return order[self.recommendable[order]] if len(self.withdrawn) else order

    @cached_property
    def recommendable(self) -> NDArray[np.bool_]:
        """Which items are not withdrawn, shape (n_items,)."""
        mask = np.ones(len(self), dtype=bool)
        mask[self.withdrawn] = False
        return mask

    def among_recommendable(self, allowed: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Return which of the allowed items, all if None, are not withdrawn; None if no item is."""
        if not len(self.withdrawn):
            return allowed
        return self.recommendable if allowed is None else allowed & self.recommendable

    def withdraw(self, indices: NDArray[np.int64]) -> Self:
        """Return the catalogue with these items withdrawn."""
        return replace(self, withdrawn=np.union1d(self.withdrawn, indices))

    def restore(self, indices: NDArray[np.int64]) -> Self:
        """Return the catalogue with these items no longer withdrawn."""
        return replace(self, withdrawn=np.setdiff1d(self.withdrawn, indices))

    def extended(self, items: pl.DataFrame) -> Self:
        """Return the catalogue with further items, which have the columns of `items`, at its end."""
        counts = np.concatenate([self.counts, np.zeros(len(items), dtype=self.counts.dtype)])
        joined = pl.concat([self.items, items.select(self.items.columns)], rechunk=True)
        return replace(self, items=joined, counts=counts, added=self.added + len(items))

    @cached_property
    def log_shares(self) -> NDArray[np.float32]:
        """The logarithm of every item's share of the interactions with add-one smoothing; shape (n_items,)."""
        shares: NDArray[np.float32] = np.log((self.counts + 1) / (self.counts + 1).sum()).astype(np.float32)
        return shares

    @cached_property
    def kinds(self) -> dict[str, FieldKind]:
        """The kind of every field."""
        return self.settings.kinds_of(self.field_names)

    def vocabulary(self, field: str) -> pl.Series:
        """Return the values of a field in the order of their codes; code 1 is the first value, code 0 is missing.

        The values of tags are the single tags, those of a number its bins as text.
        """
        if field not in self.field_names:
            raise InputError(f"there is no field '{field}'; the fields are {', '.join(self.field_names) or 'none'}.")
        fitted = self.items[field].head(self.n_fitted)  # codes must not move when items are added
        return values_in_order(fitted, self.kinds[field], self.edges.get(field, ()))

    def field_codes(self, field: str, values: Iterable[Any]) -> NDArray[np.int64]:
        """Return the codes of field values: 0 for null (missing), -1 for an unknown value.

        Values are single tags if the field has tags, and numbers, which are binned, if it is a number.
        """
        if self.kinds.get(field) == "number":
            try:
                numbers = pl.Series(values=as_list(values), dtype=pl.Float64).fill_nan(None)
            except (TypeError, pl.exceptions.PolarsError) as error:
                raise InputError(f"the values of the field '{field}' are numbers, not {shown(values)}.") from error
            return bin_codes(numbers, self.edges[field]).astype(np.int64)
        positions = {value: code for code, value in enumerate(self.vocabulary(field), 1)} | {None: 0}
        return lookup(positions, values)

    def read_items(self, items: Any, *, keep: Sequence[str] = (), item_column: str = "item") -> pl.DataFrame:
        """Read a table of further items, which need not be in the catalogue, as the catalogue's own were read.

        Parameters
        ----------
        items
            A path or a frame with the id column, the columns that were given as fields, and those of `keep`.
        keep
            Further columns to read.
        item_column
            The name of the id column.

        Returns
        -------
        polars.DataFrame
            The column ``item``, the fields and the columns of `keep`.
        """
        from resid.data.new_items import read_items  # it reads tables with this module

        return read_items(items, self, item_column, keep)[0]

    def encode_items(
        self, items: Any, *, item_column: str = "item", separator: str | None = None, encoding: str | None = None
    ) -> tuple[pl.Series, NDArray[np.int64]]:
        """Read a table of further items, which need not be in the catalogue, with this catalogue's vocabularies.

        Parameters
        ----------
        items
            A path or a frame with the id column and the columns that were given as fields.
        item_column
            The name of the id column.
        separator, encoding
            Of a text file, see `Dataset.from_tables`.

        Returns
        -------
        ids, codes
            The item ids, and their field codes as in `Dataset.fields`: 0 is missing, -1 is an unknown value. A warning is
            logged for unknown values.
        """
        from resid.data.new_items import encode_items  # it reads tables with this module

        return encode_items(items, self, item_column, separator=separator, encoding=encoding)

    def facts(self) -> dict[str, Any]:
        """Return everything but the item table and the counts, ready for JSON."""
        changes = {"added": self.added, "withdrawn": self.withdrawn.tolist()}
        return {
            "field_names": list(self.field_names),
            "prepare": self.settings.to_dict(),
            "fingerprint": self.fingerprint,
            "edges": {name: list(edges) for name, edges in self.edges.items()},
            **{name: value for name, value in changes.items() if value},
        }

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any], items: pl.DataFrame, counts: NDArray[np.int64]) -> Self:
        """Undo `facts`."""
        names, settings = tuple(facts["field_names"]), PrepareSettings.from_dict(facts["prepare"])
        edges = {name: tuple(values) for name, values in facts.get("edges", {}).items()}
        withdrawn = np.array(facts.get("withdrawn", ()), dtype=np.int64)
        return cls(items, names, counts, settings, facts["fingerprint"], edges, facts.get("added", 0), withdrawn)


def lookup(positions: Mapping[Any, int], ids: Iterable[Any]) -> NDArray[np.int64]:
    """Return the position of every id, -1 for an unknown id; raise an `InputError` for what cannot be an id.

    All ids that users pass to fitted models and Datasets are looked up here.
    """
    listed = as_list(ids)
    if listed is None:
        raise InputError(f"expected a list of ids, got {shown(ids)}.")
    try:
        return np.array([positions.get(identity, -1) for identity in listed], dtype=np.int64)
    except TypeError as error:  # not hashable
        wrong = next(identity for identity in listed if not is_hashable(identity))
        raise InputError(f"{shown(wrong)} is not an id; ids are strings or integers.") from error


def as_list(values: Any) -> list[Any] | None:
    """Return what a user passed for a list as one; None if it is a string or has no elements in order."""
    if isinstance(values, (str, bytes, set, frozenset, Mapping)) or hasattr(values, "columns"):
        return None
    try:
        return list(values)
    except TypeError:  # not iterable, or an array without dimensions
        return None


def is_hashable(value: Any) -> bool:
    """Return whether a value can be a key, and so an id."""
    try:
        hash(value)
    except TypeError:
        return False
    return True


def parse_ids(texts: Iterable[Any], dtype: pl.DataType) -> list[Any]:
    """Return ids that were given as text as integers if the type is one; invalid integers stay text."""
    if not dtype.is_integer():
        return [str(text) for text in texts]
    return [int(text) if _INTEGER.fullmatch(str(text).strip()) else text for text in texts]


def item_label(row: Mapping[str, Any], field_names: Sequence[str]) -> str:
    """Return the title of an item's row, or its first and its last field and its id if it has none."""
    if row.get("title"):
        return one_line(str(row["title"]), _LABEL)
    ends = dict.fromkeys(name for name in (*field_names[:1], *field_names[-1:]) if row[name] is not None)
    return one_line(" · ".join(str(row[name]) for name in (*ends, "item")), _LABEL)
