"""A Dataset that grows: new interactions at the ends of its histories, what of them is new to a model, and what is held out."""

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, counted, shown
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset
from resid.data.engines import ROW
from resid.data.new_items import cast_ids
from resid.data.prepare import LATEST, build_dataset, column_names
from resid.data.readers import open_table
from resid.data.settings import MIN_INTERACTIONS
from resid.data.splits import Histories, Split
from resid.data.tables import checked_interactions
from resid.data.time_split import Times, split_by_time

_log = logging.getLogger(__name__)

VALIDATE_FROM, TEST_FROM = 0.8, 0.9  # in a time split, shares of the new interactions at which the new periods begin


def read_interactions(
    interactions: Any,
    catalogue: Catalogue,
    users: pl.Series | None = None,
    *,
    after: float | None = None,
    columns: Mapping[str, str] | None = None,
    timestamp_format: str | None = None,
    **options: Any,
) -> tuple[pl.DataFrame, int]:
    """Read new interactions with items of a catalogue.

    Parameters
    ----------
    interactions
        A path or a frame with the columns user, item and timestamp, see `Dataset.from_tables`.
    catalogue
        The items that are known.
    users
        The known user ids, whose type the new ones must have.
    after
        The time of the latest interaction that is known, as `latest` returns it; interactions until then are left out.
    columns, timestamp_format, options
        See `Dataset.from_tables`; options are the separator and the encoding of a text file.

    Returns
    -------
    log, left_out
        The columns user, item and timestamp, in chronological order of every user, and how many interactions were left out.

    Raises
    ------
    InputError
        If the table is invalid, has an item that the catalogue does not have, or nothing is new in it.
    """
    names = column_names(columns)
    table = open_table(interactions, "interactions", list(names.values()), **options)
    table = checked_interactions(table, names, timestamp_format)
    log = table.engine.collect(table.frame)
    log = cast_ids(log, "item", catalogue.item_ids.dtype, table, names["item"])
    if users is not None and len(users):
        log = cast_ids(log, "user", users.dtype, table, names["user"])
    left_out = 0
    if after is not None:
        times = Times.of(log["timestamp"])
        known_until = times.on_scale(after)
        new = times.values > known_until
        left_out = int((~new).sum())
        if not new.any():
            raise InputError(
                f"{table.name}: all {counted(len(log), 'interaction')} are from {times.show(known_until)} or before, "
                "the time until which the model knows the log; give newer ones."
            )
        log = log.filter(pl.Series(new))
    known = catalogue.find(log["item"].unique(maintain_order=True)) >= 0
    if not known.all():
        unknown = log["item"].unique(maintain_order=True).filter(pl.Series(~known))
        raise InputError(
            f"{table.name}, column '{names['item']}': {counted(len(unknown), 'item is', 'items are')} not in the model, first "
            f"{shown(unknown[0])}; give a table with the new items and their fields as well, or leave these rows out."
        )
    return log.sort("user", "timestamp", ROW).drop(ROW), left_out


def latest(log: pl.DataFrame) -> float:
    """Return the time of the latest of some interactions as a number; microseconds since 1970 if timestamps are dates."""
    value: float = Times.of(log["timestamp"]).values.max().item()
    return value


def grow(catalogue: Catalogue, log: pl.DataFrame, data: Dataset | None = None) -> Dataset:
    """Append interactions to the histories of a Dataset, and divide these anew.

    In leave-one-out, the test targets are the last items of the grown histories and the validation targets those before them. In a
    time split, the latest tenth of the new interactions is tested and the tenth before it validates. Items keep their indices;
    new users come after the others. Items are not filtered; users with fewer than three interactions are left out, with a warning,
    where the Dataset moves targets to training (``unseen_targets``).

    Parameters
    ----------
    catalogue
        All items; those of the Dataset come first.
    log
        New interactions, as `read_interactions` returns them.
    data
        The Dataset; None if the log is all there is.

    Returns
    -------
    Dataset
        With the settings of the catalogue, and the fields of all items encoded anew.
    """
    settings = catalogue.settings
    known = data.user_ids if data is not None else pl.Series("user", [], log["user"].dtype)
    new_users = log["user"].unique().sort()
    users = pl.concat([known, new_users.filter(~new_users.is_in(known.implode()))]).rename("user")
    lengths = np.zeros(len(users), dtype=np.int64)
    lengths[: len(known)] = np.diff(data.offsets) if data is not None else 0
    user, item = (
        log.select(name).join(pl.DataFrame({name: ids}).with_row_index("index"), on=name, maintain_order="left")[
            "index"
        ]
        for name, ids in (("user", users), ("item", catalogue.item_ids))
    )
    order = np.argsort(user.to_numpy(), kind="stable")
    rows, items = user.to_numpy()[order], item.to_numpy()[order]
    added = np.bincount(rows, minlength=len(users))
    # Only a split without moved targets can have histories that are too short for a target.
    least = 1 if settings.unseen_targets == "keep" or settings.split == "time" else MIN_INTERACTIONS
    kept = lengths + added >= least
    if not kept.all():
        _log.warning(
            "%s with fewer than %d interactions are left out, as the Dataset takes no shorter histories; give their interactions again later",
            *(counted(int((~kept).sum()), "new user", "new users"), least),
        )
        order, rows, items = (values[kept[user.to_numpy()[order]]] for values in (order, rows, items))
        rows = (np.cumsum(kept) - 1)[rows]
        users, lengths, added = users.filter(pl.Series(kept)), lengths[kept], added[kept]
    offsets = np.concatenate([[0], np.cumsum(lengths + added)])
    sequence = np.empty(offsets[-1], dtype=np.int32)
    if data is not None:
        sequence[np.arange(data.n_interactions) + np.repeat((offsets[:-1] - np.cumsum(lengths) + lengths), lengths)] = (
            data.sequence
        )
    within = np.arange(len(rows)) - np.repeat(np.cumsum(added) - added, added)
    places = offsets[rows] + lengths[rows] + within
    sequence[places] = items
    histories, notes = Histories(sequence, offsets, len(catalogue)), dict[str, Any]()
    if settings.split == "time":
        times = Times.of(log["timestamp"])
        values = np.full(len(sequence), times.values.min() - 1)  # what was known is before all that is new
        values[places] = times.values[order]
        points = [times.find(share, LATEST) for share in (VALIDATE_FROM, TEST_FROM)]
        settings = settings.replace(validate_from=points[0], test_from=points[1])
        histories, notes = split_by_time(Times(values, times.scale), sequence, offsets, len(catalogue), settings)
    earlier = data.notes if data is not None else {"duplicates": "keep"}
    notes = {name: value for name, value in earlier.items() if not name.endswith("_targets")} | notes
    notes |= {f"repeated_{name}_targets": n for name, n in histories.count_repeated_targets().items() if n}
    sizes = {"users": len(users), "items": len(catalogue), "interactions": len(sequence)}
    steps = [*(data.steps if data is not None else ()), {"step": "new interactions added", **sizes}]
    grown = build_dataset(
        users.to_frame(),
        catalogue.items,
        catalogue.field_names,
        histories,
        settings,
        steps,
        notes | {LATEST: latest(log)},
    )
    times = Times.of(log["timestamp"])
    if data is not None and data.first_seen is not None and Times.of(pl.Series(data.first_seen)).scale == times.scale:
        first = np.full(len(catalogue), times.values.max())
        first[: data.n_items] = data.first_seen
        np.minimum.at(first, item.to_numpy(), times.values)
        grown.first_seen = first
    return grown


def new_targets(data: Dataset, earlier: Dataset | None, *, all_known: bool = False) -> NDArray[np.bool_]:
    """Return which training windows have a target that a model was not trained on, shape (training windows,).

    Parameters
    ----------
    data
        The grown Dataset.
    earlier
        The Dataset that the model was trained on, from which it grew; None if all of it is new.
    all_known
        Whether the model was also trained on the targets that `earlier` holds out.
    """
    windows, known = data.train, np.zeros(data.n_users, dtype=np.int64)
    if earlier is not None:
        users = np.repeat(np.arange(earlier.n_users), np.diff(earlier.offsets))
        known[: earlier.n_users] = np.bincount(users[earlier.in_training | all_known], minlength=earlier.n_users)
    new: NDArray[np.bool_] = windows.end - windows.first >= known[windows.users]
    return new


def with_replay(windows: Split, new: NDArray[np.bool_], replay: float, seed: int) -> Split:
    """Return the windows with new targets and, for every new target, about `replay` others, of randomly drawn users.

    Whole users are drawn, as all targets of a history cost a causal model little more than one of them.
    """
    others = np.bincount(windows.users[~new], minlength=int(windows.users.max(initial=-1)) + 1)
    drawn = np.random.default_rng(seed).permutation(len(others))
    enough = np.searchsorted(np.cumsum(others[drawn]), replay * new.sum(), side="left") + 1 if replay else 0
    chosen = np.zeros(len(others), dtype=bool)
    chosen[drawn[:enough]] = True
    return windows.take(new | chosen[windows.users])


def all_in_training(data: Dataset, held_out: NDArray[np.bool_] | None = None) -> Dataset:
    """Return a Dataset whose training part is everything; it is a view for training, not to be saved.

    Parameters
    ----------
    data
        The Dataset.
    held_out
        Users whose last item is held out for validation, shape (n_users,); none by default.
    """
    ends = np.asarray(data.offsets[1:])
    validate = ends - held_out if held_out is not None else ends
    arrays = {"fields": data.fields, "sequence": data.sequence, "offsets": data.offsets}
    return Dataset(
        arrays=arrays | {"boundaries": np.column_stack([validate, ends])},
        tables={"users": data.user_ids.to_frame("user"), "items": data.item_table},
        settings=data.settings,
        field_names=data.field_names,
        steps=data.steps,
        notes=data.notes,
        edges=data.edges,
        fingerprint=data.fingerprint,
    )
