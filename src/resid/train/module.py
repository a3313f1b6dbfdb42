"""What the training loop knows of a model: its losses, parameter groups, epoch hook and extra state."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class ParameterGroup:
    """Parameters that share a learning rate and a schedule; None takes the value of the training settings."""

    parameters: list[nn.Parameter]
    learning_rate: float | None = None
    weight_decay: float | None = None
    warmup_steps: int | None = None
    schedule: Literal["cosine", "constant"] = "cosine"


class TrainableModule(nn.Module):
    """Base class of the networks that `resid.train.train` trains; a subclass defines `forward`."""

    def forward(self, batch: Any, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss terms of a batch.

        Parameters
        ----------
        batch
            What the batches yield.
        rng
            Seeded by the training seed and the step, so that a resumed run draws the same numbers.

        Returns
        -------
        dict of scalar Tensor
            Means over the batch's targets, see also `batch_weight`; ``"loss"`` is minimized, the others are recorded.
        """
        raise NotImplementedError

    def batch_weight(self, batch: Any) -> float:
        """Return the number of targets that the losses of a batch are averaged over; processes weight their shares by it."""
        return float(batch.weight)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return the parameters to train; by default all in one group. Every parameter belongs to at most one group."""
        return [ParameterGroup(list(self.parameters()))]

    def begin_epoch(self, epoch: int) -> None:
        """Prepare for an epoch, counted from 0: freeze parameters, recompute IDs, append rows to tables (`weight.data`).

        Called before the first step of every epoch, and again when training resumes within one, where the weights are no
        longer those of its start. What is computed from weights therefore belongs to the extra state, with its epoch, so that
        it is computed once.
        """

    def extra_state(self) -> dict[str, Tensor]:
        """Return tensors beyond `state_dict` that a resumed run needs, such as IDs that change during training."""
        return {}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore what `extra_state` returned; called before the weights are loaded."""
