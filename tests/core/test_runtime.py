"""The runtime object."""

import dataclasses
from pathlib import Path
from types import SimpleNamespace

import pytest

from resid import Runtime
from resid.core.progress import Silent


def test_defaults():
    runtime = Runtime()
    assert (runtime.folder, runtime.fabric, runtime.trackers) == (None, None, ())
    assert isinstance(runtime.progress, Silent)
    assert runtime.is_first
    assert runtime.n_processes == 1
    with pytest.raises(dataclasses.FrozenInstanceError):
        runtime.folder = Path("x")


def test_within():
    runtime = Runtime(Path("runs"), trackers=("mlflow",))
    inner = runtime.within("pretraining")
    assert inner.folder == Path("runs/pretraining")
    assert inner.trackers == ("mlflow",)
    assert inner.progress is runtime.progress
    assert Runtime().within("pretraining").folder is None


def test_processes():
    second = Runtime(fabric=SimpleNamespace(global_rank=1, world_size=2))
    assert not second.is_first
    assert second.n_processes == 2
