"""The semantic IDs of a run, the embeddings that they were made from, and their quality in words."""

from pathlib import Path
from typing import Any

from resid.core.errors import InputError, counted
from resid.data.dataset import Dataset
from resid.encode import Encoder, ItemEmbeddings
from resid.quantize import Quantizer, SemanticIds, id_quality
from resid.recommend import Recommender
from resid.runs import load, load_stage, read_run

_ROWS = (
    ("codes", "size", "{:,}"),
    ("  unused", "dead", "{:,}"),
    ("entropy, bits", "entropy", "{:.3f}"),
    ("perplexity", "perplexity", "{:,.1f}"),
    ("Gini coefficient", "gini", "{:.3f}"),
    ("entropy given the prefix, bits", "conditional_entropy", "{:.3f}"),
    ("variance left given prefix and code", "distortion", "{:.1%}"),
    ("variance left given the code alone", "distortion_code", "{:.1%}"),
    ("  ambiguity, bits per dimension", "ambiguity", "{:.3f}"),
    ("step explained by prefix and code", "step_explained", "{:.1%}"),
    ("step explained by the code alone", "step_explained_code", "{:.1%}"),
    ("  ambiguity of the step, bits per dimension", "step_ambiguity", "{:.3f}"),
    ("cosine of steps with the same code", "cosine", "{:.4f}"),
    ("  under different parents", "cosine_between", "{:.4f}"),
    ("10 nearest neighbors with the same prefix", "neighbors", "{:.1%}"),
    ("  by chance", "neighbors_chance", "{:.2%}"),
    ("items of the history with the target's code", "overlap", "{:.4f}"),
    ("  by chance", "overlap_chance", "{:.4f}"),
)


def load_ids(folder: Path) -> tuple[SemanticIds, Recommender | None]:
    """Return the IDs of a saved model or of a run, and the model, if there is one."""
    record = read_run(folder)
    if record is None or record.recipe is not None:
        model = load(folder)
        if model.ids_ is None:
            raise InputError(
                f"{folder} is a {type(model).__name__} model, which has no semantic IDs; inspect a run of resid or tiger, "
                "for example."
            )
        return model.ids_, model
    quantizer = load_stage(folder, "quantizer")
    if not isinstance(quantizer, Quantizer):
        raise InputError(f"{folder}: this run has no semantic IDs yet; run 'resid quantize' or 'resid fit' first.")
    return quantizer.semantic_ids_, None


def load_embeddings(folder: Path, data: Dataset | None, model: Recommender | None) -> ItemEmbeddings | None:
    """Return the embeddings of the encoder of a run or a saved model; None without an encoder or the Dataset."""
    if data is None or not folder.is_dir():
        return None
    kept = model.parts_.get("encoder") if model is not None else None
    encoder = kept if kept is not None else load_stage(folder, "encoder")
    return encoder.embed(data) if isinstance(encoder, Encoder) else None


def are_of(ids: SemanticIds, embeddings: ItemEmbeddings) -> bool:
    """Return whether IDs were made from these embeddings; IDs that do not say so may have been."""
    return bool(ids.facts.get("vectors", embeddings.digest) == embeddings.digest)


def run_quality(folder: Path, data: Dataset, model: Recommender, ids: SemanticIds) -> dict[str, Any]:
    """Return the quality of a run's IDs, with its embeddings where they are those of the IDs."""
    embeddings = load_embeddings(folder, data, model)
    ids = ids.head(data.n_items)  # without those that were added to the model
    ids.require_data(data, folder)
    return id_quality(ids, embeddings.vectors if embeddings and are_of(ids, embeddings) else None, data)


def score_weights(model: Recommender | None) -> dict[str, float] | None:
    """Return the weights and biases of the scores by which a joint generator ranks items; None for other models."""
    if model is None or model.stage != "generator":
        return None  # without importing the generators
    from resid.generate import JointGenerator
    from resid.generate.joint import ADDED

    if not isinstance(model, JointGenerator):
        return None
    added = {ADDED: model.added_blend_.bias} if model.added_blend_ is not None else {}
    return model.blend_.to_dict() | added


def ids_text(quality: dict[str, Any]) -> str:
    """Return the counts of semantic IDs as one sentence."""
    return (
        f"{counted(quality['items'], 'item')}, {counted(quality['ids'], 'distinct ID')}, {quality['unique']:.1%} of the items "
        f"with a unique ID, at most {counted(quality['largest_collision'], 'item')} per ID"
    )


def quality_rows(levels: list[dict[str, Any]]) -> list[tuple[str, list[str]]]:
    """Return the name of every metric that was measured and its value at every level as text; details are indented."""
    rows = []
    for text, name, shape in _ROWS:
        values = [level.get(name) for level in levels]
        if any(value is not None for value in values):
            rows.append((text, ["–" if value is None else shape.format(value) for value in values]))
    return rows
