"""TIGER and the five ablations of ReSID: every recipe from tables to recommendations, with either generator."""

import numpy as np
import polars as pl
import pytest

import resid
from resid import Dataset, InputError, Recipe
from resid.data import synthetic_shop
from resid.quantize import GAOQ, HierarchicalKMeans
from resid.runs import Run

SMALL = {"width": 16, "heads": 2, "ffn_width": 16, "layers": 1, "epochs": 1}
ENCODERS = {"famae": SMALL, "sasrec": SMALL, "bert4rec": SMALL, "text": {"columns": ("title",)}}
QUANTIZERS = {"rq-vae": {"epochs": 4, "evaluate_every": 2, "hidden_layer_sizes": (16,), "latent_dim": 4}}
RECIPES = {
    "tiger": ("text", "rq-vae", "t5"),
    "resid-e1": ("text", "gaoq", "onepass"),
    "resid-e2": ("sasrec", "gaoq", "onepass"),
    "resid-e3": ("bert4rec", "gaoq", "onepass"),
    "resid-q1": ("famae", "rq-vae", "onepass"),
    "resid-q2": ("famae", "hierarchical", "onepass"),
}


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=60, items=40, interactions=700, seed=5)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


def small(recipe, generator=None, **settings):
    """Return the changes of a recipe that make it train within a second."""
    encoder, quantizer, own = RECIPES[recipe]
    values = {"encoder": ENCODERS[encoder], "quantizer": QUANTIZERS.get(quantizer, {})}
    values["generator"] = {**SMALL, "beam_size": 8, **settings}
    changes = {f"{section}.{name}": value for section, each in values.items() for name, value in each.items()}
    return changes | {"generator.kind": generator or own}


@pytest.mark.parametrize("name", RECIPES)
def test_from_tables_to_recommendations(name, data, tmp_path):
    """A recipe is fitted, saved and loaded; the loaded model recommends the same, and every item can be recommended."""
    assert tuple(spec.kind for spec in Recipe.read(name).parts.values()) == RECIPES[name]
    model = resid.fit(data, name, tmp_path / "run", changes=small(name))
    histories = [data.history(user).to_list()[:-1] for user in data.user_ids[:5]]
    items, scores = model.recommend(histories, data.n_items, exact=True)
    assert all(sorted(row) == data.item_ids.to_list() for row in items.tolist())
    model.save(tmp_path / "model")
    for loaded in (resid.load(tmp_path / "model"), resid.load(tmp_path / "run")):
        again, same = loaded.recommend(histories, data.n_items, exact=True)
        assert np.array_equal(again, items)
        assert np.array_equal(same, scores)
    assert len(np.unique(model.ids_.codes, axis=0)) == data.n_items
    assert 0 <= model.invalid_share(data.test) <= 1


@pytest.mark.parametrize("vectors", [False, True])
@pytest.mark.parametrize(("name", "generator"), [("tiger", "onepass"), ("resid-q1", "t5"), ("resid-e2", "t5")])
def test_the_generator_is_a_swap(name, generator, vectors, data):
    """Codes alone, or with the vectors of the recipe's own encoder."""
    settings = {"input_embeddings": vectors} | ({"output_embeddings": vectors} if generator == "onepass" else {})
    model = resid.fit(data, name, changes=small(name, generator, **settings))
    assert (model.model_.vectors is not None) == vectors
    assert model.recommend([data.history(data.user_ids[0]).to_list()], k=5)[0].shape == (1, 5)


def test_items_of_the_ablations_have_no_fields():
    """E2 and E3 quantize the item table alone, as in the paper."""
    for name in ("resid-e2", "resid-e3"):
        assert not Recipe.read(name).part("encoder").settings.use_fields


def test_q2_is_the_tree_of_gaoq_with_local_codes():
    vectors = np.random.default_rng(0).normal(size=(200, 16)).astype(np.float32)
    ours, local = (kind((4, 5), random_state=0).fit(vectors).codes_ for kind in (GAOQ, HierarchicalKMeans))
    for depth in (1, 2):
        _, first = np.unique(ours[:, :depth], axis=0, return_inverse=True)
        _, second = np.unique(local[:, :depth], axis=0, return_inverse=True)
        assert len(set(zip(first.ravel().tolist(), second.ravel().tolist(), strict=True))) == first.max() + 1
    assert not np.array_equal(ours[:, 1], local[:, 1])


def test_one_item():
    log = {"user": list("aaaabbbb"), "item": ["one"] * 8, "timestamp": list(range(8))}
    shop = synthetic_shop(users=60, items=40, interactions=700, seed=5)
    items = shop.item_table.head(1).with_columns(item=pl.Series(["one"]))
    data = Dataset.from_tables(pl.DataFrame(log), items, ["store"], k_core=1)
    model = resid.fit(data, "tiger", changes=small("tiger"))
    assert model.recommend([["one"]], k=1)[0].tolist() == [["one"]]


def test_codebooks_larger_than_the_catalogue(data):
    with pytest.raises(InputError, match=r"n_samples=\d+ should be >= codebook_size=256"):
        resid.fit(data, "tiger", changes=small("tiger") | {"quantizer.codebook_size": 256})


@pytest.mark.parametrize("recipe", ["resid-codes", "letter", "unger"])
def test_two_streams_of_codes_need_eager(recipe, data, monkeypatch):
    """Refused before anything is fitted."""
    monkeypatch.delattr(Run, "stage")
    with pytest.raises(InputError, match="'two-streams' generates two IDs per item and needs the method 'eager'"):
        resid.fit(data, recipe, changes={"generator.kind": "two-streams"})
