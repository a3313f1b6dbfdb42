"""The settings that all trained recommenders share."""

from typing import Annotated

from pydantic import Field

from resid.core.settings import validated
from resid.train.settings import TrainSettings


@validated
class RecommenderSettings(TrainSettings):
    """How a recommender is trained and validated.

    Parameters
    ----------
    validation_users
        Maximum number of validation users that are ranked after an epoch, always the same ones.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    validation_users: Annotated[int, Field(ge=1)] = 50_000
