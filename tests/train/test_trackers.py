"""The trackers: metrics are written and read back with each tracker's own tools, offline."""

import json

import pytest

from resid import InputError
from tests.train.toy import SETTINGS, run

LONGER = SETTINGS.replace(epochs=2)


class StopError(Exception):
    pass


def interrupted_run(folder, tracker):
    """Two epochs, the second of them by a second call, as after a kill."""
    calls = iter([{"score": 0.25}])

    def evaluate():
        try:
            return next(calls)
        except StopIteration:
            raise StopError from None

    with pytest.raises(StopError):
        run(folder, settings=LONGER, trackers=[tracker], evaluate=evaluate)
    return run(folder, settings=LONGER, trackers=[tracker], evaluate=lambda: {"score": 0.5})


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_tensorboard(tmp_path):
    interrupted_run(tmp_path, "tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in events.Scalars("score")] == [(1, 0.25), (2, 0.5)]


@pytest.mark.filterwarnings("ignore")
def test_mlflow(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    interrupted_run(tmp_path / "run", "mlflow")
    client = mlflow.MlflowClient()
    identity = (tmp_path / "run" / "mlflow-run.txt").read_text()
    assert [(m.step, m.value) for m in client.get_metric_history(identity, "score")] == [(1, 0.25), (2, 0.5)]
    found = client.get_run(identity)
    assert found.info.status == "FINISHED"
    assert found.data.params["learning_rate"] == "0.01"


@pytest.mark.filterwarnings("ignore")
def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    interrupted_run(tmp_path, "wandb")
    identity = (tmp_path / "wandb-run.txt").read_text()
    written = list(tmp_path.glob(f"wandb/offline-run-*-{identity}/run-{identity}.wandb"))
    assert written
    assert all(file.stat().st_size > 0 for file in written)


def test_an_unknown_tracker_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is no tracker 'excel'; available trackers: tensorboard, mlflow, wandb"):
        run(tmp_path, trackers=["excel"])


def test_a_tracker_that_is_not_installed(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    with pytest.raises(InputError, match=r"'wandb' is not installed; .*resid\[track\]"):
        run(tmp_path, trackers=["wandb"])


def test_the_json_lines_are_complete_without_them(tmp_path):
    run(tmp_path, settings=LONGER)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [(line["epoch"], set(line)) for line in lines] == [
        (epoch, {"epoch", "step", "loss", "part", "samples_per_second"}) for epoch in (1, 2)
    ]
