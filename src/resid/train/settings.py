"""The settings of the training loop."""

from typing import Annotated, ClassVar, Literal

import numpy as np
from pydantic import Field

from resid.core.settings import Settings, validated


@validated
class TrainSettings(Settings):
    """How a model is trained; base class of the settings of every trained model.

    Parameters
    ----------
    epochs
        Maximum number of passes over the training windows; also the horizon of the cosine schedule.
    batch_size
        Windows per step, over all devices. ``"auto"`` is the power of two nearest to a hundredth of the training
        windows, between 256 and 2048, so that an epoch has about a hundred steps.
    learning_rate, weight_decay
        Of AdamW.
    warmup_steps
        Steps over which the learning rate increases linearly from zero.
    max_grad_norm
        Maximum gradient norm; 0 disables gradient clipping.
    evaluate_every
        Epochs between evaluations; the last epoch is always evaluated.
    patience
        Number of evaluations without improvement after which training stops; 0 disables early stopping.
    seed
        Determines the order of the data, dropout, masks and negatives.
    """

    renamed: ClassVar[dict[str, str]] = {"clip": "max_grad_norm"}
    max_auto_batch_size: ClassVar[int] = 2048

    epochs: Annotated[int, Field(ge=1)] = 40
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    weight_decay: Annotated[float, Field(ge=0)] = 1e-5
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    max_grad_norm: Annotated[float, Field(ge=0)] = 0.0
    evaluate_every: Annotated[int, Field(ge=1)] = 1
    patience: Annotated[int, Field(ge=0)] = 5
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0

    def batch_size_for(self, windows: int) -> int:
        """Return the batch size for a number of training windows."""
        if self.batch_size == "auto":
            return int(np.clip(2 ** round(np.log2(max(windows, 1) / 100)), 256, self.max_auto_batch_size))
        return self.batch_size
