"""The weights of a network as named arrays, as an artifact holds them."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

_PREFIX = "model."


def weights_as_arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the weights by name."""
    return {f"{_PREFIX}{name}": tensor.cpu().numpy() for name, tensor in model.state_dict().items()}


def weight_name(model: nn.Module, weight: Tensor) -> str:
    """Return the name of a weight among those that `weights_as_arrays` returns."""
    return next(f"{_PREFIX}{name}" for name, parameter in model.named_parameters() if parameter is weight)


def load_weights(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Load the weights that `weights_as_arrays` returned, and switch to evaluation mode."""
    weights = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    model.eval()
