"""The joint generator: its scores equal a slow reference, beams equal exact scoring, and the blend sees no test data."""

import dataclasses

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as f

import resid
from resid import Dataset, InputError, Runtime
from resid.data import synthetic_shop
from resid.data.batches import PADDING, SequenceBatches
from resid.encode import FAMAE, FamaeSettings
from resid.evaluate import evaluate
from resid.generate.blend import Blend, fit_blend, largest_bias, seen_items
from resid.generate.joint import JointGenerator, JointSettings, _without
from resid.generate.stand_ins import fill_unseen, stand_ins
from resid.quantize import GAOQ, SemanticIds
from tests.recommend.contract import RecommenderContract, interrupt_after

SMALL = JointSettings(width=16, ffn_width=32, layers=1, heads=2, epochs=2, batch_size=128, dropout=0.1, seed=1)


def _inputs(data):
    encoder = FAMAE(FamaeSettings(width=16, ffn_width=32, layers=1, heads=2, epochs=2, batch_size=128)).fit(data)
    embeddings = encoder.embed(data)
    ids = GAOQ((4, 3), random_state=0).fit(embeddings.vectors).semantic_ids_
    return ids, embeddings, encoder


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=150, items=70, interactions=1_500, seed=5)
    found = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"], k_core=1)
    assert (found.training_counts == 0).sum() == 2  # so that the tests cover unseen items
    return found


@pytest.fixture(scope="module")
def inputs(data):
    return _inputs(data)


@pytest.fixture(scope="module")
def model(data, inputs):
    return JointGenerator(SMALL).fit(data, *inputs)


@pytest.fixture(scope="module")
def histories(data):
    return np.stack([np.r_[[PADDING] * 29, data.test.window(user)[0][-2:]] for user in range(20)]).astype(np.int64)


def _reference(model, data, history):
    """Return the blended score of every item after one history, written out."""
    network, ids, encoder = model.model_, model.ids_, model.parts_["encoder"]
    items = torch.from_numpy(history[history >= 0])[None]
    state = network.trunk.states(items)[0, -1]
    tokens = network.trunk.all_but_last_layer(network.trunk.tables.vectors(items), None)
    code_state = network.code_layer(tokens, None)[0, -1]
    weights = stand_ins(data.training_counts, ids, network.vectors.numpy())
    vectors = network.trunk.tables.vectors(torch.arange(data.n_items))
    units = fill_unseen(f.normalize(vectors, dim=1), weights)
    item = units @ f.normalize(state, dim=0) * 4  # √16
    targets = torch.zeros(1, len(data.field_names) + 1, dtype=torch.long)
    hidden = encoder.model_.hidden(items, targets, torch.ones_like(targets, dtype=torch.bool))
    units = fill_unseen(f.normalize(encoder.model_.embeddings()[0].weight, dim=1), weights)
    own = units @ f.normalize(hidden[0], dim=0) * 4
    codes = torch.zeros(data.n_items)
    for index in range(data.n_items):
        current, node = code_state[None, None], torch.zeros(1, 1, dtype=torch.long)
        for level, code in enumerate(ids.codes[index].tolist()):
            decoder = network.decoders[level]
            codes[index] += decoder(current, node)[0, 0].log_softmax(dim=0)[code]
            if level + 1 < ids.levels:
                current = current + network.code_tables[level].weight[code]
                node = decoder.branches.node_of[index].view(1, 1)
    together = np.zeros(data.n_items)
    sets = [set(data.sequence[a : b - 2].tolist()) for a, b in zip(data.offsets[:-1], data.offsets[1:], strict=True)]
    for back, recent in enumerate(items[0].tolist()[::-1]):
        for index in range(data.n_items):
            if index != recent:
                both = sum(index in s and recent in s for s in sets)
                counts = sum(index in s for s in sets) * sum(recent in s for s in sets)
                together[index] += 0.7**back * both / max(counts, 1) ** 0.5
    together = weights @ together
    seen = torch.from_numpy(np.isin(np.arange(data.n_items), history))
    w = model.blend_.weights
    total = w["codes"] * codes + w["item"] * item + w["encoder"] * own
    total = total + w["cooccurrence"] * torch.from_numpy(np.log(together + 0.01)) + model.blend_.seen_bias * seen
    return total.detach()


def test_scores_equal_a_slow_reference(model, data, histories):
    with torch.no_grad():
        for history in histories[:4]:
            expected = _reference(model, data, history)
            items, scores = model.top(history[None], data.n_items, exact=True)
            found = torch.empty(data.n_items, dtype=torch.float64)
            found[torch.from_numpy(items[0])] = torch.from_numpy(scores[0].astype(np.float64))
            torch.testing.assert_close(found, expected.double(), rtol=1e-3, atol=1e-3)


def test_wide_beams_equal_exact_scoring(model, data, histories):
    exact = model.top(histories, 10, exact=True)
    beams = model.top(histories, 10, beam_size=data.n_items)
    assert (exact[0] == beams[0]).all()
    np.testing.assert_allclose(exact[1], beams[1], rtol=1e-4, atol=1e-4)
    narrow, _ = model.top(histories, 10, beam_size=10)
    assert (narrow[:, 0] >= 0).all()
    allowed = np.zeros(data.n_items, dtype=bool)
    allowed[5:25] = True
    some = model.top(histories, 20, allowed=allowed, exact=True)[0]
    assert (np.sort(some, axis=1) == np.arange(5, 25)).all()
    assert (some == model.top(histories, 20, allowed=allowed, beam_size=70)[0]).all()


def test_without_other_scores_codes_rank(data, inputs, histories):
    """Then the blend has one weight, and the order is that of the log-probabilities of the IDs."""
    from resid.generate.decode import beam_items, score_all

    settings = dataclasses.replace(SMALL, scores=(), epochs=1)
    model = JointGenerator(settings).fit(data, *inputs)
    assert set(model.blend_.weights) == {"codes"}
    model.blend_ = Blend({"codes": 1.0})
    tree, numbers = model.tree(None)
    beams = score_all(model.model_, model.recent(histories), tree, data.n_items)
    expected = numbers[beam_items(beams, tree, 10)[0]]
    assert (model.top(histories, 10, exact=True)[0] == expected).all()


def test_saved_with_and_without_its_parts(model, histories, tmp_path):
    """The encoder is saved in any case if its score is blended, so the rankings stay."""
    model.parts_ = {**model.parts_, "quantizer": GAOQ((2,), random_state=0).fit(np.eye(8))}
    assert model.required_parts == ("encoder",)
    for parts in (True, False):
        model.save(tmp_path / "model", parts=parts)
        again = resid.load(tmp_path / "model")
        assert set(again.parts_) == ({"encoder", "quantizer"} if parts else {"encoder"})
        assert again.blend_ == model.blend_
        for ours, theirs in zip(again.top(histories, 10), model.top(histories, 10), strict=True):
            assert (ours == theirs).all()


def test_a_score_that_is_missing_is_left_out(model, histories, tmp_path):
    model.save(tmp_path / "model")
    without, weightless = resid.load(tmp_path / "model"), resid.load(tmp_path / "model")
    without._encoder = None
    weightless.blend_ = Blend({**model.blend_.weights, "encoder": 0.0}, model.blend_.seen_bias)
    assert (without.top(histories, 10)[0] == weightless.top(histories, 10)[0]).all()


def test_only_recent_items_count_as_seen(model, data):
    """Older items neither change the scores nor get the bias of seen items."""
    rng = np.random.default_rng(0)
    old, recent = rng.integers(20, size=(5, 50)), rng.integers(20, 39, size=(5, data.settings.max_length - 1))
    for ours, theirs in zip(model.top(np.hstack([old, recent]), 12), model.top(recent, 12), strict=True):
        np.testing.assert_array_equal(ours, theirs)


def test_a_second_fit_forgets_the_first(data, inputs):
    ids, embeddings, encoder = inputs
    settings = dataclasses.replace(SMALL, epochs=1)
    model = JointGenerator(settings).fit(data, ids, embeddings, encoder)
    assert set(model.blend_.weights) == {"codes", "item", "encoder", "cooccurrence"}
    model.fit(data, ids, embeddings)
    assert set(model.blend_.weights) == {"codes", "item", "cooccurrence"}
    assert not model.parts_


def test_another_encoder_is_another_run(data, inputs, tmp_path):
    ids, embeddings, encoder = inputs
    settings = dataclasses.replace(SMALL, epochs=1)
    JointGenerator(settings).fit(data, ids, embeddings, encoder, runtime=Runtime(tmp_path))
    with pytest.raises(InputError, match="this run has another configuration, 'encoder' was"):
        JointGenerator(settings).fit(data, ids, embeddings, runtime=Runtime(tmp_path))


def test_tables_of_another_width_do_not_start_from_the_encoder(data, inputs, caplog):
    ids, embeddings, encoder = inputs
    JointGenerator(dataclasses.replace(SMALL, epochs=1, width=8)).fit(data, ids, embeddings, encoder)
    assert "the table of 'store' does not start from the encoder" in caplog.text


def test_a_dataset_without_fields(log):
    data = Dataset.from_tables(log)
    ids = SemanticIds(np.column_stack([np.arange(6) // 3, np.arange(6) % 3]))
    model = JointGenerator(dataclasses.replace(SMALL, epochs=1)).fit(data, ids)
    assert model.recommend([["i0", "i1"]], 3)[0].shape == (1, 3)


def test_the_blend_sees_no_test_data(data, inputs, model, shop):
    """With random test targets, the network and the weights are the same."""
    rng = np.random.default_rng(0)
    sequence = np.array(data.sequence)
    sequence[data.offsets[1:] - 1] = rng.integers(data.n_items, size=data.n_users)
    arrays = {"fields": data.fields, "sequence": sequence, "offsets": data.offsets, "first_seen": data.first_seen}
    tables = {"users": data.user_ids.to_frame(), "items": data.item_table}
    other = Dataset(
        arrays=arrays, tables=tables, settings=data.settings, field_names=data.field_names, steps=[], notes={}
    )
    ids, embeddings, encoder = inputs
    again = JointGenerator(SMALL).fit(other, ids, embeddings.vectors, encoder)
    assert again.blend_ == model.blend_
    assert again.added_blend_ == model.added_blend_ is not None
    for ours, theirs in zip(again.model_.parameters(), model.model_.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_resumes_exactly(data, inputs, model, tmp_path, monkeypatch):
    steps = interrupt_after(5, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        JointGenerator(SMALL).fit(data, *inputs, runtime=Runtime(tmp_path))
    assert len(steps) == 5
    monkeypatch.undo()
    again = JointGenerator(SMALL).fit(data, *inputs, runtime=Runtime(tmp_path))
    assert again.blend_ == model.blend_
    for ours, theirs in zip(again.model_.parameters(), model.model_.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_tables_start_from_the_encoder(data, inputs):
    ids, _, encoder = inputs
    started = JointGenerator(SMALL)
    started._field_codes, started._field_sizes = (
        np.zeros((data.n_items, 5)),
        dict(zip(encoder.model_.field_names, encoder.model_.field_sizes, strict=True)),
    )
    started._encoder, started.catalogue_ = encoder, data.catalogue
    network = started._network(torch.from_numpy(ids.codes), ids.level_sizes, None, 31)
    for ours, theirs in zip(network.trunk.tables.embeddings(), encoder.model_.embeddings(), strict=True):
        assert torch.equal(ours.weight, theirs.weight)


def test_one_pass_equals_windows(model, data):
    """The losses of all positions of a history are those of one window per target."""
    network = model.model_.eval()
    batches = SequenceBatches(data.train, 64, data.settings.max_length, stride=1)
    batch = next(iter(batches))
    whole = network(batch, torch.Generator())
    trained = batch.are_targets
    states, targets = [], []
    for row, place in zip(*np.nonzero(trained), strict=True):
        history = torch.from_numpy(batch.items[row, : place + 1])[None]
        states.append(network.encode_histories(history))
        targets.append(batch.items[row, place + 1])
    both, targets = torch.cat(states), torch.tensor(targets)  # (targets, 2, width)
    item = network.trunk.loss(both[:, 0], targets, torch.Generator())
    torch.testing.assert_close(whole["loss.item"], item)
    for name, term in network.code_losses(both[:, 1], targets, network.settings.label_smoothing).items():
        torch.testing.assert_close(whole[name], term)


@pytest.mark.parametrize("separate", [True, False])
def test_code_losses_reach_the_trunk_unless_codes_have_a_layer_of_their_own(data, inputs, separate):
    ids, embeddings, _ = inputs
    settings = dataclasses.replace(SMALL, epochs=1, separate_code_layer=separate)
    network = JointGenerator(settings).fit(data, ids, embeddings).model_.train()
    network.zero_grad()
    terms = network(next(iter(SequenceBatches(data.train, 64, data.settings.max_length))), torch.Generator())
    sum(term for name, term in terms.items() if name not in ("loss", "loss.item")).backward()
    reached = [p.grad is not None and bool(p.grad.any()) for p in network.trunk.parameters()]
    assert not any(reached) if separate else any(reached)


class TestBlend:
    @pytest.fixture
    def problem(self):
        rng = torch.Generator().manual_seed(0)
        good, noise = torch.randn(300, 40, generator=rng), torch.randn(300, 40, generator=rng)
        targets = torch.distributions.Categorical(logits=2 * good).sample()
        seen = torch.rand(300, 40, generator=rng) < 0.1
        return {"good": good, "noise": noise}, seen, targets

    def test_finds_the_minimum(self, problem):
        scores, seen, targets = problem
        blend = fit_blend(scores, seen, targets)
        assert blend.weights["good"] == pytest.approx(2, abs=0.3)
        assert blend.weights["noise"] < 0.2

        def loss(candidate):
            return float(f.cross_entropy(candidate.combine(scores, seen), targets)) + 1e-3 * candidate.seen_bias**2

        best = loss(blend)
        for name in scores:
            for step in (-0.05, 0.05):
                other = Blend({**blend.weights, name: max(0.0, blend.weights[name] + step)}, blend.seen_bias)
                assert loss(other) >= best - 1e-6
        assert loss(Blend(blend.weights, blend.seen_bias + 0.05)) >= best

    def test_the_bias_of_added_items_is_the_largest_that_costs_little(self):
        """Of 100 targets at the tenth place, one may be displaced by the best added item; the second would be too many."""
        targets, above = torch.arange(100.0), torch.full((100,), 9)
        added = torch.stack([torch.full((100,), -5.0), torch.full((100,), -30.0)], dim=1)
        # With two more found in histories with added items, two may be displaced; if there are fewer, histories only got worse.
        for lower, n_known, bias in ((0, 100, 6.0), (1, 100, 20.0), (0, 98, 7.0), (0, 120, 6.0), (0, 0, 6.0)):
            assert largest_bias(targets, above - lower, added, n_known) == pytest.approx(bias, abs=1e-3)

    def test_round_trip(self):
        for blend in (Blend({"codes": 0.5, "item": 1.5}, -2.0), Blend({"codes": 0.5}, -2.0, 0.3)):
            assert Blend.from_dict(blend.to_dict()) == blend

    def test_seen_items(self):
        histories = torch.tensor([[PADDING, 3, 1], [0, 0, 2]])
        items = torch.arange(4).expand(2, -1)
        assert seen_items(histories, items).tolist() == [[False, True, False, True], [True, False, True, False]]


class TestUnseenItems:
    counts = np.array([2, 0, 0, 4, 1])
    ids = SemanticIds([[0, 0, 0], [0, 0, 1], [0, 1, 0], [1, 0, 0], [1, 0, 1]])

    def test_mean_of_the_smallest_subtree_with_seen_items(self):
        weights = stand_ins(self.counts, self.ids, None)
        filled = fill_unseen(torch.tensor([[1.0], [3.0], [5.0], [7.0], [9.0]]), weights)
        assert filled[:, 0].tolist() == [1, 1, 1, 7, 9]  # of the leaf, of the first code

    def test_mean_of_the_nearest_seen_items(self, monkeypatch):
        monkeypatch.setattr("resid.generate.stand_ins._NEIGHBORS", 2)
        angles = np.radians([0.0, 10.0, 80.0, 90.0, 30.0])
        weights = stand_ins(self.counts, self.ids, np.column_stack([np.cos(angles), np.sin(angles)]).astype(np.float32))
        assert weights.toarray().tolist() == [
            [1, 0, 0, 0, 0],
            [0.5, 0, 0, 0, 0.5],
            [0, 0, 0, 0.5, 0.5],
            [0, 0, 0, 1, 0],
            [0, 0, 0, 0, 1],
        ]
        filled = fill_unseen(torch.tensor([[1.0], [3.0], [5.0], [7.0], [9.0]]), weights)
        assert filled[:, 0].tolist() == [1, 5, 8, 7, 9]

    @pytest.mark.parametrize("counts", [[0, 0, 0, 0, 0], [1, 2, 3, 4, 5]])
    def test_nothing_to_fill(self, counts):
        weights, vectors = stand_ins(np.array(counts), self.ids, None), torch.ones(5, 1)
        assert weights is None
        assert fill_unseen(vectors, weights) is vectors


def test_histories_without_some_items():
    histories = torch.tensor([[PADDING, 3, 1, 2], [4, 4, 0, 4], [PADDING, PADDING, PADDING, 4]])
    removed = torch.tensor([False, True, False, False, True])
    wanted = [[PADDING, PADDING, 3, 2], [PADDING, PADDING, PADDING, 0], [PADDING] * 4]
    assert _without(histories, removed).tolist() == wanted


class TestContract(RecommenderContract):
    @classmethod
    def make(cls, data):
        vectors = np.random.default_rng(0).normal(size=(data.n_items, 8)).astype(np.float32)
        ids = GAOQ((2, 3), random_state=0).fit(vectors).semantic_ids_
        settings = dataclasses.replace(SMALL, epochs=8, batch_size=16, learning_rate=3e-3)
        return JointGenerator(settings).fit(data, ids, vectors)


def test_from_tables_with_the_recipe(data, tmp_path):
    tiny = {f"{section}.{name}": value for section in ("encoder", "generator")
            for name, value in (("width", 16), ("ffn_width", 32), ("epochs", 1))}  # fmt: skip
    model = resid.fit(data, "resid", tmp_path, changes=tiny)
    assert set(model.blend_.weights) == {"codes", "item", "encoder", "cooccurrence"}
    loaded = resid.load(tmp_path)
    assert evaluate(loaded, data).metrics() == evaluate(model, data).metrics()
    assert isinstance(model.semantic_ids, pl.DataFrame)
