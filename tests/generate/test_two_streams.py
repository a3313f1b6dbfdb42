"""The two-stream generator: its auxiliary losses against slow references, where gradients flow, and its ranking."""

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as f

from resid import Dataset, InputError, Runtime
from resid.data.batches import Batches
from resid.encode import ItemEmbeddings
from resid.generate import TwoStreamGenerator, TwoStreamModel, TwoStreamSettings
from resid.generate.decode import beam_items, beam_search
from resid.generate.streams import rank_streams
from resid.generate.transfer import TransferTask
from resid.generate.two_streams import prefix_specific
from resid.quantize import HierarchicalKMeans, SemanticIds
from tests.recommend.contract import RecommenderContract, interrupt_after, walks

SMALL = TwoStreamSettings(
    width=16,
    ffn_width=32,
    layers=1,
    heads=2,
    head_width=8,
    batch_size=16,
    epochs=2,
    warmup_steps=10,
    learning_rate=3e-3,
)


def inputs(data, n_codes=4):
    """Return the IDs and vectors of both streams: the place in the cycle, and random vectors."""
    angle = 2 * np.pi * np.array([int(name[1:]) for name in data.item_ids]) / 12
    behavior = np.stack([np.cos(angle), np.sin(angle), 0 * angle], axis=1).astype(np.float32)
    semantic = np.random.default_rng(1).normal(size=(len(angle), 5)).astype(np.float32)
    streams = []
    for vectors in (behavior, semantic):
        streams += [HierarchicalKMeans(n_codes, random_state=0).fit(vectors).semantic_ids_, vectors]
    return streams


class TestTwoStreams(RecommenderContract):
    @classmethod
    def make(cls, data):
        return TwoStreamGenerator(SMALL).fit(data, *inputs(data))


class TestPrefixSpecificVocabulary(RecommenderContract):
    @classmethod
    def make(cls, data):
        settings = SMALL.replace(prefix_specific_vocab=True, input_embeddings=True)
        return TwoStreamGenerator(settings).fit(data, *inputs(data))


@pytest.fixture(scope="module")
def data():
    return walks()


@pytest.fixture(scope="module")
def model(data):
    return TwoStreamGenerator(SMALL).fit(data, *inputs(data))


def one_by_one(network, history, codes):
    """Return the log-probability of an ID, code after code without a cache."""
    memory = network.encode(torch.tensor([history]))
    total, tokens = 0.0, [0]
    for level, code in enumerate(codes):
        token = code + int(network.offsets[level])
        total += network.logits(memory, torch.tensor([tokens])).log_softmax(dim=2)[0, -1, token].item()
        tokens.append(token)
    return total


@pytest.mark.parametrize("exact", [False, True])
def test_the_score_is_the_sum_of_both_log_probabilities(model, exact):
    history = [3, 4, 5]
    with torch.no_grad():
        expected = [
            sum(one_by_one(net, history, net.codes[item].tolist()) for net in model.model_.streams)
            for item in range(12)
        ]
    items, scores = model.top(np.array([history]), 12, exact=exact)
    assert sorted(items[0]) == list(range(12))
    assert scores[0] == pytest.approx([expected[item] for item in items[0]], abs=1e-4)
    assert (np.diff(scores[0]) <= 0).all()


def test_a_narrow_beam_ranks_the_union(model):
    """With few beams, the items are those that either stream proposes, with their full scores."""
    history = np.array([[3, 4, 5]])
    everything, scores = model.top(history, 12, exact=True)
    score_of = dict(zip(everything[0].tolist(), scores[0].tolist(), strict=True))
    items, values = model.top(history, 3, beam_size=3)
    assert values[0].tolist() == pytest.approx([score_of[item] for item in items[0]], abs=1e-4)
    each = []
    for network, ids in zip(model.model_.streams, (model.ids_, model.semantic_ids_), strict=True):
        level = network.next_level(network.encode_histories(torch.from_numpy(history)), None, None)[0][0, 0]
        firsts = level.topk(3).indices.tolist()  # three prefixes are kept
        each.append({item for item in range(12) if ids.codes[item, 0] in firsts})
    assert set(items[0].tolist()) <= each[0] | each[1]


def test_both_streams_propose(model):
    """The items that are found are those of either stream's own beams, which differ."""
    histories = np.array([[3, 4, 5], [1, 2, 3], [8, 9, 10], [0, 5, 2]])
    recent, streams = model.recent(histories), model._streams(model._make_tree(np.arange(12))[0])
    own = [beam_items(beam_search(s.model, recent, s.tree, 2), s.tree, 2)[0] for s in streams]
    proposed = [[set(row.tolist()) - {-1} for row in items] for items in own]
    assert any(first != second for first, second in zip(*proposed, strict=True))
    found, _ = rank_streams(streams, recent, 4, 2)
    unions = [first | second for first, second in zip(*proposed, strict=True)]
    assert [set(row.tolist()) - {-1} for row in found] == unions


def test_targets_are_released(model):
    assert [stream.targets for stream in model.model_.streams] == [None, None]


def test_free_beams(model, data):
    share = model.invalid_share(data.test)
    assert 0 <= share < 1
    items, scores = model.top(np.array([[3, 4]]), 12, constrained=False)
    assert (np.isneginf(scores) == (items < 0)).all()


def test_semantic_ids_show_both_streams(model):
    table = model.semantic_ids
    assert table.columns == ["item", "behavior_c1", "behavior_c2", "semantic_c1", "semantic_c2"]
    assert np.array_equal(table.select("semantic_c1", "semantic_c2").to_numpy(), model.semantic_ids_.codes)


def test_the_loss_is_the_weighted_sum(data):
    ids, vectors, other_ids, others = inputs(data)
    torch.manual_seed(0)
    targets = [torch.tensor(vectors), torch.tensor(others)]
    net = TwoStreamModel([ids, other_ids], SMALL.replace(dropout=0.0), 31, [3, 5], targets)
    batch = next(iter(Batches(data.train, 8, seed=0)))
    terms = net(batch, torch.Generator().manual_seed(0))
    expected = sum(terms[name] for name in ("behavior.generation", "semantic.generation", "behavior.contrastive"))
    expected = expected + 10 * terms["semantic.contrastive"] + terms["reconstruction"] + terms["recognition"]
    torch.testing.assert_close(terms["loss"], expected)
    assert net.behavior.encoder is net.semantic.encoder
    labels = net.semantic.codes[torch.from_numpy(batch.targets)]
    with torch.no_grad():
        each = [
            -one_by_one(net.semantic, [i for i in history if i >= 0], codes) / 2
            for history, codes in zip(batch.histories.tolist(), labels.tolist(), strict=True)
        ]
    assert terms["semantic.generation"].item() == pytest.approx(np.mean(each), abs=1e-4)


def transfer(ids, **changes):
    torch.manual_seed(0)
    task = TransferTask(ids, 5, SMALL.replace(dropout=0.0, **changes))
    torch.nn.init.normal_(task.positions)
    offsets = torch.tensor([1, 1 + ids.level_sizes[0]])
    table = torch.randn(1 + sum(ids.level_sizes), 16, requires_grad=True)
    return task, table, offsets


def slow_states(task, table, offsets, codes, guide, masked=None):
    tokens = [task.start]
    for level, code in enumerate(codes):
        tokens.append(task.mask if level == masked else table[int(offsets[level]) + int(code)])
    return task.layer((torch.stack(tokens) + task.positions)[None], task.guide(guide)[None, None])[0]


@pytest.fixture
def uneven():
    """Seven items under three first codes, which have two, four and one of five second codes."""
    return SemanticIds([[0, 1], [0, 4], [1, 0], [1, 2], [1, 3], [1, 4], [2, 2]], (3, 5))


def test_reconstruction_equals_a_slow_reference(uneven):
    task, table, offsets = transfer(uneven)
    items, masked, guide = torch.tensor([0, 2, 5, 6, 1]), torch.tensor([0, 1, 1, 1, 1]), torch.randn(5, 5)
    codes = torch.from_numpy(uneven.codes).long()
    found = task.reconstruction_loss(table, offsets, codes[items], items, task.guide(guide), masked)
    each = []
    for row, (item, level) in enumerate(zip(items.tolist(), masked.tolist(), strict=True)):
        state = slow_states(task, table, offsets, codes[item], guide[row], level)[1 + level] / 4
        prefix = codes[item, :level].tolist()
        children = sorted({int(c[level]) for c in codes if c[:level].tolist() == prefix})
        scores = torch.stack([state @ table[int(offsets[level]) + child] for child in children])
        each.append(-scores.log_softmax(dim=0)[children.index(int(codes[item, level]))])
    torch.testing.assert_close(found, torch.stack(each).mean())


def test_recognition_equals_a_slow_reference(uneven):
    task, table, offsets = transfer(uneven)
    codes, guide = torch.from_numpy(uneven.codes).long(), torch.randn(7, 5)
    fake = task.corrupt(codes, torch.Generator().manual_seed(0))
    assert ((fake != codes).sum(dim=1) == 1).all()  # one code of each is another
    found = task.recognition_loss(table, offsets, codes, fake, task.guide(guide))
    each = []
    for some, sign in ((codes, 1), (fake, -1)):
        for row in range(7):
            state = slow_states(task, table, offsets, some[row], guide[row])[0]
            each.append(-f.logsigmoid(sign * task.is_real(state)[0]))
    torch.testing.assert_close(found, torch.stack(each).mean())


def test_corruption_chooses_levels_and_codes_uniformly(uneven):
    task, *_ = transfer(uneven)
    codes = torch.tensor([[1, 2]]).expand(60_000, 2)
    fake = task.corrupt(codes, torch.Generator().manual_seed(0))
    first, second = fake[fake[:, 0] != 1][:, 0], fake[fake[:, 1] != 2][:, 1]
    assert len(first) == pytest.approx(30_000, rel=0.03)
    assert (torch.bincount(first, minlength=3) / len(first)).tolist() == pytest.approx([0.5, 0, 0.5], abs=0.02)
    shares = (torch.bincount(second, minlength=5) / len(second)).tolist()
    assert shares == pytest.approx([0.25, 0.25, 0, 0.25, 0.25], abs=0.02)


def test_gradients_stop_at_the_guide_and_at_the_candidates(uneven):
    task, table, offsets = transfer(uneven)
    codes = torch.from_numpy(uneven.codes).long()
    guide = torch.randn(1, 5, requires_grad=True)
    item = torch.tensor([4])  # its codes are 1 and 3
    for loss in task(table, offsets, codes[item], item, guide, torch.Generator().manual_seed(0)):
        assert torch.autograd.grad(loss, guide, retain_graph=True, allow_unused=True) == (None,)
    for masked, read in ((0, 4 + 3), (1, 1 + 1)):  # the token that is not masked
        loss = task.reconstruction_loss(
            table, offsets, codes[item], item, task.guide(guide.detach()), torch.tensor([masked])
        )
        gradient = torch.autograd.grad(loss, table)[0]
        assert gradient.abs().sum(dim=1).nonzero()[:, 0].tolist() == [read]


def test_the_transfer_does_not_train_the_semantic_stream(data):
    ids, vectors, other_ids, others = inputs(data)
    targets = [torch.tensor(vectors), torch.tensor(others)]
    torch.manual_seed(0)
    net = TwoStreamModel([ids, other_ids], SMALL, 31, [3, 5], targets)
    terms = net(next(iter(Batches(data.train, 8, seed=0))), torch.Generator().manual_seed(0))
    (terms["reconstruction"] + terms["recognition"]).backward()
    assert all(p.grad is None or not p.grad.any() for p in net.semantic.parameters())
    assert net.behavior.table.weight.grad.abs().sum() > 0


def test_learns_the_next_item(data):
    settings = SMALL.replace(epochs=15, batch_size=48, patience=0, evaluate_every=15, dropout=0.0, learning_rate=0.02)
    model = TwoStreamGenerator(settings).fit(data, *inputs(data))
    items, _ = model.recommend([["i3", "i4"], ["i5", "i6", "i7"], ["i9", "i10", "i11"]], 1)
    assert items[:, 0].tolist() == ["i5", "i8", "i0"]


def test_resumes_exactly(data, tmp_path, monkeypatch):
    whole = TwoStreamGenerator(SMALL).fit(data, *inputs(data))
    for last_step in (2, 30):
        steps = interrupt_after(last_step, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            TwoStreamGenerator(SMALL).fit(data, *inputs(data), runtime=Runtime(tmp_path))
        assert len(steps) == last_step
        monkeypatch.undo()
    parts = TwoStreamGenerator(SMALL).fit(data, *inputs(data), runtime=Runtime(tmp_path))
    for ours, theirs in zip(whole.model_.parameters(), parts.model_.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_prefix_specific_codes(uneven):
    found = prefix_specific(uneven)
    assert found.level_sizes == (3, 7)
    assert found.codes.tolist() == [[0, 0], [0, 1], [1, 2], [1, 3], [1, 4], [1, 5], [2, 6]]


def test_one_item():
    rows = pl.DataFrame({"user": list("aaaabbbb"), "item": ["x"] * 8, "timestamp": range(8)})
    data = Dataset.from_tables(rows, k_core=1)
    vectors = np.ones((1, 4), dtype=np.float32)
    ids = HierarchicalKMeans("k-ary", random_state=0).fit(vectors).semantic_ids_
    model = TwoStreamGenerator(SMALL).fit(data, ids, vectors, ids, vectors)
    assert model.recommend(["x"], 1)[0].tolist() == ["x"]


def test_bad_inputs(data):
    ids, vectors, other_ids, others = inputs(data)
    generator = TwoStreamGenerator(SMALL)
    with pytest.raises(InputError, match="needs the IDs and embeddings of two streams; use the recipe 'eager'"):
        generator.fit(data, ids, vectors)
    foreign = ItemEmbeddings(others, {"text": (0, 5)}, "another")
    with pytest.raises(
        InputError,
        match="these are the semantic embeddings of another Dataset, or it was prepared again; encode this one",
    ):
        generator.fit(data, ids, vectors, other_ids, foreign)
    with pytest.raises(InputError, match="these are the IDs of other items"):
        generator.fit(data, ids, vectors, SemanticIds(other_ids.codes[:5]), others)
    with pytest.raises(InputError, match="one row for each of 12 items"):
        generator.fit(data, ids, vectors, other_ids, others[:5])
    broken = others.copy()
    broken[3, 1] = np.nan
    with pytest.raises(InputError, match="the embedding of item 3 is not finite"):
        generator.fit(data, ids, vectors, other_ids, broken)
