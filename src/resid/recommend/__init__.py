"""What everything that recommends has in common: the base classes, and the checking of histories."""

from resid.recommend.base import Recommender
from resid.recommend.trained import RecommenderSettings, TrainedRecommender

__all__ = ["Recommender", "RecommenderSettings", "TrainedRecommender"]
