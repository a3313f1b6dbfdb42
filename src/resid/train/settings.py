"""The settings of the training loop."""

from typing import Annotated, Literal

import numpy as np
from pydantic import Field

from resid.core.settings import Settings, checked


@checked
class TrainSettings(Settings):
    """How a model is trained; the settings of a model that is trained extend these.

    Parameters
    ----------
    epochs
        At most so many passes over the training windows; also the horizon of the cosine schedule.
    batch_size
        Windows per step, over all devices. ``"auto"`` takes the power of two nearest to a hundredth of the training
        windows, between 256 and 2048, so that an epoch has about a hundred steps.
    learning_rate, weight_decay
        Of AdamW.
    warmup_steps
        Steps in which the learning rate rises linearly from zero.
    clip
        Largest norm of the gradient; 0 does not clip.
    evaluate_every
        Epochs from one evaluation to the next; the last epoch is evaluated in any case.
    patience
        Stop after so many evaluations without a better one; 0 never stops early.
    seed
        Decides the order of the data, dropout, masks and negatives.
    """

    epochs: Annotated[int, Field(ge=1)] = 40
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    clip: Annotated[float, Field(ge=0)] = 0.0
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    patience: Annotated[int, Field(ge=0)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def batch_size_for(self, windows: int) -> int:
        """Return the batch size for so many training windows."""
        if self.batch_size == "auto":
            return int(np.clip(2 ** round(np.log2(max(windows, 1) / 100)), 256, 2048))
        return self.batch_size


@checked
class RecommenderSettings(TrainSettings):
    """How a recommender is trained, which is judged by the targets that it finds for validation users.

    Parameters
    ----------
    validation_users
        At most so many users are ranked after every epoch, always the same ones.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    validation_users: Annotated[int, Field(ge=1)] = 50_000


def check_heads(width: int, heads: int) -> None:
    """Raise a `ValueError` unless the width can be shared by so many attention heads."""
    if width % heads:
        raise ValueError(f"the width, {width}, must be a multiple of the heads, {heads}")
