"""Readers that open a path or a frame as a `Table`.

Polars reads files unless Spark is requested. Frames are converted to Polars, except Spark frames.
"""

import csv
import gzip
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import narwhals as nw
import polars as pl

from resid.core.errors import InputError, first_line
from resid.core.progress import Progress, Silent
from resid.data.engines import ROW, PolarsEngine, SparkEngine, as_frame
from resid.data.jsonl import read_jsonl
from resid.data.tables import Table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame

_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMATS = ".parquet, .csv, .tsv, .jsonl (text formats may end in .gz)"


def open_table(
    source: Any,
    role: str,
    columns: list[str] | Mapping[str, Any] | None,
    *,
    engine: str | None = None,
    scratch: Path | None = None,
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
) -> Table:
    """Open a path or a frame as a table.

    Parameters
    ----------
    source
        A path (Parquet file or folder, CSV, TSV or JSON lines), or a pandas, Polars, PyArrow, DuckDB or Spark frame.
    role
        Name of a frame in error messages: ``"interactions"`` or ``"items"``.
    columns
        The columns to read, optionally with their types; None reads all. Formats that cannot select columns ignore it.
    engine
        ``"polars"`` or ``"spark"`` for paths; None means Polars. Frames are processed by their own engine.
    scratch
        See `SparkEngine`.
    skip_bad_lines
        See `read_jsonl`.
    progress
        Receives the number of bytes read.
    """
    if isinstance(source, str | Path):
        path = Path(source)
        return _open_path(path, columns, engine, scratch, skip_bad_lines, progress or Silent())
    return _open_frame(source, role, scratch)


def _open_frame(source: Any, role: str, scratch: Path | None) -> Table:
    name = f"the {role} table"
    try:
        frame = nw.from_native(source, pass_through=False)
    except TypeError as error:
        raise InputError(
            f"{name}: a {type(source).__name__} is not a table; pass a path ({_FORMATS}) or a pandas, Polars, PyArrow, "
            "DuckDB or Spark frame."
        ) from error
    except Exception as error:  # every library has its own error classes
        raise InputError(f"{name}: the frame cannot be read ({first_line(error)}); check its columns.") from error
    if frame.implementation.is_spark_like():
        return Table(frame.lazy(), name, SparkEngine(frame.to_native().sparkSession, scratch))
    try:
        eager = frame.collect(backend="polars") if isinstance(frame, nw.LazyFrame) else frame
        native = eager.to_polars()
    except ModuleNotFoundError as error:
        raise InputError(
            f"{name}: reading this frame needs pyarrow; install it with: pip install 'resid[pandas]'"
        ) from error
    except Exception as error:  # Arrow and DuckDB have their own error classes, and are optional
        raise InputError(
            f"{name}: the frame cannot be converted ({first_line(error)}); give each column one type."
        ) from error
    return Table(as_frame(native.lazy()), name, PolarsEngine())


def _open_path(
    path: Path,
    columns: list[str] | Mapping[str, Any] | None,
    engine: str | None,
    scratch: Path | None,
    skip_bad_lines: bool,
    progress: Progress,
) -> Table:
    if not path.exists():
        raise InputError(f"{path}: there is no such file; check the path.")
    name = str(path)
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    if path.is_dir():
        suffix = ".parquet"
        if not parquet_files(path):
            raise InputError(
                f"{path}: the folder contains no .parquet files; pass a file, or a folder of Parquet files."
            )
    if suffix not in (".parquet", ".jsonl", ".ndjson", ".json", *_SEPARATORS) or path.suffixes[-2:] == [
        ".parquet",
        ".gz",
    ]:
        raise InputError(f"{path}: unknown file format; use {_FORMATS}.")
    if engine == "spark":
        return _open_with_spark(path, suffix, scratch, skip_bad_lines)
    try:
        if suffix == ".parquet":
            lazy = pl.scan_parquet(parquet_files(path) if path.is_dir() else path, glob=False)
            lazy.collect_schema()
            return Table(as_frame(lazy), name, PolarsEngine())
        if suffix in _SEPARATORS:
            lazy = pl.read_csv(path, infer_schema=False, separator=_SEPARATORS[suffix], glob=False).lazy()
            lazy = lazy.with_row_index(ROW, offset=1).filter(pl.any_horizontal(pl.exclude(ROW).is_not_null()))
            return Table(as_frame(lazy), name, PolarsEngine(), untyped=True)
    except (pl.exceptions.PolarsError, OSError) as error:
        reason = _csv_fault(path, _SEPARATORS[suffix]) if suffix in _SEPARATORS else None
        reason = reason or f"the file cannot be read ({first_line(error)}); is it complete?"
        raise InputError(f"{path}: {reason}") from error
    frame, skipped = read_jsonl(path, columns, skip_bad_lines=skip_bad_lines, progress=progress)
    return Table(as_frame(frame.lazy()), name, PolarsEngine(), row_word="line", skipped_lines=skipped)


def _csv_fault(path: Path, separator: str) -> str | None:
    """Find out why a CSV or TSV file could not be read."""
    opener: Any = gzip.open if path.suffix.lower() == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as lines:
            rows = csv.reader(lines, delimiter=separator)
            header = next(rows, None)
            if header is None:
                return "the file is empty; it needs a header and rows."
            for number, row in enumerate(rows, 1):
                if len(row) > len(header):
                    return f"row {number:,} has {len(row)} values but the header has {len(header)}; fix the row."
    except UnicodeDecodeError:
        return "the encoding is not UTF-8; save the file as UTF-8."
    except (OSError, EOFError, csv.Error) as error:
        return f"the file cannot be read ({error}); is it complete?"
    return None


def parquet_files(folder: Path) -> list[Path]:
    """Return the files of a folder that Spark would read too, sorted by name."""
    files = [file for file in folder.rglob("*.parquet") if not file.name.startswith(("_", "."))]
    return sorted(files, key=str)


def _open_with_spark(path: Path, suffix: str, scratch: Path | None, skip_bad_lines: bool) -> Table:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InputError("the engine 'spark' requires pyspark; install it with: pip install 'resid[spark]'") from error
    uri, skipped = path.resolve().as_uri(), 0
    try:
        session = SparkSession.builder.appName("resid").getOrCreate()
    except Exception as error:  # the error class depends on how Java is missing
        raise InputError(f"Spark failed to start ({first_line(error)}); is Java installed?") from error
    try:
        if suffix == ".parquet":
            native = session.read.parquet(uri, recursiveFileLookup=path.is_dir())
        elif suffix in _SEPARATORS:
            separator = _SEPARATORS[suffix]
            native = session.read.csv(uri, header=True, sep=separator, escape='"', multiLine=True, mode="FAILFAST")
        else:
            native, skipped = _spark_json(session.read.json(uri), path, skip_bad_lines)
    except (PySparkException, Py4JError) as error:
        raise InputError(f"{path}: the file cannot be read ({first_line(error)}); is it complete?") from error
    return Table(
        as_frame(native),
        str(path),
        SparkEngine(session, scratch),
        untyped=suffix in _SEPARATORS,
        skipped_lines=skipped,
    )


def _spark_json(native: "SparkFrame", path: Path, skip_bad_lines: bool) -> tuple["SparkFrame", int]:
    """Skip and count the lines that Spark could not parse, which it keeps in a separate column, or raise an error."""
    bad = "_corrupt_record"
    if bad not in native.columns:
        return native, 0
    from pyspark.sql import functions as f

    offending = native.filter(native[bad].isNotNull())
    if not skip_bad_lines:
        line = offending.take(1)[0][bad]
        raise InputError(
            f"{path}: not a JSON object ({line[:60]!r}); "
            "fix the line, or skip invalid lines with skip_bad_lines (--skip-bad-lines)."
        )
    # Spark does not allow queries of the column of bad lines alone, so all columns are counted.
    counts = native.select(*(f.count(native[column]).alias(column) for column in native.columns)).collect()[0]
    return native.filter(native[bad].isNull()).drop(bad), int(counts[bad])
