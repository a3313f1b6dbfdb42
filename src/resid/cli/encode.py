"""`resid encode`: the E-stage alone, from a Dataset to item embeddings."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape

from resid import Dataset, InputError, Recipe
from resid.cli.app import AsJson, app, errors, names, output, print_json, read_changes
from resid.cli.show import epochs_table, quality_table
from resid.core.files import refuse_foreign_folder, refuse_foreign_training
from resid.core.progress import ConsoleProgress
from resid.data.dataset import MANIFEST as DATASET_MANIFEST


@app.command
def encode(
    data: Path,
    *,
    out: Path,
    recipe: str = "resid",
    epochs: str | None = None,
    seed: str | None = None,
    change: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    accelerator: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    devices: int = 1,
    precision: Literal["32-true", "bf16-mixed"] = "32-true",
    track: str = "",
    as_json: AsJson = False,
) -> None:
    """Train FAMAE on a Dataset and write its item embeddings; a second call continues an interrupted first.

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder: checkpoints, metrics of every epoch, the encoder and its embeddings.
    recipe
        The recipe whose encoder is trained, by name or as a file; resid-paper has the paper's settings.
    epochs
        At most so many epochs; also the horizon of the learning rate.
    seed
        Decides everything random.
    change
        Any setting of FamaeSettings, as name=value: --set learning_rate=3e-4 --set field_weights=1,1,2.
    accelerator
        Where to train.
    devices
        How many of them; under torchrun, its processes are the devices.
    precision
        Mixed precision computes matrix products in half the bits.
    track
        Send the metrics to tensorboard, mlflow or wandb, separated by commas, as well.
    as_json
        Print the result as JSON.
    """
    from resid.encode import FAMAE  # torch takes a second to import, which other commands need not wait
    from resid.encode.embeddings import MANIFEST as EMBEDDINGS_MANIFEST
    from resid.train import open_fabric

    if (out / DATASET_MANIFEST).exists():
        raise InputError(f"{out}: this is a Dataset; choose another folder for the run.")
    refuse_foreign_training(out)
    dataset = Dataset.load(data, verify=True)
    refuse_foreign_folder(out / "embeddings", EMBEDDINGS_MANIFEST)
    changes = read_changes(change) | {k: v for k, v in (("epochs", epochs), ("seed", seed)) if v is not None}
    part = Recipe.read(recipe).part("encoder")
    if part.kind != "famae":
        raise InputError(f"the encoder of '{recipe}' is {part.kind}, not famae; 'resid fit' trains it with the rest.")
    settings: Any = part.settings.replace(**changes)
    fabric = open_fabric(accelerator, devices, precision)
    first = fabric.global_rank == 0
    encoder = FAMAE(settings).fit(
        dataset,
        out / "training",
        fabric=fabric,
        trackers=names(track),
        progress=ConsoleProgress(errors) if first else None,
    )
    if not first:
        return
    encoder.save(out)
    encoder.embed(dataset).save(out / "embeddings")
    found = {"validation": encoder.quality(dataset, "validation"), "test": encoder.quality(dataset, "test")}
    if as_json:
        batch_size = settings.batch_size_for(len(dataset.train))
        facts = {"folder": str(out), "epochs": len(encoder.history_), "best_epoch": encoder.best_epoch_}
        print_json(facts | {"settings": settings.to_dict() | {"batch_size": batch_size}, **found})
        return
    output.print(epochs_table(encoder.history_, encoder.best_epoch_))
    output.print(quality_table(found))
    output.print(
        f"Wrote {escape(str(out))}: the encoder, and its embeddings in embeddings/", highlight=False, soft_wrap=True
    )
