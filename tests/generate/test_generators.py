"""The generators as a user meets them: they learn, they continue, and what they rank is right."""

import numpy as np
import pytest
import torch

from resid import InputError
from resid.data import PADDING
from resid.evaluate import ranking_metrics
from resid.generate import OnePassGenerator, OnePassSettings, T5Generator, T5Settings
from resid.quantize import GAOQ, SemanticIds
from resid.train import TrainingError
from tests.recommend.contract import RecommenderContract, interrupt_after, walks

SMALL = {"width": 32, "hidden": 64, "layers": 2, "heads": 2, "dropout": 0.0, "batch_size": 16, "seed": 1}
KINDS = {
    "onepass": lambda **more: OnePassGenerator(
        OnePassSettings(**{**SMALL, "smoothing": 0.0, "forget": 0.0, "learning_rate": 3e-3, **more})
    ),
    "t5": lambda **more: T5Generator(
        T5Settings(**{**SMALL, "head_width": 16, "warmup_steps": 10, "learning_rate": 3e-3, **more})
    ),
}


@pytest.fixture(scope="module")
def data():
    return walks()


@pytest.fixture(scope="module")
def vectors(data):
    return np.random.default_rng(0).normal(size=(data.n_items, 12)).astype(np.float32)


@pytest.fixture(scope="module")
def ids(vectors):
    return GAOQ((2, 3), random_state=0).fit(vectors).semantic_ids_


@pytest.mark.parametrize("kind", KINDS)
class TestGenerators:
    @pytest.mark.parametrize("read_vectors", [False, True])
    def test_it_learns_what_comes_next(self, kind, read_vectors, data, ids, vectors):
        model = KINDS[kind](epochs=30, read_vectors=read_vectors, patience=0).fit(data, ids, vectors)
        trained = data.test.end - data.test.begin <= 8  # no training history is longer
        metrics = ranking_metrics(model.ranks(data.test)[0][trained])
        assert metrics["recall@5"] == 1
        assert metrics["ndcg@5"] > 0.95
        evaluated = {record["epoch"]: record["ndcg@10"] for record in model.history_ if "ndcg@10" in record}
        assert evaluated[model.best_epoch_] == max(evaluated.values())

    def test_it_continues(self, kind, data, ids, vectors, tmp_path, monkeypatch):
        settings = {"epochs": 3, "patience": 0, "dropout": 0.2}
        whole = KINDS[kind](**settings).fit(data, ids, vectors)
        for stops in (2, 20):
            steps = interrupt_after(stops, monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                KINDS[kind](**settings).fit(data, ids, vectors, tmp_path)
            assert len(steps) == stops
            monkeypatch.undo()
        for _ in range(2):  # the second time it is finished already
            parts = KINDS[kind](**settings).fit(data, ids, vectors, tmp_path)
            for ours, theirs in zip(whole.model_.parameters(), parts.model_.parameters(), strict=True):
                assert torch.equal(ours, theirs)
            assert [r["loss"] for r in whole.history_] == [r["loss"] for r in parts.history_]
        with pytest.raises(InputError, match="a run of another configuration, 'width' was 32 and is 16"):
            KINDS[kind](**settings, width=16, heads=1).fit(data, ids, vectors, tmp_path)

    def test_recommendations(self, kind, data, ids, vectors):
        model = KINDS[kind](epochs=1).fit(data, ids, vectors)
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        items, scores = model.top(histories, 5)
        assert items.shape == scores.shape == (2, 5)
        assert (np.diff(scores, axis=1) <= 0).all()
        everything, _ = model.top(histories, 12)
        assert (np.sort(everything, axis=1) == np.arange(12)).all()
        more, values = model.top(histories, 15)  # than there are
        assert (more[:, 12:] == -1).all()
        assert np.isneginf(values[:, 12:]).all()
        assert (np.exp(values[:, :12].astype(float)).sum(axis=1) <= 1 + 1e-5).all()  # the rest are IDs that no item has

    def test_what_may_not_be_recommended(self, kind, data, ids, vectors):
        model = KINDS[kind](epochs=1, beam=1).fit(data, ids, vectors)
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        items, scores = model.top(histories, 12)
        fresh, values = model.top(histories, 9, exclude_seen=True)
        for row, (user, seen) in enumerate(zip(items.tolist(), ([3, 4], [5, 6, 7]), strict=True)):
            assert fresh[row].tolist() == [item for item in user if item not in seen][:9]
        assert (values[:, 0] <= scores[:, 0]).all()
        allowed = np.isin(np.arange(12), [0, 2, 9])
        some, _ = model.top(histories, 4, allowed=allowed)
        for row in range(2):
            assert some[row].tolist() == [item for item in items[row] if item in (0, 2, 9)] + [-1]
        for bad in (np.zeros(12, dtype=bool), np.ones(3, dtype=bool)):
            with pytest.raises(InputError, match="allowed must say for each of 12 items"):
                model.top(histories, 3, allowed=bad)

    def test_ids_of_another_catalogue(self, kind, data, ids):
        with pytest.raises(InputError, match="5 IDs and 12 items"):
            KINDS[kind]().fit(data, SemanticIds(ids.codes[:5], ids.sizes))
        with pytest.raises(InputError, match="item 0 is i9 there and i0 in the Dataset"):
            KINDS[kind]().fit(data, ids.named(data.item_ids.reverse()))

    def test_vectors_that_are_none(self, kind, data, ids, vectors):
        model, nothing = KINDS[kind](read_vectors=True), vectors.copy()
        nothing[3, 1] = np.nan
        for wrong in (vectors[:7], np.concatenate([vectors, vectors]), vectors[0], vectors.astype(int)):
            with pytest.raises(InputError, match="the vectors must be a matrix of decimals with a row for each of 12"):
                model.fit(data, ids, wrong)
        with pytest.raises(InputError, match="the vector of item 3 has a value that is no number"):
            model.fit(data, ids, nothing)


class _GeneratorContract(RecommenderContract):
    kind = ""

    @classmethod
    def make(cls, data):
        vectors = np.random.default_rng(0).normal(size=(data.n_items, 12)).astype(np.float32)
        ids = GAOQ((2, 3), random_state=0).fit(vectors).semantic_ids_
        return KINDS[cls.kind](epochs=1, beam=4).fit(data, ids, vectors)

    def test_exact_scores_are_those_of_the_widest_beam(self, model):
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        wide, scores = model.top(histories, 12, beam=12)
        exact, values = model.top(histories, 12, exact=True)
        assert exact.tolist() == wide.tolist()
        assert values == pytest.approx(scores, abs=1e-5)

    def test_a_beam_of_no_width(self, model):
        for beam in (0, "wide", 2.5, True):
            with pytest.raises(InputError, match="beam must be a whole number from 1"):
                model.recommend([["i1"]], 3, beam=beam)

    def test_free_beams_and_their_share_of_nothing(self, model):
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        free, _ = model.top(histories, 12, beam=12, constrained=False)
        valid, _ = model.top(histories, 12)
        assert all(
            [item for item in row if item >= 0] == [i for i in all_ if i in row]
            for row, all_ in zip(free.tolist(), valid.tolist(), strict=True)
        )

    def test_semantic_ids(self, model, data):
        assert model.semantic_ids.columns == ["item", "c1", "c2", "c3"]
        assert model.semantic_ids["item"].to_list() == data.item_ids.to_list()


class TestOnePassContract(_GeneratorContract):
    kind = "onepass"


class TestT5Contract(_GeneratorContract):
    kind = "t5"


@pytest.mark.parametrize(("read", "write"), [(False, True), (True, False), (False, False)])
def test_vectors_are_read_and_written_or_not(read, write, data, ids, vectors):
    model = KINDS["onepass"](epochs=1, read_vectors=read, write_vectors=write).fit(data, ids, vectors)
    assert (model.model_.project is not None) == read
    assert (model.model_.decoders[0].ask is not None) == write
    assert (model.model_.vectors is not None) == (read or write)


@pytest.mark.parametrize("kind", KINDS)
def test_the_share_of_ids_that_no_item_has(kind, data):
    codes = np.array([[item % 3, item % 2, item % 4] for item in range(12)])
    model = KINDS[kind](epochs=1, beam=24).fit(data, SemanticIds(codes))  # as many beams as there are combinations
    assert model.invalid_share(np.array([[PADDING, 3, 4], [5, 6, 7]])) == pytest.approx(1 - 12 / 24)


def test_items_of_one_id_come_by_popularity(data):
    codes = np.zeros((12, 2), dtype=np.int32)
    codes[6:, 1] = 1
    model = KINDS["onepass"](epochs=1).fit(data, SemanticIds(codes))
    items, scores = model.top(np.array([[3, 4]]), 12)
    for half in (items[0, :6], items[0, 6:]):
        assert (np.diff(data.training_counts[half]) <= 0).all()
    assert len(set(scores[0].tolist())) == 2


def test_a_fit_that_failed_does_not_count(data, ids):
    model = KINDS["onepass"](epochs=2, learning_rate=1e30)
    with pytest.raises(TrainingError):
        model.fit(data, ids)
    for ask in (lambda: model.recommend(["i1"]), lambda: model.save("nowhere")):
        with pytest.raises(InputError, match="not fitted yet"):
            ask()
