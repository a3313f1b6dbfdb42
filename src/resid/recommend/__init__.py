"""What everything that recommends has in common: the base classes, and the checking of histories."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.recommend.base import Recommender
    from resid.recommend.settings import RecommenderSettings
    from resid.recommend.trained import TrainedRecommender

__all__ = ["Recommender", "RecommenderSettings", "TrainedRecommender"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Recommender",
        "trained": "TrainedRecommender",
        "settings": "RecommenderSettings",
    },
)
