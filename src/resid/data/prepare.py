"""Preprocessing from tables to a Dataset, in the paper's order: k-core, missing fields, short histories, chronology.

Written once in Narwhals for Polars and Spark. With Spark, the driver only holds vocabularies, the remaining rows of the
item table and the encoded histories, never the log.
"""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import narwhals as nw
import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, shown
from resid.core.progress import Progress, Silent
from resid.data.codes import MAX_TAGS, column_codes, keep_frequent_tags, quantile_edges, stack_codes
from resid.data.dataset import Dataset
from resid.data.engines import ROW, Engine, Frame
from resid.data.fields import field_columns, source_columns
from resid.data.readers import open_table
from resid.data.settings import MIN_INTERACTIONS, PrepareSettings
from resid.data.splits import Histories
from resid.data.tables import Table, checked_interactions, checked_items, same_item_type
from resid.data.time_split import Times, split_by_time

_log = logging.getLogger(__name__)

LATEST = "latest_interaction"  # the note with the time of the last interaction
_COLUMNS = ("user", "item", "timestamp")


def prepare_tables(
    interactions: Any,
    items: Any,
    settings: PrepareSettings,
    *,
    columns: Mapping[str, str] | None = None,
    duplicates: str = "keep",
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    skip_bad_lines: bool = False,
    engine: str | None = None,
    scratch: Path | None = None,
    progress: Progress | None = None,
) -> Dataset:
    """Open the tables and prepare them; `Dataset.from_tables` documents the arguments."""
    progress = progress or Silent()
    if engine not in (None, "polars", "spark"):
        raise InputError(f"invalid engine {shown(engine)}: it must be 'polars' or 'spark'.")
    if timestamp_format is not None and not (isinstance(timestamp_format, str) and "%" in timestamp_format):
        raise InputError(
            f"timestamp_format: {shown(timestamp_format)} is not a format such as '%d/%m/%Y %H:%M' (--timestamp-format)."
        )
    names = column_names(columns)
    options: dict[str, Any] = {
        "engine": engine,
        "scratch": scratch,
        "separator": separator,
        "encoding": encoding,
        "skip_bad_lines": skip_bad_lines,
        "progress": progress,
    }
    log = open_table(interactions, "interactions", list(names.values()), **options)
    wanted = None
    if settings.fields is not None:
        columns_before_colon = [name.rpartition(":")[0] for name in settings.fields]  # to explain an unknown kind
        kept = ("title",) if settings.keep is None else settings.keep
        wanted = [names["item"], "item", *settings.fields, *columns_before_colon, *kept]
    catalogue = None if items is None else open_table(items, "items", wanted, **options)
    return prepare(log, catalogue, settings, names, progress, duplicates=duplicates, timestamp_format=timestamp_format)


def column_names(columns: Mapping[str, str] | None) -> dict[str, str]:
    """Return the columns of user, item and timestamp in a log, or raise an `InputError` if they are invalid."""
    if not isinstance(columns, Mapping | None) or not all(isinstance(name, str) for name in (columns or {}).values()):
        raise InputError(f"columns must map names to columns, for example {{'item': 'asin'}}, not {shown(columns)}.")
    names = {column: column for column in _COLUMNS} | dict(columns or {})
    if unknown := names.keys() - set(_COLUMNS):
        raise InputError(f"columns: unknown key {min(map(shown, unknown))}; the keys are {', '.join(_COLUMNS)}.")
    if len(set(names.values())) < len(names):
        raise InputError("columns: user, item and timestamp must be three different columns.")
    return names


def prepare(
    log: Table,
    items: Table | None,
    settings: PrepareSettings,
    names: Mapping[str, str],
    progress: Progress,
    *,
    duplicates: str = "keep",
    timestamp_format: str | None = None,
) -> Dataset:
    """Validate both tables and prepare them.

    Parameters
    ----------
    log
        The interaction log.
    items
        The item table, on the same engine as the log, or None.
    settings
        Settings of the preprocessing.
    names
        The names of the columns user, item and timestamp in the tables.
    progress
        Receives progress updates.
    duplicates, timestamp_format
        See `Dataset.from_tables`.
    """
    if duplicates not in ("keep", "drop"):
        raise InputError(
            f"invalid value {shown(duplicates)} for duplicates (--duplicates): it must be 'keep' or 'drop'."
        )
    if items is None and settings.fields:
        raise InputError("fields require an item table; pass one, or no fields.")
    if items is not None and items.engine.name != log.engine.name:
        raise InputError(f"{items.name}: pass both tables as Spark frames, or neither.")
    engine = log.engine
    progress.step("Checking the tables")
    log = checked_interactions(log, names, timestamp_format)
    item_column = names["item"]
    if items is not None:
        if item_column not in (columns := items.frame.collect_schema().names()) and "item" in columns:
            item_column = "item"  # the mapping may apply to the log only
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
        "duplicates": duplicates,
    }
    if duplicates == "drop":
        log = log.with_frame(engine.materialize(log.frame.group_by(*_COLUMNS).agg(nw.col(ROW).min())))
        report.add("duplicate interactions dropped", log.frame)
    elif notes["duplicate_interactions"] * 10 > report.steps[0]["interactions"]:
        _log.warning(
            "%s: %s of %s interactions are exact duplicates; drop them with duplicates='drop' (--duplicates drop)",
            log.name, f"{notes['duplicate_interactions']:,}", f"{report.steps[0]['interactions']:,}",
        )  # fmt: skip

    kept = k_core(log.frame, settings.k_core, engine, progress)
    if not _count(kept, engine):
        raise InputError(_nothing_left(log, settings.k_core))
    report.add(f"{settings.k_core}-core", kept, "keep more with a smaller k_core (--k-core)")

    catalogue, field_names, settings, guesses = _catalogue(kept, items, settings, engine)
    notes |= {"guessed_kinds": guesses} if guesses else {}
    if settings.missing == "drop" and items is not None:
        kept = _without_incomplete(kept, catalogue, field_names, items)
        report.add("items with missing fields dropped", kept, "keep them with missing='keep' (--missing keep)")
    kept = engine.materialize(kept.filter(nw.len().over("user") >= settings.min_interactions))
    advice = "keep more with a smaller min_interactions (--min-interactions)"
    if settings.min_interactions == MIN_INTERACTIONS:
        advice = "training, validation and test need one each"
    report.add(f"users with fewer than {settings.min_interactions} interactions dropped", kept, advice)
    interactions = report.steps[-1]["interactions"]
    if not interactions:
        raise InputError(
            f"{log.name}: no user has {settings.min_interactions} interactions left; lower k_core (--k-core), or "
            "keep items with missing fields (--missing keep)."
        )

    progress.step("Building histories")
    users = engine.collect(kept.select("user").unique()).sort("user")
    catalogue = (
        engine.collect(kept.select("item").unique()).sort("item").join(catalogue, on="item", maintain_order="left")
    )
    sequence, offsets, tied, times = _encode(kept, users, catalogue, interactions, engine, settings.split == "time")
    histories = Histories(sequence, offsets, len(catalogue))
    if times is not None:
        histories, found = split_by_time(times, sequence, offsets, len(catalogue), settings)
        notes |= found
    notes |= {f"tied_{name}_targets": count for name, count in histories.count_tied_targets(tied).items()}
    repeated = {name: count for name, count in histories.count_repeated_targets().items() if count}
    notes |= {f"repeated_{name}_targets": count for name, count in repeated.items()}
    newest = engine.collect(kept.select(nw.col("timestamp").max()))["timestamp"]
    notes[LATEST] = Times.of(newest).values[0].item()
    data = build_dataset(users, catalogue, field_names, histories, settings, report.steps, notes)
    first = engine.collect(kept.group_by("item").agg(nw.col("timestamp").min())).sort("item")["timestamp"]
    if (appeared := Times.of(first)).scale is not None:
        data.first_seen = appeared.values
    return data


def build_dataset(
    users: pl.DataFrame,
    catalogue: pl.DataFrame,
    field_names: Sequence[str],
    histories: Histories,
    settings: PrepareSettings,
    steps: list[dict[str, Any]],
    notes: dict[str, Any],
) -> Dataset:
    """Encode the fields of the catalogue, count the unseen targets and return the Dataset."""
    kinds = settings.kinds_of(tuple(field_names))
    for name in (name for name, kind in kinds.items() if kind == "tags"):
        tags, reduced = keep_frequent_tags(catalogue[name])
        catalogue = catalogue.with_columns(tags)
        if reduced:
            _log.warning("field '%s': %d items keep only their %d most frequent tags", name, reduced, MAX_TAGS)
            notes = notes | {"reduced_tags": {**notes.get("reduced_tags", {}), name: reduced}}
    numbers = [name for name, kind in kinds.items() if kind == "number"]
    edges = {name: quantile_edges(catalogue[name], settings.bins) for name in numbers}
    codes = [column_codes(catalogue[name], kind, edges.get(name, ())) for name, kind in kinds.items()]
    for name, flags in histories.unseen.items():
        if settings.unseen_targets == "drop" and flags.all():
            raise InputError(
                f"no training history contains any of the {name} targets, so unseen_targets='drop' leaves nothing to "
                "evaluate; use unseen_targets='keep' (--unseen-targets keep)."
            )
    by_time = {} if histories.boundaries is None else {"boundaries": histories.boundaries}
    return Dataset(
        arrays={
            "fields": stack_codes(codes, len(catalogue)),
            "sequence": histories.sequence,
            "offsets": histories.offsets,
            **by_time,
        },
        tables={"users": users, "items": catalogue},
        settings=settings,
        field_names=field_names,
        steps=steps,
        edges=edges,
        notes=notes | {f"unseen_{name}_targets": int(flags.sum()) for name, flags in histories.unseen.items()},
    )


def k_core(log: Frame, k: int, engine: Engine, progress: Progress | None = None) -> Frame:
    """Remove users and items with fewer than `k` interactions repeatedly until all have at least `k`.

    The result is the largest such set of interactions and does not depend on the order of removal. Each round groups the
    remaining log twice; real logs converge in about ten rounds.
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
    """Number of users, items and interactions after every step."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        self.steps: list[dict[str, Any]] = []

    def add(self, step: str, log: Frame, advice: str | None = None) -> None:
        """Count the log after a step, and warn with `advice` if it removed much; without, the user asked for the step."""
        interactions = _count(log, self.engine)
        if self.steps and interactions == self.steps[-1]["interactions"]:  # nothing removed
            counts = {name: self.steps[-1][name] for name in ("users", "items")}
        else:
            unique = log.select(nw.col("user").n_unique().alias("users"), nw.col("item").n_unique().alias("items"))
            counts = self.engine.collect(unique).to_dicts()[0]
        self.steps.append({"step": step, **counts, "interactions": interactions})
        if advice is None or not interactions:  # an error follows if nothing is left
            return
        before, after = self.steps[-2:]
        removed = {name: before[name] - after[name] for name in ("items", "interactions")}
        if any(removed[name] * 10 > before[name] for name in removed):
            shares = " and ".join(f"{count:,} of {before[name]:,} {name}" for name, count in removed.items() if count)
            _log.warning("Preprocessing step '%s' removed %s; %s", step, shares, advice)


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
            f"{items.name}, column '{item_column}': no row for {rows['items'].item():,} of the items in "
            f"{log.name}, first {first['item'].item()!r} (in {log.engine.point_at(first, log.row_word)}); "
            "add rows, or treat their fields as missing with unlisted_items='missing' (--unlisted-items missing)."
        )


def _nothing_left(log: Table, k: int) -> str:
    """Return the message for an empty k-core, with the largest k that is not empty, found by bisection."""
    largest, empty = 1, k
    while empty - largest > 1:
        middle = (largest + empty) // 2
        if _count(k_core(log.frame, middle, log.engine), log.engine):
            largest = middle
        else:
            empty = middle
    return (
        f"{log.name}: the {k}-core is empty; the largest k with a non-empty core is {largest}, "
        f"so use k_core={largest} (--k-core {largest}) or less."
    )


def _catalogue(
    kept: Frame, items: Table | None, settings: PrepareSettings, engine: Engine
) -> tuple[pl.DataFrame, tuple[str, ...], PrepareSettings, dict[str, str]]:
    """Return the remaining items with their fields (null = missing), and how the fields were read.

    These are the names of the fields, the settings with all kinds, and the reasons of guesses by column.
    """
    wanted = kept.select("item").unique()
    if items is None:
        return engine.collect(wanted), (), settings, {}
    listed = engine.collect(items.frame.join(wanted, on="item", how="semi")).drop(ROW)
    if settings.unlisted_items == "missing":
        listed = engine.collect(wanted).join(listed, on="item", how="left")
    fields, kinds, reasons = field_columns(listed, settings, items)
    settings = settings.replace(kinds=kinds)
    guesses = {
        name: f"{dict(zip(settings.fields or (), kinds, strict=True))[name]}: {why}" for name, why in reasons.items()
    }
    for name, guess in guesses.items():
        _log.info("%s, column '%s': guessed the kind %s", items.name, name, guess)
    others = [name for name in _kept_columns(items, settings) if name not in (settings.fields or ())]
    if binary := [name for name in others if listed[name].dtype in (pl.Binary, pl.Object)]:
        raise InputError(f"{items.name}, column '{binary[0]}': binary columns cannot be kept; leave the column out.")
    if clash := set(others) & set(fields.columns):
        raise InputError(
            f"{items.name}, column '{min(clash)}': cannot be kept because a field has the same name; rename the column."
        )
    table = pl.concat([listed.select("item"), fields, listed.select(others)], how="horizontal")
    return table, tuple(fields.columns), settings, guesses


def _without_incomplete(kept: Frame, catalogue: pl.DataFrame, field_names: tuple[str, ...], items: Table) -> Frame:
    """Remove the interactions with items that have a missing field."""
    complete = catalogue.drop_nulls(list(field_names))
    if len(complete) == len(catalogue):
        return kept
    if complete.is_empty():
        shares = {name: catalogue[name].null_count() / len(catalogue) for name in field_names}
        worst = max(shares, key=lambda name: shares[name])
        raise InputError(
            f"{items.name}, column '{worst}': every item has a missing field, this one is missing in {shares[worst]:.0%}; "
            "keep such items with missing='keep' (--missing keep), or leave the field out."
        )
    engine = items.engine
    return engine.materialize(kept.join(engine.upload(complete.select("item")), on="item", how="semi"))


def _encode(
    kept: Frame, users: pl.DataFrame, catalogue: pl.DataFrame, interactions: int, engine: Engine, with_times: bool
) -> tuple[NDArray[np.int32], NDArray[np.int64], NDArray[np.bool_], Times | None]:
    """Replace ids by indices and concatenate the histories.

    The third array tells which interactions have the same timestamp as the one before them in the history. The timestamps
    themselves are returned if they are asked for.
    """
    encoded = engine.encode(engine.encode(kept, "user", users["user"]), "item", catalogue["item"])
    sequence = np.empty(interactions, dtype=np.int32)
    tied = np.empty(interactions, dtype=np.bool_)
    lengths = np.zeros(len(users), dtype=np.int64)
    position, timestamps = 0, list[pl.Series]()
    for part in engine.histories(encoded, interactions):
        rows = slice(position, position + len(part))
        sequence[rows] = part["item"].to_numpy()
        same = [part[name] == part[name].shift(1) for name in ("user", "timestamp")]
        tied[rows] = (same[0] & same[1]).fill_null(False).to_numpy()
        lengths += np.bincount(part["user"].to_numpy(), minlength=len(users))
        position += len(part)
        timestamps += [part["timestamp"]] if with_times else []
    times = Times.of(pl.concat(timestamps)) if with_times else None
    return sequence, np.concatenate([[0], np.cumsum(lengths)]), tied, times
