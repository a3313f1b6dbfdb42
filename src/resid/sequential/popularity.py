"""Popularity: the most frequent items, the same for all users."""

from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.core.settings import Settings
from resid.data.dataset import Dataset, require_dataset
from resid.recommend.base import Recommender
from resid.recommend.histories import Indices, Scores, most_popular, recent_items, without_seen
from resid.sequential.settings import PopularitySettings


@register("recommender", "popularity")
class Popularity(Recommender):
    """Recommends the most frequent items of the training histories; the score is the logarithm of their share."""

    settings_class: ClassVar[type[Settings]] = PopularitySettings

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or self.settings_class()

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Count the items of the training histories."""
        require_dataset(data)
        self.catalogue_ = data.catalogue
        self.fitted = True
        return self

    def top(
        self, histories: Indices, k: int, *, exclude_seen: bool = False, allowed: NDArray[np.bool_] | None = None
    ) -> tuple[Indices, Scores]:
        """See `Recommender.top`."""
        recent_items(histories, self.catalogue_)  # checks them
        more = k + histories.shape[1] if exclude_seen else k
        items, scores = most_popular(self.catalogue_, len(histories), more, allowed)
        return without_seen(items, scores, histories, k) if exclude_seen else (items, scores)

    def _pack(self) -> dict[str, Any]:
        return {}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        model = cls()
        model.catalogue_ = cls._catalogue(artifact)
        return model
