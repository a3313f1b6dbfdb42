"""Process-wide settings of the training loop: deterministic algorithms and signals."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import torch

torch_deterministic: Any = torch.utils.deterministic  # claims to be typed


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Use deterministic algorithms while the block runs, so that sums over threads have a fixed order."""
    before, fill = torch.are_deterministic_algorithms_enabled(), torch_deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(before or wanted)
    torch_deterministic.fill_uninitialized_memory = False  # no code here reads uninitialized memory
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch_deterministic.fill_uninitialized_memory = fill


def seed_generators(seed: int, device: torch.device) -> None:
    """Seed the random numbers of the CPU and of the device.

    `torch.manual_seed` also formats a traceback for every kind of device that is not in use, which takes up to a millisecond per training
    step.
    """
    torch.default_generator.manual_seed(seed)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(seed)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Record the first SIGINT or SIGTERM instead of exiting; a second one raises KeyboardInterrupt."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    try:
        for caught in (signal.SIGINT, signal.SIGTERM):
            previous[caught] = signal.signal(caught, note)
    except ValueError:  # signals can only be handled in the main thread
        pass
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
