"""Evaluated runs of tiny parts that differ in their IDs, and what reads the files of an analysis."""

import polars as pl
import pytest

from resid import Dataset, fit
from resid.evaluate import evaluate
from resid.runs import write_evaluation

TINY = {"encoder.width": 8, "encoder.ffn_width": 8, "encoder.epochs": 1, "generator.width": 8, "generator.ffn_width": 8}
TINY |= {"generator.epochs": 1, "generator.layers": 1, "encoder.layers": 1, "encoder.batch_size": 256}
BRANCHINGS = {"a": (2, 3), "b": (3, 3), "c": (4, 4), "d": (8, 4)}


@pytest.fixture(scope="session")
def tiny_data(shop, tmp_path_factory):
    folder = tmp_path_factory.mktemp("analyse") / "shop"
    Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"]).save(folder)
    return folder


@pytest.fixture(scope="session")
def runs(tiny_data, tmp_path_factory):
    """Four runs that differ in their branching only, so that they have the same generator."""
    place, data = tmp_path_factory.mktemp("runs"), Dataset.load(tiny_data)
    for name, branching in BRANCHINGS.items():
        model = fit(data, "resid-codes", place / name, changes=TINY | {"quantizer.branching": branching})
        evaluation = evaluate(model, data)
        write_evaluation(place / name, "test", evaluation.metrics(), evaluation.table())
    return [place / name for name in BRANCHINGS]


@pytest.fixture(scope="session")
def sasrec(tiny_data, tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs") / "sasrec"
    tiny = {f"recommender.{name}": value for name, value in {"width": 8, "ffn_width": 8, "epochs": 1}.items()}
    fit(tiny_data, "sasrec-fields", folder, changes=tiny)
    return folder


def read(folder, name):
    """Return the table of an analysis, after a look at its figure."""
    assert (folder / f"{name}.png").read_bytes().startswith(b"\x89PNG")
    assert "<svg" in (folder / f"{name}.svg").read_text()
    return pl.read_csv(folder / f"{name}.csv")
