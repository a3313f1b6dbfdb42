"""Items that come and go: what a model says about new items, and the record of changes that a model keeps."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Artifact
from resid.core.errors import counted
from resid.data.new_items import NewItems
from resid.quantize.room import Room

N_NEAREST = 3  # known items that the report names for every new one
_SHOWN = 20  # new items in the text of a report
_ROWS = 256  # new items that are compared with all others at a time


@dataclass(frozen=True, eq=False)
class Grown:
    """A model with new items.

    Attributes
    ----------
    artifact : Artifact
        The model as plain data.
    nearest : ndarray of int64, shape (new items, n)
        The known items whose vectors are nearest to theirs, nearest first.
    ids : ndarray of int32 or None, shape (new items, levels)
        Their semantic IDs, if the model has IDs.
    room : Room or None
        The IDs that are left, unless the model has no IDs or items can share them.
    """

    artifact: Artifact
    nearest: NDArray[np.int64]
    ids: NDArray[np.int32] | None = None
    room: Room | None = None


@dataclass(frozen=True, eq=False)
class AddedItems:
    """Where new items went.

    Attributes
    ----------
    table : polars.DataFrame
        One row per new item: ``item``, its ``id`` as 3-7-1, the ``leaf`` that is its prefix, the ids of the ``nearest`` known
        items, nearest first, and its ``unseen`` values as store=Zeta.
    room : Room or None
        The IDs that are left, unless the model has no IDs or items can share them.
    """

    table: pl.DataFrame
    room: Room | None

    @classmethod
    def of(cls, new: NewItems, grown: Grown) -> "AddedItems":
        """Return the report of items that were added."""
        texts = [None] * len(new) if grown.ids is None else [as_text(codes) for codes in grown.ids]
        leaves = [None] * len(new) if grown.ids is None else [as_text(codes[:-1]) for codes in grown.ids]
        ids = new.catalogue.item_ids
        nearest = ids.gather(grown.nearest.ravel()).reshape(grown.nearest.shape).to_list()
        columns = {
            "item": new.items["item"],
            "id": pl.Series(texts, dtype=pl.String),
            "leaf": pl.Series(leaves, dtype=pl.String),
            "nearest": pl.Series(nearest, dtype=pl.List(ids.dtype)),
            "unseen": pl.Series(new.unseen, dtype=pl.List(pl.String)),
        }
        return cls(pl.DataFrame(columns), grown.room)

    def __len__(self) -> int:
        return len(self.table)

    def __str__(self) -> str:
        lines = [f"{counted(len(self), 'item was', 'items were')} added"]
        for row in self.table.head(_SHOWN).iter_rows(named=True):
            own = f" with the ID {row['id']}" if row["id"] is not None else ""
            near = ", ".join(map(str, row["nearest"]))
            unseen = f"; not seen in training: {', '.join(row['unseen'])}" if row["unseen"] else ""
            lines.append(f"  {row['item']}{own}, nearest to {near}{unseen}")
        if len(self) > _SHOWN:
            lines.append(f"  and {len(self) - _SHOWN:,} more")
        if self.room is not None:
            lines.append(f"Room: {self.room}")
        return "\n".join(lines)


def as_text(codes: Sequence[int] | NDArray[np.integer]) -> str:
    """Return an ID, or a prefix, as it is shown: 3-7-1."""
    return "-".join(map(str, codes))


def nearest_items(vectors: NDArray[np.float32], known: NDArray[np.float32]) -> NDArray[np.int64]:
    """Return the rows of `known`, shape (items, d), at the least Euclidean distance of each vector; shape (vectors, n)."""
    import torch  # here, as not every recommender needs it

    places = torch.from_numpy(np.ascontiguousarray(known))
    halves = places.square().sum(dim=1) / 2
    count = min(N_NEAREST, len(known))
    rows = torch.split(torch.from_numpy(np.ascontiguousarray(vectors)), _ROWS)
    found: NDArray[np.int64] = torch.cat([(some @ places.T - halves).topk(count).indices for some in rows]).numpy()
    return found


def change_record(action: str, count: int, parent: str, **more: Any) -> dict[str, Any]:
    """Return the entry of a change in the lineage of a model.

    Parameters
    ----------
    action
        ``"add"``, ``"remove"``, ``"restore"`` or ``"update"``.
    count
        The number of items.
    parent
        The checksum of the model before the change.
    more
        What else is recorded, as JSON values.
    """
    time = datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")
    return {"action": action, "items": count, "parent": parent, "time": time, "version": version("resid"), **more}
