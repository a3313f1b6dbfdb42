"""Tables that are written for users: Parquet, CSV or JSON lines, by the ending of the file's name."""

from collections.abc import Callable
from pathlib import Path

import polars as pl

from resid.core.errors import InputError
from resid.core.files import atomic_file, refuse_file

_WRITERS: dict[str, Callable[..., object]] = {
    ".parquet": pl.DataFrame.write_parquet,
    ".csv": pl.DataFrame.write_csv,
    ".jsonl": pl.DataFrame.write_ndjson,
    ".ndjson": pl.DataFrame.write_ndjson,
}
TABLE_ENDINGS = tuple(_WRITERS)
_SINKS: dict[str, Callable[..., object]] = {
    ".parquet": pl.LazyFrame.sink_parquet,
    ".csv": pl.LazyFrame.sink_csv,
    ".jsonl": pl.LazyFrame.sink_ndjson,
    ".ndjson": pl.LazyFrame.sink_ndjson,
}


def check_table_file(path: Path) -> None:
    """Raise an `InputError` unless `write_table` can write this file; called before any work is done."""
    if path.suffix.lower() not in _WRITERS or path.is_dir():
        raise InputError(f"{path}: name a file that ends with .parquet, .csv, .jsonl or .ndjson.")
    refuse_file(path.parent)


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a table atomically, in the format that the ending of the file's name says."""
    check_table_file(path)
    with atomic_file(path) as partial:
        _WRITERS[path.suffix.lower()](table, partial)


def sink_table(path: Path, table: pl.LazyFrame) -> None:
    """Write a lazy table atomically, as `write_table` does, without holding it in memory."""
    check_table_file(path)
    with atomic_file(path) as partial:
        _SINKS[path.suffix.lower()](table, partial)
