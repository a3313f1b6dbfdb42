"""The recipe `letter` on a small shop: every generator, saved and loaded, interrupted, and input that is refused."""

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError
from resid.data.synthetic import synthetic_shop
from resid.quantize import LETTER
from resid.runs import Run
from tests.recommend.contract import interrupt_after


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=120, items=40, interactions=1_000, seed=2)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


@pytest.fixture(scope="module")
def quick(data, tmp_path_factory):
    """Settings with which the recipe is fitted in seconds; two pairs of items have the same text vector."""
    vectors = np.random.default_rng(0).normal(size=(data.n_items, 12)).astype(np.float32)
    vectors[[1, 3]] = vectors[[0, 2]]
    path = tmp_path_factory.mktemp("text") / "vectors.parquet"
    pl.DataFrame({"item": data.item_ids, "vector": vectors}).write_parquet(path)
    return {
        "text_encoder.vectors": str(path),
        "collaborative_encoder.epochs": 1,
        "quantizer.hidden_layer_sizes": [16],
        "quantizer.n_levels": 3,
        "quantizer.epochs": 4,
        "quantizer.evaluate_every": 2,
        "generator.epochs": 1,
    }


GENERATORS = {
    "t5": {"generator.layers": 1, "generator.width": 32, "generator.ffn_width": 32, "generator.temperature": 0.8},
    "onepass": {"generator.kind": "onepass", "generator.temperature": 0.8},
    "codes": {
        "generator.kind": "onepass",
        "generator.input_embeddings": False,
        "generator.output_embeddings": False,
        "generator.learned_item_embeddings": False,
    },
    "joint": {"generator.kind": "joint"},
}


@pytest.mark.parametrize("generator", GENERATORS)
def test_every_generator(generator, data, quick, tmp_path):
    model = resid.fit(data, "letter", changes={**quick, **GENERATORS[generator]})
    quantizer = model.parts_["quantizer"]
    assert isinstance(quantizer, LETTER)
    assert "collaborative" in quantizer.history_[-1]
    assert np.array_equal(model.ids_.codes, quantizer.codes_)
    histories = [data.item_ids[:3].to_list(), data.item_ids[5:7].to_list()]
    items, scores = model.recommend(histories, data.n_items)
    assert all(set(row) == set(data.item_ids) for row in items.tolist())  # shared IDs hide no item
    model.save(tmp_path / "model")
    loaded = resid.load(tmp_path / "model")
    again, values = loaded.recommend(histories, data.n_items)
    assert np.array_equal(again, items)
    assert np.array_equal(values, scores)
    # A new item needs no collaborative vector.
    new = np.random.default_rng(9).normal(size=(2, 12)).astype(np.float32)
    assert loaded.parts_["quantizer"].new_ids(new).shape == (2, 3)


@pytest.mark.parametrize("step", [3, 9, 12])
def test_an_interrupted_run_continues(step, data, quick, tmp_path, monkeypatch):
    """Interrupted in the collaborative encoder, the tokenizer, and the generator."""
    changes = {**quick, **GENERATORS["onepass"], "collaborative_encoder.batch_size": 128, "quantizer.batch_size": 16}
    histories = [data.item_ids[:3].to_list()]
    whole = resid.fit(data, "letter", changes=changes)
    interrupt_after(step, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        resid.fit(data, "letter", changes=changes, folder=tmp_path / "run")
    monkeypatch.undo()
    model = resid.fit(data, "letter", changes=changes, folder=tmp_path / "run")
    for ours, theirs in zip(whole.recommend(histories, 10), model.recommend(histories, 10), strict=True):
        assert np.array_equal(ours, theirs)
    assert np.array_equal(model.parts_["quantizer"].codes_, whole.parts_["quantizer"].codes_)


def test_another_quantizer(data, quick):
    changes = {name: value for name, value in quick.items() if not name.startswith("quantizer")}
    with pytest.raises(
        InputError, match="needs a quantizer that reads collaborative vectors, such as 'letter', not 'gaoq'"
    ):
        resid.fit(data, "letter", changes={**changes, "quantizer.kind": "gaoq"})


def test_a_generator_that_trains_another_quantizer(data, quick, monkeypatch):
    """Refused before anything is fitted."""
    monkeypatch.delattr(Run, "stage")
    with pytest.raises(InputError, match="'etegrec' trains an RQ-VAE further and cannot use the quantizer 'letter'"):
        resid.fit(data, "letter", changes={**quick, "generator.kind": "etegrec"})


def test_widths_that_differ(data, quick):
    with pytest.raises(InputError, match="collaborative has 16 dimensions and latent_dim=32: they must be equal"):
        resid.fit(data, "letter", changes={**quick, "collaborative_encoder.width": 16})
