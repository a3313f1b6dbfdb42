"""Checkpoints: one safetensors file with tensors and a JSON header, replaced atomically; loading never runs code."""

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from resid.core.checksums import SEAL, is_sealed, seal_file
from resid.core.errors import InputError, first_line
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
    header = {"facts": json.dumps(facts), "same": json.dumps(same), "checksum": SEAL}
    with atomic_file(path) as partial:
        save_file(written, partial, metadata=header)
        seal_file(partial)


def load_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Read what `save_checkpoint` wrote.

    Raises
    ------
    InputError
        If the file is incomplete or damaged, or was written by an earlier version.
    """
    try:
        if not is_sealed(path):
            raise ValueError("its checksum is missing, or an earlier version of resid wrote it")
        with safe_open(path, framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is not a dictionary
            for name, first in json.loads(file.metadata()["same"]).items():
                tensors[name] = tensors[first]
            return tensors, json.loads(file.metadata()["facts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise InputError(
            f"{path}: missing, incomplete or damaged checkpoint ({first_line(error)}); remove {path.parent} to start again."
        ) from error


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
