"""`resid encode`: the E-stage alone, from a Dataset to item embeddings."""

from pathlib import Path
from typing import Any

from resid.cli.app import AsJson, output, print_json
from resid.cli.show import epochs_table, quality_table
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder
from resid.core.files import refuse_foreign_folder


def encode(
    data: Path,
    *,
    out: Path,
    training: Training = DEFAULTS,
    embeddings: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Fit the encoder of a recipe; `resid quantize`, `generate` and `fit` with the same --out reuse it.

    An interrupted command continues when it is run again.

    Example: ``resid encode data/mine --out runs/mine``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder.
    embeddings
        Also write the item embeddings to this folder.
    as_json
        Print the result as JSON.
    """
    from resid import Dataset  # here, as these imports take a second
    from resid.core.files import MANIFEST
    from resid.methods.semantic_ids import fit_encoder, require_data_alone
    from resid.runs import Run

    refuse_dataset_folder(out)
    if embeddings is not None:
        refuse_foreign_folder(embeddings, MANIFEST)
    spec = training.changed_recipe().part("encoder")
    require_data_alone(spec)
    dataset = Dataset.load(data)
    spec.create().check(dataset)
    runtime = training.runtime()
    with Run.open(out, dataset, runtime) as run:
        encoder, vectors = fit_encoder(run, spec, dataset)
        folder = out / run.stages["encoder"]
    if not runtime.is_first:
        return
    if embeddings is not None:
        vectors.save(embeddings)
    found: dict[str, dict[str, Any]] = {
        "validation": encoder.metrics(dataset, "validation"),
        "test": encoder.metrics(dataset, "test"),
    }
    found = {split: metrics for split, metrics in found.items() if metrics}
    if as_json:
        facts = {"folder": str(folder), "kind": spec.kind, "settings": spec.settings.to_dict()}
        print_json(facts | {"epochs": len(encoder.history_), "best_epoch": encoder.best_epoch_, **found})
        return
    if encoder.history_:
        output.print(epochs_table(encoder.history_, encoder.best_epoch_))
    if found:
        output.print(quality_table(found))
    text = f"Wrote {folder}" + (f" and {embeddings}" if embeddings else "")
    output.print(text, highlight=False, markup=False, soft_wrap=True)
