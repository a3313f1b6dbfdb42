"""Recommendations for a file of histories of any length, at bounded memory, into another file.

The work has three steps, in a hidden folder beside the output, so that a stopped job continues where it was::

    input/00000.parquet …    the histories, so many users per file; a user is in one file only
    plan.json                what the job is; written when all of the input is there
    output/00000.parquet …   the recommendations for the users of an input file

At the end, the outputs are joined to the file that was asked for, and the folder is removed. The plan has checksums of itself and
of the input, and every output one of its own: a continued job computes again what was damaged in the meantime.
"""

import hashlib
import itertools
import json
import logging
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.checksums import SEAL, is_sealed, manifest_text, pop_checksum, seal_file, sha256_of_folder
from resid.core.errors import InputError, as_path, counted, explain_disk_errors, shown
from resid.core.files import atomic_file, refuse_file
from resid.core.locks import exclusive
from resid.core.progress import Progress, Silent
from resid.core.tables import check_table_file, sink_table
from resid.data.catalogue import parse_ids
from resid.data.engines import ROW, PolarsEngine, as_frame
from resid.data.readers import SCRATCH, parquet_files, scan_batches
from resid.data.tables import INTEGER, Table, checked_histories, checked_interactions, require_columns
from resid.data.where import Where, split_values
from resid.recommend.base import Recommender
from resid.recommend.histories import Indices

log = logging.getLogger(__name__)

_READ_ROWS = 100_000  # of the input at a time
_FILE_ROWS = 250_000  # interactions of an input file, about; a file is in memory as Python lists
_FILE_USERS = 20_000  # users of an input file, if every row is a history
_MAX_FILES = 256  # of a log, as every batch that is read is spread over all of them


@dataclass(frozen=True)
class FileResult:
    """What `recommend_file` wrote.

    Attributes
    ----------
    file : Path
    users, rows : int
        The number of users, and of recommended items.
    """

    file: Path
    users: int
    rows: int


def recommend_file(
    model: Recommender,
    histories: str | Path,
    out: str | Path,
    k: int = 10,
    *,
    columns: Mapping[str, str] | None = None,
    exclude_seen: bool = False,
    allow: Iterable[Any] | None = None,
    deny: Iterable[Any] | None = None,
    where: Where | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> FileResult:
    """Recommend items to all users of a file.

    Memory does not grow with the file. A job that was stopped continues when it is called again with the same arguments.

    Parameters
    ----------
    model
        The recommender.
    histories
        A Parquet file or folder, CSV, TSV or JSON lines: a log with the columns user, item and timestamp in any order of rows,
        or one history per row with the columns user and items. Items are a list, oldest first, or comma-separated text in CSV.
    out
        The file to write (.parquet, .csv, .jsonl or .ndjson), with the columns user, rank, item and score. A log gives users in
        order of their ids if it has up to a million rows; histories give them in the order of the file.
    columns
        Other names of the columns, for example ``{"user": "reviewer", "items": "history"}``.
    k, exclude_seen, allow, deny, where, options
        See `Recommender.recommend`.
    separator, encoding, timestamp_format
        Of text, see `Dataset.from_tables`.
    progress
        Counts rows, then users.
    """
    source, target, progress = as_path(histories), as_path(out), progress or Silent()
    check_table_file(target)
    model.check_request(k, options)
    if not source.exists():
        raise InputError(f"{source}: there is no such file; check the path.")
    allowed = model.allowed_mask(allow, deny, where)
    names = {name: name for name in ("user", "item", "timestamp", "items")} | dict(columns or {})
    reading = {"separator": separator, "encoding": encoding}
    job = _Job(str(source), model, k, exclude_seen, allowed, options, names, timestamp_format)
    work = target.parent / f".{target.name}.partial-work"
    refuse_file(work)
    with exclusive(work, named=target), explain_disk_errors(target):
        try:
            key = job.key(source, reading)
            plan = _read_plan(work, key) or _split(source, work, target, job, key, reading, progress)
            _recommend_all(work, target, job, plan, progress)
            result = _join(work, target, job)
        except Exception:  # but not an interrupt, after which the job continues
            shutil.rmtree(work, ignore_errors=True)
            raise
        shutil.rmtree(work)
    return result


@dataclass(frozen=True)
class _Job:
    """What is recommended, and how the input is read."""

    source: str
    model: Recommender
    k: int
    exclude_seen: bool
    allowed: NDArray[np.bool_] | None
    options: dict[str, Any]
    columns: Mapping[str, str]
    timestamp_format: str | None

    def key(self, source: Path, reading: Mapping[str, Any]) -> str:
        """Return a checksum of everything that the result depends on."""
        files = parquet_files(source) if source.is_dir() else [source]
        states = [(str(file.resolve()), file.stat().st_size, file.stat().st_mtime_ns) for file in files]
        mask = None if self.allowed is None else hashlib.sha256(self.allowed.tobytes()).hexdigest()
        content = [states, self.model.checksum, self.k, self.exclude_seen, mask, self.options, dict(self.columns)]
        content += [self.timestamp_format, dict(reading), pl.__version__]
        return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@dataclass(frozen=True)
class _Plan:
    """The content of `plan.json`.

    Attributes
    ----------
    users : int
        How many there are.
    user_type : str
        ``"Int64"``, ``"UInt64"`` or ``"String"``, the type of the user ids.
    is_log : bool
        Whether rows are interactions; otherwise each is a history.
    untyped, row_word
        Of the table, see `Table`.
    """

    users: int
    user_type: str
    is_log: bool
    untyped: bool
    row_word: str


def _read_plan(work: Path, key: str) -> _Plan | None:
    """Return the plan of a stopped job, if it is the same job and its input is as it was written."""
    try:
        content = json.loads((work / "plan.json").read_text(encoding="utf-8"))
        if not pop_checksum(content) or content["key"] != key or content["input"] != sha256_of_folder(work / "input"):
            return None
        return _Plan(**content["plan"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _split(
    source: Path, work: Path, target: Path, job: _Job, key: str, reading: dict[str, Any], progress: Progress
) -> _Plan:
    """Write the input files and the plan."""
    for name in ("input", "output"):
        shutil.rmtree(work / name, ignore_errors=True)
        (work / name).mkdir()
    used = set(job.columns.values())
    table, batches = scan_batches(source, work, _READ_ROWS, columns=used, **reading, progress=progress)
    present = table.frame.collect_schema().names()
    is_log = job.columns["item"] in present or job.columns["items"] not in present
    wanted = ("user", "item", "timestamp") if is_log else ("user", "items")
    require_columns(table, {name: job.columns[name] for name in wanted})
    read = dict.fromkeys(job.columns[name] for name in wanted)
    types = _UserType(job.columns["user"])
    rows = map(types.see, (frame.select(*read, ROW) for frame in batches))
    folder, user = work / "input", job.columns["user"]
    users = _split_log(source, rows, folder, user) if is_log else _split_histories(rows, folder)
    if not users:
        raise InputError(f"{source}: the table is empty; pass one with at least one row.")
    for name in SCRATCH:
        (work / name).unlink(missing_ok=True)
    plan = _Plan(users, types.name(table.untyped), is_log, table.untyped, table.row_word)
    with atomic_file(work / "plan.json", target) as partial:
        content = {"key": key, "plan": vars(plan), "input": sha256_of_folder(folder)}
        partial.write_text(manifest_text(content), encoding="utf-8")
    return plan


class _UserType:
    """Finds out the type of all user ids while they are read: integers, if all are, or text."""

    def __init__(self, column: str) -> None:
        self._column = column
        self._type: pl.DataType = pl.String()
        self._all_integers = True

    def see(self, frame: pl.DataFrame) -> pl.DataFrame:
        """Take note of a frame, and return it."""
        users = frame[self._column]
        self._type = users.dtype
        if self._type == pl.String and self._all_integers:
            self._all_integers = bool(users.str.contains(INTEGER).all())
        return frame

    def name(self, untyped: bool) -> str:
        """Return the type."""
        if self._type.is_integer():
            return "UInt64" if self._type == pl.UInt64 else "Int64"
        return "Int64" if untyped and self._all_integers else "String"


def _split_log(source: Path, frames: Iterable[pl.DataFrame], folder: Path, user: str) -> int:
    """Spread interactions over files by a hash of the user; return the number of users."""
    n_files = int(np.clip(-(-_estimated_rows(source) // _FILE_ROWS), 1, _MAX_FILES))
    for number, frame in enumerate(frames):
        place = frame[user].cast(pl.String).hash(0) % n_files
        for name in place.unique():
            (folder / f"{name:05d}").mkdir(exist_ok=True)
            frame.filter(place == name).write_parquet(
                folder / f"{name:05d}" / f"{number:05d}.parquet", statistics=False
            )
    counts = [pl.scan_parquet(each).select(pl.col(user).n_unique()) for each in sorted(folder.iterdir())]
    return sum(count.collect().item() for count in counts)


def _estimated_rows(source: Path) -> int:
    files = parquet_files(source) if source.is_dir() else [source]
    if files[0].suffix.lower() == ".parquet":
        return int(pl.scan_parquet(files, glob=False).select(pl.len()).collect().item())
    compressed = files[0].suffix.lower() == ".gz"
    return files[0].stat().st_size * (5 if compressed else 1) // 40  # bytes of a row of text, about


def _split_histories(frames: Iterable[pl.DataFrame], folder: Path) -> int:
    """Write at most so many histories to every file, in order; return their number."""
    number = rows = 0
    for frame in frames:
        for some in frame.iter_slices(_FILE_USERS):
            (folder / f"{number:05d}").mkdir()
            some.write_parquet(folder / f"{number:05d}" / "00000.parquet", statistics=False)
            number, rows = number + 1, rows + len(some)
    return rows


def _recommend_all(work: Path, target: Path, job: _Job, plan: _Plan, progress: Progress) -> None:
    """Write the output files that are missing or damaged."""
    inputs = sorted((work / "input").iterdir())
    outputs = [work / "output" / f"{folder.name}.parquet" for folder in inputs]
    whole = {path for path in outputs if _is_whole(path)}
    done = sum(int(pl.read_parquet_metadata(path)["users"]) for path in whole)
    with progress.bar("Recommending", plan.users, done=done, unit="users") as advance:
        for folder, path in zip(inputs, outputs, strict=True):
            if path in whole:
                continue
            users, rows = _read_input(folder, job, plan)
            known, facts = _known_items(rows, job.model)
            indices = None
            if job.model.user_ids_ is not None:
                indices = job.model.user_indices(parse_ids(users, job.model.user_ids_.dtype))
            items, scores = job.model.top_of_each(
                known,
                job.k,
                exclude_seen=job.exclude_seen,
                allowed=job.allowed,
                users=indices,
                advance=advance,
                **job.options,
            )
            found = pl.DataFrame(
                {
                    "user": users.gather(np.repeat(np.arange(len(users)), job.k)),
                    "rank": np.tile(np.arange(1, job.k + 1), len(users)),
                    "item": job.model.catalogue_.item_ids.gather(np.maximum(items, 0).ravel()),
                    "score": scores.ravel(),
                }
            ).filter(items.ravel() >= 0)
            with atomic_file(path, target) as partial:
                found.write_parquet(partial, statistics=False, metadata=facts | {"checksum": SEAL})
                seal_file(partial)


def _is_whole(path: Path) -> bool:
    """Return whether an output file is there, and as it was written."""
    try:
        return is_sealed(path)
    except (OSError, ValueError):
        return False


def _read_input(folder: Path, job: _Job, plan: _Plan) -> tuple[pl.Series, list[list[Any]]]:
    """Return the users of an input file, those of a log in order of their ids, and their item ids, oldest first."""
    lazy = as_frame(pl.scan_parquet(folder / "*.parquet", glob=True))
    table = Table(lazy, job.source, PolarsEngine(), row_word=plan.row_word, untyped=plan.untyped)
    type_ = getattr(pl, plan.user_type)
    if plan.is_log:
        columns = {name: job.columns[name] for name in ("user", "item", "timestamp")}
        table = checked_interactions(table, columns, job.timestamp_format)
        rows = table.engine.collect(table.frame.sort("timestamp", ROW)).with_columns(pl.col("user").cast(type_))
        grouped = rows.group_by("user", maintain_order=True).agg(pl.col("item").alias("items")).sort("user")
        return grouped["user"], grouped["items"].to_list()
    table = checked_histories(table, job.columns)
    rows = table.engine.collect(table.frame)
    users, items = rows["user"].cast(type_), rows["items"].to_list()
    return users, [split_values(row) if isinstance(row, str) else row or [] for row in items]


def _known_items(rows: list[list[Any]], model: Recommender) -> tuple[list[Indices], dict[str, str]]:
    """Return histories as item indices without unknown items, and counts for `_join` to report."""
    catalogue = model.catalogue_
    flat = parse_ids(itertools.chain.from_iterable(rows), catalogue.item_ids.dtype)
    indices = catalogue.find(flat)
    ends = np.cumsum([len(row) for row in rows])
    known = [part[part >= 0] for part in np.split(indices, ends[:-1])]
    unknown = np.flatnonzero(indices < 0)
    counts = {
        "users": str(len(rows)),
        "unknown": str(len(unknown)),
        "example": shown(flat[unknown[0]]) if len(unknown) else "",
        "empty": str(sum(not len(part) for part in known)),
    }
    return known, counts


def _join(work: Path, target: Path, job: _Job) -> FileResult:
    """Join the output files, and log what has to be said about the histories."""
    outputs = sorted((work / "output").glob("*.parquet"))
    facts = [pl.read_parquet_metadata(path) for path in outputs]
    users, unknown, empty = (sum(int(each[name]) for each in facts) for name in ("users", "unknown", "empty"))
    if unknown:
        example = next(each["example"] for each in facts if each["example"])
        log.warning("Skipped %s (e.g. %s)", counted(unknown, "unknown item id"), example)
    if empty:
        verb = "has no known item and gets" if empty == 1 else "have no known item and get"
        log.warning("%s %s the most popular items", counted(empty, "history", "histories"), verb)
    joined = pl.scan_parquet(outputs, glob=False)
    rows = joined.select(pl.len()).collect().item()
    if rows < users * job.k:
        log.warning("some users get fewer than %d items: no other items are left", job.k)
    sink_table(target, joined)
    return FileResult(target, users, rows)
