"""Process-wide settings of the training loop: deterministic algorithms, folder locks and signals."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from resid.core.errors import InputError, explain_disk_errors
from resid.core.files import refuse_file

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]

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


@contextmanager
def exclusive(folder: Path, file: Path | None = None) -> Iterator[None]:
    """Lock a folder while the block runs; the lock ends with its process.

    Parameters
    ----------
    folder
        The folder.
    file
        The file that is locked; by default one in the folder. A folder that is replaced as a whole needs another one.
    """
    refuse_file(folder)
    file = file or folder / ".lock"
    with explain_disk_errors(folder):
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    with lock:
        if fcntl is None:
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise InputError(
                f"{folder}: another run is using this folder; wait for it, or choose another folder."
            ) from error
        yield


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
