"""Export to Parquet: IDs, item vectors and catalogue, for systems that read tables."""

from pathlib import Path

import polars as pl

from resid.core.errors import InputError
from resid.recommend.base import Recommender

_FILES = {
    "items.parquet": "the catalogue: the item id, its fields and kept columns, and how often training saw the item",
    "ids.parquet": "the semantic ID of every item: item, c1, c2 and so on",
    "vectors.parquet": "the vector of every item: item, vector; those of the encoder, or else the model's own",
}


def write_parquet(model: Recommender, folder: Path) -> str:
    """Write the tables to a folder that exists; return what the model card says about their use."""
    ids = model.catalogue_.item_ids
    tables = {
        "items.parquet": model.catalogue_.items.with_columns(pl.Series("training_count", model.catalogue_.counts))
    }
    if model.ids_ is not None:
        tables["ids.parquet"] = model.semantic_ids
    try:
        vectors = model.item_vectors()
    except InputError:  # the model has none, and the card says so
        vectors = None
    if vectors is not None:
        type_ = pl.Array(pl.Float32, vectors.shape[1])
        tables["vectors.parquet"] = pl.DataFrame({"item": ids, "vector": pl.Series(vectors, dtype=type_)})
    for name, table in tables.items():
        table.write_parquet(folder / name)
    lines = [f"- `{name}`: {text}" for name, text in _FILES.items() if name in tables]
    lines += [f"- no `{name}`: the model has none" for name in _FILES if name not in tables]
    return "\n".join(lines) + "\n"
