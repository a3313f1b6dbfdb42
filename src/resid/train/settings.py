"""The settings of the training loop: validated and frozen."""

from typing import Annotated

from pydantic import ConfigDict, Field
from pydantic.dataclasses import dataclass


@dataclass(frozen=True, config=ConfigDict(extra="forbid"))
class TrainSettings:
    """How a model is trained.

    Parameters
    ----------
    epochs
        At most so many passes over the training windows; also the horizon of the cosine schedule.
    batch_size
        Windows per step, over all devices.
    learning_rate, weight_decay
        Of AdamW.
    warmup_steps
        Steps in which the learning rate rises linearly from zero.
    clip
        Largest norm of the gradient; 0 does not clip.
    patience
        Stop after so many evaluations without a better one; 0 never stops early.
    seed
        Decides the order of the data, dropout, masks and negatives.
    """

    epochs: Annotated[int, Field(ge=1)] = 500
    batch_size: Annotated[int, Field(ge=1)] = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    clip: Annotated[float, Field(ge=0)] = 0.0
    patience: Annotated[int, Field(ge=0)] = 3
    seed: int = 0
