"""Recommenders that rank items directly, without semantic IDs."""

from resid.sequential.bert4rec import BERT4Rec, BERT4RecSettings
from resid.sequential.cooccurrence import CoOccurrence, CoOccurrenceSettings
from resid.sequential.hgn import HGN, HGNSettings
from resid.sequential.popularity import Popularity, PopularitySettings
from resid.sequential.s3rec import S3Rec, S3RecSettings
from resid.sequential.sasrec import SASRec, SASRecSettings

__all__ = [
    "HGN",
    "BERT4Rec",
    "BERT4RecSettings",
    "CoOccurrence",
    "CoOccurrenceSettings",
    "HGNSettings",
    "Popularity",
    "PopularitySettings",
    "S3Rec",
    "S3RecSettings",
    "SASRec",
    "SASRecSettings",
]
