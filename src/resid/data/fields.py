"""Item fields: scalar columns are used as they are, category paths are split into levels."""

import polars as pl

from resid.core.errors import InputError
from resid.data.engines import ROW
from resid.data.settings import PrepareSettings
from resid.data.tables import Table, typed

PATH_SEPARATOR = " > "


def source_columns(items: Table, settings: PrepareSettings) -> tuple[str, ...]:
    """Return the columns of the item table that become fields; raise an `InputError` if the user named none."""
    if settings.fields is None:
        shown = ", ".join(name for name in items.frame.collect_schema().names() if name != ROW)
        raise InputError(
            f"{items.name}: choose the columns to use as item fields with fields (--fields); it has {shown}."
        )
    return settings.fields


def field_columns(items: pl.DataFrame, settings: PrepareSettings, table: Table) -> pl.DataFrame:
    """Return one column of text or integers per field; missing values and empty text are null.

    Parameters
    ----------
    items
        The item table with the columns of `settings.fields`.
    settings
        Settings of the preprocessing.
    table
        The table that `items` was read from, for error messages. Columns of an untyped table become integers if all of
        their values are integers.
    """
    table_name = table.name
    columns: list[pl.Series] = []
    for name in settings.fields or ():
        values = items[name]
        if isinstance(values.dtype, pl.List | pl.Array):
            columns += _path_levels(values, settings, table_name)
        else:
            columns.append(_scalar(typed(values) if table.untyped else values, table_name))
    names = [column.name for column in columns]
    if repeated := {name for name in names if names.count(name) > 1} | ({"item"} & set(names)):
        raise InputError(f"{table_name}: two fields would be called '{min(repeated)}'; rename one of the columns.")
    return pl.DataFrame(columns)


def _scalar(values: pl.Series, table_name: str) -> pl.Series:
    if values.dtype.is_float():  # pandas stores integers with missing values as floats
        values = values.fill_nan(None)
        if (values.abs() < 2.0**63).all() and (values == values.round()).all():
            values = values.cast(pl.Int64)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        values = values.cast(pl.String)
    if values.dtype.is_integer():
        narrow = values.cast(pl.Int64, strict=False)
        return narrow if narrow.null_count() == values.null_count() else values.cast(pl.String)
    if values.dtype != pl.String:
        raise InputError(
            f"{table_name}, column '{values.name}': a field must be text, integers or lists, not {values.dtype}; "
            "bin the values first."
        )
    return _empty_is_missing(values)


def _empty_is_missing(values: pl.Series) -> pl.Series:
    return values.set(values.str.strip_chars() == "", None)


def _path_levels(paths: pl.Series, settings: PrepareSettings, table_name: str) -> list[pl.Series]:
    """Split a path such as [Music, Guitars, Strings] into its first levels, qualified by the levels above them."""
    inner = paths.dtype.inner  # type: ignore[attr-defined]
    if not (inner in (pl.String, pl.Categorical, pl.Enum, pl.Null) or inner.is_integer()):
        raise InputError(
            f"{table_name}, column '{paths.name}': a category path must be a list of text or integers, not of {inner}; "
            "flatten the column."
        )
    stem = "cat" if paths.name.lower().startswith("categor") else paths.name
    paths = paths.cast(pl.List(pl.String))
    levels: list[pl.Series] = []
    for level in range(settings.path_levels):
        here = _empty_is_missing(paths.list.get(level, null_on_oob=True))
        here = here.str.replace_all(PATH_SEPARATOR, " / ", literal=True)  # keeps joined paths unambiguous
        if levels and settings.qualify_paths:
            here = levels[-1] + PATH_SEPARATOR + here
        elif levels:
            here = here.set(levels[-1].is_null(), None)
        levels.append(here.alias(f"{stem}{level + 1}"))
    return levels
