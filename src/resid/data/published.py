"""The published data of the paper's authors (`PIIR/ReSID-dataset` on the Hugging Face Hub): from their files to a Dataset.

The authors publish windows instead of an interaction log::

    NAME/leave_one_out/dataset/
        item_feature/*.parquet       item_id, store_id, cate1_id, cate2_id, cate3_id; ids start at 1, 0 is missing
        train/*.parquet              user_id, history (list of item ids, oldest first), target, timestamp
        valid/*.parquet
        test/*.parquet
        item_feature_explain.json    sizes of the vocabularies

`prepare_published` rebuilds the chronological history of every user from the windows and verifies that every window is
part of it. The splits are then our own: ``unseen_targets="drop"`` moves the same kind of windows that the authors moved
from valid and test to train.
"""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, first_line
from resid.core.progress import Progress, Silent
from resid.data.amazon import PUBLISHED, compare_with_paper
from resid.data.dataset import Dataset
from resid.data.prepare import build_dataset
from resid.data.readers import parquet_files
from resid.data.rebuild import Integers, Rows, rebuild_histories
from resid.data.settings import PrepareSettings
from resid.data.sources import Source, add_source
from resid.data.splits import Histories
from resid.data.tables import typed

_FIELDS = {"store_id": "store", "cate1_id": "cat1", "cate2_id": "cat2", "cate3_id": "cat3"}
_SPLITS = {"train": "train", "valid": "validation", "test": "test"}  # folder → our name
_MIN_INTERACTIONS = 3


def prepare_published(
    name: str,
    raw: str | Path,
    *,
    max_length: int = 32,
    unseen_targets: Literal["keep", "drop", "train"] = "drop",
    skip_bad_users: bool = False,
    progress: Progress | None = None,
) -> Dataset:
    """Read a data set in the authors' processed format, with the fields store, cat1, cat2 and cat3.

    Parameters
    ----------
    name
        The data set, for example ``"Musical_Instruments"``.
    raw
        The folder that contains the folder `name`.
    max_length, unseen_targets
        As in `Dataset.from_tables`; the default for unseen targets is what the authors did.
    skip_bad_users
        Drop and count users whose rows contradict each other, instead of raising an error.
    progress
        Receives progress updates.

    Returns
    -------
    Dataset
        Its notes contain the number of published rows (``published_windows``), of exact duplicates among them
        (``duplicate_rows``) and of dropped users (``skipped_users``).

    Raises
    ------
    InputError
        If a file is missing or invalid, or if rows of a user contradict each other.
    """
    progress = progress or Silent()
    folder = Path(raw) / name / "leave_one_out" / "dataset"
    if not folder.is_dir():
        raise InputError(
            f"{folder}: there is no such folder; download it with: hf download PIIR/ReSID-dataset --repo-type dataset "
            f"--include '{name}/leave_one_out/dataset/*' --local-dir {shlex.quote(str(raw))}"
        )
    progress.step(f"Reading {folder}")
    catalogue = _read_items(folder)
    rows = _read_rows(folder, catalogue["item"].to_numpy())
    progress.step("Rebuilding histories")
    sequence, offsets, users, faults, duplicates = rebuild_histories(rows)
    if faults and not skip_bad_users:
        raise InputError(
            f"{next(iter(faults.values()))}; download the files again, or drop such users with skip_bad_users=True "
            "(--skip-bad-lines)."
        )
    steps = [_step("read", sequence, offsets)]
    long_enough = np.diff(offsets) >= _MIN_INTERACTIONS
    if not long_enough.any():
        raise InputError(f"{folder}: no user has {_MIN_INTERACTIONS} interactions; download the files again.")
    sequence = sequence[np.repeat(long_enough, np.diff(offsets))]
    offsets = np.concatenate([[0], np.cumsum(np.diff(offsets)[long_enough])])
    steps.append(_step(f"users with fewer than {_MIN_INTERACTIONS} interactions dropped", sequence, offsets))
    settings = PrepareSettings(
        fields=tuple(_FIELDS.values()),
        keep=(),
        missing="keep" if any(catalogue[field].null_count() for field in _FIELDS.values()) else "drop",
        max_length=max_length,
        unseen_targets=unseen_targets,
    )
    notes = {
        "skipped_lines": 0,
        "duplicate_interactions": 0,
        "published_windows": {name: int((rows.split == split).sum()) for split, name in enumerate(_SPLITS.values())},
        "duplicate_rows": duplicates,
        "skipped_users": len(faults),
    }
    histories = Histories(sequence, offsets, len(catalogue))
    kept = pl.DataFrame({"user": rows.user_ids.gather(users[long_enough])})
    return build_dataset(kept, catalogue, settings.fields or (), histories, settings, steps, notes)


def compare_with_published(data: Dataset) -> dict[str, tuple[int, int]]:
    """Return the number of windows of every split here and in the published files."""
    published = data.notes["published_windows"]
    return {f"{name} windows": (len(data.windows(name)), published[name]) for name in _SPLITS.values()}


def _step(step: str, sequence: NDArray[np.int32], offsets: Integers) -> dict[str, Any]:
    counts = {"users": len(offsets) - 1, "items": int(np.unique(sequence).size), "interactions": len(sequence)}
    return {"step": step, **counts}


def _read_items(folder: Path) -> pl.DataFrame:
    """Read item_feature into the columns item (sorted), store, cat1, cat2 and cat3, with null for 0."""
    columns = ("item_id", *_FIELDS)
    parts = []
    for path in _files(folder / "item_feature"):
        part = _read(path, columns)
        for column in columns:
            values = _integers(part[column], path)
            _refuse(path, column, (values < 0).to_numpy(), "negative id")
            part = part.with_columns(values)
        parts.append(part.with_columns(pl.lit(str(path)).alias("file")))
    items = pl.concat(parts).filter(pl.col("item_id") > 0)
    if items.is_empty():
        raise InputError(f"{folder / 'item_feature'}: there are no items; download the files again.")
    repeated = items.filter(pl.col("item_id").is_duplicated())
    if not repeated.is_empty():
        first = repeated.row(0, named=True)
        raise InputError(
            f"{first['file']}, column 'item_id': duplicate item {first['item_id']}; keep one row per item."
        )
    _check_sizes(folder / "item_feature_explain.json", items)
    fields = [pl.col(column).replace(0, None).alias(field) for column, field in _FIELDS.items()]
    return items.sort("item_id").select(pl.col("item_id").alias("item"), *fields)


def _check_sizes(path: Path, items: pl.DataFrame) -> None:
    """Compare the ids with the sizes of the vocabularies, ``{"store_id": {"id_num": 4095, …}, …}``; 0 counts as an id."""
    if not path.exists():
        return
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError(f"{path}: not a JSON file ({error}); download the file again.") from error
    if not isinstance(entries, dict):
        return
    sizes = {column: entry.get("id_num") for column, entry in entries.items() if isinstance(entry, dict)}
    for column in ("item_id", *_FIELDS):
        largest = int(items[column].to_numpy().max())
        if isinstance(size := sizes.get(column), int) and largest >= size:
            raise InputError(
                f"{path}: the ids of '{column}' end at {size - 1}, but item_feature contains {largest}; "
                "download the files again."
            )


def _read_rows(folder: Path, item_ids: Integers) -> Rows:
    """Read the three splits and replace item ids by indices."""
    files: list[Path] = []
    parts, histories, targets = [], [], []
    for split, name in enumerate(_SPLITS):
        for path in _files(folder / name):
            part = _read(path, ("user_id", "history", "target", "timestamp"))
            if isinstance(part["history"].dtype, pl.Array):
                part = part.with_columns(pl.col("history").arr.to_list())
            if not isinstance(part["history"].dtype, pl.List):
                raise InputError(f"{path}, column 'history': must be a list of item ids, not {part['history'].dtype}.")
            part = part.with_columns(typed(part["timestamp"]))
            if not (part["timestamp"].dtype.is_numeric() or part["timestamp"].dtype.is_temporal()):
                raise InputError(
                    f"{path}, column 'timestamp': must be a number or a date, not {part['timestamp'].dtype}."
                )
            lengths = part["history"].list.len().to_numpy().astype(np.int64)
            flat = _integers(part["history"].filter(lengths > 0).explode(), path).to_numpy()
            row = np.repeat(np.arange(len(part)), lengths)[flat != 0]  # 0 is padding
            histories.append(_indices(flat[flat != 0], item_ids, row, path, "history"))
            target = _integers(part["target"], path).to_numpy()
            targets.append(_indices(target, item_ids, np.arange(len(part)), path, "target"))
            parts.append(
                part.select(
                    "user_id",
                    pl.col("timestamp").to_physical(),
                    pl.Series("length", np.bincount(row, minlength=len(part))),
                    pl.lit(split, pl.Int8).alias("split"),
                    pl.lit(len(files), pl.Int32).alias("file"),
                    pl.int_range(1, pl.len() + 1).alias("number"),
                )
            )
            files.append(path)
    try:
        rows = pl.concat(parts)
    except pl.exceptions.PolarsError as error:
        raise InputError(f"{folder}: the files have different column types ({first_line(error)}).") from error
    length = rows["length"].to_numpy()
    return Rows(
        user_ids=rows["user_id"].unique().sort(),
        user=rows["user_id"].rank("dense").cast(pl.Int64).to_numpy() - 1,
        time=rows["timestamp"].to_numpy(),
        target=np.concatenate(targets),
        history=np.concatenate(histories),
        start=np.cumsum(length) - length,
        length=length,
        split=rows["split"].to_numpy(),
        files=files,
        file=rows["file"].to_numpy(),
        number=rows["number"].to_numpy(),
    )


def _files(folder: Path) -> list[Path]:
    files = parquet_files(folder) if folder.is_dir() else []
    if not files:
        raise InputError(f"{folder}: there are no .parquet files; download the data set again.")
    return files


def _read(path: Path, columns: Sequence[str]) -> pl.DataFrame:
    """Read the columns of a file and raise an `InputError` for nulls."""
    try:
        present = pl.read_parquet_schema(path)
        if absent := [column for column in columns if column not in present]:
            raise InputError(f"{path}: there is no column '{absent[0]}', it has {', '.join(present)}.")
        frame = pl.read_parquet(path, columns=list(columns), glob=False)
    except (pl.exceptions.PolarsError, OSError) as error:
        raise InputError(f"{path}: the file cannot be read ({first_line(error)}); is it complete?") from error
    for column in columns:
        _refuse(path, column, frame[column].is_null().to_numpy(), "missing value")
    return frame


def _refuse(path: Path, column: str, offending: NDArray[np.bool_], problem: str) -> None:
    if offending.any():
        row = int(np.argmax(offending)) + 1
        raise InputError(f"{path}, column '{column}': {problem} in row {row:,}; download the file again.")


def _integers(values: pl.Series, path: Path) -> pl.Series:
    if not (values.dtype.is_integer() or values.dtype == pl.Null):
        raise InputError(f"{path}, column '{values.name}': ids must be integers, not {values.dtype}.")
    if values.null_count():  # inside a list
        raise InputError(f"{path}, column '{values.name}': missing item in a list; download the file again.")
    return values.cast(pl.Int64)


def _indices(ids: Integers, item_ids: Integers, row: Integers, path: Path, column: str) -> NDArray[np.int32]:
    """Return the positions of item ids in `item_ids`, which is sorted; `row` is the row of every id."""
    found = np.minimum(np.searchsorted(item_ids, ids), len(item_ids) - 1)
    if (unknown := item_ids[found] != ids).any():
        first = int(np.argmax(unknown))
        raise InputError(
            f"{path}, column '{column}': item {ids[first]} in row {row[first] + 1:,} is not in item_feature; "
            "download the files again."
        )
    return found.astype(np.int32)


def _prepare(name: str, raw: Path, *, skip_bad_lines: bool = False, **options: Any) -> Dataset:
    return prepare_published(name, raw, skip_bad_users=skip_bad_lines, **options)


def _compare(name: str, data: Dataset) -> dict[str, dict[str, tuple[int, int]]]:
    paper = compare_with_paper(PUBLISHED, name, data)
    return ({"paper": paper} if paper else {}) | {"published": compare_with_published(data)}


add_source(
    PUBLISHED,
    Source(
        _prepare,
        options=("max_length", "unseen_targets", "skip_bad_lines"),
        reason="the data is already preprocessed",
        compare=_compare,
    ),
)
