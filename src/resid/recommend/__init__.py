"""What everything that recommends has in common: the base classes, and the checking of histories."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.recommend.base import Recommender
    from resid.recommend.explain import Explanation, Neighbor
    from resid.recommend.settings import RecommenderSettings
    from resid.recommend.stream import FileResult, recommend_file
    from resid.recommend.trained import TrainedRecommender

__all__ = [
    "Explanation",
    "FileResult",
    "Neighbor",
    "Recommender",
    "RecommenderSettings",
    "TrainedRecommender",
    "recommend_file",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "base": "Recommender",
        "explain": "Explanation Neighbor",
        "stream": "FileResult recommend_file",
        "trained": "TrainedRecommender",
        "settings": "RecommenderSettings",
    },
)
