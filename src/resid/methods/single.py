"""A recommender alone: the sequential models, co-occurrence and popularity."""

from collections.abc import Mapping
from typing import cast

from resid.core.part import PartSpec
from resid.data.dataset import Dataset
from resid.methods.method import method
from resid.recommend import Recommender
from resid.runs import Run


@method("single", "recommender")
def fit_single(run: Run, parts: Mapping[str, PartSpec], data: Dataset) -> Recommender:
    """Fit the recommender."""
    return cast(Recommender, run.stage("recommender", parts["recommender"], data))
