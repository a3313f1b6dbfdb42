"""Validation of the input tables, written once in Narwhals for Polars and Spark.

Every error message is one sentence that names the table, the column and the first invalid rows, and says what to do.
"""

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import narwhals as nw
import polars as pl

from resid.core.errors import InputError, first_line
from resid.data.engines import ROW, Engine, Frame

_SHOWN = 3  # invalid rows named in a message
# Text that is a 64-bit integer in canonical form.
_INTEGER = r"^(0|-?[1-9][0-9]{0,17}|-?[1-8][0-9]{18})$"
_DECIMAL = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


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
            value = f" ({rows[show][0]!r})" if show else ""
            raise InputError(f"{self.name}, column '{column}': {problem} in {where}{value}; {advice}.")


def checked_interactions(table: Table, columns: Mapping[str, str]) -> Table:
    """Validate the log and rename its columns to `user`, `item`, `timestamp` and `ROW`.

    Ids become text or 64-bit integers, timestamps any sortable type.
    """
    _require_columns(table, columns.values())
    named = [nw.col(columns[name]).alias(name) for name in ("user", "item", "timestamp")]
    table = _numbered(table, named)
    for name in ("user", "item"):
        table = _checked_ids(table, name, columns[name])
    return _checked_timestamps(table, columns["timestamp"])


def checked_items(table: Table, item_column: str, fields: Iterable[str], keep: Iterable[str]) -> Table:
    """Validate the item table and select `item`, `ROW`, the fields and the columns to keep."""
    fields, keep = list(fields), list(keep)
    if item_column in (*fields, *keep):
        raise InputError(
            f"{table.name}, column '{item_column}': this is the item id; remove it from the fields and the kept columns."
        )
    _require_columns(table, [item_column])
    _require_columns(table, fields, what="field")
    _require_columns(table, keep)
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


def _require_columns(table: Table, wanted: Iterable[str], what: str = "column") -> None:
    present = table.frame.collect_schema().names()
    for name in wanted:
        if name not in present:
            close = difflib.get_close_matches(name, present, n=1)
            shown = ", ".join(column for column in present if column != ROW)
            hint = f" (did you mean '{close[0]}'?)" if close else ""
            if ";" in shown and "," not in shown:
                hint = " (the separator seems to be a semicolon instead of a comma)"
            advice = "map column names with columns (--columns)" if what == "column" else "choose from these"
            raise InputError(f"{table.name}: there is no {what} '{name}', it has {shown}{hint}; {advice}.")


def _numbered(table: Table, columns: list[nw.Expr]) -> Table:
    """Materialize the columns with their row numbers; raise an `InputError` if the table is empty or unreadable."""
    try:
        frame = table.engine.materialize(table.engine.number_rows(table.frame).select(*columns, nw.col(ROW)))
        rows = table.engine.collect(frame.head(1).select(nw.len().alias("count")))["count"].item()
    except Exception as error:  # Polars and Spark have their own error classes, and Spark is optional
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
        all_integers = nw.col(column).str.contains(_INTEGER).all().alias("all")
        if table.engine.collect(table.frame.select(all_integers))["all"].item():
            return _cast(table, column, nw.Int64)
        return table
    if type_ in (nw.Categorical, nw.Enum):
        return _cast(table, column, nw.String)
    if type_.is_integer():
        ends = table.frame.select(nw.col(column).min().alias("least"), nw.col(column).max().alias("most"))
        least, most = table.engine.collect(ends).row(0)
        if most < 2**63:
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


def _checked_timestamps(table: Table, original: str) -> Table:
    type_ = table.frame.collect_schema()["timestamp"]
    table.refuse(original, _missing("timestamp", type_), "missing value", "fill in the value or remove the row")
    if type_.is_numeric() or type_ in (nw.Date, nw.Datetime):
        return table
    if type_ != nw.String:
        raise InputError(
            f"{table.name}, column '{original}': timestamps must be numbers or dates, not {type_}; convert the column."
        )
    for pattern, numeric in ((_INTEGER, nw.Int64), (_DECIMAL, nw.Float64)):
        fits = nw.col("timestamp").str.contains(pattern).all().alias("all")
        if table.engine.collect(table.frame.select(fits))["all"].item():
            return _cast(table, "timestamp", numeric)
    # Some values are not numbers. Report the smaller group: the values that are not numbers, or those that are not dates.
    kept_text = table.frame.with_columns(nw.col("timestamp").alias("text"))
    dated = table.with_frame(table.engine.parse_dates(kept_text, "timestamp"))
    no_date, no_number = nw.col("timestamp").is_null(), ~nw.col("text").str.contains(_DECIMAL)
    counts = dated.frame.select(
        no_date.cast(nw.Int64).sum().alias("date"), no_number.cast(nw.Int64).sum().alias("number")
    )
    no_dates, no_numbers = table.engine.collect(counts).row(0)
    advice = "use numbers, or dates such as 2026-01-31 or 2026-01-31T08:15:00"
    blamed = no_date if no_dates <= no_numbers else no_number
    dated.refuse(original, blamed, "invalid timestamp", advice, "text")
    return dated.with_frame(dated.frame.drop("text"))


def typed(text: pl.Series) -> pl.Series:
    """Convert a text column to numbers if all of its values are numbers."""
    if text.dtype != pl.String or text.null_count() == len(text):
        return text
    for pattern, type_ in ((_INTEGER, pl.Int64), (_DECIMAL, pl.Float64)):
        if text.str.contains(pattern).all():
            return text.cast(type_)
    return text
