"""What analyses read from runs: IDs, encoders, embeddings and evaluation results.

A finished run is read from its model, which includes encoder and quantizer, so the folders of its stages may be gone.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from resid.core.errors import InputError
from resid.data.dataset import Dataset
from resid.encode import Encoder, ItemEmbeddings
from resid.encode.item_tables import ItemTableEncoder
from resid.quantize import SemanticIds
from resid.recommend import Recommender
from resid.report.ids import are_of, load_ids
from resid.runs import load, load_dataset, load_stage, read_metrics, read_run
from resid.sequential.base import SequentialRecommender


def labels(folders: Sequence[Path]) -> list[str]:
    """Return short names of runs: the names of their folders, with that of the parent folder where they are not unique."""
    names = [folder.resolve().name for folder in folders]
    return [
        name if names.count(name) == 1 else f"{folder.resolve().parent.name}/{name}"
        for folder, name in zip(folders, names, strict=True)
    ]


def dataset_of(folder: Path, data: Path | None) -> Dataset:
    """Return the given Dataset, or that of a run."""
    _require_folder(folder)
    return load_dataset(folder, data)


def _require_folder(folder: Path) -> None:
    if not folder.is_dir():
        raise InputError(f"{folder}: there is no such folder; create a run with 'resid fit'.")


def model_of(folder: Path) -> Recommender | None:
    """Return the model of a run, or a saved model; None if the run has none yet."""
    _require_folder(folder)
    record = read_run(folder)
    return load(folder) if record is None or record.recipe is not None else None


def ids_of(folder: Path) -> SemanticIds:
    """Return the semantic IDs of a run or a saved model."""
    _require_folder(folder)
    return load_ids(folder)[0]


def encoders_of(folder: Path) -> dict[str, Encoder]:
    """Return the encoders of a run or a saved model by section; the item tables of a sequential model are one."""
    model = model_of(folder)
    if isinstance(model, SequentialRecommender):
        encoder = ItemTableEncoder(model.settings)
        encoder.recommender_, encoder.catalogue_ = model, model.catalogue_
        return {"encoder": encoder}
    parts = model.parts_ if model is not None else {"encoder": load_stage(folder, "encoder")}
    return {name: part for name, part in parts.items() if isinstance(part, Encoder)}


def encoder_of(folder: Path) -> Encoder:
    """Return the first encoder of a run or a saved model."""
    found = encoders_of(folder)
    if not found:
        raise InputError(f"{folder}: there are no item embeddings; use a run of 'resid encode', resid or bert4rec.")
    return next(iter(found.values()))


def embeddings_of(folder: Path, data: Dataset, ids: SemanticIds) -> ItemEmbeddings | None:
    """Return the embeddings that the IDs of a run were made from; None if it does not have them."""
    encoders = encoders_of(folder).values()
    vectors = (each.embed(data) for each in encoders if each.catalogue_.fingerprint == data.fingerprint)
    return next((each for each in vectors if are_of(ids, each)), None)


def evaluation_of(folder: Path, split: str = "test") -> dict[str, Any]:
    """Return the metrics that `resid evaluate` wrote to a run."""
    found = read_metrics(folder, split)
    if "recall@10" not in found["seen_kept"]:
        raise InputError(f"{folder}: its evaluation has no Recall@10; run 'resid evaluate' with --cutoffs 10.")
    return found
