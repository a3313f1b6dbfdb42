"""`resid inspect`: the quality of semantic IDs."""

from pathlib import Path
from typing import TYPE_CHECKING

from resid import InputError
from resid.cli.app import AsJson, errors, output, print_json
from resid.cli.show import ids_table, ids_text, lineage_text
from resid.core.errors import counted

if TYPE_CHECKING:
    from resid import Dataset, Recommender
    from resid.encode import ItemEmbeddings
    from resid.quantize import SemanticIds


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
    from resid.encode import ItemEmbeddings
    from resid.quantize import SemanticIds, id_quality
    from resid.runs import load_dataset, read_run

    dataset = Dataset.load(data) if data else None
    if dataset is None and ids.is_dir() and read_run(ids) is not None:
        try:
            dataset = load_dataset(ids)
        except InputError as error:
            errors.print(f"Overlaps are not shown: {error}", highlight=False, markup=False)
    model = _model(ids)
    known = _ids(ids, model) if ids.is_dir() else SemanticIds.load(ids)
    lineage, checksum = (list(model.lineage_), model.checksum) if model is not None else ([], None)
    if dataset is not None and model is not None and model.catalogue_.added:
        errors.print(f"The quality is that of the {counted(dataset.n_items, 'item')} of the Dataset.", highlight=False)
        known = SemanticIds(
            known.codes[: dataset.n_items], known.level_sizes, known.item_ids[: dataset.n_items], known.facts
        )
    vectors = ItemEmbeddings.load(embeddings) if embeddings else _embeddings(ids, dataset)
    if vectors and known.facts.get("vectors", vectors.digest) != vectors.digest:
        if embeddings:
            raise InputError(f"{ids}: these IDs were made from other embeddings than {embeddings}.")
        vectors = None
    if dataset is not None:
        known.require_data(dataset, ids)
    found = id_quality(known, vectors.vectors if vectors else None, dataset)
    blend = _blend(model)
    if as_json:
        content = {**known.facts, **found, "blend": blend, "checksum": checksum, "lineage": lineage}
        print_json({"ids_of": str(ids), **content})
        return
    if checksum is not None:
        output.print(f"Model {checksum[:12]}", highlight=False)
    if lineage:
        output.print(lineage_text(lineage), highlight=False, soft_wrap=True)
    if blend:
        weights = ", ".join(f"{name} {weight:.3f}" for name, weight in blend.items())
        output.print(f"Weights of the scores that rank items: {weights}", highlight=False)
    output.print(ids_text(found), highlight=False)
    output.print(ids_table(found["levels"]))


def _model(folder: Path) -> "Recommender | None":
    """Return a saved model, or that of a run; None for a file of IDs, and for a run without a model."""
    from resid.runs import load, read_run

    record = read_run(folder) if folder.is_dir() else None
    return load(folder) if folder.is_dir() and (record is None or record.recipe) else None


def _ids(folder: Path, model: "Recommender | None") -> "SemanticIds":
    """Return the IDs of a saved model or of a run."""
    from resid.quantize import Quantizer
    from resid.runs import load_stage

    if model is not None:
        if model.ids_ is None:
            raise InputError(
                f"{folder} is a {type(model).__name__} model, which has no semantic IDs; inspect a run of resid or tiger, "
                "for example."
            )
        return model.ids_
    quantizer = load_stage(folder, "quantizer")
    if not isinstance(quantizer, Quantizer):
        raise InputError(f"{folder}: this run has no semantic IDs yet; run 'resid quantize' or 'resid fit' first.")
    return quantizer.semantic_ids_


def _blend(model: "Recommender | None") -> dict[str, float] | None:
    """Return the weights of a joint generator."""
    from resid.generate import JointGenerator

    return model.blend_.to_dict() if isinstance(model, JointGenerator) else None


def _embeddings(folder: Path, data: "Dataset | None") -> "ItemEmbeddings | None":
    """Return the embeddings of a run's encoder, if there is one."""
    from resid.encode import Encoder
    from resid.runs import load_stage

    encoder = load_stage(folder, "encoder") if folder.is_dir() and data is not None else None
    return encoder.embed(data) if isinstance(encoder, Encoder) and data is not None else None
