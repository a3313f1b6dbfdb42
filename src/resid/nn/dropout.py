"""Dropout whose random numbers cost little on a CPU, where drawing them is otherwise a fifth of a training step."""

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_DRAWS = 2**8  # a random number decides an element, one of so many


class Dropout(nn.Module):
    """Set elements to zero at random and scale the others, as `torch.nn.Dropout` does.

    On a CPU, PyTorch draws a number per element in one thread. Here one draw of 64 bits decides eight elements, which is ten
    times as fast. The chance is a multiple of 1/256, of the two that are nearest one at random, so that it is right on average.

    Parameters
    ----------
    chance
        Of an element to become zero.
    """

    def __init__(self, chance: float) -> None:
        super().__init__()
        self.chance = chance

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        if self._draws(values):
            return values * _factors(values, self._dropped())
        return f.dropout(values, self.chance) if self.training and self.chance else values

    def added(self, tokens: Tensor, values: Tensor) -> Tensor:
        """Return ``tokens + forward(values)``, in one pass less."""
        if self._draws(values):
            return torch.addcmul(tokens, values, _factors(values, self._dropped()))
        return tokens + self.forward(values)

    def rectified(self, values: Tensor, layer: nn.Linear) -> Tensor:
        """Return ``layer(forward(relu(values)))``, in half the passes over the values, which are gone afterwards."""
        if not self._draws(values):
            return f.linear(self.forward(f.relu(values)), layer.weight, layer.bias)
        dropped = self._dropped()
        kept: Tensor = _RectifyAndDrop.apply(values, dropped)  # type: ignore[no-untyped-call]
        return f.linear(kept, layer.weight * _scale(dropped), layer.bias)

    def _draws(self, values: Tensor) -> bool:
        """Tell whether elements are dropped, and drawn here."""
        return self.training and self.chance > 0 and values.device.type == "cpu"

    def _dropped(self) -> int:
        """Draw how many of `_DRAWS` random numbers drop an element, so that the mean is the chance."""
        return min(int(self.chance * _DRAWS + torch.rand(()).item()), _DRAWS - 1)


class _RectifyAndDrop(torch.autograd.Function):
    """Negative values and those that are dropped become 0, in place; the others get no scale."""

    @staticmethod
    def forward(context: Any, values: Tensor, dropped: int) -> Tensor:
        """Return the values, of which so many in `_DRAWS` are dropped."""
        context.mark_dirty(values)
        values.clamp_min_(0).masked_fill_(_drawn(values) < dropped - _DRAWS // 2, 0.0)
        context.save_for_backward(values)
        return values

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient where a value is left."""
        return torch.ops.aten.threshold_backward(gradients[0], context.saved_tensors[0], 0), None


def _factors(values: Tensor, dropped: int) -> Tensor:
    """Return 0 for what is dropped, so many values in `_DRAWS`, and the scale for the rest."""
    return (_drawn(values) >= dropped - _DRAWS // 2).to(values.dtype).mul_(_scale(dropped))


def _scale(dropped: int) -> float:
    return _DRAWS / (_DRAWS - dropped)


def _drawn(values: Tensor) -> Tensor:
    """Draw a number from -128 to 127 for each of the values, in their shape."""
    count = values.numel()
    numbers = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.int8)
    return numbers[:count].view(values.shape)
