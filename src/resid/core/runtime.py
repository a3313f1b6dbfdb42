"""The runtime: where and how a part is fitted, handed to every `fit` as one object."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Self

from resid.core.progress import Progress, default_progress

if TYPE_CHECKING:
    from lightning_fabric import Fabric  # imports torch, which takes a second


@dataclass(frozen=True)
class Runtime:
    """Where a part is fitted and who follows its progress.

    Parameters
    ----------
    folder
        Receives checkpoints and metrics, so that an interrupted fit continues. None uses a temporary folder.
    fabric
        Devices and precision, see `resid.train.open_fabric`. None is one CPU process.
    trackers
        Experiment trackers that receive the metrics as well: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``.
    progress
        Receives messages and progress bars; by default a `ConsoleProgress` on a terminal and in a notebook.
    """

    folder: Path | None = None
    fabric: "Fabric | None" = None
    trackers: tuple[str, ...] = ()
    progress: Progress = field(default_factory=default_progress)

    def within(self, name: str) -> Self:
        """Return the same runtime in a subfolder, for one phase of several."""
        return replace(self, folder=self.folder / name if self.folder is not None else None)

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.fabric is None or self.fabric.global_rank == 0

    @property
    def n_processes(self) -> int:
        """The number of processes that train together."""
        return 1 if self.fabric is None else self.fabric.world_size
