"""Checkpoints: one safetensors file with tensors and a JSON header, replaced atomically; loading never runs code."""

import json
import zlib
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from resid.core.errors import InputError
from resid.core.files import atomic_file


def save_checkpoint(path: Path, tensors: dict[str, Tensor], facts: dict[str, Any]) -> None:
    """Write tensors and facts atomically.

    Parameters
    ----------
    path
        The file.
    tensors
        By name; tied tensors are written once.
    facts
        JSON values.
    """
    once: dict[tuple[int, ...], str] = {}  # tied tensors by the first of their names
    same = {
        name: first
        for name, t in tensors.items()
        if (first := once.setdefault((t.data_ptr(), t.numel(), *t.stride()), name)) != name and t.numel()
    }
    written = {name: t.detach().cpu().contiguous() for name, t in tensors.items() if name not in same}
    header = {"facts": json.dumps(facts), "same": json.dumps(same), "checksum": str(_checksum(written))}
    with atomic_file(path) as partial:
        save_file(written, partial, metadata=header)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote.

    Raises
    ------
    InputError
        If the file is incomplete or damaged.
    """
    try:
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dictionary
            if file.metadata()["checksum"] != str(_checksum(tensors)):
                raise ValueError("checksum mismatch")
            for name, first in json.loads(file.metadata().get("same", "{}")).items():
                tensors[name] = tensors[first]
            return tensors, json.loads(file.metadata()["facts"])
    except FileNotFoundError as error:
        raise InputError(f"{path}: there is no such file.") from error
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: incomplete or damaged checkpoint ({error}); remove {path.parent} to start again."
        ) from error


def _checksum(tensors: dict[str, Tensor]) -> int:
    checksum = 0
    for name in sorted(tensors):
        checksum = zlib.crc32(tensors[name].reshape(-1).view(torch.uint8).numpy().data, checksum)
    return checksum


def flat_optimizer(optimizer: torch.optim.Optimizer, prefix: str) -> tuple[dict[str, Tensor], list[dict[str, Any]]]:
    """Return an optimizer's state as named tensors, and the settings of its groups as plain values."""
    state = optimizer.state_dict()
    tensors = {
        f"{prefix}.{index}.{name}": torch.as_tensor(value)
        for index, values in state["state"].items()
        for name, value in values.items()
    }
    return tensors, state["param_groups"]


def restore_optimizer(
    optimizer: torch.optim.Optimizer, prefix: str, tensors: dict[str, Tensor], groups: list[dict[str, Any]]
) -> None:
    """Undo `flat_optimizer`."""
    state: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith(f"{prefix}."):
            _, index, key = name.rsplit(".", 2)
            state.setdefault(int(index), {})[key] = tensor
    optimizer.load_state_dict({"state": state, "param_groups": groups})
