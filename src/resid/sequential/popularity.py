"""Popularity: the same items for everybody, the most frequent first. What any model must beat."""

from typing import Any, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Bundle
from resid.data.dataset import Dataset
from resid.recommend.base import Catalogue, Indices, Recommender, Scores, last_items, leave_out
from resid.core.settings import Settings, checked


@checked
class PopularitySettings(Settings):
    """Popularity has nothing to set."""


class Popularity(Recommender):
    """Recommends the items that stand most often in the training histories; the score is the logarithm of their share."""

    name = "popularity"

    def __init__(self, settings: PopularitySettings | None = None) -> None:
        self.settings = settings or PopularitySettings()

    def fit(self, data: Dataset) -> Self:
        """Count."""
        self.catalogue_ = Catalogue.of(data)
        self.fitted = True
        return self

    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`."""
        last_items(histories, self.catalogue_)  # not looked at, but they may be none
        more = k + histories.shape[1] if exclude_seen else k
        items, scores = self._popular(len(histories), more, allowed)
        return leave_out(items, scores, histories, k) if exclude_seen else (items, scores)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        return {}, {}, {}

    @classmethod
    def _restore(cls, bundle: Bundle, catalogue: Catalogue) -> Self:
        model = cls()
        model.catalogue_ = catalogue
        return model
