"""`resid generate`: the G-stage alone, from semantic IDs to a recommender."""

import shlex
from pathlib import Path

from resid import Dataset, InputError
from resid.cli.app import AsJson, app, output
from resid.cli.fit import print_fitted
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder


@app.command
def generate(
    data: Path,
    ids: Path,
    *,
    out: Path,
    training: Training = DEFAULTS,
    embeddings: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Fit the generator of a recipe to semantic IDs of your own; `resid fit` does all stages.

    Parameters
    ----------
    data
        The Dataset's folder.
    ids
        The file of the IDs, as `resid quantize --ids` writes it.
    out
        The run's folder.
    embeddings
        The folder with item embeddings, which the generator reads besides the codes.
    as_json
        Print the result as JSON.
    """
    from resid.encode import ItemEmbeddings  # torch takes a second to import
    from resid.methods.semantic_ids import fit_generator
    from resid.quantize import SemanticIds
    from resid.runs import Run

    refuse_dataset_folder(out)
    made = training.changed_recipe()
    dataset, known = Dataset.load(data, verify=True), SemanticIds.load(ids)
    known.require_data(dataset, ids)
    vectors = ItemEmbeddings.load(embeddings) if embeddings else None
    if vectors and vectors.fingerprint != dataset.fingerprint:
        raise InputError(f"{embeddings}: these are embeddings of another Dataset than {data}; encode it.")
    runtime = training.runtime()
    with Run.open(out, dataset, runtime) as run:
        model = fit_generator(run, made.part("generator"), dataset, known, vectors)
        run.finish(model, made.name, made.toml())
    if runtime.is_first:
        print_fitted(model, out, made.name, as_json)
        if not as_json:
            text = f"Next: resid evaluate {shlex.quote(str(out))}"
            output.print(text, highlight=False, markup=False, soft_wrap=True)
