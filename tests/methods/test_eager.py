"""EAGER from tables to recommendations: every stage, other generators, interruptions, and input that it refuses."""

import os
import signal

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError
from resid.data import synthetic_shop
from resid.encode import DINEncoder
from resid.generate import PairedGenerators, TwoStreamGenerator
from resid.runs import Run
from resid.train.loop import _Training

NETWORK = {"width": 16, "ffn_width": 32, "layers": 1, "heads": 2, "epochs": 1, "batch_size": 64}
SMALL = {
    "behavior_encoder.epochs": 1,
    "behavior_encoder.width": 8,
    "behavior_encoder.mlp_widths": (8,),
    "behavior_encoder.attention_widths": (4,),
    "behavior_encoder.n_negatives": 4,
    **{f"generator.{name}": value for name, value in NETWORK.items()},
}


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=60, items=30, interactions=500, seed=0)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


@pytest.fixture(scope="module")
def changes(data, tmp_path_factory):
    """Return small settings, with text vectors from a file."""
    path = tmp_path_factory.mktemp("text") / "vectors.parquet"
    vectors = np.random.default_rng(0).normal(size=(data.n_items, 6)).astype(np.float32)
    pl.DataFrame(
        {"item": data.item_ids, "vector": pl.Series(vectors.tolist(), dtype=pl.List(pl.Float32))}
    ).write_parquet(path)
    return {**SMALL, "text_encoder.vectors": str(path)}


def test_fit_save_and_load(data, changes, tmp_path):
    model = resid.fit(data, "eager", tmp_path / "run", changes=changes)
    assert isinstance(model, TwoStreamGenerator)
    assert model.semantic_ids.columns == ["item", "behavior_c1", "behavior_c2", "semantic_c1", "semantic_c2"]
    assert isinstance(model.parts_["behavior_encoder"], DINEncoder)
    history = data.item_ids[:3].to_list()
    items, scores = model.recommend([history], 10)
    again = resid.load(tmp_path / "run")
    assert set(again.parts_) == {"behavior_encoder", "text_encoder", "behavior_quantizer", "semantic_quantizer"}
    found, values = again.recommend([history], 10)
    assert found.tolist() == items.tolist()
    assert values.tobytes() == scores.tobytes()
    text = again.parts_["text_encoder"].embed(data).vectors
    unit = text / np.linalg.norm(text, axis=1, keepdims=True)
    codes = again.parts_["semantic_quantizer"].transform(unit)
    assert np.array_equal(codes, again.semantic_ids_.codes)  # made of normalized vectors


@pytest.mark.parametrize("last_step", [1, 3, 8])
def test_an_interrupted_run_continues(data, changes, tmp_path, monkeypatch, last_step):
    """In the encoder, between the stages, and in the generator."""
    longer = {**changes, "behavior_encoder.epochs": 2, "generator.epochs": 2}
    whole = resid.fit(data, "eager", changes=longer)
    steps, step = [], _Training._step

    def counted(training, batch):
        steps.append(1)
        if len(steps) == last_step:
            os.kill(os.getpid(), signal.SIGINT)
        return step(training, batch)

    with monkeypatch.context() as patch:
        patch.setattr(_Training, "_step", counted)
        with pytest.raises(KeyboardInterrupt):
            resid.fit(data, "eager", tmp_path, changes=longer)
        model = resid.fit(data, "eager", tmp_path, changes=longer)
    weights = zip(model.model_.state_dict().items(), whole.model_.state_dict().values(), strict=True)
    assert all(ours.equal(theirs) for (_, ours), theirs in weights)


@pytest.mark.parametrize("kind", ["onepass", "t5"])
def test_another_generator(data, changes, kind, tmp_path):
    """One generator per stream is fitted, and both rank together."""
    model = resid.fit(data, "eager", tmp_path, changes={**changes, "generator.kind": kind})
    assert isinstance(model, PairedGenerators)
    assert [generator.kind for generator in model.generators] == [kind, kind]
    history = data.item_ids[:3].to_list()
    assert resid.load(tmp_path).recommend(history, 5)[0].tolist() == model.recommend(history, 5)[0].tolist()


def test_another_behavior_encoder(data, changes):
    own = {name: value for name, value in changes.items() if not name.startswith("behavior_encoder")}
    more = {f"behavior_encoder.{name}": NETWORK[name] for name in ("width", "ffn_width", "layers", "heads", "epochs")}
    model = resid.fit(data, "eager", changes={**own, "behavior_encoder.kind": "sasrec", **more})
    assert model.parts_["behavior_encoder"].kind == "sasrec"


def test_refused(data, changes, monkeypatch):
    """Before anything is fitted."""
    monkeypatch.delattr(Run, "stage")
    own = {name: value for name, value in changes.items() if not name.startswith("generator")}
    with pytest.raises(
        InputError, match="EAGER ranks items by their codes, and 'joint' by more; use two-streams, t5 or"
    ):
        resid.fit(data, "eager", changes={**own, "generator.kind": "joint"})
    with pytest.raises(
        InputError, match="'etegrec' trains the quantizer of its IDs, and EAGER has two; use two-streams"
    ):
        resid.fit(data, "eager", changes={**own, "generator.kind": "etegrec"})
    with pytest.raises(InputError, match="use the recipe 'eager'"):
        resid.fit(data, "eager", changes={**own, "generator.kind": "paired"})
