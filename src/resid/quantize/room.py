"""Room: how many IDs of a quantizer are taken and how many are free for new items."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import counted

SCARCE = 0.1  # share of free IDs below which a warning is due


@dataclass(frozen=True, eq=False)
class Room:
    """The number of IDs.

    Attributes
    ----------
    branches : polars.DataFrame
        One row per first code: ``c1``, ``taken`` and ``free``.
    """

    branches: pl.DataFrame

    @classmethod
    def of(cls, taken: NDArray[np.integer], total: NDArray[Any]) -> "Room":
        """Return the room of branches, given how many of their IDs are taken, and how many there are; shape (codes,)."""
        free = [int(most) - int(count) for most, count in zip(total, taken, strict=True)]
        return cls(
            pl.DataFrame(
                {"c1": np.arange(len(taken)), "taken": taken.astype(np.int64), "free": free},
                schema_overrides={"free": pl.Float64 if max(free) >= 2**63 else pl.Int64},
            )
        )

    @property
    def taken(self) -> int:
        """The number of IDs that items have, withdrawn ones included."""
        return int(self.branches["taken"].sum())

    @property
    def free(self) -> int:
        """The number of IDs for new items."""
        return int(self.branches["free"].sum())

    @property
    def scarce_branches(self) -> int:
        """The number of branches with less than a tenth of their IDs free."""
        free, taken = self.branches["free"], self.branches["taken"]
        return int((free < SCARCE * (free + taken)).sum())

    @property
    def is_scarce(self) -> bool:
        """Whether less than a tenth of all IDs are free."""
        return self.free < SCARCE * (self.free + self.taken)

    def to_dict(self) -> dict[str, Any]:
        """Return the numbers as JSON values."""
        return {
            "taken": self.taken,
            "free": self.free,
            "scarce_branches": self.scarce_branches,
            "branches": self.branches.to_dicts(),
        }

    def __str__(self) -> str:
        total, of = self.free + self.taken, len(self.branches)
        text = f"{self.free:,} of {counted(total, 'ID')} are free ({self.free / total:.0%})"
        if self.scarce_branches:
            text += f"; less than a tenth in {self.scarce_branches:,} of {counted(of, 'branch', 'branches')}"
        return text
