"""Validation of the input tables, written once in Narwhals for Polars and Spark.

Every error message is one sentence that names the table, the column and the first invalid rows, and says what to do.
"""

import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import polars as pl

from resid.core.errors import InputError, first_line, one_line, shown
from resid.data.engines import ROW, Engine, Frame

# Polars and Spark have their own error classes, and Spark is optional; a parser of Polars that panics raises what is not
# even an `Exception`.
ENGINE_ERRORS = (Exception, pl.exceptions.PanicException)
_SEPARATORS = ";\t|,"  # of text files, as people have them
_SHOWN = 3  # invalid rows named in a message
# Text that is a 64-bit integer in canonical form.
INTEGER = r"^(0|-?[1-9][0-9]{0,17}|-?[1-8][0-9]{18})$"
# 28/02/2020 and the like, with or without a time; each part of the day and month up to 12 can be either.
_DAY_MONTH = r"^(\d\d?)[/.-](\d\d?)[/.-](\d{4})"
_DAY_FIRST, _MONTH_FIRST = r"^(1[3-9]|2\d|3[01])[/.-]", r"^\d\d?[/.-](1[3-9]|2\d|3[01])[/.-]"
# Units in which a time since 1970 is counted, and the range of numbers for the years 1973 to 2286.
EPOCHS = {"seconds": 1e8, "milliseconds": 1e11, "microseconds": 1e14, "nanoseconds": 1e17}
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"

_COLUMN_HINT = "pass its name with columns={{'{key}': '{column}'}} (--columns {key}={column})"


@dataclass(frozen=True)
class Table:
    """An input table: its lazy frame, and the names of the table and its rows in error messages.

    `untyped` tables were read from a format without types, such as CSV, where 7 and "7" are equal.
    """

    frame: Frame
    name: str
    engine: Engine
    row_word: str = "row"
    untyped: bool = False
    skipped_lines: int = 0

    def with_frame(self, frame: Frame) -> "Table":
        """Return the table with another frame."""
        return replace(self, frame=frame)

    def refuse(self, column: str, offending: nw.Expr, problem: str, advice: str, show: str | None = None) -> None:
        """Raise an `InputError` that names the column and the first offending rows, if there are any.

        `show` is a column whose first offending value is shown.
        """
        bad = self.frame.filter(offending)
        count = self.engine.collect(bad.select(nw.len().alias("count")))["count"].item()
        if count:
            rows = self.engine.collect(bad.head(_SHOWN))
            first = self.engine.point_at(rows, self.row_word)
            where = first if count <= _SHOWN else f"{count:,} {self.row_word}s, first in {first}"
            value = f" ({shown(rows[show][0])})" if show else ""
            raise InputError(f"{self.name}, column '{column}': {problem} in {where}{value}; {advice}.")


def checked_interactions(table: Table, columns: Mapping[str, str], timestamp_format: str | None = None) -> Table:
    """Validate the log and rename its columns to `user`, `item`, `timestamp` and `ROW`.

    Ids become text or 64-bit integers, timestamps any sortable type. `timestamp_format` is how timestamps that are text
    are parsed, in the notation of `strptime`.
    """
    require_columns(table, columns)
    named = [nw.col(columns[name]).alias(name) for name in ("user", "item", "timestamp")]
    table = _numbered(table, named)
    for name in ("user", "item"):
        table = _checked_ids(table, name, columns[name])
    return _checked_timestamps(table, columns["timestamp"], timestamp_format)


def checked_histories(table: Table, columns: Mapping[str, str]) -> Table:
    """Validate a table with one history per row and rename its columns to `user`, `items` and `ROW`.

    User ids become text or 64-bit integers. Items are lists of ids, or text with comma-separated ids.
    """
    require_columns(table, {name: columns[name] for name in ("user", "items")})
    table = _numbered(table, [nw.col(columns[name]).alias(name) for name in ("user", "items")])
    type_ = table.frame.collect_schema()["items"]
    inner = type_.inner if isinstance(type_, nw.List) else None
    if type_ != nw.String and (inner is None or not (inner == nw.String or inner == nw.Unknown or inner.is_integer())):
        raise InputError(
            f"{table.name}, column '{columns['items']}': a history is a list of item ids, not {type_}; for one row per "
            "interaction, name the columns user, item and timestamp."
        )
    return _checked_ids(table, "user", columns["user"])


def checked_items(
    table: Table, item_column: str, fields: Iterable[str], keep: Iterable[str], option: str = _COLUMN_HINT
) -> Table:
    """Validate the item table and select `item`, `ROW`, the fields and the columns to keep; `option` as in `require_columns`."""
    fields, keep = list(fields), list(keep)
    if item_column in (*fields, *keep):
        raise InputError(
            f"{table.name}, column '{item_column}': this is the item id; remove it from the fields and the kept columns."
        )
    require_columns(table, {"item": item_column}, option=option)
    require_columns(table, fields, what="field")
    require_columns(table, keep)
    others = dict.fromkeys([*fields, *keep])
    table = _numbered(table, [nw.col(item_column).alias("item"), *(nw.col(name) for name in others)])
    table = _checked_ids(table, "item", item_column)
    table.refuse(item_column, nw.len().over("item") > 1, "duplicate item", "keep one row per item", "item")
    return table


def same_item_type(log: Table, items: Table, item_column: str) -> tuple[Table, Table]:
    """Cast the item ids of both tables to one type; an untyped table follows the other, typed tables must agree."""
    types = [table.frame.collect_schema()["item"] for table in (log, items)]
    if types[0] == types[1]:
        return log, items
    if nw.String not in types or not (log.untyped or items.untyped):
        words = {nw.String: "text", nw.Int64: "integers", nw.UInt64: "integers beyond 2^63"}
        raise InputError(
            f"{items.name}, column '{item_column}': item ids are {words[type(types[1])]} here but "
            f"{words[type(types[0])]} in {log.name}; use the same type in both tables."
        )
    return _cast(log, "item", nw.String), _cast(items, "item", nw.String)


def separator_hint(header: str) -> str | None:
    """Return what to do if the header of a text file was split at the wrong separator, judging by what it contains."""
    found = max(_SEPARATORS, key=header.count)
    if not header.count(found):
        return None
    name = "tab" if found == "\t" else found
    return f"the separator seems to be '{name}', so pass separator='{name}' (--separator '{name}')"


def require_columns(
    table: Table, wanted: Mapping[str, str] | Iterable[str], what: str = "column", option: str = _COLUMN_HINT
) -> None:
    """Raise an `InputError` if a column is missing; `option` says how to pass the column of a key of a mapping."""
    present = [name for name in table.frame.collect_schema().names() if name != ROW]
    keys = {column: key for key, column in wanted.items()} if isinstance(wanted, Mapping) else {}
    for name in keys or wanted:
        if name not in present:
            lower = {column.lower(): column for column in present}  # also finds USER
            close = [lower[found] for found in difflib.get_close_matches(name.lower(), lower, n=1)]
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            advice = "choose from these"
            if name in keys:
                key, column = keys[name], close[0] if close else "NAME"
                advice = option.format(key=key, column=column)
            header = ", ".join(present)
            if table.untyped and len(present) == 1:
                advice = separator_hint(header) or advice
            raise InputError(f"{table.name}: there is no {what} '{name}', it has {one_line(header)}{hint}; {advice}.")


def _numbered(table: Table, columns: list[nw.Expr]) -> Table:
    """Materialize the columns with their row numbers; raise an `InputError` if the table is empty or unreadable."""
    try:
        frame = table.engine.materialize(table.engine.number_rows(table.frame).select(*columns, nw.col(ROW)))
        rows = table.engine.collect(frame.head(1).select(nw.len().alias("count")))["count"].item()
    except ENGINE_ERRORS as error:
        raise InputError(f"{table.name}: cannot be read ({first_line(error)}); is the file complete?") from error
    if not rows:
        raise InputError(f"{table.name}: the table is empty; pass one with at least one row.")
    return table.with_frame(frame)


def _missing(column: str, type_: Any) -> nw.Expr:
    """Return an expression for null, empty text, NaN and infinity in a column."""
    missing = nw.col(column).is_null()
    if type_ == nw.String:
        return missing | (nw.col(column) == "")
    return missing | ~nw.col(column).is_finite() if type_.is_float() else missing


def _checked_ids(table: Table, column: str, original: str) -> Table:
    type_ = table.frame.collect_schema()[column]
    table.refuse(original, _missing(column, type_), "missing value", "fill in the value or remove the row")
    if table.untyped:
        if _aggregate(table, {"all": nw.col(column).str.contains(INTEGER).all()})["all"]:
            return _cast(table, column, nw.Int64)
        return table
    if type_ in (nw.Categorical, nw.Enum):
        return _cast(table, column, nw.String)
    if type_.is_integer():
        least, most = _aggregate(table, {"least": nw.col(column).min(), "most": nw.col(column).max()}).values()
        if least >= -(2**63) and most < 2**63:
            return _cast(table, column, nw.Int64)
        if least >= 0 and most < 2**64:
            return _cast(table, column, nw.UInt64)
    if type_ != nw.String:
        raise InputError(
            f"{table.name}, column '{original}': ids must be text or 64-bit integers, not {type_}; convert the column."
        )
    return table


def _cast(table: Table, column: str, type_: Any) -> Table:
    return table.with_frame(table.frame.with_columns(nw.col(column).cast(type_)))


def _checked_timestamps(table: Table, original: str, format_: str | None) -> Table:
    type_ = table.frame.collect_schema()["timestamp"]
    table.refuse(original, _missing("timestamp", type_), "missing value", "fill in the value or remove the row")
    if type_ in (nw.Categorical, nw.Enum):
        table, type_ = _cast(table, "timestamp", nw.String), nw.String()
    if format_ is not None:
        return _parsed(table, original, format_)
    if type_ == nw.String:
        for pattern, numeric in ((INTEGER, nw.Int64), (_DECIMAL, nw.Float64)):
            if _aggregate(table, {"all": nw.col("timestamp").str.contains(pattern).all()})["all"]:
                table, type_ = _cast(table, "timestamp", numeric), numeric()
                break
    if type_.is_numeric():
        if type_ in (nw.UInt64, nw.Int128, nw.UInt128):
            time, limit = nw.col("timestamp"), 2**63
            beyond = time >= limit if type_ == nw.UInt64 else (time >= limit) | (time < -limit)
            advice = "use smaller numbers, such as seconds since 1970"
            table.refuse(original, beyond, "number too large for a signed 64-bit integer", advice, "timestamp")
            table = _cast(table, "timestamp", nw.Int64)
        _refuse_mixed_units(table, original)
        return table
    if type_ in (nw.Date, nw.Datetime):
        return table
    if type_ != nw.String:
        raise InputError(
            f"{table.name}, column '{original}': timestamps must be numbers or dates, not {type_}; convert the column."
        )
    # Some values are not numbers. Report the smaller group: the values that are not numbers, or those that are not dates.
    kept_text = table.frame.with_columns(nw.col("timestamp").alias("text"))
    iso = _iso_dates(table.with_frame(kept_text), original)
    dated = iso.with_frame(table.engine.parse_dates(iso.frame, "timestamp"))
    no_date, no_number = nw.col("timestamp").is_null(), ~nw.col("text").str.contains(_DECIMAL)
    counts = _aggregate(dated, {"dates": no_date.cast(nw.Int64).sum(), "numbers": no_number.cast(nw.Int64).sum()})
    advice = (
        "use numbers, or dates such as 2026-01-31 or 2026-01-31T08:15:00, or pass the format with timestamp_format "
        "(--timestamp-format), for example '%d %b %Y'"
    )
    blamed = no_date if counts["dates"] <= counts["numbers"] else no_number
    dated.refuse(original, blamed, "invalid timestamp", advice, "text")
    return dated.with_frame(dated.frame.drop("text"))


def _aggregate(table: Table, expressions: Mapping[str, nw.Expr]) -> dict[str, Any]:
    """Return the values of aggregations over a table."""
    named = [expression.alias(name) for name, expression in expressions.items()]
    return table.engine.collect(table.frame.select(*named)).row(0, named=True)


def _parsed(table: Table, original: str, format_: str) -> Table:
    """Parse timestamps that are text in a given format."""
    type_ = table.frame.collect_schema()["timestamp"]
    if type_ != nw.String:
        raise InputError(
            f"{table.name}, column '{original}': timestamp_format (--timestamp-format) is for text, and these timestamps are "
            f"{type_}; leave it out."
        )
    kept_text = table.frame.with_columns(nw.col("timestamp").alias("text"))
    try:
        dated = table.with_frame(table.engine.materialize(table.engine.parse_dates(kept_text, "timestamp", format_)))
    except InputError:
        raise
    except ENGINE_ERRORS as error:
        raise InputError(
            f"timestamp_format: {shown(format_)} is not a format such as '%d/%m/%Y %H:%M' ({first_line(error)})."
        ) from error
    advice = "change the format (--timestamp-format), or fix or remove the row"
    dated.refuse(
        original, nw.col("timestamp").is_null(), f"timestamp does not have the format {shown(format_)}", advice, "text"
    )
    return dated.with_frame(dated.frame.drop("text"))


def _refuse_mixed_units(table: Table, original: str) -> None:
    """Raise an `InputError` if all timestamps are times since 1970, but some in another unit than the others."""
    time = nw.col("timestamp")
    units = {name: (time >= least) & (time < least * 100) for name, least in EPOCHS.items()}
    counts = _aggregate(
        table,
        {name: unit.cast(nw.Int64).sum() for name, unit in units.items()}
        | {"zero": (time == 0).cast(nw.Int64).sum(), "all": nw.len()},
    )
    used = sorted((name for name in units if counts[name]), key=lambda name: counts[name])
    if len(used) > 1 and sum(counts[name] for name in (*used, "zero")) == counts["all"]:
        table.refuse(
            original,
            units[used[0]],
            f"{used[0]} since 1970 instead of {used[-1]}",
            "use one unit in the whole column",
            "timestamp",
        )


def _iso_dates(table: Table, original: str) -> Table:
    """Rewrite other ways to write a date or a time zone as ISO 8601; raise an `InputError` if a date is ambiguous."""
    time = nw.col("timestamp")
    text = time.str.replace_all(r"\s*(UTC|GMT)$", "Z").str.replace_all(r"^(\d{4})/(\d\d?)/(\d\d?)", "$1-$2-$3")
    patterns = {"any": _DAY_MONTH, "day": _DAY_FIRST, "month": _MONTH_FIRST}
    counts = _aggregate(
        table,
        {
            name: (time.str.contains(_DAY_MONTH) & time.str.contains(pattern)).cast(nw.Int64).sum()
            for name, pattern in patterns.items()
        },
    )
    if counts["any"]:
        if counts["day"] and counts["month"]:
            bad = time.str.contains(_DAY_MONTH) & time.str.contains(_MONTH_FIRST)
            problem = "date with the month first, where other rows have the day first,"
            table.refuse(original, bad, problem, "write all dates in one way, best as 2026-01-31", "timestamp")
        if not counts["day"] and not counts["month"]:  # nothing tells which comes first
            _refuse_ambiguous(table, original)
        text = text.str.replace_all(_DAY_MONTH, "$3-$2-$1" if counts["day"] else "$3-$1-$2")
    return table.with_frame(table.frame.with_columns(text.alias("timestamp")))


def _refuse_ambiguous(table: Table, original: str) -> None:
    bad = nw.col("timestamp").str.contains(_DAY_MONTH)
    example = table.engine.collect(table.frame.filter(bad).head(1))["timestamp"].item()
    first, second, rest = re.findall(r"^\d+([/.-])\d+([/.-])\d{4}(.*)$", example, re.DOTALL)[0]
    for pattern, directive in ((r"\d\d?:\d\d:\d\d", "%H:%M:%S"), (r"\d\d?:\d\d", "%H:%M"), (r"\.\d+", ".%f")):
        rest = re.sub(pattern, directive, rest, count=1)
    formats = [f"{a}{first}{b}{second}%Y{rest}" for a, b in (("%d", "%m"), ("%m", "%d"))]
    table.refuse(
        original,
        bad,
        "ambiguous date, day or month may come first,",
        f"pass timestamp_format='{formats[0]}' or '{formats[1]}' (--timestamp-format)",
        "timestamp",
    )


def typed(text: pl.Series) -> pl.Series:
    """Convert a text column to numbers if all of its values are numbers."""
    if text.dtype != pl.String or text.null_count() == len(text):
        return text
    for pattern, type_ in ((INTEGER, pl.Int64), (_DECIMAL, pl.Float64)):
        if text.str.contains(pattern).all():
            return text.cast(type_)
    return text
