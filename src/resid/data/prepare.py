"""Tables → Dataset, in the paper's order: k-core, items that lack a field, short users, histories.

Written once in Narwhals, for Polars and Spark alike. The driver sees vocabularies, the item table of the items
that are left, and the encoded histories; never the log.
"""

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset
from resid.data.engines import ROW, Engine, Frame
from resid.data.fields import field_columns, source_columns
from resid.data.readers import open_table
from resid.data.settings import PrepareSettings
from resid.data.splits import unseen_targets
from resid.data.tables import Table, checked_interactions, checked_items, same_item_type
from resid.core.errors import InputError
from resid.core.progress import Progress, Silent

log = logging.getLogger(__name__)

_COLUMNS = ("user", "item", "timestamp")


def prepare_tables(
    interactions: Any,
    items: Any,
    settings: PrepareSettings,
    *,
    columns: Mapping[str, str] | None = None,
    skip_bad_lines: bool = False,
    engine: str | None = None,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Open the tables and prepare them; see `Dataset.from_tables` for the arguments."""
    progress = progress or Silent()
    if engine not in (None, "polars", "spark"):
        raise InputError(f"the engine cannot be {engine!r}; there are 'polars' and 'spark'.")
    names = {column: column for column in _COLUMNS} | dict(columns or {})
    if unknown := names.keys() - set(_COLUMNS):
        raise InputError(f"columns: '{min(unknown)}' cannot be mapped; the columns are {', '.join(_COLUMNS)}.")
    if len(set(names.values())) < len(names):
        raise InputError("columns: user, item and timestamp must be three different columns.")
    options: dict[str, Any] = {
        "engine": engine,
        "scratch": scratch,
        "skip_bad_lines": skip_bad_lines,
        "progress": progress,
    }
    log = open_table(interactions, "interactions", list(names.values()), **options)
    wanted = None
    if settings.fields is not None:
        wanted = [names["item"], "item", *settings.fields, *(("title",) if settings.keep is None else settings.keep)]
    catalogue = None if items is None else open_table(items, "items", wanted, **options)
    return prepare(log, catalogue, settings, names, progress)


def prepare(
    log: Table, items: Table | None, settings: PrepareSettings, names: Mapping[str, str], progress: Progress
) -> Dataset:
    """Check the two tables and prepare them.

    Parameters
    ----------
    log
        The interactions, with the columns that `names` gives for user, item and timestamp.
    items
        The item table, of the same engine as the log, or None.
    settings
        What to do.
    names
        How the tables call the columns user, item and timestamp.
    progress
        Is told of each step.
    """
    if items is None and settings.fields:
        raise InputError("fields need an item table; give one, or no fields.")
    if items is not None and items.engine.name != log.engine.name:
        raise InputError(f"{items.name}: give both tables as Spark frames or neither.")
    engine = log.engine
    progress.step("Checking the tables")
    log = checked_interactions(log, names)
    item_column = names["item"]
    if items is not None:
        if item_column not in (columns := items.frame.collect_schema().names()) and "item" in columns:
            item_column = "item"  # the mapping may be meant for the log alone
        items = checked_items(items, item_column, source_columns(items, settings), _kept_columns(items, settings))
        log, items = same_item_type(log, items, item_column)
        items = items.with_frame(engine.compact(items.frame))
    log = log.with_frame(engine.materialize(engine.compact(log.frame)))
    if items is not None and settings.unlisted_items == "error":
        _refuse_unlisted(log, items, item_column)
    report = _Report(engine)
    report.add("read", log.frame)
    notes: dict[str, Any] = {
        "skipped_lines": log.skipped_lines + (items.skipped_lines if items else 0),
        "duplicate_interactions": report.steps[0]["interactions"]
        - _count(log.frame.select(*_COLUMNS).unique(), engine),
    }

    kept = k_core(log.frame, settings.k_core, engine, progress)
    if not _count(kept, engine):
        raise InputError(_nothing_left(log, settings.k_core))
    report.add(f"{settings.k_core}-core", kept)

    catalogue, field_names = _catalogue(kept, items, settings, engine)
    if settings.missing == "drop" and items is not None:
        kept = _without_incomplete(kept, catalogue, field_names, items)
        report.add("items lacking a field dropped", kept)
    kept = engine.materialize(kept.filter(nw.len().over("user") >= settings.min_interactions))
    report.add(f"users with fewer than {settings.min_interactions} dropped", kept)
    interactions = report.steps[-1]["interactions"]
    if not interactions:
        raise InputError(
            f"{log.name}: no user has {settings.min_interactions} interactions left; lower k_core (--k-core), or "
            "keep items that lack a field (--missing keep)."
        )

    progress.step("Writing histories")
    users = engine.collect(kept.select("user").unique()).sort("user")
    catalogue = (
        engine.collect(kept.select("item").unique()).sort("item").join(catalogue, on="item", maintain_order="left")
    )
    sequence, offsets = _encode(kept, users, catalogue, interactions, engine)
    ranks = [catalogue[name].rank("dense").fill_null(0).cast(pl.Int32).to_numpy() for name in field_names]
    unseen = unseen_targets(sequence, offsets, len(catalogue))
    return Dataset(
        arrays={
            "fields": np.stack(ranks, axis=1) if ranks else np.zeros((len(catalogue), 0), dtype=np.int32),
            "sequence": sequence,
            "offsets": offsets,
        },
        tables={"users": users, "items": catalogue},
        settings=settings,
        field_names=field_names,
        steps=report.steps,
        notes=notes | {f"unseen_{name}_targets": int(flags.sum()) for name, flags in unseen.items()},
    )


def encode_items(items: Any, catalogue: Catalogue, item_column: str) -> tuple[pl.Series, NDArray[np.int64]]:
    """Return the ids of further items and their field codes; see `Catalogue.encode_items`."""
    settings = catalogue.settings
    table = open_table(items, "items", [item_column, *(settings.fields or ())])
    table = checked_items(table, item_column, settings.fields or (), ())
    listed = table.engine.collect(table.frame).drop(ROW)
    fields = field_columns(listed, settings, table)
    if tuple(fields.columns) != catalogue.field_names:
        raise InputError(
            f"{table.name}: its columns make the fields {', '.join(fields.columns)}, and the Dataset has "
            f"{', '.join(catalogue.field_names)}; a list must stay a list (a CSV file cannot hold one), text must stay text."
        )
    codes = []
    for name in catalogue.field_names:
        values = fields[name].cast(catalogue.vocabulary(name).dtype, strict=False)  # 7 and "7" are the same
        code = catalogue.field_codes(name, values)
        code[values.is_null().to_numpy() & fields[name].is_not_null().to_numpy()] = -1
        if unknown := int((code < 0).sum()):
            log.warning("%s, field '%s': %d of %d values are not known", table.name, name, unknown, len(code))
        codes.append(code)
    return listed["item"], np.stack(codes, axis=1) if codes else np.zeros((len(listed), 0), dtype=np.int64)


def k_core(log: Frame, k: int, engine: Engine, progress: Progress | None = None) -> Frame:
    """Remove users and items with fewer than `k` interactions until every one left has that many.

    The result is the largest such set of interactions, whatever the order of removal. Each round costs two
    groupings of what is left; real logs settle within some ten rounds, most of the work in the first.
    """
    rows, before = _count(log, engine), None
    while rows and rows != before and k > 1:
        if progress:
            progress.step(f"{k}-core: {rows:,} interactions")
        enough_by_user = log.filter(nw.len().over("user") >= k)
        log = engine.materialize(enough_by_user.filter(nw.len().over("item") >= k))
        rows, before = _count(log, engine), rows
    return log


class _Report:
    """Counts what each step leaves: the table that the user sees at the end."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.steps: list[dict[str, Any]] = []

    def add(self, step: str, log: Frame) -> None:
        interactions = _count(log, self.engine)
        if self.steps and interactions == self.steps[-1]["interactions"]:  # nothing was removed
            counts = {name: self.steps[-1][name] for name in ("users", "items")}
        else:
            unique = log.select(nw.col("user").n_unique().alias("users"), nw.col("item").n_unique().alias("items"))
            counts = self.engine.collect(unique).to_dicts()[0]
        self.steps.append({"step": step, **counts, "interactions": interactions})


def _count(frame: Frame, engine: Engine) -> int:
    return int(engine.collect(frame.select(nw.len().alias("count")))["count"].item())


def _kept_columns(items: Table, settings: PrepareSettings) -> tuple[str, ...]:
    if settings.keep is not None:
        return settings.keep
    return ("title",) if "title" in items.frame.collect_schema().names() else ()


def _refuse_unlisted(log: Table, items: Table, item_column: str) -> None:
    unlisted = log.frame.join(items.frame.select("item"), on="item", how="anti")
    rows = log.engine.collect(unlisted.select(nw.col("item").n_unique().alias("items"), nw.len().alias("rows")))
    if rows["rows"].item():
        first = log.engine.collect(unlisted.sort(ROW).head(1))
        raise InputError(
            f"{items.name}, column '{item_column}': there is no row here for {rows['items'].item():,} of the items of "
            f"{log.name}, the first is {first['item'].item()!r} (in its {log.engine.point_at(first, log.row_word)}); "
            "add them, or treat them as items without fields with unlisted_items='missing' (--unlisted-items missing)."
        )


def _nothing_left(log: Table, k: int) -> str:
    """Find the largest core that is not empty by bisection, for what a core leaves a smaller one leaves too."""
    largest, empty = 1, k
    while empty - largest > 1:
        middle = (largest + empty) // 2
        if _count(k_core(log.frame, middle, log.engine), log.engine):
            largest = middle
        else:
            empty = middle
    return (
        f"{log.name}: the {k}-core is empty, no group of users and items has {k} interactions each; "
        f"the largest that is not is {largest}, so lower it with k_core={largest} (--k-core {largest})."
    )


def _catalogue(
    kept: Frame, items: Table | None, settings: PrepareSettings, engine: Engine
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Return the kept items with their fields, null where missing, and the names of the fields."""
    wanted = kept.select("item").unique()
    if items is None:
        return engine.collect(wanted), ()
    listed = engine.collect(items.frame.join(wanted, on="item", how="semi")).drop(ROW)
    if settings.unlisted_items == "missing":
        listed = engine.collect(wanted).join(listed, on="item", how="left")
    fields = field_columns(listed, settings, items)
    others = [name for name in _kept_columns(items, settings) if name not in (settings.fields or ())]
    if binary := [name for name in others if listed[name].dtype in (pl.Binary, pl.Object)]:
        raise InputError(f"{items.name}, column '{binary[0]}': bytes cannot be kept; leave the column out.")
    if clash := set(others) & set(fields.columns):
        raise InputError(
            f"{items.name}, column '{min(clash)}': a field has this name, so it cannot be kept; rename it."
        )
    return pl.concat([listed.select("item"), fields, listed.select(others)], how="horizontal"), tuple(fields.columns)


def _without_incomplete(kept: Frame, catalogue: pl.DataFrame, field_names: tuple[str, ...], items: Table) -> Frame:
    """Remove the interactions with items that lack a field."""
    complete = catalogue.drop_nulls(list(field_names))
    if len(complete) == len(catalogue):
        return kept
    if complete.is_empty():
        shares = {name: catalogue[name].null_count() / len(catalogue) for name in field_names}
        worst = max(shares, key=lambda name: shares[name])
        raise InputError(
            f"{items.name}, column '{worst}': every item lacks a field, this one in {shares[worst]:.0%} of them; "
            "keep such items with missing='keep' (--missing keep), or leave the field out."
        )
    engine = items.engine
    return engine.materialize(kept.join(engine.upload(complete.select("item")), on="item", how="semi"))


def _encode(
    kept: Frame, users: pl.DataFrame, catalogue: pl.DataFrame, interactions: int, engine: Engine
) -> tuple[np.ndarray[Any, np.dtype[np.int32]], np.ndarray[Any, np.dtype[np.int64]]]:
    """Replace ids by indices and lay the histories end to end."""
    encoded = engine.encode(engine.encode(kept, "user", users["user"]), "item", catalogue["item"])
    sequence = np.empty(interactions, dtype=np.int32)
    lengths = np.zeros(len(users), dtype=np.int64)
    position = 0
    for part in engine.histories(encoded, interactions):
        sequence[position : position + len(part)] = part["item"].to_numpy()
        lengths += np.bincount(part["user"].to_numpy(), minlength=len(users))
        position += len(part)
    return sequence, np.concatenate([[0], np.cumsum(lengths)])
