"""Devices and precision of training, in one process or several."""

import os
from typing import TYPE_CHECKING, Literal, get_args

import torch

from resid.core.errors import InputError, counted, first_line

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Precision = Literal["32-true", "bf16-mixed"]


def open_fabric(accelerator: str = "cpu", devices: int = 1, precision: Precision = "32-true") -> "Fabric":
    """Start the devices on which models are trained.

    Under ``torchrun``, its processes are the devices, and `devices` is ignored.

    Parameters
    ----------
    accelerator
        ``"cpu"``, ``"cuda"``, ``"mps"``, or ``"auto"`` for the best available.
    devices
        Number of devices; more than one starts as many processes.
    precision
        ``"32-true"`` is single precision; ``"bf16-mixed"`` computes matrix products in bfloat16.
    """
    from lightning_fabric import Fabric

    if precision not in get_args(Precision):
        raise InputError(
            f"there is no precision '{precision}'; available precisions: {', '.join(get_args(Precision))}."
        )
    cores = os.cpu_count() or 1
    if accelerator == "cpu" and devices > cores:
        raise InputError(f"this machine has {cores} cores; use at most {cores} devices, not {devices}.")
    started = int(os.environ.get("LOCAL_WORLD_SIZE", devices))
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", 1))
    strategy = "ddp" if started * nodes > 1 else "auto"
    try:
        fabric = Fabric(
            accelerator=accelerator, devices=started, num_nodes=nodes, strategy=strategy, precision=precision
        )
    except (ValueError, RuntimeError, TypeError) as error:
        missing = {"cuda": not torch.cuda.is_available(), "mps": not torch.backends.mps.is_available()}
        if missing.get(accelerator):
            raise InputError(f"no {accelerator.upper()} device found; use --accelerator cpu.") from error
        wanted = counted(devices, f"device of the kind '{accelerator}'", f"devices of the kind '{accelerator}'")
        raise InputError(f"cannot start {wanted} ({first_line(error)}); use --accelerator cpu.") from error
    fabric.launch()
    return fabric
