"""CoOccurrence: what others had who had the same. The floor: a model below it is not trained well yet."""

from typing import Annotated, Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from pydantic import Field
from scipy import sparse

from resid.core.artifact import Bundle
from resid.data.dataset import Dataset
from resid.data.splits import in_training
from resid.recommend.base import Catalogue, Indices, Recommender, Scores, last_items, leave_out
from resid.core.settings import Settings, checked

_POPULARITY = 1e-6  # weight of an item's share, which decides between items that co-occurrence does not tell apart


@checked
class CoOccurrenceSettings(Settings):
    """Settings of CoOccurrence.

    Parameters
    ----------
    last
        How many items of the history count, its last ones.
    decay
        What an item counts, relative to the one after it.
    """

    last: Annotated[int, Field(ge=1)] = 5
    decay: Annotated[float, Field(gt=0, le=1)] = 0.7


class CoOccurrence(Recommender):
    """Scores an item by the histories that it shares with each of the last items, over the root of both items' counts.

    Parameters
    ----------
    settings
        See `CoOccurrenceSettings`.
    """

    name = "cooccurrence"

    def __init__(self, settings: CoOccurrenceSettings | None = None) -> None:
        self.settings = settings or CoOccurrenceSettings()

    def fit(self, data: Dataset) -> Self:
        """Count, over the training part of the histories, in how many two items stand together."""
        self.catalogue_ = Catalogue.of(data)
        training = in_training(data.sequence, data.offsets)
        users = np.repeat(np.arange(data.n_users), np.diff(data.offsets))[training]
        items = np.asarray(data.sequence)[training]
        shape = (data.n_users, data.n_items)
        had = sparse.csr_array((np.ones(len(items), dtype=np.float32), (users, items)), shape=shape)
        had.data[:] = 1  # once, however often
        had = had @ sparse.diags_array(1 / np.sqrt(np.maximum(had.sum(axis=0), 1)))
        alike = (had.T @ had).tocsr()
        alike.setdiag(0)
        alike.eliminate_zeros()
        alike.sort_indices()
        self.alike_ = alike.astype(np.float32)
        self.fitted = True
        return self

    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`."""
        more = k + histories.shape[1] if exclude_seen else k
        shares = (_POPULARITY * np.exp(self.catalogue_.log_shares)).astype(np.float32)
        popular, _ = self._popular(1, min(2 * more, len(self.catalogue_)), allowed)
        popular = popular[0][popular[0] >= 0]
        items = np.full((len(histories), more), -1, dtype=np.int64)
        scores = np.full((len(histories), more), -np.inf, dtype=np.float32)
        weighed = self._weights(histories) @ self.alike_  # (users, items), few of them not zero
        for row, (first, last) in enumerate(zip(weighed.indptr[:-1], weighed.indptr[1:], strict=True)):
            found, values = weighed.indices[first:last].astype(np.int64), weighed.data[first:last]
            if allowed is not None:
                found, values = found[allowed[found]], values[allowed[found]]
            if len(found) < more:  # the rest are popular items
                others = popular[~np.isin(popular, found)][: more - len(found)]
                found, values = np.concatenate([found, others]), np.concatenate([values, np.zeros(len(others))])
            values = values + shares[found]
            best = np.lexsort((found, -values))[:more]
            items[row, : len(best)], scores[row, : len(best)] = found[best], values[best]
        return leave_out(items, scores, histories, k) if exclude_seen else (items, scores)

    def _weights(self, histories: Indices) -> Any:
        """Return what each item of the histories counts, a sparse matrix of shape (users, items)."""
        recent = last_items(histories, self.catalogue_)[:, -self.settings.last :]
        weights = np.broadcast_to(self.settings.decay ** np.arange(recent.shape[1] - 1, -1, -1), recent.shape)
        rows, columns = np.nonzero(recent >= 0)
        shape = (len(histories), len(self.catalogue_))
        return sparse.csr_array((weights[rows, columns], (rows, recent[rows, columns])), shape=shape)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        arrays = {name: getattr(self.alike_, name) for name in ("data", "indices", "indptr")}
        return {"settings": self.settings.plain()}, arrays, {}

    @classmethod
    def _restore(cls, bundle: Bundle, catalogue: Catalogue) -> Self:
        model = cls(CoOccurrenceSettings(**bundle.facts["settings"]))
        model.catalogue_ = catalogue
        parts = tuple(bundle.arrays[name] for name in ("data", "indices", "indptr"))
        model.alike_ = sparse.csr_array(parts, shape=(len(catalogue), len(catalogue)))
        return model
