"""Dropout with cheap random numbers: on a CPU, drawing them otherwise takes a fifth of a training step."""

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

_DRAWS = 2**8  # values of the random number that decides about an element


class Dropout(nn.Module):
    """Dropout, as `torch.nn.Dropout`.

    On a CPU, PyTorch draws a number per element in one thread. Here one 64-bit draw decides about eight elements, which is
    ten times as fast. The probability is rounded at random to one of the two nearest multiples of 1/256, so that it is exact
    in expectation.

    Parameters
    ----------
    p
        Probability of an element to be zeroed.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, values: Tensor) -> Tensor:
        """Return values of the same shape."""
        if self._draws(values):
            return values * _factors(values, self._dropped())
        return f.dropout(values, self.p) if self.training and self.p else values

    def add(self, tokens: Tensor, values: Tensor) -> Tensor:
        """Return ``tokens + forward(values)`` with one pass over memory less."""
        if self._draws(values):
            return torch.addcmul(tokens, values, _factors(values, self._dropped()))
        return tokens + self.forward(values)

    def relu_linear(self, values: Tensor, layer: nn.Linear) -> Tensor:
        """Return ``layer(forward(relu(values)))`` with half the passes over memory; `values` is overwritten."""
        if not self._draws(values):
            return f.linear(self.forward(f.relu(values)), layer.weight, layer.bias)
        dropped = self._dropped()
        kept: Tensor = _ReluAndDrop.apply(values, dropped)  # type: ignore[no-untyped-call]
        return f.linear(kept, layer.weight * _scale(dropped), layer.bias)

    def _draws(self, values: Tensor) -> bool:
        """Return whether dropout is active and drawn here."""
        return self.training and self.p > 0 and values.device.type == "cpu"

    def _dropped(self) -> int:
        """Draw how many of the `_DRAWS` values drop an element, `p` of them in expectation."""
        return min(int(self.p * _DRAWS + torch.rand(()).item()), _DRAWS - 1)


class _ReluAndDrop(torch.autograd.Function):
    """ReLU and dropout in place, without the scale of the values that are kept."""

    @staticmethod
    def forward(context: Any, values: Tensor, dropped: int) -> Tensor:
        """Return the values; `dropped` of `_DRAWS` are zeroed in expectation."""
        context.mark_dirty(values)
        values.clamp_min_(0).masked_fill_(_drawn(values) < dropped - _DRAWS // 2, 0.0)
        context.save_for_backward(values)
        return values

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        """Return the gradient of the values that are not zero."""
        return torch.ops.aten.threshold_backward(gradients[0], context.saved_tensors[0], 0), None


def _factors(values: Tensor, dropped: int) -> Tensor:
    """Return 0 for dropped elements and the scale for the others."""
    return (_drawn(values) >= dropped - _DRAWS // 2).to(values.dtype).mul_(_scale(dropped))


def _scale(dropped: int) -> float:
    return _DRAWS / (_DRAWS - dropped)


def _drawn(values: Tensor) -> Tensor:
    """Draw a number from -128 to 127 for each of the values, in their shape."""
    count = values.numel()
    numbers = torch.empty(-(-count // 8), dtype=torch.int64).random_(-(2**63), None).view(torch.int8)
    return numbers[:count].view(values.shape)
