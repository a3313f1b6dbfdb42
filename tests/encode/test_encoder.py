"""Encoders: the contract of all of them; what FAMAE learns, its metrics, saving, and input that it refuses."""

import dataclasses
import os
import signal

import numpy as np
import polars as pl
import pytest
import torch

from resid import Dataset, InputError, Recipe
from resid.core.runtime import Runtime
from resid.data import synthetic_shop
from resid.encode import (
    FAMAE,
    BERT4RecEncoder,
    FamaeModel,
    FamaeSettings,
    ItemEmbeddings,
    SASRecEncoder,
    embedding_quality,
)
from resid.encode.metrics import entropy, target_ranks
from resid.evaluate import ranking_metrics
from resid.nn import item_and_fields
from resid.quantize import GAOQ
from resid.sequential import BERT4RecSettings, SASRecSettings
from tests.encode.contract import EncoderContract

SMALL = FamaeSettings(
    width=32, ffn_width=64, epochs=20, batch_size=256, learning_rate=5e-3, patience=0, evaluate_every=1
)


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=800, items=150, interactions=8_000, seed=2)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


@pytest.fixture(scope="module")
def fitted(data):
    return FAMAE(SMALL).fit(data)


def build_model(data, settings):
    """Return the network before training."""
    torch.manual_seed(settings.seed)
    return FamaeModel(*item_and_fields(data), settings, data.settings.max_length)


class TestFAMAE(EncoderContract):
    @classmethod
    def make(cls):
        return FAMAE(SMALL.replace(epochs=2))

    embeds_new_items = True


class TestSASRecEncoder(EncoderContract):
    @classmethod
    def make(cls):
        return SASRecEncoder(SASRecSettings(width=16, heads=2, ffn_width=32, layers=1, epochs=2, use_fields=True))


class TestBERT4RecEncoder(EncoderContract):
    @classmethod
    def make(cls):
        return BERT4RecEncoder(BERT4RecSettings(width=16, heads=2, ffn_width=32, layers=1, epochs=2))


@pytest.mark.parametrize("use_fields", [False, True])
@pytest.mark.parametrize(
    ("cls", "settings"),
    [(SASRecEncoder, SASRecSettings), (BERT4RecEncoder, BERT4RecSettings)],
    ids=["sasrec", "bert4rec"],
)
def test_item_tables_of_a_sequential_model(data, cls, settings, use_fields):
    """The embedding of an item consists of its rows in the input tables, and a quantizer takes it."""
    encoder = cls(settings(width=32, heads=2, ffn_width=32, layers=1, epochs=1, use_fields=use_fields)).fit(data)
    embeddings, tables = encoder.embed(data), encoder.recommender_.model_.tables
    names = ["item", *data.field_names] if use_fields else ["item"]
    assert list(embeddings.columns) == names
    assert embeddings.vectors.shape == (data.n_items, 32 * len(names))
    assert np.array_equal(embeddings.part("item"), tables[0].weight.detach().numpy())
    if use_fields:
        assert np.array_equal(embeddings.part("store"), tables[1].weight.detach().numpy()[data.fields[:, 0]])
    assert len(GAOQ((2, 3), random_state=0).fit(embeddings.vectors).codes_) == data.n_items


class TestLearning:
    def test_it_beats_popularity(self, data, fitted):
        counts = np.bincount(data.train.targets, minlength=data.n_items)
        popular = np.isin(data.test.targets, np.argsort(-counts)[:10]).mean()
        found = fitted.metrics(data, "test")
        assert found["metric1"]["recall@10"] > 1.3 * popular
        assert found["metric2"]["recall@10"] > found["metric1"]["recall@10"]

    def test_metrics_rise_and_the_bound_stays_below_the_entropies(self, data, fitted):
        first, last = fitted.history_[0], fitted.history_[-1]
        assert last["metric1.ndcg@10"] > first["metric1.ndcg@10"]
        assert last["bound"] > first["bound"]
        assert last["bound"] == pytest.approx(0.6 * sum(v for k, v in last.items() if k.startswith("bound_fields.")))
        assert last["norms.store"] > 0
        before = embedding_quality(build_model(data, SMALL), data.validation)
        after = fitted.metrics(data, "validation")
        assert after["bound"] > before["bound"]
        values = np.concatenate([np.arange(data.n_items)[:, None], data.fields], axis=1)[data.validation.targets]
        limit = sum(entropy(values[:, field]) for field in range(5)) * 6 / 10
        assert 0 < after["bound"] <= limit


def test_two_runs_are_the_same_bit_for_bit(data):
    settings = SMALL.replace(width=64, epochs=1)
    first, second = (FAMAE(settings).fit(data).embed(data).vectors for _ in range(2))
    assert np.array_equal(first, second)


def slow_ranks(model, data, visible, all_fields=False, count=40):
    """The ranks of the first test targets, one window at a time, with the fields of `visible` shown."""
    ranks = []
    masked = torch.tensor([[name not in visible for name in model.field_names]])
    for index in range(count):
        history, target = data.test.window(index)
        with torch.no_grad():
            hidden = model.hidden(torch.from_numpy(history.astype(np.int64))[None], model.codes[[target]], masked)
        scores = sum(
            torch.nn.functional.cosine_similarity(hidden, table.weight)[model.codes[:, field]]
            for field, table in enumerate(model.embeddings()[: None if all_fields else 1])
        )
        ranks.append(int((scores > scores[target] + 1e-7).sum()))
    return np.array(ranks)


def first(split, count):
    return dataclasses.replace(split, begin=split.begin[:count], end=split.end[:count], users=split.users[:count])


class TestQuality:
    def test_ranks_equal_a_slow_reference(self, data, fitted):
        model = fitted.model_
        found = embedding_quality(model, first(data.test, 40), cutoffs=(1, 3, 10))
        for metric, visible, all_fields in (
            ("metric1", (), False),
            ("metric1_all_fields", (), True),
            ("metric2", data.field_names, False),
        ):
            ranks = slow_ranks(model, data, visible, all_fields)
            for k in (1, 3, 10):
                assert found[metric][f"recall@{k}"] == pytest.approx(np.mean(ranks < k))

    def test_ties_go_to_the_first(self):
        candidates = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
        hidden = torch.tensor([[1.0, 0.0]]).expand(3, -1)
        assert target_ranks(hidden, torch.arange(3), candidates).tolist() == [0, 1, 2]

    def test_metrics_by_hand(self):
        found = ranking_metrics(torch.tensor([0, 3, 9, 10]), (5, 10))
        assert found["recall@5"] == 0.5
        assert found["recall@10"] == 0.75
        assert found["ndcg@10"] == pytest.approx((1 + 1 / np.log2(5) + 1 / np.log2(11)) / 4)

    def test_the_bound_where_the_truth_is_known(self, log, items):
        """A model that knows nothing: all values are equally likely, L_k is the log of the vocabulary size, and I = H − L."""
        data = Dataset.from_tables(log, items, ["store"], missing="keep")
        settings = SMALL.replace(field_weights=(1.0, 3.0))
        model = build_model(data, settings)
        with torch.no_grad():
            for table in model.tables:
                table.weight[:] = table.weight[0]  # every value looks the same
        found = embedding_quality(model, data.validation)
        expected = {
            "item": entropy(data.validation.targets) - np.log(data.n_items),
            "store": entropy(data.fields[data.validation.targets, 0]) - np.log(data.field_sizes[0]),
        }
        assert found["bound_fields"] == pytest.approx(expected, abs=1e-5)
        assert found["bound"] == pytest.approx(0.75 * (expected["item"] + 3 * expected["store"]), abs=1e-5)

    def test_the_bound_is_exact_for_a_field_that_another_determines(self, log, items):
        """Of two equivalent fields, the visible one determines the other: I(h; f) = H(f)."""
        twins = items.with_columns(first=pl.Series(list("ababab")), second=pl.Series(list("xyxyxy")))
        data = Dataset.from_tables(pl.concat([log] * 3), twins, ["first", "second"], k_core=1)
        settings = SMALL.replace(width=64, epochs=60, batch_size=32, dropout=0.0, field_weights=(0, 0, 1))
        model = FAMAE(settings).fit(data).model_
        model.draw_masks = lambda count, rng: torch.tensor([True, False, True]).expand(count, -1)
        truth = entropy(data.fields[data.train.targets, 1])
        # Nearly: a scaled cosine never gives a probability of one.
        assert embedding_quality(model, data.train)["bound_fields"]["second"] == pytest.approx(truth, abs=0.01)


class TestEmbeddings:
    def test_the_parts_are_the_tables(self, data, fitted, tmp_path):
        embeddings = fitted.embed(data)
        assert embeddings.vectors.shape == (data.n_items, 5 * 32)
        stores = fitted.model_.tables[1].weight.detach().numpy()
        assert np.array_equal(embeddings.part("store"), stores[data.fields[:, 0]])
        embeddings.save(tmp_path / "embeddings")
        loaded = ItemEmbeddings.load(tmp_path / "embeddings")
        assert np.array_equal(loaded.vectors, embeddings.vectors)
        assert loaded.columns == embeddings.columns
        assert loaded.fingerprint == data.fingerprint

    def test_normalized_parts_have_length_one(self, data, fitted):
        part = fitted.embed(data, normalize=True).part("cat2")
        assert np.linalg.norm(part, axis=1) == pytest.approx(np.ones(data.n_items), abs=1e-5)

    def test_no_embeddings(self, tmp_path):
        with pytest.raises(InputError, match="there are no valid item embeddings here"):
            ItemEmbeddings.load(tmp_path)


class TestUnseenItems:
    """Values that training never saw are predicted from the other fields."""

    @pytest.fixture(scope="class")
    @classmethod
    def parts(cls):
        log = pl.DataFrame(
            [(f"u{user}", f"i{(user + step) % 5}", step) for user in range(12) for step in range(5)]
            + [("u0", "late", 99), ("u1", "late too", 99)],
            schema=["user", "item", "timestamp"],
            orient="row",
        )
        items = pl.DataFrame(
            {"item": [*(f"i{n}" for n in range(5)), "late", "late too"], "store": [*"aabbc", "b", "nobody else's"]}
        )
        data = Dataset.from_tables(log, items, ["store"], k_core=1)
        return data, FAMAE(SMALL.replace(epochs=2)).fit(data)

    def test_in_the_dataset(self, parts):
        data, encoder = parts
        late, too = data.item_indices(["late", "late too"])
        assert np.flatnonzero(~data.train.occurring_items).tolist() == sorted([late, too])
        found, model = encoder.embed(data), encoder.model_.eval()
        seen = data.item_indices(["i0", "i1", "i2", "i3", "i4"])
        table = model.tables[0].weight.detach().numpy()
        assert np.array_equal(found.part("item")[seen], table[seen])
        nothing = torch.empty(1, 0, dtype=torch.int64)
        with torch.no_grad():
            hidden = model.hidden(nothing, model.codes[[late]], torch.tensor([[True, False]]))[0].numpy()
        length = np.linalg.norm(table[seen], axis=1).mean()
        assert found.part("item")[late] == pytest.approx(hidden / np.linalg.norm(hidden) * length, abs=1e-5)
        assert np.array_equal(found.part("store")[late], found.part("store")[data.item_indices(["i2"])[0]])
        directions = [part[too] / np.linalg.norm(part[too]) for part in (found.part("item"), found.part("store"))]
        assert directions[0] == pytest.approx(directions[1], abs=1e-5)  # neither the item nor its store was seen

    def test_not_in_the_dataset(self, parts):
        data, encoder = parts
        table = pl.DataFrame({"item": ["new", "newer"], "store": ["b", "a store of its own"]})
        ids, vectors = encoder.embed_new(table)
        assert ids.to_list() == ["new", "newer"]
        late = data.item_indices(["late"])[0]
        assert vectors[0] == pytest.approx(encoder.embed(data).vectors[late], abs=1e-6)  # the same fields
        assert np.isfinite(vectors).all()
        assert not np.allclose(vectors[0], vectors[1])
        unit = encoder.embed_new(table, normalize=True)[1].reshape(2, 2, -1)
        assert np.linalg.norm(unit, axis=2) == pytest.approx(np.ones((2, 2)), abs=1e-5)

    def test_a_table_without_the_fields(self, parts):
        _, encoder = parts
        with pytest.raises(InputError, match=r"the items table.*'store'"):
            encoder.embed_new(pl.DataFrame({"item": ["new"]}))


class TestSaving:
    def test_round_trip(self, data, fitted, tmp_path):
        fitted.save(tmp_path)
        loaded = FAMAE.load(tmp_path)
        assert np.array_equal(loaded.embed(data).vectors, fitted.embed(data).vectors)
        assert loaded.settings == fitted.settings

    def test_another_dataset_is_refused(self, data, fitted, shop, tmp_path):
        fitted.save(tmp_path)
        other = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
        with pytest.raises(InputError, match=r"there is no model here, manifest.json is missing"):
            FAMAE.load(tmp_path / "nothing")
        with pytest.raises(InputError, match="fitted to another Dataset"):
            FAMAE.load(tmp_path).embed(other)
        with pytest.raises(InputError, match="fitted to another Dataset"):
            FAMAE.load(tmp_path).metrics(other)
        with pytest.raises(InputError, match="fitted to another Dataset"):
            fitted.embed(other)


def test_an_interrupted_run_ends_with_the_same_vectors(shop, tmp_path, monkeypatch):
    """With sampled negatives, hence sparse tables, in one pass, in windows, and with random masks."""
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
    windows = {"attention": "bidirectional"}
    for masking, form in (("last", {}), ("last", windows), ("random", windows)):
        settings = SMALL.replace(epochs=2, full_softmax_limit=20, masking=masking, **form)
        whole = FAMAE(settings).fit(data).embed(data).vectors
        forward, steps = FamaeModel.forward, iter(range(100))

        def interrupt(self, batch, rng, forward=forward, steps=steps):
            if next(steps) == 5:
                os.kill(os.getpid(), signal.SIGINT)
            return forward(self, batch, rng)

        with monkeypatch.context() as patch:
            patch.setattr(FamaeModel, "forward", interrupt)
            with pytest.raises(KeyboardInterrupt):
                FAMAE(settings).fit(data, runtime=Runtime(tmp_path / f"{masking}-{len(form)}"))
        assert np.array_equal(
            FAMAE(settings).fit(data, runtime=Runtime(tmp_path / f"{masking}-{len(form)}")).embed(data).vectors, whole
        )


def test_attention(data, fitted):
    weights = fitted.attention(data, "test", np.array([4, 0, 9]))
    assert len(weights) == 2
    longest = max(len(data.test.window(index)[0]) for index in (4, 0, 9))
    assert weights[0].shape == (3, 4, longest + 1)
    assert torch.equal(weights[0], fitted.attention(data, "test", np.array([4, 0, 9]))[0])  # no dropout
    alone = fitted.attention(data, "test", np.array([0]))[1]
    torch.testing.assert_close(weights[1][1:2, :, -alone.shape[2] :], alone)


def test_invalid_settings(data):
    with pytest.raises(InputError, match="width=30 must be a multiple of heads=4"):
        FamaeSettings(width=30)
    with pytest.raises(InputError, match="invalid value -1 for 'seed'"):
        FamaeSettings(seed=-1)
    with pytest.raises(
        InputError, match=r"there is no setting 'wide' .did you mean 'width'.*; available settings: epochs"
    ):
        FamaeSettings(wide=3)
    with pytest.raises(InputError, match="field_weights has 2 values; give one for each of item, store, cat1"):
        FAMAE(FamaeSettings(field_weights=(1.0, 2.0))).fit(data)


def test_a_field_that_is_always_missing_is_refused(log, items):
    data = Dataset.from_tables(
        log, items.with_columns(empty=pl.lit(None, pl.String)), ["store", "empty"], missing="keep"
    )
    with pytest.raises(InputError, match="the field 'empty' is missing for every item"):
        FAMAE(SMALL).fit(data)


def test_a_field_with_one_value_is_reported(log, items, caplog):
    data = Dataset.from_tables(log, items.with_columns(constant=1), ["store", "constant"], missing="keep")
    encoder = FAMAE(SMALL.replace(epochs=1)).fit(data)
    assert "the field 'constant' has a single value" in caplog.text
    assert np.isfinite(encoder.embed(data).vectors).all()
    assert encoder.metrics(data)["bound_fields"]["constant"] <= 0


def test_batch_size_and_learning_rate_follow_the_data():
    sizes = {10_000: 256, 33_541: 256, 131_413: 1024, 318_445: 1024, 6_000_000: 1024}
    assert {n: FamaeSettings().batch_size_for(n) for n in sizes} == sizes
    rates = {1: 1e-3, 256: 1e-3, 512: 2e-3, 1024: 4e-3, 2048: 4e-3}
    assert {n: FamaeSettings().learning_rate_for(n) for n in rates} == pytest.approx(rates)
    paper = Recipe.read("resid-paper").part("encoder").settings
    assert (paper.batch_size_for(10), paper.n_negatives, paper.epochs, paper.patience) == (2048, 128, 500, 3)
    assert (paper.learning_rate_for(2048), paper.warmup_steps, paper.attention) == (1e-3, 0, "bidirectional")
