"""`resid encode`: the E-stage alone, from a Dataset to item embeddings."""

from pathlib import Path
from typing import Any

from resid import Dataset
from resid.cli.app import AsJson, app, output, print_json
from resid.cli.show import epochs_table, quality_table
from resid.cli.training import Changes, Hardware, changed_recipe, refuse_dataset_folder


@app.command
def encode(
    data: Path,
    *,
    out: Path,
    recipe: str = "resid",
    seed: str | None = None,
    change: Changes = (),
    embeddings: Path | None = None,
    hardware: Hardware = Hardware(),  # noqa: B008 - frozen
    as_json: AsJson = False,
) -> None:
    """Fit the encoder of a recipe; `resid quantize`, `generate` and `fit` with the same --out reuse it.

    An interrupted command continues when it is run again.

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder.
    recipe
        The recipe, a name that `resid recipes` lists or the path of a TOML file.
    seed
        The seed of all parts.
    change
        Any setting of the recipe as name=value: --set encoder.learning_rate=3e-4 --set encoder.field_weights=1,1,2.
    embeddings
        Also write the item embeddings to this folder.
    as_json
        Print the result as JSON.
    """
    from resid.encode import FAMAE  # torch takes a second to import
    from resid.methods.semantic_ids import fit_encoder
    from resid.runs import Run

    refuse_dataset_folder(out)
    spec = changed_recipe(recipe, change, seed).part("encoder")
    dataset = Dataset.load(data, verify=True)
    spec.create().check(dataset)
    runtime = hardware.runtime()
    with Run.open(out, dataset, runtime) as run:
        encoder, vectors = fit_encoder(run, spec, dataset)
        folder = out / run.stages["encoder"]
    if not runtime.is_first:
        return
    if embeddings is not None:
        vectors.save(embeddings)
    measured = isinstance(encoder, FAMAE)
    found = {split: encoder.metrics(dataset, split) for split in ("validation", "test")} if measured else {}  # type: ignore[attr-defined]
    if as_json:
        facts: dict[str, Any] = {"folder": str(folder), "kind": spec.kind, "settings": spec.settings.to_dict()}
        more = (
            {"epochs": len(encoder.history_), "best_epoch": encoder.best_epoch_} if isinstance(encoder, FAMAE) else {}
        )
        print_json(facts | more | found)
        return
    if isinstance(encoder, FAMAE):
        output.print(epochs_table(encoder.history_, encoder.best_epoch_))
        output.print(quality_table(found))
    text = f"Wrote {folder}" + (f" and {embeddings}" if embeddings else "")
    output.print(text, highlight=False, markup=False, soft_wrap=True)
