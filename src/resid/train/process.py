"""What the loop asks of its process: sums in a fixed order, and to hear signals instead of dying of them."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from resid.core.errors import InputError
from resid.core.files import refuse_file

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

torch_deterministic: Any = torch.utils.deterministic  # a module that pretends to be typed


@contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    """Let several threads add up in an order that is always the same, while the block runs."""
    before, fill = torch.are_deterministic_algorithms_enabled(), torch_deterministic.fill_uninitialized_memory
    torch.use_deterministic_algorithms(before or wanted)
    torch_deterministic.fill_uninitialized_memory = False  # nothing here reads memory that it did not write
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        torch_deterministic.fill_uninitialized_memory = fill


@contextmanager
def exclusive(folder: Path) -> Iterator[None]:
    """Keep a second run out of a folder while the block runs; the lock dies with its process."""
    refuse_file(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if fcntl is None:
        yield
        return
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(f"{folder}: another run is using this folder; wait for it, or choose another.") from error
        yield


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """Collect the first SIGINT or SIGTERM instead of dying at once; a second one is obeyed at once."""
    received: list[int] = []
    previous: dict[int, Any] = {}

    def note(number: int, frame: FrameType | None) -> None:
        if received:
            raise KeyboardInterrupt
        received.append(number)

    try:
        for caught in (signal.SIGINT, signal.SIGTERM):
            previous[caught] = signal.signal(caught, note)
    except ValueError:  # not in the main thread, where signals cannot be caught
        pass
    try:
        yield received
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
