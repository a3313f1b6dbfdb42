"""Item fields: what kind a column of the item table is, and how it becomes one or more fields.

There are four kinds: a ``category`` is one value, a ``path`` a list of category names from general to specific, which is split
into levels, ``tags`` are a set of values, and a ``number`` is put into bins (`resid.data.codes`).
"""

from collections.abc import Mapping
from typing import Any, get_args

import polars as pl

from resid.core.errors import InputError, nearest, shown
from resid.data.catalogue import as_list
from resid.data.engines import ROW
from resid.data.settings import FieldKind, PrepareSettings
from resid.data.tables import Table, typed

PATH_SEPARATOR = " > "
TAG_SEPARATOR = "|"  # of tags in one text, as in MovieLens
KINDS: tuple[FieldKind, ...] = get_args(FieldKind)
_KEPT_POSITION = 0.9  # share of the values of a path that are at the usual position of their name, at least
_SEPARATED = 0.1  # share of the texts of tags that contain the separator, at least
_DISTINCT, _MANY = 0.9, 20  # share of items with a value of their own, and number of items, from which this is noted
WHOLE = "its numbers are whole and may be ids"  # the reason of a guess


def parse_fields(fields: Any) -> tuple[tuple[str, ...] | None, tuple[FieldKind | None, ...] | None]:
    """Return the columns of `fields` and their kinds, None for a kind to guess.

    Parameters
    ----------
    fields
        A list of columns, each as ``"store"`` or with its kind as ``"genres:tags"``; or a mapping of columns to kinds,
        None for a kind to guess. What follows a colon and is not a kind belongs to the name of the column.
    """
    if fields is None:
        return None, None
    if isinstance(fields, Mapping):
        pairs = list(fields.items())
        if wrong := [(column, kind) for column, kind in pairs if kind is not None and kind not in KINDS]:
            raise InputError(_unknown_kind(*wrong[0]))
    else:
        listed = as_list(fields)
        if listed is None:
            raise InputError(
                f"fields must be a list of column names, for example ['store', 'genres:tags'], not {shown(fields)}."
            )
        pairs = [_name_and_kind(column) for column in listed]
    columns = [column for column, _ in pairs]
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise InputError(f"column {shown(twice[0])} is listed twice in fields (--fields); list it once.")
    return tuple(columns), tuple(kind for _, kind in pairs)


def _name_and_kind(text: Any) -> tuple[Any, FieldKind | None]:
    column, _, kind = text.rpartition(":") if isinstance(text, str) else ("", "", "")
    return (column, kind) if column and kind in KINDS else (text, None)


def _unknown_kind(column: Any, kind: Any) -> str:
    return (
        f"field {shown(column)}: there is no kind {shown(kind)}{nearest(str(kind), KINDS)}; "
        f"the kinds are {', '.join(KINDS)}."
    )


def source_columns(items: Table, settings: PrepareSettings) -> tuple[str, ...]:
    """Return the columns of the item table that become fields; raise an `InputError` if the user named none."""
    present = [name for name in items.frame.collect_schema().names() if name != ROW]
    if settings.fields is None:
        raise InputError(
            f"{items.name}: choose the columns to use as item fields, for example fields=['{present[-1]}'] "
            f"(--fields {present[-1]}); it has {', '.join(present)}."
        )
    for name, second in zip(settings.fields, settings.kinds or (None,) * len(settings.fields), strict=True):
        column, _, kind = name.rpartition(":")
        if name in present or column not in present:
            continue
        if kind in KINDS and second:
            raise InputError(f"field '{name}:{second}' has two kinds; give one.")
        if not kind:
            raise InputError(f"field '{name}' has no kind after the colon; add one of {', '.join(KINDS)}.")
        raise InputError(_unknown_kind(column, kind))
    return settings.fields


def field_columns(
    items: pl.DataFrame, settings: PrepareSettings, table: Table
) -> tuple[pl.DataFrame, tuple[FieldKind, ...], dict[str, str]]:
    """Return one column per field, the kind of every column of `settings.fields`, and why it was guessed.

    Parameters
    ----------
    items
        The item table with the columns of `settings.fields`.
    settings
        Settings of the preprocessing.
    table
        The table that `items` was read from, for error messages. Columns of an untyped table become numbers if all of their
        values are numbers.

    Returns
    -------
    fields, kinds, reasons
        The fields: text or integers for a category and the levels of a path, lists of them without repetition for tags, and
        numbers. Null is missing. Reasons, by column, are given for guesses unless they are evident.
    """
    columns: list[pl.Series] = []
    kinds: list[FieldKind] = []
    reasons: dict[str, str] = {}
    names = settings.fields or ()
    for name, kind in zip(names, settings.kinds or (None,) * len(names), strict=True):
        values = typed(items[name]) if table.untyped and kind != "tags" else items[name]
        where = f"{table.name}, column '{name}'"
        if kind is None:
            kind, reason = _guess(values, where)
            reasons |= {name: reason} if reason else {}
        kinds.append(kind)
        if kind == "path":
            columns += _path_levels(values, settings, where)
        else:
            columns.append({"category": _category, "tags": _tags, "number": _number}[kind](values, where))
    fields = [column.name for column in columns]
    if repeated := {name for name in fields if fields.count(name) > 1} | ({"item"} & set(fields)):
        raise InputError(f"{table.name}: two fields would be called '{min(repeated)}'; rename one of the columns.")
    return pl.DataFrame(columns), tuple(kinds), reasons


def _guess(values: pl.Series, where: str) -> tuple[FieldKind, str]:
    """Return the kind that a column seems to be, and the reason; none for a category of text or booleans that repeat.

    A list is a path if its names keep their level: of all names that occur more than once, at least 90% of the occurrences are
    at the most common position of their name. Text has tags if at least 10% of it contains "|" and splitting it there leaves
    fewer distinct values. Numbers with decimals are numbers, everything else is a category; whole numbers may be ids.
    """
    if isinstance(values.dtype, pl.List | pl.Array):
        names = _as_lists(values, where).list.drop_nulls()
        flat = pl.DataFrame({"list": pl.int_range(len(names), eager=True), "name": names})
        flat = flat.explode("name").drop_nulls().with_columns(place=pl.int_range(pl.len()).over("list"))
        counts = flat.group_by("name", "place").len().group_by("name").agg(pl.col("len").sum(), usual=pl.max("len"))
        counts = counts.filter(pl.col("len") > 1)
        kept = int(counts["usual"].sum()) / max(1, int(counts["len"].sum()))
        if kept >= _KEPT_POSITION and bool((flat["place"] > 0).any()):
            return "path", f"{kept:.0%} of the names in its lists are at the usual position of that name"
        return "tags", f"only {kept:.0%} of the names in its lists are at the usual position of that name"
    if values.dtype.is_decimal() or (values.dtype.is_float() and not _are_whole(values)):
        return "number", "it has numbers that are not whole"
    values = _category(values, where).drop_nulls()
    if values.dtype == pl.String:
        separated = values.str.contains(TAG_SEPARATOR, literal=True).sum() >= _SEPARATED * len(values)
        if separated and _tags(values, where).drop_nulls().explode().n_unique() < values.n_unique():
            return "tags", f"its values are separated by {TAG_SEPARATOR}"
    facts = [WHOLE] if values.dtype.is_integer() else []
    if len(values) >= _MANY and values.n_unique() > _DISTINCT * len(values):
        facts.append("it has a different value for almost every item")
    return "category", ", and ".join(facts)


def _are_whole(values: pl.Series) -> bool:
    """Return whether all numbers are integers of 64 bits; pandas stores integers with missing values as floats."""
    values = values.fill_nan(None)
    return bool((values.abs() < 2.0**63).all() and (values == values.round()).all())


def _category(values: pl.Series, where: str) -> pl.Series:
    if isinstance(values.dtype, pl.List | pl.Array):
        raise _unsuitable(values, where, "single values")
    if values.dtype.is_float() and _are_whole(values):
        values = values.fill_nan(None).cast(pl.Int64)
    if values.dtype in (pl.Categorical, pl.Enum, pl.Boolean, pl.Null):
        values = values.cast(pl.String)
    if values.dtype.is_integer():
        narrow = values.cast(pl.Int64, strict=False)
        return narrow if narrow.null_count() == values.null_count() else values.cast(pl.String)
    if values.dtype != pl.String:
        raise _unsuitable(values, where, "text or integers")
    return _empty_is_missing(values)


def _number(values: pl.Series, where: str) -> pl.Series:
    if values.dtype in (pl.String, pl.Categorical, pl.Enum):
        text = _empty_is_missing(values.cast(pl.String))
        values = typed(text.str.strip_chars())
        if values.dtype == pl.String and values.null_count() < len(values):
            wrong = next(
                value for value in text if value is not None and not typed(pl.Series([value])).dtype.is_numeric()
            )
            raise InputError(
                f"{where}: {shown(wrong)} is not a number; use {values.name}:category, or convert the column."
            )
    if not (values.dtype.is_numeric() or values.dtype in (pl.String, pl.Null)):
        raise _unsuitable(values, where, "numbers")
    numbers = values.cast(pl.Float64).fill_nan(None)
    if numbers.is_infinite().any():
        raise InputError(f"{where}: a value is infinite; leave the cell empty to treat it as missing.")
    return numbers


def _tags(values: pl.Series, where: str) -> pl.Series:
    """Return sorted lists of distinct tags, null where there are none; tags in one text are separated by "|"."""
    if values.dtype in (pl.String, pl.Categorical, pl.Enum):
        parts = values.cast(pl.String).str.split(TAG_SEPARATOR)
        values = parts.list.eval(pl.element().str.strip_chars())
    tags = _as_lists(values, where).list.drop_nulls().list.unique().list.sort()
    return tags.set(tags.list.len() == 0, None)


def _as_lists(values: pl.Series, where: str) -> pl.Series:
    """Return lists of text, with null for empty names, or lists of 64-bit integers."""
    if not isinstance(values.dtype, pl.List | pl.Array):
        raise _unsuitable(values, where, "lists")
    inner = values.dtype.inner
    if inner.is_integer():
        narrow = values.cast(pl.List(pl.Int64), strict=False)
        if narrow.list.drop_nulls().list.len().sum() == values.cast(pl.List(inner)).list.drop_nulls().list.len().sum():
            return narrow
    elif inner not in (pl.String, pl.Categorical, pl.Enum, pl.Null):
        nested = isinstance(inner, pl.List | pl.Array)
        advice = "flatten them to one list per item" if nested else "convert them to text or integers"
        raise InputError(f"{where} has lists of {_content(values.explode().dtype)}; {advice}.")
    text = values.cast(pl.List(pl.String))
    return text.list.eval(pl.when(pl.element().str.strip_chars() != "").then(pl.element()))


def _content(type_: pl.DataType) -> str:
    """Return what a column of a type has, in words."""
    if isinstance(type_, pl.List | pl.Array):
        return "lists"
    if type_.is_numeric():
        return "integers" if type_.is_integer() else "numbers"
    words = {
        pl.String: "text",
        pl.Categorical: "text",
        pl.Enum: "text",
        pl.Boolean: "true and false",
        pl.Struct: "records",
    }
    return words.get(type_.base_type(), "dates or times" if type_.is_temporal() else "values of another type")


def _unsuitable(values: pl.Series, where: str, wanted: str) -> InputError:
    """Return the error for a column that does not have what its kind needs, with the kinds that it can be."""
    found, name = _content(values.dtype), values.name
    advice = {
        "lists": f"use {name}:tags or {name}:path",
        "numbers": f"use {name}:number",
        "integers": f"use {name}:category or {name}:number",
        "text": f"use {name}:tags for values separated by {TAG_SEPARATOR}, or a Parquet or JSON-lines file with lists for a path",
        "true and false": f"use {name}:category",
    }
    return InputError(f"{where} has {found}, not {wanted}; {advice.get(found, 'convert the column')}.")


def _empty_is_missing(values: pl.Series) -> pl.Series:
    return values.set(values.str.strip_chars() == "", None)


def _path_levels(paths: pl.Series, settings: PrepareSettings, where: str) -> list[pl.Series]:
    """Split a path such as [Music, Guitars, Strings] into its first levels, qualified by the levels above them.

    A path ends at its first empty name. The levels after its end repeat the last one, or are missing.
    """
    stem = "cat" if paths.name.lower().startswith("categor") else paths.name
    paths = _as_lists(paths, where).cast(pl.List(pl.String))
    levels: list[pl.Series] = []
    ended = pl.Series([False]).new_from_index(0, len(paths))
    for level in range(settings.path_levels):
        here = paths.list.get(level, null_on_oob=True)
        here = here.str.replace_all(PATH_SEPARATOR, " / ", literal=True)  # keeps joined paths unambiguous
        ended |= here.is_null()
        if levels and settings.qualify_paths:
            here = levels[-1] + PATH_SEPARATOR + here
        if levels:
            here = here.zip_with(~ended, levels[-1] if settings.short_paths == "repeat" else here.clear(len(here)))
        levels.append(here.alias(f"{stem}{level + 1}"))
    return levels
