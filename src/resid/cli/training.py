"""The options that all commands that fit parts share."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from resid import InputError
from resid.cli.app import errors, names

if TYPE_CHECKING:
    from resid import Recipe, Runtime


@Parameter(name="*")
@dataclass(frozen=True)
class Training:
    """What to fit and where.

    Parameters
    ----------
    recipe
        The recipe, a name that `resid recipes` lists or the path of a TOML file.
    epochs
        The maximum number of epochs of every part that is trained, of its pre-training and fine-tuning as well; by default
        that of the recipe.
    seed
        Random seed of all parts; by default that of the recipe.
    change
        Any setting of the recipe as name=value: --set encoder.epochs=20 --set quantizer.branching=32,40.
    accelerator
        The kind of device.
    devices
        Number of devices; under torchrun, its processes are the devices.
    precision
        bf16-mixed computes matrix products in bfloat16.
    track
        Also send the metrics to tensorboard, mlflow or wandb, separated by commas.
    """

    recipe: str = "resid"
    epochs: int | None = None
    seed: int | None = None
    change: Annotated[tuple[str, ...], Parameter(name="--set", negative="", show_default=False)] = ()
    accelerator: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    track: Annotated[str, Parameter(show_default=False)] = ""

    def changed_recipe(self) -> "Recipe":
        """Return the recipe with the changes of --seed and --set."""
        from resid import Recipe  # here, as this import takes a while

        return Recipe.read(self.recipe).replace(self.changes())

    def changes(self) -> dict[str, int | str | tuple[str, ...]]:
        """Return the changes of --epochs, --seed and --set."""
        from resid.methods.recipe import read_changes  # here, as this import takes a while

        common = {"epochs": self.epochs, "seed": self.seed}
        given = {name: value for name, value in common.items() if value is not None}
        return {**given, **read_changes(self.change, "--set")}

    def runtime(self) -> "Runtime":
        """Start the devices; only the first process shows progress."""
        from resid import ConsoleProgress, Runtime  # here, as these imports take seconds
        from resid.core.progress import Silent
        from resid.train import open_fabric
        from resid.train.trackers import check_trackers

        check_trackers(names(self.track))
        fabric = open_fabric(self.accelerator, self.devices, self.precision)
        progress = ConsoleProgress(errors) if fabric.global_rank == 0 else Silent()
        return Runtime(fabric=fabric, trackers=names(self.track), progress=progress)


DEFAULTS = Training()


def refuse_dataset_folder(out: Path) -> None:
    """Raise an `InputError` if a folder is a Dataset."""
    from resid.data.dataset import MANIFEST

    if (out / MANIFEST).exists():
        raise InputError(f"{out} is a Dataset; choose another folder.")
