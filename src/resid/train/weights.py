"""The weights of a network as arrays, among others that a bundle has."""

from collections.abc import Mapping
from typing import Any

import torch
from numpy.typing import NDArray
from torch import nn

_PREFIX = "model."


def weights_as_arrays(model: nn.Module) -> dict[str, NDArray[Any]]:
    """Return the weights by name."""
    return {f"{_PREFIX}{name}": tensor.cpu().numpy() for name, tensor in model.state_dict().items()}


def take_weights(model: nn.Module, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Give a network the weights that `weights_as_arrays` returned, and end its training."""
    weights = {name.removeprefix(_PREFIX): array for name, array in arrays.items() if name.startswith(_PREFIX)}
    model.load_state_dict({name: torch.from_numpy(array) for name, array in weights.items()})
    model.eval()
