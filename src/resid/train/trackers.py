"""Experiment trackers: each receives the settings of a run once and its metrics after every epoch.

They need the extra ``track``; the JSON lines in the run's folder are complete without them. A resumed run continues its
record, whose identifier is stored in the folder.
"""

import importlib
import json
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from resid.core.errors import InputError, first_line
from resid.core.files import write_text


class Tracker(Protocol):
    """What the loop sends to a tracker."""

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        """Record the metrics of an epoch."""

    def close(self, finished: bool) -> None:
        """Close the record; an unfinished one will be continued."""


class TensorBoard:
    """Event files in the run's folder, for ``tensorboard --logdir``."""

    def __init__(self, folder: Path, settings: dict[str, Any], epoch: int, continued: bool) -> None:
        writer = _import("torch.utils.tensorboard").SummaryWriter
        self.writer = writer(str(folder / "tensorboard"), purge_step=epoch + 1)
        if not continued:
            self.writer.add_text("settings", f"```\n{json.dumps(settings, indent=1)}\n```")

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        """Write an event per metric."""
        for name, value in metrics.items():
            self.writer.add_scalar(name, value, epoch)
        self.writer.flush()

    def close(self, finished: bool) -> None:
        """Close the file."""
        self.writer.close()


class MLflow:
    """A run of MLflow; its environment variables set the store and the experiment."""

    def __init__(self, folder: Path, settings: dict[str, Any], epoch: int, continued: bool) -> None:
        self.client = _import("mlflow").MlflowClient()
        noted = folder / "mlflow-run.txt"
        if continued and noted.exists():
            self.run = noted.read_text(encoding="utf-8")
            self.client.update_run(self.run, "RUNNING")
            return
        name = _import("mlflow.environment_variables").MLFLOW_EXPERIMENT_NAME.get() or "resid"
        experiment = self.client.get_experiment_by_name(name)
        identity = experiment.experiment_id if experiment else self.client.create_experiment(name)
        self.run = self.client.create_run(identity, run_name=folder.resolve().parent.name).info.run_id
        write_text(noted, self.run)
        for setting, value in settings.items():
            self.client.log_param(self.run, setting, value)

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        """Write the metrics; MLflow does not allow @ in names."""
        for name, value in metrics.items():
            self.client.log_metric(self.run, name.replace("@", "_at_"), value, step=epoch)

    def close(self, finished: bool) -> None:
        """Mark the run as finished, or as killed."""
        self.client.set_terminated(self.run, "FINISHED" if finished else "KILLED")


class WandB:
    """A run of Weights & Biases; its environment variables set the project and the mode."""

    def __init__(self, folder: Path, settings: dict[str, Any], epoch: int, continued: bool) -> None:
        wandb = _import("wandb")
        noted = folder / "wandb-run.txt"
        identity = noted.read_text(encoding="utf-8") if continued and noted.exists() else uuid.uuid4().hex[:8]
        write_text(noted, identity)
        self.run = wandb.init(dir=str(folder), id=identity, resume="allow", config=settings)

    def log(self, metrics: dict[str, float], epoch: int) -> None:
        """Send the metrics."""
        self.run.log(metrics, step=epoch)

    def close(self, finished: bool) -> None:
        """Send the remaining metrics and close the run."""
        self.run.finish(exit_code=0 if finished else 1)


TRACKERS: dict[str, type[TensorBoard] | type[MLflow] | type[WandB]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def open_trackers(
    names: Sequence[str], folder: Path, settings: dict[str, Any], epoch: int, continued: bool
) -> list[Tracker]:
    """Open trackers by name.

    Parameters
    ----------
    names
        Keys of `TRACKERS`.
    folder
        The run's folder.
    settings
        Of the run.
    epoch
        The number of finished epochs.
    continued
        Whether the run is resumed, so that its record continues.
    """
    check_trackers(names)
    opened: list[Tracker] = []
    for name in names:
        try:
            opened.append(TRACKERS[name](folder, settings, epoch, continued))
        except InputError:
            raise
        except Exception as error:  # each tracker has its own error classes, for example for an unreachable server
            raise InputError(f"the tracker '{name}' cannot be used: {first_line(error)}.") from error
    return opened


def check_trackers(names: Sequence[str]) -> None:
    """Raise an `InputError` for a name that is not a tracker."""
    if unknown := [name for name in names if name not in TRACKERS]:
        raise InputError(f"there is no tracker '{unknown[0]}'; available trackers: {', '.join(TRACKERS)}.")


def _import(module: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise InputError(
            f"'{error.name}' is not installed; install the trackers: pip install 'resid[track]'."
        ) from error
