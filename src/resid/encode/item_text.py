"""The text of an item: the values of some columns of the item table, each after the name of its column."""

from collections.abc import Sequence

import polars as pl

from resid.core.errors import InputError
from resid.data.catalogue import Catalogue
from resid.data.fields import PATH_SEPARATOR

TITLE = "title"
_FURTHER = ("price", "features", "description")  # what else says what an item is; last, as long texts are cut
_BETWEEN = "; "


def text_columns(catalogue: Catalogue, chosen: Sequence[str] | None = None) -> tuple[str, ...]:
    """Return the columns that make the text of an item: those chosen, or the title, the fields, and what describes the item.

    Raises
    ------
    InputError
        If the catalogue has not all of them, or none.
    """
    present = catalogue.items.columns
    for name in chosen or ():
        if name not in present:
            raise InputError(
                f"there is no column '{name}' for the text of items, the Dataset has {', '.join(present)}; "
                f"prepare it again with keep=['{name}'] (--keep {name})."
            )
    usual = dict.fromkeys((TITLE, *catalogue.field_names, *_FURTHER))  # a price can be a field
    columns = tuple(chosen or (name for name in usual if name in present))
    if not columns:
        raise InputError(
            "the items have neither a title nor fields to make a text of; prepare the Dataset with an item table and "
            "keep=['title'] (--keep title), or pass a file of vectors (encoder.vectors)."
        )
    return columns


def text_template(columns: Sequence[str]) -> str:
    """Return how the text of an item is put together: ``title: {title}; store: {store}``."""
    return _BETWEEN.join(f"{name}: {{{name}}}" for name in columns)


def item_texts(items: pl.DataFrame, columns: Sequence[str], catalogue: Catalogue) -> list[str]:
    """Return the text of every item; columns without a value are left out.

    Parameters
    ----------
    items
        Items with the columns of the catalogue.
    columns
        What `text_columns` returned.
    catalogue
        Its settings tell the levels of category paths, of which the last name is used, as the others are levels themselves.
    """
    settings = catalogue.settings
    levels = set(catalogue.field_names) - set(settings.fields or ()) if settings.qualify_paths else set()
    parts = []
    for name in columns:
        values = _as_text(items[name])
        if name in levels:
            values = values.str.split(PATH_SEPARATOR).list.last()
        values = values.str.replace_all(r"\s+", " ").str.strip_chars()
        parts.append(f"{name}: " + values.set(values == "", None))
    return pl.select(pl.concat_str(parts, separator=_BETWEEN, ignore_nulls=True)).to_series().to_list()


def _as_text(values: pl.Series) -> pl.Series:
    listed = isinstance(values.dtype, pl.List | pl.Array)
    if (values.dtype.inner if listed else values.dtype).is_nested():  # type: ignore[attr-defined]
        raise InputError(
            f"the column '{values.name}' cannot be part of a text, its type is {values.dtype}; choose other columns with "
            "encoder.columns."
        )
    return values.cast(pl.List(pl.String)).list.join(" ", ignore_nulls=True) if listed else values.cast(pl.String)
