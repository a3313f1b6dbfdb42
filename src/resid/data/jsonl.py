"""Reader for JSON lines, plain or gzipped, in chunks: bounded memory, a progress bar, and line numbers in errors.

Decompression (igzip) and parsing (Polars) run in native code; Python only inspects single lines of chunks that fail to
parse.
"""

import ast
import json
import os
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from resid.core.errors import InputError, shown
from resid.core.progress import Progress, Silent
from resid.data.engines import ROW
from resid.data.text import UTF8, not_utf8, open_text

_CHUNK = 8 * 2**20  # bytes of decompressed text parsed at a time; the fastest of 1 to 32 MB
_AHEAD = 4  # maximum number of chunks in the queue
Schema = Mapping[str, Any]
_INFERRED: dict[str, Any] = {"infer_schema_length": None}  # from all lines


def read_jsonl(
    path: Path,
    columns: list[str] | Schema | None = None,
    *,
    dialect: str = "json",
    encoding: str = UTF8,
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
) -> tuple[pl.DataFrame, int]:
    """Read some columns of a file with one JSON object per line.

    Parameters
    ----------
    path
        The file; `.gz` files are decompressed.
    columns
        The columns to keep; None keeps all. A mapping gives their types, otherwise the first chunk of the file does.
        Numbers are read as text if the first chunk has text in their place.
    dialect
        ``"json"``, or ``"literal"`` for lines that are Python dictionaries (the Amazon metadata of 2014).
    encoding
        See `open_text`.
    skip_bad_lines
        Skip and count lines that are not objects, instead of raising an error.
    progress
        Receives the number of bytes read from disk.

    Returns
    -------
    frame
        The columns, and `ROW` with the line numbers, counted from 1.
    skipped
        Number of lines skipped.

    Raises
    ------
    InputError
        If a line is not an object or does not have the types of the others, with its number, or if the file is damaged.
    """
    parts = list(jsonl_batches(path, columns, dialect, encoding, skip_bad_lines, progress))
    if not any(frame is not None for frame, _ in parts):
        raise InputError(f"{path}: the file has no valid lines; write one JSON object per line.")
    return pl.concat([frame for frame, _ in parts if frame is not None]), sum(skipped for _, skipped in parts)


def jsonl_batches(
    path: Path,
    columns: list[str] | Schema | None = None,
    dialect: str = "json",
    encoding: str = UTF8,
    skip_bad_lines: bool = False,
    progress: Progress | None = None,
    single: Collection[str] | None = None,
) -> Iterator[tuple[pl.DataFrame | None, int]]:
    """Yield the frames of a file's chunks in order, None for one without valid lines, and how many lines were skipped.

    Parameters as in `read_jsonl`; a list or an object is refused where other lines have text, in the columns of `single`, by
    default those that are named. (Polars reads it as text.)
    """
    schema, names = (columns, None) if isinstance(columns, Mapping) else (None, columns)
    single, start = single or names or (), 1
    # This thread decompresses while others parse; both release the GIL. A short queue bounds memory.
    with ThreadPoolExecutor((os.cpu_count() or 1) + 1) as pool:
        waiting: deque[tuple[bytes, Future[tuple[pl.DataFrame | None, int]]]] = deque()

        def take() -> tuple[pl.DataFrame, int]:
            nonlocal start
            chunk, future = waiting.popleft()
            frame, count = future.result()
            first, start = start, start + count
            if frame is not None and len(frame) == count:
                numbers = pl.int_range(first, start, dtype=pl.UInt32)
                frame, skipped = frame.with_columns(numbers.alias(ROW)), 0
            else:  # blank or bad lines
                frame, skipped = _parse_by_line(path, chunk, first, schema or {}, dialect, skip_bad_lines)
            _refuse_nested(path, frame, chunk, first, single)
            return frame, skipped

        for chunk in _chunks(path, encoding, progress or Silent()):
            if schema is None:
                schema = _infer(path, chunk, names, start, dialect)
            if schema is None:  # no valid line yet
                yield None, _parse_by_line(path, chunk, start, {}, dialect, skip_bad_lines)[1]
                start += chunk.count(b"\n")
                continue
            waiting.append((chunk, pool.submit(_parse_at_once, chunk, schema, dialect)))
            if len(waiting) > _AHEAD:
                yield take()
        while waiting:
            yield take()


def _chunks(path: Path, encoding: str, progress: Progress) -> Iterator[bytes]:
    """Yield the decompressed text in chunks that end at the end of a line."""
    with (
        open_text(path, encoding) as (stream, raw),
        progress.bar(f"Reading {path.name}", path.stat().st_size, unit="bytes") as advance,
    ):
        position = 0
        while block := stream.read(_CHUNK):
            block += stream.readline()
            yield block if block.endswith(b"\n") else block + b"\n"
            advance(raw.tell() - position)
            position = raw.tell()


def _infer(path: Path, chunk: bytes, names: list[str] | None, start: int, dialect: str) -> Schema | None:
    """Infer the types from a chunk, ignoring invalid lines; return None if there are no valid ones."""
    try:
        inferred = pl.read_ndjson(chunk, infer_schema_length=None).schema
    except pl.exceptions.PolarsError:
        lines = _good_lines(path, chunk, start, dialect, skip_bad_lines=True)
        if not lines.text:
            return None
        inferred = _read_lines(path, lines, None).schema
    return {name: _column_type(type_) for name, type_ in inferred.items() if names is None or name in names}


def _column_type(inferred: Any) -> Any:
    """Use text for columns that are all null, and unsigned 64-bit integers beyond 2^63."""
    replaced = {pl.Null: pl.String, pl.List(pl.Null): pl.List(pl.String), pl.Int128: pl.UInt64}
    return replaced.get(inferred, inferred)


def _parse_at_once(chunk: bytes, schema: Schema, dialect: str) -> tuple[pl.DataFrame | None, int]:
    """Parse a chunk in native code, or return None if that fails; also count its lines."""
    lines = int(np.count_nonzero(np.frombuffer(chunk, dtype=np.uint8) == ord("\n")))
    if dialect != "json":
        return None, lines
    try:
        return pl.read_ndjson(chunk, schema=dict(schema)), lines
    except pl.exceptions.PolarsError:
        return None, lines


def _parse_by_line(
    path: Path, chunk: bytes, start: int, schema: Schema, dialect: str, skip_bad_lines: bool
) -> tuple[pl.DataFrame, int]:
    """Parse a chunk line by line, to number the lines and to find the invalid one; also count the skipped lines."""
    lines = _good_lines(path, chunk, start, dialect, skip_bad_lines)
    frame = _read_lines(path, lines, schema) if lines.text else pl.DataFrame(schema=dict(schema))
    return frame.with_columns(pl.Series(ROW, lines.numbers, dtype=pl.UInt32)), lines.skipped


@dataclass(frozen=True)
class _Lines:
    text: list[bytes]
    numbers: list[int]
    skipped: int


def _good_lines(path: Path, chunk: bytes, start: int, dialect: str, skip_bad_lines: bool) -> _Lines:
    """Return the lines of a chunk that are objects, as JSON, with their line numbers."""
    load = _strict_json if dialect == "json" else _python_literal
    text, numbers, skipped = [], [], 0
    for number, line in enumerate(chunk.split(b"\n"), start):
        if not line.strip():
            continue
        try:
            record = load(line)
            if not isinstance(record, dict):
                raise ValueError("not an object")
            text.append(line if dialect == "json" else json.dumps(record).encode())
        except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError) as error:
            if not skip_bad_lines:
                if isinstance(error, UnicodeDecodeError):
                    raise not_utf8(path, f"line {number:,}") from error
                raise InputError(
                    f"{path}, line {number:,}: not a JSON object ({line[:60].decode(errors='replace')!r}); "
                    "fix the line, or skip invalid lines with skip_bad_lines (--skip-bad-lines)."
                ) from error
            skipped += 1
        else:
            numbers.append(number)
    return _Lines(text, numbers, skipped)


def _refuse_nested(path: Path, frame: pl.DataFrame, chunk: bytes, start: int, columns: Collection[str]) -> None:
    """Raise an `InputError` for a list or an object in a column of text, which Polars reads as its JSON."""
    text = [name for name in columns if frame.schema.get(name) == pl.String]
    suspicious = frame.filter(pl.any_horizontal(pl.col(text).str.contains(r"^[\[{]"))) if text else frame.clear()
    lines = chunk.split(b"\n") if len(suspicious) else []
    for number in suspicious[ROW]:
        record = json.loads(lines[number - start])
        for name in text:
            if isinstance(record.get(name), list | dict):
                raise InputError(
                    f"{path}, line {number:,}: {shown(record[name])} in column '{name}', which has text in other lines; fix or "
                    "remove the line."
                )


def _strict_json(line: bytes) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is not JSON")

    return json.loads(line.decode(), parse_constant=refuse)  # given bytes, it would guess the encoding


def _python_literal(line: bytes) -> Any:
    return ast.literal_eval(line.decode())


def _read_lines(path: Path, lines: _Lines, schema: Schema | None) -> pl.DataFrame:
    """Parse lines that are objects; raise an `InputError` that names the first one that does not fit the schema."""
    options = _INFERRED if schema is None else {"schema": dict(schema)}
    try:
        return pl.read_ndjson(b"\n".join(lines.text), **options)
    except pl.exceptions.PolarsError as error:
        for line, number in zip(lines.text, lines.numbers, strict=True):
            try:
                pl.read_ndjson(line, **options)
            except pl.exceptions.PolarsError as reason:
                raise InputError(
                    f"{path}, line {number:,}: {_misfit(line, schema or {})}; fix or remove the line."
                ) from reason
        raise InputError(
            f"{path}: a column has values of different types, such as numbers and lists; use one type per column."
        ) from error


def _misfit(line: bytes, schema: Schema) -> str:
    """Say which value of a line cannot be read, or not as the type of its column."""
    for name, value in json.loads(line).items():
        type_ = schema.get(name)
        options = {"schema": {name: type_}} if type_ is not None else _INFERRED
        try:
            pl.read_ndjson(json.dumps({name: value}).encode(), **options)
        except pl.exceptions.PolarsError:
            if isinstance(value, int | float) and not -(2**63) <= value < 2**64:
                return f"column '{name}' has a number beyond 64 bits"
            other = f" and {_words(type_)} in other lines" if type_ is not None else ", which cannot be read"
            return f"column '{name}' has {shown(value)}{other}"
    return "a value cannot be read"


def _words(type_: Any) -> str:
    """Return what a column has, in words."""
    if isinstance(type_, pl.List):
        return "lists"
    if isinstance(type_, pl.Struct):
        return "objects"
    if type_ == pl.Boolean:
        return "true or false"
    return "integers" if type_.is_integer() else "numbers" if type_.is_numeric() else "text"
