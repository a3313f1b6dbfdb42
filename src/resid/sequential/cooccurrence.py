"""CoOccurrence: items that share histories with the last items. The floor: a model below it is not trained well yet."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.recommend.base import Recommender
from resid.recommend.histories import Indices, Scores, most_popular, recent_items, without_seen
from resid.sequential.settings import CoOccurrenceSettings

_POPULARITY = 1e-6  # weight of an item's share, which breaks ties


@register("recommender", "cooccurrence")
class CoOccurrence(Recommender):
    """Scores items by cosine-normalized co-occurrence counts with each of the most recent items.

    Parameters
    ----------
    settings
        See `CoOccurrenceSettings`.
    """

    settings_class = CoOccurrenceSettings
    settings: CoOccurrenceSettings

    def __init__(self, settings: CoOccurrenceSettings | None = None) -> None:
        self.settings = settings or CoOccurrenceSettings()

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Count the training histories that contain two items together; evaluation targets moved to training are left out."""
        require_dataset(data)
        self.catalogue_ = data.catalogue
        training = data.in_training
        users = np.repeat(np.arange(data.n_users), np.diff(data.offsets))[training]
        items = np.asarray(data.sequence)[training]
        shape = (data.n_users, data.n_items)
        contains = sparse.csr_array((np.ones(len(items), dtype=np.float32), (users, items)), shape=shape)
        contains.data[:] = 1  # a repeated item counts once
        contains = contains @ sparse.diags_array(1 / np.sqrt(np.maximum(contains.sum(axis=0), 1)))
        similarity = (contains.T @ contains).tocsr()
        similarity.setdiag(0)
        similarity.eliminate_zeros()
        similarity.sort_indices()
        self.similarity_ = similarity.astype(np.float32)
        self.fitted = True
        return self

    def merged(self, earlier: "CoOccurrence") -> Self:
        """Return a model of two logs, this and an earlier one.

        What the earlier one counted is estimated from its similarities and the counts of its items, which is exact if no history
        has an item twice.
        """
        counts = [np.maximum(model.catalogue_.counts, 1) for model in (earlier, self)]
        roots = [sparse.diags_array(np.sqrt(some)) for some in counts]
        together = roots[0] @ earlier.similarity_ @ roots[0] + roots[1] @ self.similarity_ @ roots[1]
        scale = sparse.diags_array(1 / np.sqrt(counts[0] + counts[1]))
        found = (scale @ together @ scale).tocsr().astype(np.float32)
        found.sort_indices()
        arrays = {name: getattr(found, name) for name in ("data", "indices", "indptr")}
        return type(self).from_arrays(arrays, self.catalogue_, self.settings)

    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`."""
        more = k + histories.shape[1] if exclude_seen else k
        allowed = self.catalogue_.among_recommendable(allowed)
        shares = (_POPULARITY * np.exp(self.catalogue_.log_shares)).astype(np.float32)
        popular, _ = most_popular(self.catalogue_, 1, min(2 * more, len(self.catalogue_)), allowed)
        popular = popular[0][popular[0] >= 0]
        items = np.full((len(histories), more), -1, dtype=np.int64)
        scores = np.full((len(histories), more), -np.inf, dtype=np.float32)
        weighted = self.sparse_scores(histories)
        for row, (first, last) in enumerate(zip(weighted.indptr[:-1], weighted.indptr[1:], strict=True)):
            found, values = weighted.indices[first:last].astype(np.int64), weighted.data[first:last]
            if allowed is not None:
                found, values = found[allowed[found]], values[allowed[found]]
            if len(found) < more:  # fill up with popular items
                others = popular[~np.isin(popular, found)][: more - len(found)]
                found, values = np.concatenate([found, others]), np.concatenate([values, np.zeros(len(others))])
            values = values + shares[found]
            best = np.lexsort((found, -values))[:more]
            items[row, : len(best)], scores[row, : len(best)] = found[best], values[best]
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    def sparse_scores(self, histories: Indices) -> Any:
        """Return the scores of items that co-occur with the recent items, a sparse matrix of shape (users, items)."""
        return self._weights(histories) @ self.similarity_

    def _weights(self, histories: Indices) -> Any:
        """Return the weights of the recent items, a sparse matrix of shape (users, items)."""
        recent = recent_items(histories, self.catalogue_)[:, -self.settings.n_recent :]
        weights = np.broadcast_to(self.settings.decay ** np.arange(recent.shape[1] - 1, -1, -1), recent.shape)
        rows, columns = np.nonzero(recent >= 0)
        shape = (len(histories), len(self.catalogue_))
        return sparse.csr_array((weights[rows, columns], (rows, recent[rows, columns])), shape=shape)

    def with_similarity(self, similarity: Any) -> Self:
        """Return a model with other co-occurrences, a sparse matrix of shape (items, items)."""
        model = type(self)(self.settings)
        model.catalogue_, model.fitted, model.similarity_ = self.catalogue_, True, similarity.tocsr()
        return model

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the counts as arrays; `from_arrays` restores the model."""
        return {name: getattr(self.similarity_, name) for name in ("data", "indices", "indptr")}

    @classmethod
    def from_arrays(
        cls, arrays: Mapping[str, NDArray[Any]], catalogue: Catalogue, settings: CoOccurrenceSettings | None = None
    ) -> Self:
        """Restore a model from its arrays."""
        model = cls(settings)
        parts = tuple(arrays[name] for name in ("data", "indices", "indptr"))
        model.catalogue_, model.fitted = catalogue, True
        model.similarity_ = sparse.csr_array(parts, shape=(len(catalogue), len(catalogue)))
        return model

    def _pack(self) -> dict[str, Any]:
        return {"arrays": self.arrays()}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        settings = CoOccurrenceSettings(**artifact.facts["settings"])
        return cls.from_arrays(artifact.arrays, cls._catalogue(artifact), settings)
