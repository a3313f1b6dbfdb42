"""The options that all commands that fit parts share, and what they print."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from resid import InputError, Runtime
from resid.cli.app import errors, names
from resid.core.progress import ConsoleProgress, Silent

if TYPE_CHECKING:
    from resid import Recipe

Changes = Annotated[tuple[str, ...], Parameter(name="--set", negative="")]


@Parameter(name="*")
@dataclass(frozen=True)
class Hardware:
    """Where to train.

    Parameters
    ----------
    accelerator
        The kind of device.
    devices
        Number of devices; under torchrun, its processes are the devices.
    precision
        bf16-mixed computes matrix products in bfloat16.
    track
        Also send the metrics to tensorboard, mlflow or wandb, separated by commas.
    """

    accelerator: Literal["cpu", "cuda", "mps", "auto"] = "cpu"
    devices: int = 1
    precision: Literal["32-true", "bf16-mixed"] = "32-true"
    track: str = ""

    def runtime(self) -> Runtime:
        """Start the devices; only the first process shows progress."""
        from resid.train import open_fabric  # torch takes a second to import

        fabric = open_fabric(self.accelerator, self.devices, self.precision)
        progress = ConsoleProgress(errors) if fabric.global_rank == 0 else Silent()
        return Runtime(fabric=fabric, trackers=names(self.track), progress=progress)


def changed_recipe(recipe: str, pairs: tuple[str, ...], seed: str | None) -> "Recipe":
    """Return a recipe with the changes of --seed and --set."""
    from resid import Recipe

    return Recipe.read(recipe).replace(({"seed": seed} if seed is not None else {}) | read_changes(pairs))


def read_changes(pairs: tuple[str, ...]) -> dict[str, str | tuple[str, ...]]:
    """Read the name=value pairs of --set."""
    if bad := [pair for pair in pairs if not pair.partition("=")[0].strip() or "=" not in pair]:
        raise InputError(
            f"--set: '{bad[0]}' does not have the form name=value, for example encoder.learning_rate=3e-4."
        )
    changes = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
    return {name: tuple(value.split(",")) if "," in value else value for name, value in changes.items()}


def refuse_dataset_folder(out: Path) -> None:
    """Raise an `InputError` if a folder is a Dataset."""
    from resid.data.dataset import MANIFEST

    if (out / MANIFEST).exists():
        raise InputError(f"{out} is a Dataset; choose another folder.")
