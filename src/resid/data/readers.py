"""Readers that open a path or a frame as a `Table`.

Polars reads files unless Spark is requested. Frames are converted to Polars, except Spark frames.
"""

import csv
import itertools
import logging
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import narwhals as nw
import polars as pl

from resid.core.errors import InputError, first_line, is_disk_full, shown
from resid.core.progress import Progress, Silent
from resid.data.engines import ROW, PolarsEngine, SparkEngine, as_frame
from resid.data.jsonl import jsonl_batches, read_jsonl
from resid.data.tables import ENGINE_ERRORS, Table, separator_hint
from resid.data.text import UTF8, checked_encoding, is_plain, not_utf8, open_text

if TYPE_CHECKING:
    from pyspark.sql import DataFrame as SparkFrame

log = logging.getLogger(__name__)

SCRATCH = ("decompressed.csv", "rows.parquet")  # files that `scan_batches` may leave
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_SPARK_ENCODINGS = {
    "iso8859-1": "iso-8859-1",
    "utf-16-le": "utf-16le",
    "utf-16-be": "utf-16be",
}  # Python's name → Spark's
_FORMATS = ".parquet, .csv, .tsv, .jsonl (text formats may end in .gz)"


def open_table(
    source: Any,
    role: str,
    columns: list[str] | Mapping[str, Any] | None,
    *,
    engine: str | None = None,
    scratch: Path | None = None,
    separator: str | None = None,
    encoding: str | None = None,
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
    separator, encoding
        Of text files, see `Dataset.from_tables`.
    skip_bad_lines
        See `read_jsonl`.
    progress
        Receives the number of bytes read.
    """
    if not isinstance(source, str | Path):
        return _open_frame(source, role, scratch)
    path = Path(source)
    suffix = _suffix(path)
    usual = _SEPARATORS.get(suffix, ",")
    separator, encoding = _checked_separator(separator) or usual, checked_encoding(encoding)
    if engine == "spark":
        return _open_with_spark(path, suffix, separator, encoding, scratch, skip_bad_lines)
    if suffix == ".parquet":
        return _open_parquet(path)
    if suffix in _SEPARATORS:
        return _open_delimited(path, separator, usual, encoding)
    frame, skipped = read_jsonl(
        path, columns, encoding=encoding, skip_bad_lines=skip_bad_lines, progress=progress or Silent()
    )
    _warn_of_skipped_lines(path, skipped, len(frame))
    return Table(as_frame(frame.lazy()), str(path), PolarsEngine(), row_word="line", skipped_lines=skipped)


def _open_frame(source: Any, role: str, scratch: Path | None) -> Table:
    name = f"the {role} table"
    try:
        frame = nw.from_native(source, pass_through=False)
    except TypeError as error:
        raise InputError(
            f"{name}: a {type(source).__name__} is not a table; pass a path ({_FORMATS}) or a pandas, Polars, PyArrow, "
            "DuckDB or Spark frame."
        ) from error
    except ENGINE_ERRORS as error:  # every library has its own
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
    except ENGINE_ERRORS as error:  # also of Arrow and DuckDB, which are optional
        raise InputError(
            f"{name}: the frame cannot be converted ({first_line(error)}); give each column one type."
        ) from error
    return _numbered_later(native.lazy(), name)


def _numbered_later(frame: pl.LazyFrame, name: str) -> Table:
    """Return a table without row numbers; a column that has their name would be taken for them."""
    return Table(as_frame(frame.drop(ROW, strict=False)), name, PolarsEngine())


def _suffix(path: Path) -> str:
    """Return the file format of a path that exists, as a suffix without ``.gz``."""
    if not path.exists():
        raise InputError(f"{path}: there is no such file; check the path.")
    if path.is_dir():
        if not parquet_files(path):
            raise InputError(
                f"{path}: the folder contains no .parquet files; pass a file, or a folder of Parquet files."
            )
        return ".parquet"
    suffixes = [suffix.lower() for suffix in path.suffixes]
    suffix = suffixes[-2] if suffixes[-1:] == [".gz"] and len(suffixes) > 1 else "".join(suffixes[-1:])
    if suffix not in (".parquet", ".jsonl", ".ndjson", ".json", *_SEPARATORS) or suffixes[-2:] == [".parquet", ".gz"]:
        raise InputError(f"{path}: unknown file format; use {_FORMATS}.")
    return suffix


def _checked_separator(separator: str | None) -> str | None:
    named = {"tab": "\t", "\\t": "\t"}  # as people type it in a shell
    if separator is None:
        return None
    if isinstance(separator, str):
        separator = named.get(separator, separator)
        if len(separator) == 1 and separator.isascii() and separator not in '"\r\n\0':
            return separator
    raise InputError(f"separator: {shown(separator)} is not a single character such as ';' or '|'; 'tab' is a tab.")


def _open_parquet(path: Path) -> Table:
    try:
        lazy = pl.scan_parquet(parquet_files(path) if path.is_dir() else path, glob=False)
        lazy.collect_schema()
    except ENGINE_ERRORS as error:
        raise InputError(f"{path}: the file cannot be read ({first_line(error)}); is it complete?") from error
    return _numbered_later(lazy, str(path))


def _open_delimited(path: Path, separator: str, usual: str, encoding: str) -> Table:
    """Read a CSV or TSV file with all columns as text; rows without any value are left out.

    A header that only the `usual` separator of the format splits decides for it, as one option applies to both tables.
    """
    separator = _separator_of_header(path, separator, usual, encoding)
    with open_text(path, encoding) as (stream, _):
        content: Path | bytes = path if is_plain(path, encoding) else stream.read()
    try:
        frame = pl.read_csv(content, infer_schema=False, separator=separator, glob=False)
    except ENGINE_ERRORS as error:
        reason = (
            _csv_fault(path, separator, encoding) or f"the file cannot be read ({first_line(error)}); is it complete?"
        )
        raise InputError(f"{path}: {reason}") from error
    numbered = frame.lazy().drop(ROW, strict=False).with_row_index(ROW, offset=1)
    filled = numbered.filter(pl.any_horizontal(pl.exclude(ROW).is_not_null()))
    return Table(as_frame(filled), str(path), PolarsEngine(), untyped=True)


def _separator_of_header(path: Path, separator: str, usual: str, encoding: str) -> str:
    with open_text(path, encoding) as (stream, _):
        line = stream.readline().decode(errors="replace")
    return usual if separator not in line and usual in line else separator


def _csv_fault(path: Path, separator: str, encoding: str) -> str | None:
    """Find out why a CSV or TSV file could not be read."""
    rows = csv.reader(_lines(path, encoding), delimiter=separator)
    try:
        header = next(rows, None)
        if header is None:
            return "the file is empty; it needs a header and rows."
        for number, row in enumerate(rows, 1):
            if len(row) > len(header):
                hint = separator_hint(header[0]) if len(header) == 1 else None
                counts = f"row {number:,} has {len(row)} values but the header has {len(header)}"
                return f"{counts}; {hint or 'fix the row'}."
    except csv.Error as error:
        return f"the file cannot be read ({error}); is it complete?"
    return None


def _lines(path: Path, encoding: str) -> Iterator[str]:
    with open_text(path, encoding) as (stream, _):
        for number, line in enumerate(stream, 1):
            try:
                yield line.decode()
            except UnicodeDecodeError as error:
                raise not_utf8(path, f"line {number:,}") from error


def _warn_of_skipped_lines(path: Path, skipped: int, read: int) -> None:
    if skipped * 10 > skipped + read:
        log.warning(
            "%s: skipped %s of %s lines because they are invalid; skip_bad_lines (--skip-bad-lines) controls this",
            path, f"{skipped:,}", f"{skipped + read:,}",
        )  # fmt: skip


def parquet_files(folder: Path) -> list[Path]:
    """Return the files of a folder that Spark would read too, sorted by name."""
    files = [file for file in folder.rglob("*.parquet") if not file.name.startswith(("_", "."))]
    return sorted(files, key=str)


def _open_with_spark(
    path: Path, suffix: str, separator: str, encoding: str, scratch: Path | None, skip_bad_lines: bool
) -> Table:
    try:
        from py4j.protocol import Py4JError
        from pyspark.errors import PySparkException
        from pyspark.sql import SparkSession
    except ModuleNotFoundError as error:
        raise InputError("the engine 'spark' requires pyspark; install it with: pip install 'resid[spark]'") from error
    uri, skipped = path.resolve().as_uri(), 0
    encoding = _SPARK_ENCODINGS.get(encoding, encoding)
    try:
        session = SparkSession.builder.appName("resid").getOrCreate()
    except Exception as error:  # the error class depends on how Java is missing
        raise InputError(f"Spark failed to start ({first_line(error)}); is Java installed?") from error
    try:
        if suffix == ".parquet":
            native = session.read.parquet(uri, recursiveFileLookup=path.is_dir())
        elif suffix in _SEPARATORS:
            native = session.read.csv(
                uri, header=True, sep=separator, encoding=encoding, escape='"', multiLine=True, mode="FAILFAST"
            )
        else:
            options = {} if encoding == UTF8 else {"encoding": encoding, "lineSep": "\n"}  # Spark wants both or neither
            native, skipped = _spark_json(session.read.json(uri, **options), path, skip_bad_lines)
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
    totals = [f.count(native[column]).alias(column) for column in native.columns]
    counts = native.select(*totals, f.count(f.lit(1)).alias(ROW)).collect()[0]
    _warn_of_skipped_lines(path, int(counts[bad]), int(counts[ROW]) - int(counts[bad]))
    return native.filter(native[bad].isNull()).drop(bad), int(counts[bad])


def scan_batches(
    path: Path,
    scratch: Path,
    rows: int,
    *,
    columns: Collection[str],
    separator: str | None = None,
    encoding: str | None = None,
    progress: Progress | None = None,
) -> tuple[Table, Iterator[pl.DataFrame]]:
    """Open a table of any length: return it without rows, to check its columns, and its rows with `ROW` in batches.

    Parameters
    ----------
    path
        Parquet file or folder, CSV, TSV or JSON lines.
    scratch
        A folder for copies of a text file, decompressed and as Parquet, `SCRATCH`.
    rows
        Rows of a batch; the batches of JSON lines are those of its reader.
    columns
        Those that will be used, as far as they are there.
    separator, encoding
        Of text files, see `Dataset.from_tables`.
    progress
        Counts rows, or the bytes of JSON lines.
    """
    suffix, progress = _suffix(path), progress or Silent()
    usual = _SEPARATORS.get(suffix, ",")
    separator, encoding = _checked_separator(separator) or usual, checked_encoding(encoding)
    if suffix not in (".parquet", *_SEPARATORS):
        parts = jsonl_batches(path, encoding=encoding, progress=progress, single=columns)
        frames = (frame for frame, _ in parts if frame is not None)
        first = next(frames, None)
        if first is None:
            raise InputError(f"{path}: the file has no valid lines; write one JSON object per line.")
        table = Table(as_frame(first.clear().lazy()), str(path), PolarsEngine(), row_word="line")
        return table, itertools.chain([first], frames)
    if suffix == ".parquet":
        table = _open_parquet(path)
        lazy: pl.LazyFrame = table.frame.to_native()
        used = [name for name in lazy.collect_schema().names() if name in columns]
        return table, _collected(lazy.select(used), path, rows, progress)
    separator = _separator_of_header(path, separator, usual, encoding)
    content = path
    if not is_plain(path, encoding):
        content = scratch / SCRATCH[0]
        with open_text(path, encoding) as (stream, _), content.open("wb") as copy:
            shutil.copyfileobj(stream, copy)
    scanned = pl.scan_csv(content, infer_schema=False, separator=separator, glob=False)
    numbered = scanned.drop(ROW, strict=False).with_row_index(ROW, offset=1)
    lazy = numbered.filter(pl.any_horizontal(pl.exclude(ROW).is_not_null()))
    batches = _collected(lazy, path, rows, progress, scratch, lambda: _csv_fault(path, separator, encoding))
    first = next(batches, None)  # its header is read here, so that a fault in it is reported as one of the file
    if first is None:
        raise InputError(f"{path}: the table is empty; pass one with at least one row.")
    table = Table(as_frame(first.clear().lazy()), str(path), PolarsEngine(), untyped=True)
    return table, itertools.chain([first], batches)


def _collected(
    lazy: pl.LazyFrame,
    path: Path,
    rows: int,
    progress: Progress,
    scratch: Path | None = None,
    fault: Callable[[], str | None] = lambda: None,
) -> Iterator[pl.DataFrame]:
    """Yield the rows of a lazy frame in batches with `ROW`; one that reads text, and has it, is copied to Parquet in `scratch` first.

    Batches are slices of Parquet, because `LazyFrame.collect_batches` reads ahead without limit, and are numbered after they are
    read, because a slice of numbered rows reads all rows before it.
    """
    try:
        if scratch is not None:
            lazy.sink_parquet(scratch / SCRATCH[1], row_group_size=rows, statistics=False)
            lazy = pl.scan_parquet(scratch / SCRATCH[1], glob=False)
        total = lazy.select(pl.len()).collect(engine="streaming").item()
        with progress.bar(f"Reading {path.name}", total, unit="rows") as advance:
            for first in range(0, total, rows):
                frame = lazy.slice(first, rows).collect(engine="streaming")
                yield frame if scratch is not None else frame.with_row_index(ROW, offset=1 + first)
                advance(len(frame))
    except ENGINE_ERRORS as error:
        if isinstance(error, InputError) or is_disk_full(error):
            raise
        reason = fault() or f"the file cannot be read ({first_line(error)}); is it complete?"
        raise InputError(f"{path}: {reason}") from error
