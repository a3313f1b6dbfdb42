"""The time split: training before one point in time, validation before another, test from then on; the same for all users.

Leave-one-out lets the future into training: the last items of one user are earlier than training items of another. Here,
nothing from `validate_from` on is a training interaction. An interaction at exactly a boundary is later than it.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, shown
from resid.data.settings import PrepareSettings
from resid.data.splits import HELD_OUT, Histories, Positions
from resid.data.tables import EPOCHS

_MICROSECONDS = EPOCHS["microseconds"]


@dataclass(frozen=True, eq=False)
class Times:
    """The timestamps of all interactions as numbers.

    Attributes
    ----------
    values : ndarray, shape (n_interactions,)
        In the order of the histories; microseconds since 1970 if the timestamps are dates.
    scale : float or None
        The size of a present-day value in their unit since 1970 (see `EPOCHS`); None if they are other numbers.
    """

    values: NDArray[Any]
    scale: float | None

    @classmethod
    def of(cls, timestamps: pl.Series) -> "Times":
        """Convert a column of timestamps: dates, or numbers whose unit their size tells."""
        if timestamps.dtype.is_temporal():
            return cls(timestamps.dt.epoch("us").to_numpy(), _MICROSECONDS)
        integer = timestamps.dtype.is_integer()
        values = timestamps.cast(pl.Int64 if integer else pl.Float64).to_numpy()
        return cls(values, _scale_of(values.max().item()))

    def on_scale(self, number: float) -> float:
        """Return a time, as a number of any unit since 1970, as a number like `values`."""
        unit = _scale_of(number)
        return _converted(number, unit, self.scale) if unit and self.scale else number

    def find(self, point: str | float, name: str) -> float:
        """Return a point in time, given as a share, a number or a date, as a number like `values`.

        Parameters
        ----------
        point
            See `Dataset.from_tables`.
        name
            Of the setting, for error messages.
        """
        number = _number(point)
        if number is not None and 0 < number < 1:
            place = int(number * len(self.values))
            earliest: float = np.partition(self.values, place)[place].item()
            return earliest
        if number is not None:
            return self.on_scale(number)
        try:
            moment = datetime.fromisoformat(str(point))
        except ValueError as error:
            raise InputError(
                f"invalid value {shown(point)} for '{name}': it must be a date such as 2026-01-31, a number on the scale of the "
                "timestamps, or a share between 0 and 1."
            ) from error
        if self.scale is None:
            raise InputError(
                f"'{name}' is the date {point}, but the timestamps are numbers from {self.show(self.values.min())} to "
                f"{self.show(self.values.max())}, which are not Unix timestamps; give a number or a share."
            )
        zoned = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        microseconds = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)
        return _converted(microseconds, _MICROSECONDS, self.scale)

    def show(self, value: Any) -> str:
        """Return a point in time for people: a date if it is one."""
        if self.scale is None:
            return f"{value:,}" if abs(value) < 1e6 else str(value)
        microseconds = np.datetime64(int(_converted(value, self.scale, _MICROSECONDS)), "us")
        return str(np.datetime_as_string(microseconds, unit="auto"))


def split_by_time(
    times: Times, sequence: NDArray[np.int32], offsets: Positions, n_items: int, settings: PrepareSettings
) -> tuple[Histories, dict[str, Any]]:
    """Divide all histories at two points in time.

    Parameters
    ----------
    times
        Of the interactions, ascending within each history.
    sequence, offsets, n_items
        As in `Histories`.
    settings
        With `validate_from`, `test_from` and `targets`.

    Returns
    -------
    histories, notes
        The divided histories, and the two points in time, the interactions of every part and what is not evaluated.

    Raises
    ------
    InputError
        If a point in time is invalid, or if there is nothing to train on, to validate or to test.
    """
    points = [
        times.find(point, name)
        for name, point in (("validate_from", settings.validate_from), ("test_from", settings.test_from))
        if point is not None
    ]
    begin, end = (times.show(point) for point in points)
    users = np.repeat(np.arange(len(offsets) - 1), np.diff(offsets))
    earlier = [np.bincount(users[times.values < point], minlength=len(offsets) - 1) for point in points]
    boundaries = offsets[:-1, None] + np.column_stack(earlier)
    histories = Histories(sequence, offsets, n_items, boundaries.astype(np.int64), settings.targets)
    targets = {"train": histories.training_targets[0]} | {name: histories.held_out(name)[0] for name in HELD_OUT}
    periods = {"train": f"before {begin}", "validation": f"from {begin} to before {end}", "test": f"from {end} on"}
    if empty := [name for name, positions in targets.items() if not len(positions)]:
        raise InputError(
            f"the time split leaves no user with a target for {empty[0]} ({periods[empty[0]]}): the timestamps go from "
            f"{times.show(times.values.min())} to {times.show(times.values.max())}; choose other values for validate_from and "
            "test_from (--validate-from, --test-from)."
        )
    parts = np.diff(np.column_stack([offsets[:-1], boundaries, offsets[1:]]), axis=1)
    notes = {
        "validate_from": begin,
        "test_from": end,
        "interactions": dict(zip(("train", *HELD_OUT), parts.sum(axis=0).tolist(), strict=True)),
        "users_without_training": int((parts[:, 0] == 0).sum()),
        "targets_without_history": {name: histories.count_without_history(name) for name in HELD_OUT},
    }
    return histories, {"time_split": notes}


def _number(point: str | float) -> float | None:
    """Return a finite number that is given as such or as text, None for anything else."""
    try:
        number = int(point) if isinstance(point, str) else point
    except ValueError:
        try:
            number = float(point)
        except ValueError:
            return None
    return number if np.isfinite(number) else None


def _scale_of(number: float) -> float | None:
    """Return the `EPOCHS` value of the unit in which a number can be a present-day time since 1970."""
    return next((least for least in EPOCHS.values() if least <= number < 100 * least), None)


def _converted(value: float, unit: float, other: float) -> float:
    """Convert a time since 1970 between units, given by their `EPOCHS` values; exact for integers that have the other unit."""
    return value * round(other / unit) if other >= unit else value / round(unit / other)
