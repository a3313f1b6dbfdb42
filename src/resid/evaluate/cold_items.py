"""Evaluation of the protocol ``cold-items``: targets that are new, that are old, and what new items cost old targets.

A model is fitted without the newest items, which are then added to it; see `resid.data.cold_items`.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.progress import Progress
from resid.data.catalogue import Catalogue
from resid.data.cold_items import ColdItems
from resid.data.new_items import NewItems
from resid.evaluate.evaluation import Ranker
from resid.evaluate.metrics import NOT_FOUND, intervals, ranking_metrics

NEW, OLD, WITHOUT = "new", "old", "old_without"  # WITHOUT: old targets before the new items were added


class GrowingRanker(Ranker, Protocol):
    """What the evaluation needs of a recommender that takes new items."""

    catalogue_: Catalogue

    def take_in(self, new: NewItems) -> Any:
        """Add items that were not in the Dataset."""


@dataclass(frozen=True, eq=False)
class ColdEvaluation:
    """The ranks of test targets by a model to which the new items were added.

    Attributes
    ----------
    cold : ColdItems
    k : int
        Targets that are not among the k best items count as not found.
    kept, dropped : ndarray of int64, shape (targets,)
        Rank of the target among all items, old and new, counted from 0, with the items of the history kept and dropped.
    kept_without, dropped_without : ndarray of int64, shape (targets,)
        The same by the model without the new items, which neither rank nor are in a history; `NOT_FOUND` for other targets than
        `ranked_without`.
    ranked_without : ndarray of bool, shape (targets,)
        Which targets the model without the new items has ranked: those that are old and have an old item in the history.
    """

    cold: ColdItems
    k: int
    kept: NDArray[np.int64]
    dropped: NDArray[np.int64]
    kept_without: NDArray[np.int64]
    dropped_without: NDArray[np.int64]
    ranked_without: NDArray[np.bool_]

    def table(self) -> pl.DataFrame:
        """Return one row per target: user, target, whether it is new, the ranks from 1, and those without the new items.

        Ranks are null where the target is not found. ``asked`` tells which rows the model without the new items has ranked.
        """
        data = self.cold.data
        ranks = {"rank": self.kept, "rank_seen_dropped": self.dropped}
        ranks |= {"rank_without": self.kept_without, "rank_without_seen_dropped": self.dropped_without}
        return pl.DataFrame(
            {
                "user": data.user_ids.gather(data.test.users.astype(np.int64)),
                "target": data.item_ids.gather(data.test.targets.astype(np.int64)),
                "new": self.cold.targets_are_new,
                "asked": self.ranked_without,  # the name in files
                **{name: pl.Series(np.where(r < self.k, r, -1) + 1).replace(0, None) for name, r in ranks.items()},
            }
        )

    def metrics(self, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
        """Return the metrics of all targets with intervals, and those of new and old ones, ready for JSON."""
        users, new = self.cold.data.test.users, self.cold.targets_are_new
        ranks = {"seen_kept": self.kept, "seen_dropped": self.dropped}
        without = {"seen_kept": self.kept_without, "seen_dropped": self.dropped_without}
        groups = {NEW: (new, ranks), OLD: (~new, ranks), WITHOUT: (self.ranked_without, without)}
        return {
            "protocol": self.cold.facts(),
            "targets": len(new),
            **{
                rule: ranking_metrics(each, cutoffs) | {"intervals": intervals(each, cutoffs, users=users)}
                for rule, each in ranks.items()
            },
            "groups": {
                name: {"targets": int(part.sum())}
                | {rule: ranking_metrics(each[part], cutoffs) for rule, each in some.items()}
                for name, (part, some) in groups.items()
            },
        }


def evaluate_cold_items(
    model: GrowingRanker, cold: ColdItems, k: int = 10, *, progress: Progress | None = None, **options: Any
) -> ColdEvaluation:
    """Rank old targets, add the new items to the model, and rank all test targets in the whole catalogue.

    Parameters
    ----------
    model
        Fitted to ``cold.known``. It is changed: afterwards it has the new items.
    cold
        The Dataset and its new items.
    k
        The largest cutoff.
    progress
        Counts users.
    options
        Options of the model's `top`.

    Raises
    ------
    InputError
        If the model was fitted to another Dataset, or cannot take new items.
    """
    model.require_data(cold.known)
    windows, index = cold.windows_without()
    kept_without, dropped_without = (np.full(len(cold.windows), NOT_FOUND, dtype=np.int64) for _ in range(2))
    kept_without[index], dropped_without[index] = model.ranks(windows, k, progress=progress, **options)
    model.take_in(cold.new_items(model.catalogue_))
    kept, dropped = model.ranks(cold.windows, k, progress=progress, **options)
    ranked_without = np.zeros(len(cold.windows), dtype=bool)
    ranked_without[index] = True
    return ColdEvaluation(cold, k, kept, dropped, kept_without, dropped_without, ranked_without)
