"""How good recommendations are: Recall and NDCG on the whole catalogue, with intervals, and for parts of the users."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl
from numpy.typing import ArrayLike, NDArray

from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.core.errors import InputError
from resid.core.progress import Progress

if TYPE_CHECKING:
    from resid.recommend.base import Recommender

_EDGES = (5, 10, 20)  # history lengths at which slices end
NOT_FOUND = int(np.iinfo(np.int64).max)  # the rank of a target that is not among the items recommended
_DRAWS = 1_000  # samples of the bootstrap


def ranks_of(items: NDArray[np.int64], targets: NDArray[Any]) -> NDArray[np.int64]:
    """Return the rank of each target among the items recommended, counted from 0; `NOT_FOUND` where it is not there.

    Parameters
    ----------
    items
        The best first, -1 for none, shape (users, k).
    targets
        Shape (users,).
    """
    found = items == targets[:, None]
    ranks: NDArray[np.int64] = np.where(found.any(axis=1), found.argmax(axis=1), NOT_FOUND)
    return ranks


def gains(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, NDArray[np.float64]]:
    """Return Recall@K and NDCG@K of every user, from the ranks of their targets, counted from 0; each of shape (users,).

    One item is relevant, so Recall@K is 1 for a rank below K, and NDCG@K is 1 / log₂(rank + 2) there.
    """
    places = np.asarray(ranks, dtype=np.float64)
    recall = {f"recall@{k}": (places < k).astype(np.float64) for k in cutoffs}
    return recall | {f"ndcg@{k}": np.where(places < k, 1 / np.log2(places + 2), 0.0) for k in cutoffs}


def ranking_metrics(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, float]:
    """Return the means of Recall@K and NDCG@K over users, from the ranks of their targets, counted from 0."""
    return {name: float(values.mean()) for name, values in gains(ranks, cutoffs).items()}


def intervals(ranks: ArrayLike, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0) -> dict[str, tuple[float, float]]:
    """Return 95% intervals of the means, by drawing users again and again with replacement."""
    found = {}
    for name, values in gains(ranks, cutoffs).items():
        # Anew, so that a figure's interval does not depend on what else is asked for.
        random = np.random.default_rng(seed)
        # Users with the same value are alike, so it is enough to draw how many there are of each.
        levels, counts = np.unique(values, return_counts=True)
        means = random.multinomial(len(values), counts / len(values), size=_DRAWS) @ levels / len(values)
        low, high = np.quantile(means, [0.025, 0.975])
        found[name] = (float(low), float(high))
    return found


def slices(data: Dataset, windows: Split) -> dict[str, NDArray[np.bool_]]:
    """Return parts of the windows by the length of the history and by how often training saw the target.

    Returns
    -------
    dict
        Which windows belong to each part, shape (windows,): ``history 1–5`` and so on; ``target unseen``, that no training
        history contains; ``target rare`` and ``target popular``, the half of the other interactions with the less and with
        the more frequent items.
    """
    lengths = windows.end - windows.begin
    parts = {}
    for low, high in zip((0, *_EDGES), (*_EDGES, np.inf), strict=True):
        name = f"history {low + 1}–{high:.0f}" if np.isfinite(high) else f"history over {low}"
        parts[name] = (lengths > low) & (lengths <= high)
    counts = data.training_counts
    often = counts[windows.targets]
    ordered = np.sort(counts)
    # The count up to which items have half of all interactions.
    middle = ordered[np.searchsorted(np.cumsum(ordered), ordered.sum() / 2)] if len(ordered) else 0
    parts["target unseen"] = often == 0
    parts["target rare"] = (often > 0) & (often <= middle)
    parts["target popular"] = often > middle
    return parts


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How well a recommender finds the targets of a split.

    Attributes
    ----------
    data : Dataset
    split : str
    k : int
        Ranks below it are told apart.
    kept, dropped : ndarray of int64, shape (users,)
        Rank of the target, counted from 0, among recommendations that may repeat the history and among those that may not;
        `NOT_FOUND` where it is not among the first k.
    about : dict
        What was measured: the model, its settings, the Dataset's fingerprint.
    """

    data: Dataset
    split: str
    k: int
    kept: NDArray[np.int64]
    dropped: NDArray[np.int64]
    about: dict[str, Any]

    @property
    def windows(self) -> Split:
        """The windows of the split."""
        return self.data.windows(self.split)

    def figures(self, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
        """Return the metrics at every cutoff, their intervals, and the metrics of parts of the users, ready for JSON."""
        _check_cutoffs(cutoffs, self.data.n_items)
        if max(cutoffs) > self.k:
            raise InputError(
                f"ranks were looked for up to {self.k}, so there are no figures at {max(cutoffs)}; evaluate with k."
            )
        parts = slices(self.data, self.windows)
        return {
            **self.about,
            "split": self.split,
            "users": len(self.kept),
            "seen_kept": ranking_metrics(self.kept, cutoffs) | {"intervals": intervals(self.kept, cutoffs)},
            "seen_dropped": ranking_metrics(self.dropped, cutoffs) | {"intervals": intervals(self.dropped, cutoffs)},
            "slices": {
                name: {"users": int(part.sum()), **ranking_metrics(self.kept[part], cutoffs)}
                for name, part in parts.items()
                if part.any()
            },
        }

    def table(self) -> pl.DataFrame:
        """Return a row per user: user, target, and the ranks from 1, null where the target is not found."""
        windows = self.windows
        ranks = {"rank": self.kept, "rank_seen_dropped": self.dropped}
        return pl.DataFrame(
            {
                "user": self.data.user_ids.gather(windows.users.astype(np.int64)),
                "target": self.data.item_ids.gather(windows.targets.astype(np.int64)),
                **{name: pl.Series(np.where(r < self.k, r, -1) + 1).replace(0, None) for name, r in ranks.items()},
            }
        )


def evaluate(
    model: "Recommender",
    data: Dataset | str | Path,
    split: str = "test",
    k: int = 10,
    *,
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
        The largest cutoff that will be asked for.
    progress
        Counts the users.
    options
        Go to the model's `top`: ``exact=True`` scores the whole catalogue instead of searching it.
    """
    if not hasattr(model, "require_data"):
        raise InputError(f"a recommender is needed, not a {type(model).__name__}; see resid.load.")
    if not isinstance(data, Dataset):
        data = Dataset.load(data, verify=True)
    model.require_data(data)
    _check_cutoffs((k,), data.n_items)
    kept, dropped = model.ranks(data.windows(split), k, progress=progress, **options)
    settings = getattr(model, "settings", None)
    about = {
        "model": model.name,
        "settings": settings.plain() if settings else {},
        "fingerprint": data.fingerprint,
        "options": options,
    }
    return Evaluation(data, split, k, kept, dropped, about)


def _check_cutoffs(cutoffs: Any, items: int) -> None:
    """Refuse what are no places in a ranking of so many items."""
    if not isinstance(cutoffs, (tuple, list)) or not cutoffs:
        raise InputError(f"cutoffs are whole numbers in a tuple, as (5, 10), not {cutoffs!r}.")
    for k in cutoffs:
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or not 1 <= k <= items:
            raise InputError(f"a cutoff is a whole number from 1 to {items:,}, the items of the catalogue, not {k!r}.")
