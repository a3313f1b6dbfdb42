"""Vectors of unit length, with a gradient in fewer passes over memory than that of `torch.nn.functional.normalize`."""

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor
from torch.autograd.function import once_differentiable

_LEAST_NORM = 1e-12


def normalize(vectors: Tensor) -> Tensor:
    """Return vectors, shape (..., d), divided by their norm; the same as ``torch.nn.functional.normalize(vectors, dim=-1)``."""
    if not (torch.is_grad_enabled() and vectors.requires_grad):
        return f.normalize(vectors, dim=-1, eps=_LEAST_NORM)
    unit: Tensor = _Normalize.apply(vectors)  # type: ignore[no-untyped-call]
    return unit


class _Normalize(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, vectors: Tensor) -> Tensor:
        norms = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True).clamp_min_(_LEAST_NORM)
        unit: Tensor = vectors / norms
        context.save_for_backward(unit, norms)
        context.kind = vectors.dtype  # under autocast, that of the norms may have more bits
        return unit

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Return the component of the gradient that is orthogonal to the vectors, divided by their norm."""
        unit, norms = context.saved_tensors
        along = (gradients[0] * unit).sum(dim=-1, keepdim=True)
        return torch.addcmul(gradients[0], unit, along, value=-1).div_(norms).to(context.kind)
