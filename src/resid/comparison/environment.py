"""Where a result comes from: versions and hardware."""

import importlib.metadata
import os
import platform
import sys
from pathlib import Path
from typing import Any

_LIBRARIES = ("torch", "numpy", "polars", "scikit-learn", "scipy", "lightning-fabric", "safetensors")


def describe_environment(accelerator: str, precision: str) -> dict[str, Any]:
    """Return the versions, the hardware and the devices with which this process works."""
    return {
        "versions": {
            "resid": sys.modules["resid"].__version__,
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in _LIBRARIES},
        },
        "system": platform.platform(),
        "processor": _processor(),
        "cores": os.cpu_count(),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "memory": _memory(),
        "accelerator": accelerator,
        "device": _gpu() if accelerator == "cuda" else None,
        "precision": precision,
    }


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name()


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not on Linux
        return platform.processor()
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor()


def _memory() -> int | None:
    """Return the memory of the machine in bytes."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # not on Windows
        return None
