"""What a stage cost: its seconds over all sessions, and its peak memory, in a file beside the part."""

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from resid.core.files import write_text

COST = "cost.json"


@dataclass(frozen=True)
class Cost:
    """The cost of a stage.

    Attributes
    ----------
    seconds : float
        Wall-clock time of all sessions together, if the stage was interrupted and continued.
    peak_memory : int or None
        The most memory that the process had during the stage, in bytes; None if the system does not tell.
    peak_device_memory : int or None
        The most memory of a GPU that PyTorch allocated; None without one.
    complete : bool
        Whether the time of all sessions is known; that of a session that was killed is not.
    """

    seconds: float
    peak_memory: int | None
    peak_device_memory: int | None
    complete: bool


@contextmanager
def measured(folder: Path, device: Any = None) -> Iterator[None]:
    """Measure a session of the stage in a folder, and add it to what earlier sessions took.

    Parameters
    ----------
    folder
        The stage's folder, which receives `COST`.
    device
        The torch device on which it is fitted.
    """
    earlier = _read(folder)
    sessions: list[float | None] = earlier.get("sessions", [])
    on_gpu = getattr(device, "type", "cpu") == "cuda"
    _write(folder, earlier | {"sessions": [*sessions, None]})  # what remains if the process is killed
    _reset_peak(on_gpu)
    started = time.monotonic()
    try:
        yield
    finally:
        seconds = round(time.monotonic() - started, 3)
        peaks = {"peak_memory": _peak_memory(), "peak_device_memory": _peak_device_memory() if on_gpu else None}
        highest = {name: max(filter(None, (earlier.get(name), value)), default=None) for name, value in peaks.items()}
        _write(folder, {"sessions": [*sessions, seconds], **highest})


def read_cost(folder: Path) -> Cost | None:
    """Return the cost of the stage in a folder; None if it was not measured."""
    content = _read(folder)
    sessions = content.get("sessions")
    if not sessions:
        return None
    known = [seconds for seconds in sessions if seconds is not None]
    return Cost(
        sum(known), content.get("peak_memory"), content.get("peak_device_memory"), complete=len(known) == len(sessions)
    )


def _read(folder: Path) -> dict[str, Any]:
    try:
        content = json.loads((folder / COST).read_text(encoding="utf-8"))
    except (OSError, ValueError):  # none, or damaged; it is not needed for anything but tables
        return {}
    return content if isinstance(content, dict) else {}


def _write(folder: Path, content: dict[str, Any]) -> None:
    write_text(folder / COST, json.dumps(content) + "\n")


def _reset_peak(on_gpu: bool) -> None:
    """Let the peak memory of the process begin anew; where the system cannot, it includes what came before."""
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError:  # not on Linux
        return
    finally:
        if on_gpu:
            import torch

            torch.cuda.reset_peak_memory_stats()


def _peak_memory() -> int | None:
    """Return the peak memory of this process in bytes."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM:"))
    except (OSError, StopIteration):  # not on Linux
        pass
    try:
        import resource
    except ImportError:  # on Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def _peak_device_memory() -> int:
    import torch

    return int(torch.cuda.max_memory_allocated())
