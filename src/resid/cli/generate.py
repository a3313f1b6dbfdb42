"""`resid generate`: the G-stage alone, from semantic IDs to a recommender."""

import shlex
from pathlib import Path

from resid import InputError
from resid.cli.app import AsJson, output
from resid.cli.fit import print_fitted
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder


def generate(
    data: Path,
    ids: Path | None = None,
    *,
    out: Path,
    training: Training = DEFAULTS,
    embeddings: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Fit the generator of a recipe to the IDs of the run, or to IDs of your own.

    Example: ``resid generate data/mine ids.parquet --recipe resid-codes --out runs/mine``

    Parameters
    ----------
    data
        The Dataset's folder.
    ids
        A file of IDs, as `resid quantize --ids` writes it; by default the IDs of the recipe's quantizer, which is fitted first
        if it is not in the run yet.
    out
        The run's folder.
    embeddings
        With IDs of your own: the folder with item embeddings, for a generator that reads them.
    as_json
        Print the result as JSON.
    """
    from resid import Dataset  # here, as these imports take a second
    from resid import fit as fit_recipe
    from resid.encode import ItemEmbeddings
    from resid.methods.floor import compare_with_floor
    from resid.methods.semantic_ids import fit_generator
    from resid.quantize import SemanticIds
    from resid.runs import Run

    refuse_dataset_folder(out)
    made = training.changed_recipe()
    spec = made.part("generator")
    if ids is None and embeddings is not None:
        raise InputError("--embeddings needs a file of IDs; without one, the recipe's encoder is used.")
    dataset, known = Dataset.load(data), SemanticIds.load(ids) if ids else None
    if known is not None:
        known.require_data(dataset, ids)
    vectors = ItemEmbeddings.load(embeddings) if embeddings else None
    if vectors:
        vectors.require_data(dataset, embeddings)
    spec.create().check(dataset)
    runtime = training.runtime()
    if known is None:
        model = fit_recipe(dataset, made, out, runtime=runtime)
    else:
        with Run.open(out, dataset, runtime) as run:
            model = fit_generator(run, spec, dataset, known, vectors)
            found = compare_with_floor(run, model, dataset)
            run.finish(model, f"{made.name}, generator only", made.toml("generator"), found)
    if runtime.is_first:
        print_fitted(model, out, made.name, as_json)
        if not as_json:
            text = f"Next: resid evaluate {shlex.quote(str(out))}"
            output.print(text, highlight=False, markup=False, soft_wrap=True)
