"""JSON lines, plain or gzipped, read in chunks: bounded memory, a progress bar, and the number of a bad line.

Decompression (igzip) and parsing (Polars) run in native code; Python looks at single lines only where a chunk
does not parse.
"""

import ast
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import polars as pl
from isal import igzip, isal_zlib

from resid.data.engines import ROW
from resid.errors import InputError
from resid.progress import Progress, Silent

_CHUNK = 32 * 2**20  # bytes of decompressed text parsed at a time
Schema = Mapping[str, Any]


def read_jsonl(
    path: Path,
    columns: list[str] | Schema | None = None,
    *,
    dialect: str = "json",
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
) -> tuple[pl.DataFrame, int]:
    """Read some columns of a file with one JSON object per line.

    Parameters
    ----------
    path
        The file; `.gz` is decompressed on the way.
    columns
        The columns to keep, with their types if a mapping, otherwise by the types in the first chunk of the
        file; None keeps all. Numbers where the first chunk has text are read as text.
    dialect
        ``"json"``, or ``"literal"`` for lines that are Python dictionaries (the Amazon metadata of 2014).
    skip_bad_lines
        Count the lines that are not objects and leave them out, instead of refusing the file.
    progress
        Is told the bytes read of the file as it lies on disk.

    Returns
    -------
    frame
        The columns, and `ROW` with the number of each line, from 1.
    skipped
        How many bad lines were left out.

    Raises
    ------
    InputError
        With the number of the first line that is not an object, or for a gzip that is cut short.
    """
    schema: Schema | None = columns if isinstance(columns, Mapping) else None
    frames: list[pl.DataFrame] = []
    first_line, skipped = 1, 0
    for chunk in _chunks(path, progress or Silent()):
        if schema is None:
            schema = _infer(path, chunk, columns, dialect)
        parsed = _parse(path, chunk, first_line, schema, dialect, skip_bad_lines)
        frames.append(parsed.frame)
        skipped += parsed.skipped
        first_line += parsed.lines
    if not frames:
        raise InputError(f"{path}: the file is empty; give one JSON object per line.")
    return pl.concat(frames), skipped


@dataclass(frozen=True)
class _Parsed:
    frame: pl.DataFrame
    lines: int
    skipped: int


def _chunks(path: Path, progress: Progress) -> Iterator[bytes]:
    """Yield the decompressed text in pieces that end at a line's end."""
    with path.open("rb") as raw, progress.bar(f"Reading {path.name}", path.stat().st_size, unit="bytes") as advance:
        stream: BinaryIO = igzip.open(raw, "rb") if path.suffix == ".gz" else raw
        position, rest = 0, b""
        try:
            while block := stream.read(_CHUNK):
                cut = block.rfind(b"\n") + 1
                if cut:
                    yield rest + block[:cut]
                    rest = block[cut:]
                else:
                    rest += block
                advance(raw.tell() - position)
                position = raw.tell()
        except (EOFError, OSError, isal_zlib.error) as error:
            raise InputError(
                f"{path}: the gzip is cut short or damaged ({error}); fetch or write the file again."
            ) from error
        if rest.strip():
            yield rest + b"\n"


def _infer(path: Path, chunk: bytes, columns: list[str] | None, dialect: str) -> Schema:
    """Take the types from the whole first chunk; its bad lines do not count here."""
    try:
        inferred = pl.read_ndjson(chunk, infer_schema_length=None).schema
    except pl.exceptions.PolarsError:
        lines = _good_lines(path, chunk, 1, dialect, skip_bad_lines=True)
        if not lines.text:
            _good_lines(path, chunk, 1, dialect, skip_bad_lines=False)
        inferred = pl.read_ndjson(b"\n".join(lines.text), infer_schema_length=None).schema
    return {name: _nothing_is_text(type_) for name, type_ in inferred.items() if columns is None or name in columns}


def _nothing_is_text(type_: Any) -> Any:
    """Read a column in which the first chunk has nothing but null as text."""
    if type_ == pl.Null:
        return pl.String
    if type_ == pl.List(pl.Null):
        return pl.List(pl.String)
    return type_


def _parse(path: Path, chunk: bytes, first_line: int, schema: Schema, dialect: str, skip_bad_lines: bool) -> _Parsed:
    """Parse a chunk natively; where that fails, find out which line is to blame."""
    count = chunk.count(b"\n")
    if dialect == "json":
        try:
            frame = pl.read_ndjson(chunk, schema=dict(schema))
        except pl.exceptions.PolarsError:
            frame = pl.DataFrame()
        if len(frame) == count:
            return _Parsed(frame.with_columns(pl.int_range(first_line, first_line + count, dtype=pl.UInt32).alias(ROW)), count, 0)
    lines = _good_lines(path, chunk, first_line, dialect, skip_bad_lines)
    try:
        frame = pl.read_ndjson(b"\n".join(lines.text), schema=dict(schema))
    except pl.exceptions.PolarsError as error:
        number, reason = _first_unfit(lines, schema, str(error))
        raise InputError(f"{path}, line {number:,}: {reason}; mend the line or remove it.") from error
    return _Parsed(frame.with_columns(pl.Series(ROW, lines.numbers, dtype=pl.UInt32)), count, lines.skipped)


@dataclass(frozen=True)
class _Lines:
    text: list[bytes]
    numbers: list[int]
    skipped: int


def _good_lines(path: Path, chunk: bytes, first_line: int, dialect: str, skip_bad_lines: bool) -> _Lines:
    """Go through a chunk line by line and keep the objects, as JSON, with their line numbers."""
    load: Callable[[bytes], Any] = json.loads if dialect == "json" else lambda line: ast.literal_eval(line.decode())
    text, numbers, skipped = [], [], 0
    for number, line in enumerate(chunk.split(b"\n"), first_line):
        if not line.strip():
            continue
        try:
            record = load(line)
            bad = not isinstance(record, dict)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            bad = True
        if not bad:
            text.append(line if dialect == "json" else json.dumps(record).encode())
            numbers.append(number)
        elif skip_bad_lines:
            skipped += 1
        else:
            raise InputError(
                f"{path}, line {number:,}: not a JSON object ({line[:60].decode(errors='replace')!r}); "
                "mend the line, or skip such lines with skip_bad_lines (--skip-bad-lines)."
            )
    return _Lines(text, numbers, skipped)


def _first_unfit(lines: _Lines, schema: Schema, reason: str) -> tuple[int, str]:
    """Find the first line whose values do not fit the schema."""
    for line, number in zip(lines.text, lines.numbers, strict=True):
        try:
            pl.read_ndjson(line, schema=dict(schema))
        except pl.exceptions.PolarsError as error:
            return number, str(error)
    return lines.numbers[0], reason
