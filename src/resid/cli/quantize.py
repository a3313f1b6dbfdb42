"""`resid quantize`: the Q-stage alone, from item embeddings to semantic IDs."""

from pathlib import Path

from resid import InputError
from resid.cli.app import AsJson, output, print_json
from resid.cli.show import ids_table
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder


def quantize(
    data: Path,
    *,
    out: Path,
    training: Training = DEFAULTS,
    embeddings: Path | None = None,
    ids: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Fit the quantizer of a recipe and print the quality of its IDs; `resid fit` with the same --out reuses it.

    The recipe's encoder is fitted first if it is not in the run yet.

    Example: ``resid quantize data/mine --out runs/mine --ids ids.csv``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder.
    embeddings
        Quantize the item embeddings of this folder instead of those of the recipe's encoder.
    ids
        Also write the IDs to this file (.parquet, .csv, .jsonl or .ndjson): a table with the columns item, c1, c2 and so on. The
        other commands read Parquet only.
    as_json
        Print the quality as JSON.
    """
    from resid import Dataset  # here, as these imports take a second
    from resid.core.tables import TABLE_ENDINGS, check_table_file, write_table
    from resid.encode import ItemEmbeddings
    from resid.methods.semantic_ids import fit_encoder, fit_quantizer, require_data_alone
    from resid.quantize import SemanticIds, id_quality
    from resid.report.ids import ids_text
    from resid.runs import Run

    refuse_dataset_folder(out)
    if out.suffix.lower() in TABLE_ENDINGS:
        raise InputError(f"--out {out} would be the run's folder; write the IDs with --ids {out}.")
    if ids is not None:
        check_table_file(ids)
    made = training.changed_recipe()
    spec = made.part("quantizer")
    dataset = Dataset.load(data)
    given = ItemEmbeddings.load(embeddings) if embeddings else None
    if given:
        given.require_data(dataset, embeddings)
    else:
        require_data_alone(made.part("encoder"))
    made.check(dataset)
    runtime = training.runtime()
    with Run.open(out, dataset, runtime) as run:
        vectors = given or fit_encoder(run, made.part("encoder"), dataset)[1]
        quantizer, found = fit_quantizer(run, spec, dataset, vectors)
        folder = out / run.stages["quantizer"]
    if not runtime.is_first:
        return
    if ids is not None and ids.suffix.lower() == ".parquet":
        found.save(ids)  # with what `SemanticIds.load` needs
    elif ids is not None:
        write_table(ids, found.table())
    raw = SemanticIds(quantizer.codes_, quantizer.level_sizes_)
    collisions = id_quality(raw) if found.unique and not raw.unique else None  # kept collisions are in `quality`
    quality = id_quality(found, vectors.vectors, dataset)
    if as_json:
        print_json({"folder": str(folder), "kind": spec.kind, **quality, "before_deduplication": collisions})
        return
    if collisions:
        output.print(f"Before deduplication: {ids_text(collisions)}", highlight=False)
    output.print(ids_text(quality), highlight=False)
    output.print(ids_table(quality["levels"]))
    text = f"Wrote {folder}" + (f" and {ids}" if ids else "")
    output.print(text, highlight=False, markup=False, soft_wrap=True)
