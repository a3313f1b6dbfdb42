"""Popularity of the new: added items first, those with the most popular field values first; then the other items by popularity.

A rule that any shop can follow on the day an item arrives, and the floor of the protocol ``cold-items``.
"""

from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from resid.core.registry import register
from resid.data.catalogue import Catalogue
from resid.data.new_items import NewItems, field_codes_of, stacked_field_codes
from resid.recommend.histories import Indices, Scores, recent_items, without_seen
from resid.recommend.items import N_NEAREST, Grown
from resid.sequential.popularity import Popularity
from resid.sequential.settings import PopularityNewSettings


@register("recommender", "popularity-new")
class PopularityNew(Popularity):
    """Recommends items that were added after training, then the most frequent items of the training histories.

    The popularity of a new item is the mean, over its field values, of the logarithm of their share of the training interactions.
    """

    settings_class = PopularityNewSettings

    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`."""
        recent_items(histories, self.catalogue_)  # checks them
        more = k + histories.shape[1] if exclude_seen else k
        allowed = self.catalogue_.among_recommendable(allowed)
        order = self._order if allowed is None else self._order[allowed[self._order]]
        best = order[:more]
        items, scores = np.full(more, -1, dtype=np.int64), np.full(more, -np.inf, dtype=np.float32)
        items[: len(best)], scores[: len(best)] = best, self._scores[best]
        items, scores = (np.tile(each, (len(histories), 1)) for each in (items, scores))
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    @cached_property
    def _order(self) -> Indices:
        return np.argsort(-self._scores, kind="stable")

    @cached_property
    def _scores(self) -> NDArray[np.float32]:
        """The score of every item, positive for added ones and at most 0 for the others; shape (n_items,)."""
        catalogue = self.catalogue_
        counts = catalogue.counts + 1
        scores = np.log(counts / counts[: catalogue.n_fitted].sum())
        # Above the others, in the order of their fields: logarithms of shares are not positive.
        scores[catalogue.n_fitted :] = 1 / (1 - field_popularity(catalogue)[catalogue.n_fitted :])
        found: NDArray[np.float32] = scores.astype(np.float32)
        return found

    def grow(self, new: NewItems) -> Grown:
        """See `Recommender.grow`; the nearest items are the most popular ones, as nothing else is known."""
        nearest = np.tile(self.catalogue_.by_popularity[:N_NEAREST], (len(new), 1))
        return Grown(new.grow(self.to_artifact(), appended={}), nearest)


def field_popularity(catalogue: Catalogue) -> NDArray[np.float32]:
    """Return the mean logarithm of the share of an item's field values in the training interactions, shape (n_items,).

    Shares have add-one smoothing; a missing or unknown value has that of a value that never occurs.
    """
    codes = stacked_field_codes(field_codes_of(catalogue.items, catalogue), catalogue, len(catalogue))
    values = np.maximum(codes.reshape(len(catalogue), len(catalogue.field_names), -1), 0)  # (items, fields, values)
    total, found = float(catalogue.counts.sum()), np.zeros((len(catalogue), values.shape[1]), dtype=np.float32)
    for field in range(values.shape[1]):
        of_field = values[:, field]
        counts = np.bincount(of_field.ravel(), weights=np.repeat(catalogue.counts, of_field.shape[1]))
        counts[0] = 0
        logs, present = np.log((counts + 1) / (total + 1)), of_field > 0
        mean = (logs[of_field] * present).sum(axis=1) / np.maximum(present.sum(axis=1), 1)
        found[:, field] = np.where(present.any(axis=1), mean, logs[0])
    return found.mean(axis=1) if values.shape[1] else np.zeros(len(catalogue), dtype=np.float32)
