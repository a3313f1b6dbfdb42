"""Generators: training, resuming, and the correctness of rankings."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

import resid
from resid import InputError, Runtime
from resid.core.part import Part
from resid.data import PADDING
from resid.encode.item_tables import SASRecEncoder
from resid.evaluate import ranking_metrics
from resid.generate import OnePassGenerator, OnePassSettings, T5Generator, T5Settings
from resid.quantize import GAOQ, SemanticIds
from resid.sequential import SASRecSettings
from resid.train import TrainingError
from tests.recommend.contract import RecommenderContract, interrupt_after, walks

SMALL = {"width": 32, "ffn_width": 64, "layers": 2, "heads": 2, "dropout": 0.0, "batch_size": 16, "seed": 1}
KINDS = {
    "onepass": lambda **more: OnePassGenerator(
        OnePassSettings(**{**SMALL, "label_smoothing": 0.0, "item_dropout": 0.0, "learning_rate": 3e-3, **more})
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
    @pytest.mark.parametrize("input_embeddings", [False, True])
    def test_learns_the_next_item(self, kind, input_embeddings, data, ids, vectors):
        model = KINDS[kind](epochs=30, input_embeddings=input_embeddings, patience=0).fit(data, ids, vectors)
        trained = data.test.end - data.test.begin <= 8  # no training history is longer
        metrics = ranking_metrics(model.ranks(data.test)[0][trained])
        assert metrics["recall@5"] == 1
        assert metrics["ndcg@5"] > 0.95
        evaluated = {record["epoch"]: record["ndcg@10"] for record in model.history_ if "ndcg@10" in record}
        assert evaluated[model.best_epoch_] == max(evaluated.values())

    def test_resumes_exactly(self, kind, data, ids, vectors, tmp_path, monkeypatch):
        settings = {"epochs": 3, "patience": 0, "dropout": 0.2}
        whole = KINDS[kind](**settings).fit(data, ids, vectors)
        for last_step in (2, 20):
            steps = interrupt_after(last_step, monkeypatch)
            with pytest.raises(KeyboardInterrupt):
                KINDS[kind](**settings).fit(data, ids, vectors, runtime=Runtime(tmp_path))
            assert len(steps) == last_step
            monkeypatch.undo()
        for _ in range(2):  # the second time it is already finished
            parts = KINDS[kind](**settings).fit(data, ids, vectors, runtime=Runtime(tmp_path))
            for ours, theirs in zip(whole.model_.parameters(), parts.model_.parameters(), strict=True):
                assert torch.equal(ours, theirs)
            assert [r["loss"] for r in whole.history_] == [r["loss"] for r in parts.history_]
        with pytest.raises(InputError, match="this run has another configuration, 'width' was 32 and is now 16"):
            KINDS[kind](**settings, width=16, heads=1).fit(data, ids, vectors, runtime=Runtime(tmp_path))

    def test_recommendations(self, kind, data, ids, vectors):
        model = KINDS[kind](epochs=1).fit(data, ids, vectors)
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        items, scores = model.top(histories, 5)
        assert items.shape == scores.shape == (2, 5)
        assert (np.diff(scores, axis=1) <= 0).all()
        everything, _ = model.top(histories, 12)
        assert (np.sort(everything, axis=1) == np.arange(12)).all()
        more, values = model.top(histories, 15)  # more than the catalogue has
        assert (more[:, 12:] == -1).all()
        assert np.isneginf(values[:, 12:]).all()
        assert (
            np.exp(values[:, :12].astype(float)).sum(axis=1) <= 1 + 1e-5
        ).all()  # the rest belongs to IDs that no item has

    def test_exclude_seen_and_allowed(self, kind, data, ids, vectors):
        model = KINDS[kind](epochs=1, beam_size=1).fit(data, ids, vectors)
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
            with pytest.raises(
                InputError, match="'allowed' must have one boolean for each of 12 items, and allow at least one"
            ):
                model.top(histories, 3, allowed=bad)

    def test_ids_of_other_items(self, kind, data, ids):
        with pytest.raises(InputError, match="these are the IDs of other items: 5 IDs for 12 items"):
            KINDS[kind]().fit(data, SemanticIds(ids.codes[:5], ids.level_sizes))
        with pytest.raises(InputError, match="item 0 is i9 in the IDs and i0 in the Dataset"):
            KINDS[kind]().fit(data, ids.named(data.item_ids.reverse()))

    def test_invalid_embeddings(self, kind, data, ids, vectors):
        model, nothing = KINDS[kind](input_embeddings=True), vectors.copy()
        nothing[3, 1] = np.nan
        for wrong in (vectors[:7], np.concatenate([vectors, vectors]), vectors[0], vectors.astype(int)):
            with pytest.raises(
                InputError, match="the embeddings must be a floating-point matrix with one row for each of 12"
            ):
                model.fit(data, ids, wrong)
        with pytest.raises(InputError, match="the embedding of item 3 is not finite; encode again"):
            model.fit(data, ids, nothing)


class _GeneratorContract(RecommenderContract):
    kind = ""

    @classmethod
    def make(cls, data):
        vectors = np.random.default_rng(0).normal(size=(data.n_items, 12)).astype(np.float32)
        ids = GAOQ((2, 3), random_state=0).fit(vectors).semantic_ids_
        return KINDS[cls.kind](epochs=1, beam_size=4).fit(data, ids, vectors)

    def test_exact_scores_equal_those_of_the_widest_beam(self, model):
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        wide, scores = model.top(histories, 12, beam_size=12)
        exact, values = model.top(histories, 12, exact=True)
        assert exact.tolist() == wide.tolist()
        assert values == pytest.approx(scores, abs=1e-5)

    def test_invalid_beam_size(self, model):
        for beam_size in (0, "wide", 2.5, True):
            with pytest.raises(InputError, match=f"beam_size must be a positive integer, not {beam_size!r}"):
                model.recommend([["i1"]], 3, beam_size=beam_size)

    def test_decodings(self, model):
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        assert model.decoding_options("beam") == {}
        exact, _ = model.top(histories, 12, **model.decoding_options("exact"))
        assert exact.tolist() == model.top(histories, 12, exact=True)[0].tolist()
        free, _ = model.top(histories, 12, **model.decoding_options("free"))
        assert free.tolist() == model.top(histories, 12, constrained=False)[0].tolist()
        with pytest.raises(InputError, match="has no decoding 'greedy'; available: beam, exact, free"):
            model.decoding_options("greedy")

    def test_unconstrained_beams(self, model):
        histories = np.array([[PADDING, 3, 4], [5, 6, 7]])
        free, _ = model.top(histories, 12, beam_size=12, constrained=False)
        valid, _ = model.top(histories, 12)
        assert all(
            [item for item in row if item >= 0] == [i for i in all_ if i in row]
            for row, all_ in zip(free.tolist(), valid.tolist(), strict=True)
        )

    def test_semantic_ids(self, model, data):
        assert model.semantic_ids.columns == ["item", "c1", "c2", "c3"]
        assert model.semantic_ids["item"].to_list() == data.item_ids.to_list()
        assert np.array_equal(model.semantic_ids.drop("item").to_numpy(), model.ids_.codes)


class TestOnePassContract(_GeneratorContract):
    kind = "onepass"


class TestT5Contract(_GeneratorContract):
    kind = "t5"


@pytest.mark.parametrize(("reads", "scores"), [(False, True), (True, False), (False, False)])
def test_input_and_output_embeddings(reads, scores, data, ids, vectors):
    generator = KINDS["onepass"](epochs=1, input_embeddings=reads, output_embeddings=scores).fit(data, ids, vectors)
    network = generator.model_
    assert (network.project is not None) == reads
    assert (network.decoders[0].query is not None) == scores
    assert (network.vectors is not None) == (reads or scores) == generator.settings.uses_embeddings


@pytest.mark.parametrize("kind", KINDS)
def test_invalid_share(kind, data):
    codes = np.array([[item % 3, item % 2, item % 4] for item in range(12)])
    model = KINDS[kind](epochs=1, beam_size=24).fit(data, SemanticIds(codes))  # one beam for every combination
    assert model.invalid_share(data.test) == pytest.approx(1 - 12 / 24)
    assert model.invalid_share(data.validation.sample(3)) == pytest.approx(1 - 12 / 24)


def test_items_with_the_same_id_are_ordered_by_popularity(data):
    codes = np.zeros((12, 2), dtype=np.int32)
    codes[6:, 1] = 1
    model = KINDS["onepass"](epochs=1).fit(data, SemanticIds(codes))
    items, scores = model.top(np.array([[3, 4]]), 12)
    for half in (items[0, :6], items[0, 6:]):
        assert (np.diff(data.training_counts[half]) <= 0).all()
    assert len(set(scores[0].tolist())) == 2


@pytest.mark.parametrize("kind", KINDS)
def test_items_with_the_same_id_are_judged_one_by_one(kind, data):
    codes = np.stack([np.arange(12) // 6, np.arange(12) % 6 // 3], axis=1)  # four IDs of three items each
    model = KINDS[kind](epochs=1).fit(data, SemanticIds(codes))
    everything, _ = model.top(np.array([[PADDING, 3, 4], [5, 6, 7]]), 12)
    assert (np.sort(everything, axis=1) == np.arange(12)).all()  # with k large enough, every item is found
    found, _ = model.ranks(data.test, 12)
    for row in range(0, len(data.test), 7):
        history, target = data.test.window(row)
        items, _ = model.top(history[None].astype(np.int64), 12)
        assert items[0, found[row]] == target  # not another item with its ID
    assert len(np.unique(found)) > 4  # ranks are those of items, not of IDs


@pytest.mark.parametrize("kind", KINDS)
def test_temperature_divides_the_logits_of_the_loss(kind, data, ids):
    plain, cold = (KINDS[kind](epochs=1, temperature=each).fit(data, ids) for each in (1.0, 0.5))
    cold.model_.load_state_dict(plain.model_.state_dict())
    histories = np.array([[5, 6, 7]])
    for ours, theirs in zip(plain.top(histories, 12), cold.top(histories, 12), strict=True):
        assert np.array_equal(ours, theirs)  # decoding does not know it
    batch = next(iter(plain._batches(data)))
    losses = [model.model_(batch, torch.Generator())["loss"] for model in (plain, cold)]
    with torch.no_grad():  # logits that are twice as large have the same loss as half the temperature
        if kind == "t5":
            plain.model_.decoder.norm.weight *= 2
        else:
            for decoder in plain.model_.decoders:
                decoder.out.weight *= 2
                decoder.out.bias *= 2
    doubled = plain.model_(batch, torch.Generator())["loss"]
    assert doubled.item() == pytest.approx(losses[1].item(), rel=1e-5)
    assert losses[0].item() != pytest.approx(losses[1].item(), rel=1e-3)
    with pytest.raises(InputError, match="invalid value 0 for 'temperature'"):
        KINDS[kind](temperature=0)


def test_failed_fit_is_not_fitted(data, ids):
    model = KINDS["onepass"](epochs=2, learning_rate=1e30)
    with pytest.raises(TrainingError):
        model.fit(data, ids)
    for use in (lambda: model.recommend(["i1"]), lambda: model.save("nowhere")):
        with pytest.raises(InputError, match="not fitted yet"):
            use()


def top_of_two_threads(model, monkeypatch):
    """Return the items that two threads with different `allowed` masks get, when both store their tree at once."""
    both_stored, kept = threading.Barrier(2), {}

    def store(self, value):
        kept["last"] = value
        if value is not None:
            both_stored.wait(timeout=30)  # no thread goes on before the other one has stored its tree

    monkeypatch.setattr(type(model), "_last_tree", property(lambda self: kept.get("last"), store), raising=False)
    masks = [np.arange(12) < 6, np.arange(12) >= 6]
    with ThreadPoolExecutor(2) as pool:
        answers = pool.map(lambda allowed: model.top(np.array([[3, 4]]), 6, allowed=allowed)[0][0], masks)
        return [set(items.tolist()) for items in answers]


def test_two_threads_with_different_allow_lists(data, ids, monkeypatch):
    """Every thread decodes over its own tree, although both share the memory of the last one."""
    model = KINDS["onepass"](epochs=1).fit(data, ids)
    assert top_of_two_threads(model, monkeypatch) == [set(range(6)), set(range(6, 12))]

    def shared_tree(self, allowed):
        """Return the last tree from the object, as an earlier version did: a race."""
        if self._last_tree is None or self._last_tree[0] != allowed.tobytes():
            order = self.catalogue_.by_popularity
            self._last_tree = allowed.tobytes(), self._make_tree(order[allowed[order]])
        return self._last_tree[1]

    monkeypatch.setattr(type(model), "tree", shared_tree)
    found = top_of_two_threads(model, monkeypatch)
    assert found[0] == found[1]  # the test detects the race


def test_many_threads_with_different_allow_lists(data, ids):
    model = KINDS["onepass"](epochs=1).fit(data, ids)
    lists = [[f"i{(first + step) % 12}" for step in range(4)] for first in range(12)] * 4
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda allow: model.recommend(["i3", "i4"], 4, allow=allow)[0], lists))
    for allow, items in zip(lists, answers, strict=True):
        assert set(items) == set(allow)


class TestParts:
    """A generator that is saved with the encoder and the quantizer of its IDs."""

    @pytest.fixture(scope="class")
    @classmethod
    def model(cls, data):
        settings = SASRecSettings(width=8, layers=1, heads=1, epochs=1, seed=0)
        encoder = SASRecEncoder(settings).fit(data)
        embeddings = encoder.embed(data)
        quantizer = GAOQ((2, 3), anchors=(3, 4), random_state=0).fit(embeddings)
        model = KINDS["onepass"](epochs=1).fit(data, quantizer.semantic_ids_, embeddings)
        model.parts_ = {"encoder": encoder, "quantizer": quantizer}
        return model

    def test_saved_with_the_model(self, model, data, tmp_path):
        model.save(tmp_path / "model")
        assert {path.name for path in (tmp_path / "model").iterdir() if path.is_dir()} == {"encoder", "quantizer"}
        loaded = resid.load(tmp_path / "model")
        assert repr(loaded.parts_) == "SavedParts(encoder, quantizer)"
        vectors = model.parts_["encoder"].embed(data).vectors
        assert np.array_equal(loaded.parts_["encoder"].embed(data).vectors, vectors)
        new = vectors[:3] + 1e-3
        assert np.array_equal(loaded.parts_["quantizer"].new_ids(new), model.parts_["quantizer"].new_ids(new))
        assert np.array_equal(loaded.ids_.codes, loaded.parts_["quantizer"].semantic_ids_.codes)
        ours, theirs = (each.recommend([["i3", "i4"]], 5) for each in (model, loaded))
        assert ours[0].tolist() == theirs[0].tolist()
        assert ours[1].tobytes() == theirs[1].tobytes()
        # A nested artifact is one by itself.
        assert isinstance(Part.load(tmp_path / "model" / "quantizer"), GAOQ)
        with pytest.raises(InputError, match="this is a GAOQ, not a Recommender"):
            resid.load(tmp_path / "model" / "quantizer")
        loaded.save(tmp_path / "again")
        assert list(resid.load(tmp_path / "again").parts_) == ["encoder", "quantizer"]

    def test_left_out(self, model, tmp_path):
        model.save(tmp_path / "model")
        model.save(tmp_path / "model", parts=False)  # replaces the model with its parts
        assert not [path for path in (tmp_path / "model").iterdir() if path.is_dir()]
        loaded = resid.load(tmp_path / "model")
        assert dict(loaded.parts_) == {}
        assert loaded.recommend(["i3"], 5)[0].tolist() == model.recommend(["i3"], 5)[0].tolist()
        assert list(model.parts_) == ["encoder", "quantizer"]

    def test_flipped_byte_in_a_nested_part(self, model, tmp_path):
        folder = tmp_path / "model"
        model.save(folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.parent != folder)
        assert {path.relative_to(folder).parts[0] for path in files} == {"encoder", "quantizer"}
        assert folder / "encoder" / "recommender" / "weights.safetensors" in files  # two levels deep
        for path in files:
            content = path.read_bytes()
            for place in (0, len(content) // 2, len(content) - 2):
                path.write_bytes(content[:place] + bytes([content[place] ^ 1]) + content[place + 1 :])
                with pytest.raises(InputError, match=f"{path.name}: (missing or )?altered|{path.name}: damaged"):
                    resid.load(folder)
            path.unlink()
            with pytest.raises(InputError, match=f"{path.name}: missing or altered"):
                resid.load(folder)
            path.write_bytes(content)
        resid.load(folder)

    def test_code_in_a_nested_part(self, model, tmp_path):
        model.save(tmp_path / "model")
        (tmp_path / "model" / "quantizer" / "weights.pkl").touch()
        with pytest.raises(InputError, match=r"weights\.pkl: a model consists of .* which cannot contain code"):
            resid.load(tmp_path / "model")
