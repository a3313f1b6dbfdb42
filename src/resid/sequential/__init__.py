"""Recommenders that rank items directly, without semantic IDs."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.sequential.bert4rec import BERT4Rec
    from resid.sequential.cooccurrence import CoOccurrence
    from resid.sequential.hgn import HGN
    from resid.sequential.popularity import Popularity
    from resid.sequential.popularity_new import PopularityNew
    from resid.sequential.s3rec import S3Rec
    from resid.sequential.sasrec import SASRec
    from resid.sequential.settings import (
        BERT4RecSettings,
        CoOccurrenceSettings,
        HGNSettings,
        PopularityNewSettings,
        PopularitySettings,
        S3RecSettings,
        SASRecSettings,
    )

__all__ = [
    "HGN",
    "BERT4Rec",
    "BERT4RecSettings",
    "CoOccurrence",
    "CoOccurrenceSettings",
    "HGNSettings",
    "Popularity",
    "PopularityNew",
    "PopularityNewSettings",
    "PopularitySettings",
    "S3Rec",
    "S3RecSettings",
    "SASRec",
    "SASRecSettings",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bert4rec": "BERT4Rec",
        "cooccurrence": "CoOccurrence",
        "hgn": "HGN",
        "popularity": "Popularity",
        "popularity_new": "PopularityNew",
        "s3rec": "S3Rec",
        "sasrec": "SASRec",
        "settings": "BERT4RecSettings CoOccurrenceSettings HGNSettings PopularityNewSettings PopularitySettings S3RecSettings SASRecSettings",
    },
)
