"""`resid inspect`: the quality of semantic IDs."""

from pathlib import Path

from resid import InputError
from resid.cli.app import AsJson, errors, output, print_json
from resid.cli.show import ids_table, lineage_text, measured_text
from resid.core.errors import counted


def inspect(ids: Path, *, embeddings: Path | None = None, data: Path | None = None, as_json: AsJson = False) -> None:
    """Print the quality of semantic IDs.

    Example: ``resid inspect runs/mine``

    Parameters
    ----------
    ids
        A file of IDs, a saved model, or a run's folder, whose embeddings and Dataset are used as well.
    embeddings
        The folder with the embeddings that were quantized: adds distortion, ambiguity, cosines and neighbors.
    data
        The Dataset's folder: adds the overlap of targets and histories.
    as_json
        Print the quality as JSON.
    """
    from resid import Dataset  # here, as these imports take a while
    from resid.analyse.verdict import verdict
    from resid.encode import ItemEmbeddings
    from resid.quantize import SemanticIds, id_quality
    from resid.report.ids import are_of, ids_text, load_embeddings, load_ids, score_weights
    from resid.runs import load_dataset, read_run

    dataset = Dataset.load(data) if data else None
    if dataset is None and ids.is_dir() and read_run(ids) is not None:
        try:
            dataset = load_dataset(ids)
        except InputError as error:
            errors.print(f"Overlaps are not shown: {error}", highlight=False, markup=False)
    known, model = load_ids(ids) if ids.is_dir() else (SemanticIds.load(ids), None)
    lineage, checksum = (list(model.lineage_), model.checksum) if model is not None else ([], None)
    if dataset is not None and model is not None and model.catalogue_.added:
        errors.print(f"The quality is that of the {counted(dataset.n_items, 'item')} of the Dataset.", highlight=False)
        known = known.head(dataset.n_items)
    vectors = ItemEmbeddings.load(embeddings) if embeddings else load_embeddings(ids, dataset, model)
    if vectors and not are_of(known, vectors):
        if embeddings:
            raise InputError(f"{ids}: these IDs were made from other embeddings than {embeddings}.")
        vectors = None
    if dataset is not None:
        known.require_data(dataset, ids)
    found = id_quality(known, vectors.vectors if vectors else None, dataset)
    blend, judged = score_weights(model), verdict(found)
    measured = model.measured_ if model is not None else None
    if as_json:
        more = {"measured": dict(measured)} if measured is not None else {}
        content = {
            **known.facts,
            **found,
            "blend": blend,
            "verdict": judged,
            "checksum": checksum,
            "lineage": lineage,
            **more,
        }
        print_json({"ids_of": str(ids), **content})
        return
    if checksum is not None:
        output.print(f"Model {checksum[:12]}", highlight=False)
    if measured is not None:
        output.print(measured_text(measured), highlight=False, soft_wrap=True)
    if lineage:
        output.print(lineage_text(lineage), highlight=False, soft_wrap=True)
    if blend:
        weights = ", ".join(f"{name} {weight:.3f}" for name, weight in blend.items())
        output.print(
            f"Weights and biases (seen, added) of the scores that rank items: {weights}",
            highlight=False,
            soft_wrap=True,
        )
    output.print(ids_text(found), highlight=False)
    output.print(ids_table(found["levels"]))
    if judged:
        output.print(judged, highlight=False, soft_wrap=True)
