"""The settings that all trained recommenders share."""

from typing import Annotated

from pydantic import Field

from resid.core.settings import Settings, validated
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


@validated
class UpdateSettings(Settings):
    """How a fitted recommender is trained further.

    Parameters
    ----------
    epochs
        Maximum number of passes over the new targets and the replayed ones; also the horizon of the cosine schedule.
    learning_rate_scale
        The highest learning rate, as a share of that of the fit.
    replay
        For every new target, the number of targets of the fit that are trained on again.
    patience
        Number of epochs without improvement on validation users after which training stops; 0 disables early stopping.
    seed
        Which targets are replayed, and, if the model was trained on all interactions, whose last one is held out.
    """

    epochs: Annotated[int, Field(ge=1)] = 2
    learning_rate_scale: Annotated[float, Field(gt=0, le=10)] = 1.0
    replay: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 2.0
    patience: Annotated[int, Field(ge=0)] = 2
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
