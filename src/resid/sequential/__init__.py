"""Recommenders that rank items by their own vectors or counts, not by semantic IDs."""

from resid.sequential.cooccurrence import CoOccurrence, CoOccurrenceSettings
from resid.sequential.popularity import Popularity, PopularitySettings

__all__ = ["CoOccurrence", "CoOccurrenceSettings", "Popularity", "PopularitySettings"]
