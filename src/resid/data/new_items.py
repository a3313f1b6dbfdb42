"""New items: tables of items that are not in a catalogue, read as its own were, and what a model needs to take them in."""

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Artifact
from resid.core.errors import InputError, counted, shown
from resid.data.catalogue import Catalogue
from resid.data.codes import pad_codes, stack_codes
from resid.data.engines import ROW
from resid.data.fields import field_columns
from resid.data.readers import open_table
from resid.data.tables import Table, checked_items

_log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class NewItems:
    """Items that a model does not know yet.

    Attributes
    ----------
    items : polars.DataFrame
        With the columns of the catalogue.
    codes : ndarray of int64, shape (items, fields) or (items, fields, values)
        Their field codes, as in `Dataset.fields`: 0 is missing, -1 is a value that the catalogue does not have.
    unseen : list of list of str
        These values by item, as ``store=Zeta``.
    catalogue : Catalogue
        With these items at its end.
    """

    items: pl.DataFrame
    codes: NDArray[np.int64]
    unseen: list[list[str]]
    catalogue: Catalogue

    def __len__(self) -> int:
        return len(self.items)

    @property
    def known_codes(self) -> NDArray[np.int64]:
        """The codes with values that the catalogue does not have as missing; of tags, the others count."""
        known = np.maximum(self.codes, 0)
        if known.ndim == 2:
            return known
        return np.take_along_axis(known, np.argsort(known == 0, axis=2, kind="stable"), axis=2)  # padding is at the end

    def append_codes(self, known: NDArray[np.integer]) -> NDArray[np.integer]:
        """Append their codes to those of the other items, both with the item ID as the first field.

        Parameters
        ----------
        known
            Shape (items, J) or (items, J, values); J is 1 if the fields are not read.
        """
        own = np.zeros((len(self), *known.shape[1:]), dtype=known.dtype)
        if known.shape[1] > 1:
            fields, longest = self.known_codes, max((1, *known.shape[2:], *self.codes.shape[2:]))
            if known.ndim == 3:
                padding = [(0, 0), (0, 0), (0, longest - known.shape[2])]
                known, own = np.pad(known, padding), np.pad(own, padding)
                own[:, 1:, : fields.shape[2]] = fields
            else:
                own[:, 1:] = fields
        own.reshape(len(self), -1)[:, 0] = len(known) + np.arange(len(self))
        return np.concatenate([known, own])

    def grow(self, artifact: Artifact, *, appended: Mapping[str, NDArray[Any]], **changes: Any) -> Artifact:
        """Return an artifact with this catalogue.

        Parameters
        ----------
        artifact
            Of a part with a catalogue.
        appended
            By the name of an array, the rows to append.
        changes
            Other ``facts``, ``arrays``, ``tables`` and ``parts``, which replace those of the same name.
        """
        facts = {**artifact.facts, "catalogue": self.catalogue.facts(), **changes.get("facts", {})}
        arrays = {
            **artifact.arrays,
            "counts": self.catalogue.counts,
            **{name: np.concatenate([artifact.arrays[name], rows]) for name, rows in appended.items()},
            **changes.get("arrays", {}),
        }
        tables = {**artifact.tables, "items": self.catalogue.items, **changes.get("tables", {})}
        parts = {**artifact.parts, **changes.get("parts", {})}
        return replace(artifact, facts=facts, arrays=arrays, tables=tables, parts=parts)


def read_new_items(
    items: Any, catalogue: Catalogue, item_column: str = "item", *, skip_known: bool = False, **options: Any
) -> NewItems:
    """Read items that are to be added to a model.

    Parameters
    ----------
    items
        A path or a frame with the id column and the columns that were given as fields. Other columns of the catalogue that it
        lacks are missing.
    catalogue
        Of the model.
    item_column
        The name of the id column.
    skip_known
        Leave out items that the catalogue has; there may be no others.
    options
        Separator and encoding of a text file, see `Dataset.from_tables`.

    Raises
    ------
    InputError
        If a column is missing, an id is missing, of another type, given twice or in the catalogue already, or there is no row.
    """
    listed, table = read_items(items, catalogue, item_column, None, **options)
    listed = cast_ids(listed, "item", catalogue.item_ids.dtype, table, item_column)
    if skip_known:
        listed = listed.filter(pl.Series(catalogue.find(listed["item"]) < 0))
    return new_items_of(listed, catalogue, table.name, item_column)


def new_items_of(listed: pl.DataFrame, catalogue: Catalogue, name: str, item_column: str = "item") -> NewItems:
    """Return the items of a frame whose columns are those of the catalogue: ids, fields as they were read, kept columns.

    Parameters
    ----------
    listed
        The column ``item``, all fields, and other columns of the catalogue; what it lacks of these is missing.
    catalogue
        Of the model.
    name, item_column
        Of the table and of its id column, for messages.
    """
    if (known := catalogue.find(listed["item"]) >= 0).any():
        names = listed["item"].filter(pl.Series(known))
        withdrawn = np.isin(catalogue.find(names), catalogue.withdrawn).any()
        raise InputError(
            f"{name}, column '{item_column}': {counted(len(names), 'item is', 'items are')} in the model already, first "
            f"{shown(names[0])}; {'restore withdrawn items, and ' if withdrawn else ''}leave the rows out."
        )
    codes = field_codes_of(listed, catalogue)
    unseen: list[list[str]] = [[] for _ in range(len(listed))]
    for field, (code, column) in codes.items():
        rows, values = np.arange(len(column)), column
        if catalogue.kinds[field] == "tags":
            rows = np.repeat(rows, column.list.len().fill_null(0).to_numpy())
            values = column.drop_nulls().explode()
        for place in np.flatnonzero(code < 0):
            unseen[rows[place]].append(f"{field}={values[int(place)]}")
        if unknown := int((code < 0).sum()):
            _log.warning(
                "%s, field '%s': %d of %d values were not seen in training and count as missing",
                *(name, field, unknown, len(code)),
            )
    lacking = [column for column in catalogue.items.columns if column not in listed.columns]
    if lacking:
        _log.warning("%s has no column %s; it is missing for the new items", name, " and ".join(lacking))
    typed = [
        listed[column].cast(dtype, strict=False) if column in listed.columns else pl.lit(None, dtype).alias(column)
        for column, dtype in catalogue.items.schema.items()
    ]
    whole = listed.select(typed)
    return NewItems(whole, stacked_field_codes(codes, catalogue, len(listed)), unseen, catalogue.extended(whole))


def cast_ids(rows: pl.DataFrame, name: str, wanted: Any, table: Table, column: str) -> pl.DataFrame:
    """Return rows whose ids of users or items (`name`) have the type of those that are known, or raise an `InputError`."""
    own = rows.schema[name]
    if own == wanted:
        return rows
    if table.untyped and wanted == pl.String:
        return rows.with_columns(pl.col(name).cast(pl.String))
    raise InputError(
        f"{table.name}, column '{column}': {name} ids are {'text' if own == pl.String else 'integers'} here but "
        f"{'text' if wanted == pl.String else 'integers'} in the model; convert the column."
    )


def read_items(
    items: Any, catalogue: Catalogue, item_column: str, keep: Sequence[str] | None = (), **options: Any
) -> tuple[pl.DataFrame, Table]:
    """Return further items with their fields and kept columns, see `Catalogue.read_items`, and the table they were in.

    If `keep` is None, these are the columns of the catalogue that the table has.
    """
    settings = catalogue.settings
    columns = settings.fields or ()
    if keep is None:
        present = open_table(items, "items", None, **options).frame.collect_schema().names()
        keep = [name for name in catalogue.items.columns if name in present]
    kept = [name for name in keep if name not in ("item", *catalogue.field_names)]
    if settings.kinds is None:  # prepared before there were kinds
        settings = settings.replace(
            kinds=["category" if column in catalogue.field_names else "path" for column in columns]
        )
    table = open_table(items, "items", [item_column, *columns, *kept], **options)
    option = "pass its name with item_column='{column}' (--item-column {column})"
    table = checked_items(table, item_column, columns, kept, option)
    listed = table.engine.collect(table.frame).drop(ROW)
    fields, _, _ = field_columns(listed, settings, table)
    return pl.concat([listed.select("item"), fields, listed.select(kept)], how="horizontal"), table


def encode_items(
    items: Any, catalogue: Catalogue, item_column: str, **options: Any
) -> tuple[pl.Series, NDArray[np.int64]]:
    """Return the ids and field codes of further items; see `Catalogue.encode_items`."""
    fields, table = read_items(items, catalogue, item_column, **options)
    codes = field_codes_of(fields, catalogue)
    for name, (code, _) in codes.items():
        if unknown := int((code < 0).sum()):
            _log.warning("%s, field '%s': %d of %d values are unknown", table.name, name, unknown, len(code))
    return fields["item"], stacked_field_codes(codes, catalogue, len(fields))


def field_codes_of(items: pl.DataFrame, catalogue: Catalogue) -> dict[str, tuple[NDArray[np.int64], pl.Series]]:
    """Return the codes of all values of every field, 0 for missing and -1 for unknown ones, and the column of the field.

    The codes of tags are those of all tags, one item after another; see `stacked_field_codes`.
    """
    codes = {}
    for name in catalogue.field_names:
        kind, column = catalogue.kinds[name], items[name]
        values = column.drop_nulls().explode() if kind == "tags" else column
        typed = values if kind == "number" else values.cast(catalogue.vocabulary(name).dtype, strict=False)
        code = catalogue.field_codes(name, typed)
        code[
            typed.is_null().to_numpy() & values.is_not_null().to_numpy()
        ] = -1  # 7 and "7" are equal, "a" is no integer
        codes[name] = code, column
    return codes


def stacked_field_codes(
    codes: Mapping[str, tuple[NDArray[np.int64], pl.Series]], catalogue: Catalogue, n_items: int
) -> NDArray[np.int64]:
    """Return what `field_codes_of` returned as in `Dataset.fields`."""
    kinds = catalogue.kinds
    columns = [pad_codes(column, code) if kinds[name] == "tags" else code for name, (code, column) in codes.items()]
    return stack_codes(columns, n_items).astype(np.int64)
