"""Evaluation of a recommender on a split: metrics over the whole catalogue, with intervals and by slices of users.

Every metric is reported under two rules: items of the history are kept in the ranking (``seen_kept``), or dropped from it
(``seen_dropped``), where a target that was seen counts as not found.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.display import html_table
from resid.core.errors import InputError, counted
from resid.core.progress import Progress, default_progress
from resid.core.settings import Settings
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.evaluate.beyond_accuracy import beyond_accuracy
from resid.evaluate.metrics import (
    NOT_FOUND,
    Ranking,
    intervals,
    mean_reciprocal_ranks,
    paired_differences,
    ranking_metrics,
)

_EDGES = (5, 10, 20)  # history lengths at which slices end


@runtime_checkable
class Ranker(Protocol):
    """What evaluation needs of a recommender."""

    kind: ClassVar[str]
    measured_: Mapping[str, Any] | None  # set if it was trained on all interactions, see `Recommender`

    @property
    def settings(self) -> Settings:
        """Its settings."""

    def require_data(self, data: Dataset) -> None:
        """Raise an `InputError` unless it was fitted to this Dataset."""

    def ranks(
        self, windows: Split, k: int = 10, *, progress: Progress | None = None, **options: Any
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the ranks of targets with seen items kept and dropped, `NOT_FOUND` beyond k."""


@runtime_checkable
class ListRanker(Ranker, Protocol):
    """What evaluation needs of a recommender to keep its lists."""

    def rankings(
        self, windows: Split, k: int = 10, *, progress: Progress | None = None, **options: Any
    ) -> tuple[Ranking, Ranking]:
        """Return the ranks of targets and the k best items with seen items kept and dropped."""


def slices(data: Dataset, windows: Split) -> dict[str, NDArray[np.bool_]]:
    """Return slices of the windows by the length of the history and by the training count of the target.

    Returns
    -------
    dict
        Which windows belong to each slice, shape (windows,): ``history 1–5`` and so on; ``target unseen``, that no training
        history contains; ``target rare`` and ``target popular``, which split the other interactions in two halves by the
        frequency of the item.
    """
    lengths = windows.end - windows.begin
    parts = {}
    for low, high in zip((0, *_EDGES), (*_EDGES, np.inf), strict=True):
        name = f"history {low + 1}–{high:.0f}" if np.isfinite(high) else f"history over {low}"
        parts[name] = (lengths > low) & (lengths <= high)
    counts = data.training_counts
    often = counts[windows.targets]
    ordered = np.sort(counts)
    # Items up to this count have half of all interactions.
    middle = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)] if len(ordered) else 0
    parts["target unseen"] = often == 0
    parts["target rare"] = (often > 0) & (often <= middle)
    parts["target popular"] = often > middle
    return parts


@dataclass(frozen=True, eq=False, repr=False)
class Evaluation:
    """The ranks of the targets of a split.

    Attributes
    ----------
    data : Dataset
    split : str
    k : int
        Targets that are not among the k best items count as not found.
    kept, dropped : ndarray of int64, shape (targets,)
        Rank of the target, counted from 0, with the items of the history kept in the ranking and dropped from it; `NOT_FOUND`
        beyond k.
    about : dict
        The model, its settings and the fingerprint of the Dataset.
    rankings : tuple of Ranking, or None
        The recommended items with seen items kept and dropped, if they were asked for.
    """

    data: Dataset
    split: str
    k: int
    kept: NDArray[np.int64]
    dropped: NDArray[np.int64]
    about: dict[str, Any]
    rankings: tuple[Ranking, Ranking] | None = None

    def __repr__(self) -> str:
        found = ranking_metrics(self.kept, (self.k,))
        recall, ndcg = found[f"recall@{self.k}"], found[f"ndcg@{self.k}"]
        targets = counted(len(self.kept), "target")
        shown = f"Recall@{self.k} {recall:.4f}, NDCG@{self.k} {ndcg:.4f}"
        return f"Evaluation({self.split}, {targets}: {shown}, seen items kept)"

    def _repr_html_(self) -> str:
        cutoffs = tuple(sorted({min(5, self.k), self.k}))
        found = {
            "seen items kept": ranking_metrics(self.kept, cutoffs),
            "seen items dropped": ranking_metrics(self.dropped, cutoffs),
        }
        columns = [f"{metric}@{k}" for k in cutoffs for metric in ("recall", "ndcg")]
        rows = ((name, *(values[column] for column in columns)) for name, values in found.items())
        return html_table(repr(self), ("", *columns), rows)

    @property
    def windows(self) -> Split:
        """The windows of the split."""
        return self.data.windows(self.split)

    def metrics(self, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
        """Return the metrics at every cutoff, their intervals, and the metrics of slices of the targets, ready for JSON.

        Means are over targets. ``beyond_accuracy`` has MRR and, if the lists were kept, their metrics (`beyond_accuracy`).
        """
        self._require_ranks(cutoffs)
        windows = self.windows
        parts = {name: part for name, part in slices(self.data, windows).items() if part.any()}
        ranks = {"seen_kept": self.kept, "seen_dropped": self.dropped}
        further: dict[str, dict[str, float]] = {
            name: mean_reciprocal_ranks(values, cutoffs) for name, values in ranks.items()
        }
        for name, ranking in zip(ranks, self.rankings or (), strict=False):
            further[name] |= beyond_accuracy(ranking.items, self.data, windows, cutoffs)
        return {
            **self.about,
            "split": self.split,
            "protocol": self.protocol,
            "users": len(np.unique(windows.users)),
            "targets": len(windows),
            **{
                name: ranking_metrics(values, cutoffs) | {"intervals": intervals(values, cutoffs, users=windows.users)}
                for name, values in ranks.items()
            },
            "beyond_accuracy": further,
            "slices": _by_slice(self.kept, parts, windows, cutoffs),
            "slices_seen_dropped": _by_slice(self.dropped, parts, windows, cutoffs),
        }

    @property
    def protocol(self) -> dict[str, Any]:
        """How targets are chosen and ranked, ready for JSON."""
        settings, periods = self.data.settings, self.data.notes.get("time_split", {})
        by_time = {name: periods[name] for name in ("validate_from", "test_from")} if periods else {}
        return {
            "split": settings.split,
            **by_time,
            "targets": f"{settings.targets} of each period" if by_time else "one per user",
            "unseen_targets": settings.unseen_targets,
            "candidates": "whole catalogue",
            "n_items": self.data.n_items,
            "k_core": settings.k_core,
            "max_length": settings.max_length,
        }

    def against(self, other: pl.DataFrame, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
        """Return how much better this model is than another one, with a paired bootstrap over users.

        Parameters
        ----------
        other
            The `table` of the other model's evaluation on the same split, with ranks up to the largest cutoff.
        cutoffs
            The K of Recall@K and NDCG@K.

        Returns
        -------
        dict
            ``seen_kept`` and ``seen_dropped``, each as `paired_differences` returns it.
        """
        self._require_ranks(cutoffs)
        own = self.table()
        keys = ["user", "target"]
        if not set(own.columns) <= set(other.columns) or not own.select(keys).equals(other.select(keys)):
            raise InputError(
                "the other evaluation is of another split or Dataset; evaluate both models on the same split."
            )
        found = {}
        for name, column in (("seen_kept", "rank"), ("seen_dropped", "rank_seen_dropped")):
            ours, theirs = (ranks_in_table(table, column) for table in (own, other))
            found[name] = paired_differences(ours, theirs, cutoffs, users=self.windows.users)
        return found

    def _require_ranks(self, cutoffs: tuple[int, ...]) -> None:
        """Raise an `InputError` unless ranks are known up to the largest cutoff."""
        _check_cutoffs(cutoffs, self.data.n_items)
        if max(cutoffs) > self.k:
            raise InputError(
                f"ranks are known up to {self.k}, so there are no metrics at {max(cutoffs)}; evaluate with a larger k."
            )

    def table(self) -> pl.DataFrame:
        """Return one row per target: user, target, and the ranks from 1, null where the target is not found."""
        windows = self.windows
        ranks = {"rank": self.kept, "rank_seen_dropped": self.dropped}
        return pl.DataFrame(
            {
                "user": self.data.user_ids.gather(windows.users.astype(np.int64)),
                "target": self.data.item_ids.gather(windows.targets.astype(np.int64)),
                **{name: pl.Series(np.where(r < self.k, r, -1) + 1).replace(0, None) for name, r in ranks.items()},
            }
        )

    def lists(self) -> pl.DataFrame:
        """Return the recommended items: one row per target, rule for seen items, and rank.

        Returns
        -------
        polars.DataFrame
            The columns ``row``, which is the target's row in `table`, from 0; ``user``; ``seen``, which is ``"kept"`` or
            ``"dropped"``; ``rank`` from 1; ``item``; ``score``.
        """
        if self.rankings is None:
            raise InputError("the recommended lists were not kept; use evaluate(..., lists=True).")
        parts = []
        for seen, ranking in zip(("kept", "dropped"), self.rankings, strict=True):
            rows, places = np.nonzero(ranking.items >= 0)
            parts.append(
                pl.DataFrame(
                    {
                        "row": rows.astype(np.uint32),
                        "user": self.data.user_ids.gather(self.windows.users[rows].astype(np.int64)),
                        "seen": pl.Series([seen], dtype=pl.String).new_from_index(0, len(rows)),
                        "rank": (places + 1).astype(np.uint32),
                        "item": self.data.item_ids.gather(ranking.items[rows, places]),
                        "score": ranking.scores[rows, places],
                    }
                )
            )
        return pl.concat(parts)


def ranks_in_table(table: pl.DataFrame, column: str = "rank") -> NDArray[np.int64]:
    """Return the ranks that `Evaluation.table` wrote, counted from 0; beyond any cutoff where the target is not found.

    Parameters
    ----------
    table
        The table.
    column
        ``"rank"``, with seen items kept, or ``"rank_seen_dropped"``.
    """
    ranks: NDArray[np.int64] = (table[column].fill_null(NOT_FOUND) - 1).to_numpy()
    return ranks


def evaluate(
    model: Ranker,
    data: Dataset | str | Path,
    split: str = "test",
    k: int = 10,
    *,
    lists: bool = False,
    progress: Progress | None = None,
    **options: Any,
) -> Evaluation:
    """Rank the whole catalogue for every user of a split.

    Parameters
    ----------
    model
        Fitted to this Dataset.
    data
        The Dataset, or its folder.
    split
        ``"test"`` or ``"validation"``.
    k
        The largest cutoff.
    lists
        Keep the k recommended items of every target, for `Evaluation.lists` and metrics beyond accuracy.
    progress
        Counts users; by default on a terminal and in a notebook.
    options
        Options of the model's `top`: ``exact=True`` scores the whole catalogue instead of searching.
    """
    if not isinstance(model, Ranker):
        raise InputError(f"expected a recommender, got a {type(model).__name__}; see resid.load.")
    if not isinstance(data, Dataset):
        data = Dataset.load(data)
    if model.measured_ is not None:
        raise InputError(
            "the model was trained on all interactions, so nothing is left to measure it with; evaluate the run that it comes from."
        )
    model.require_data(data)
    _check_cutoffs((k,), data.n_items)
    windows, progress = data.windows(split), progress or default_progress()
    rankings = None
    if lists:
        if not isinstance(model, ListRanker):
            raise InputError(f"a {type(model).__name__} has no lists, only ranks; use lists=False.")
        rankings = model.rankings(windows, k, progress=progress, **options)
        kept, dropped = (ranking.ranks for ranking in rankings)
    else:
        kept, dropped = model.ranks(windows, k, progress=progress, **options)
    about = {
        "model": model.kind,
        "settings": model.settings.to_dict(),
        "fingerprint": data.fingerprint,
        "options": options,
    }
    return Evaluation(data, split, k, kept, dropped, about, rankings)


def _by_slice(
    ranks: NDArray[np.int64], parts: dict[str, NDArray[np.bool_]], windows: Split, cutoffs: tuple[int, ...]
) -> dict[str, dict[str, float]]:
    """Return the numbers of users and targets of every slice, and its metrics."""
    return {
        name: {
            "users": len(np.unique(windows.users[part])),
            "targets": int(part.sum()),
            **ranking_metrics(ranks[part], cutoffs),
        }
        for name, part in parts.items()
    }


def _check_cutoffs(cutoffs: Any, items: int) -> None:
    """Raise an `InputError` unless the cutoffs are positions in a ranking of the catalogue."""
    if not isinstance(cutoffs, (tuple, list)) or not cutoffs:
        raise InputError(f"cutoffs must be a tuple of integers, for example (5, 10), not {cutoffs!r}.")
    for k in cutoffs:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= items:
            raise InputError(f"a cutoff must be an integer from 1 to {items:,}, the size of the catalogue, not {k!r}.")
