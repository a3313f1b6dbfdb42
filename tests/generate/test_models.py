"""The generators: T5 against transformers, causality, what padding must not change, and beams against all items."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resid import InputError
from resid.data import PADDING, Batch, SequenceBatch
from resid.generate.decode import beam_search, items_of
from resid.generate.exchange import from_transformers, to_transformers
from resid.generate.onepass import Branches, OnePassModel
from resid.generate.t5 import T5Model, _RootMeanSquare
from resid.generate.tree import PrefixTables
from resid.nn import Dropout
from resid.quantize import SemanticIds


def random_ids(items, sizes, seed, unique=False):
    random = np.random.default_rng(seed)
    codes = np.column_stack([random.integers(0, size, items) for size in sizes])
    return SemanticIds(np.unique(codes, axis=0) if unique else codes, sizes)


def make(kind, ids, seed=0, vectors=None, dropout=0.1):
    torch.manual_seed(seed)
    codes = torch.from_numpy(ids.codes)
    if kind == "t5":
        sizes = {"width": 16, "hidden": 24, "heads": 2, "head_width": 8, "layers": 2}
        return T5Model(codes, ids.sizes, **sizes, dropout=dropout, vectors=vectors).eval()
    return OnePassModel(codes, ids.sizes, width=16, hidden=24, heads=2, layers=2, vectors=vectors).eval()


def random_vectors(items, seed):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(items, 3)).astype(np.float32))


def histories(ids, seed, users=4, longest=6):
    random = np.random.default_rng(seed)
    rows = np.full((users, longest), PADDING)
    for row in rows:
        length = random.integers(1, longest + 1)
        row[longest - length :] = random.integers(0, len(ids), length)
    rows[0] = random.integers(0, len(ids), longest)
    return torch.from_numpy(rows)


class TestT5:
    @pytest.fixture(scope="class")
    @classmethod
    def pair(cls):
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids)
        theirs = to_transformers(model)
        return ids, model, theirs

    def test_the_logits_are_those_of_transformers(self, pair):
        ids, model, theirs = pair
        rows = histories(ids, 1, users=5)
        wanted = model.codes[torch.tensor([3, 1, 4, 1, 5])] + model.offsets
        before = torch.nn.functional.pad(wanted[:, :-1], (1, 0))
        with torch.no_grad():
            ours = model.write(model.read(rows), before)
            real = rows != PADDING
            tokens = ((model.codes[rows.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
            answer = theirs(
                input_ids=tokens, attention_mask=real.repeat_interleave(3, dim=1).long(), decoder_input_ids=before
            )
        assert ours.shape == (5, 3, 22)
        assert torch.allclose(ours, answer.logits, atol=1e-5)

    def test_small_weights_too(self):
        """Where the norm's small constant counts."""
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids)
        with torch.no_grad():
            model.table.weight *= 0.003
        theirs = to_transformers(model)
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (3, 4)))
        before = torch.zeros(3, 1, dtype=torch.long)
        with torch.no_grad():
            ours = model.write(model.read(rows), before)
            tokens = (model.codes[rows] + model.offsets).flatten(1)
            answer = theirs(input_ids=tokens, decoder_input_ids=before).logits
        assert torch.allclose(ours, answer, rtol=1e-3, atol=1e-6)

    def test_there_and_back(self, pair):
        ids, model, theirs = pair
        other = make("t5", ids, seed=9)
        assert not torch.equal(other.table.weight, model.table.weight)
        from_transformers(other, theirs)
        for name, weight in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], weight)
        with pytest.raises(InputError, match=r"'shared\.weight' of the other model is missing or of another shape"):
            from_transformers(make("t5", random_ids(50, (6, 7, 9), 0)), theirs)
        with pytest.raises(InputError, match="read_vectors off"):
            to_transformers(make("t5", ids, vectors=torch.zeros(50, 3)))
        with pytest.raises(InputError, match="read_vectors off"):
            from_transformers(make("t5", ids, vectors=torch.zeros(50, 3)), theirs)

    def test_the_loss_of_training_and_its_gradients(self):
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids, dropout=0.0).train()
        theirs = to_transformers(model).train()
        rows = histories(ids, 2)
        targets = np.array([7, 8, 9, 10])
        batch = Batch(np.arange(4), np.arange(4), rows.numpy(), targets, np.empty((4, 0), dtype=np.int64))
        loss = model(batch, torch.Generator())["loss"]
        real = rows != PADDING
        tokens = ((model.codes[rows.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
        labels = model.codes[torch.from_numpy(targets)] + model.offsets
        answer = theirs(input_ids=tokens, attention_mask=real.repeat_interleave(3, dim=1).long(), labels=labels)
        assert loss.item() == pytest.approx(answer.loss.item(), abs=1e-5)
        loss.backward()
        answer.loss.backward()
        with torch.no_grad():  # their gradients as weights, which the exchange names as ours
            for parameter in theirs.parameters():
                parameter.copy_(parameter.grad)
        wanted = make("t5", ids)
        from_transformers(wanted, theirs)
        for (name, parameter), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(parameter.grad, other, atol=1e-5), name
            assert other.abs().max() > 1e-4, name

    def test_the_gradient_of_the_norm(self):
        tokens = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(_RootMeanSquare.apply, (tokens,))

    def test_attention_forgets_in_training(self):
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids, dropout=0.5).train()
        for module in model.modules():
            if isinstance(module, Dropout):
                module.chance = 0.0
        model.encoder[0].attend.dropout.chance = 0.5
        rows = histories(ids, 2)
        first, second = (model.read(rows).layers[0] for _ in range(2))
        assert not torch.allclose(first, second)


class TestOnePass:
    def test_a_later_item_changes_nothing_before_it(self):
        ids = random_ids(40, (5, 6), 0)
        model = make("onepass", ids)
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (3, 9)))
        changed = rows.clone()
        changed[:, 5] = (rows[:, 5] + 1) % 40
        with torch.no_grad():
            before, after = model.states(rows), model.states(changed)
        assert torch.equal(before[:, :5], after[:, :5])
        assert not torch.allclose(before[:, 5:], after[:, 5:])

    def test_the_loss_is_that_of_the_targets_one_by_one(self):
        ids = random_ids(40, (5, 6, 4), 0)
        model = make("onepass", ids)
        model.smoothing = 0.0
        items = np.array([[3, 1, 4, 1, 5], [9, 2, 6, PADDING, PADDING]])
        with torch.no_grad():
            loss = model(SequenceBatch(np.arange(2), items, np.ones(2, dtype=np.int64)), torch.Generator())[
                "loss"
            ].item()
            one_by_one = []
            for row in items:
                real = row[row != PADDING]
                for place in range(1, len(real)):
                    memory = model.read(torch.from_numpy(real[None, :place]))
                    written, chosen, total = None, None, 0.0
                    for level in range(3):
                        scores, written = model.next(memory, written, chosen)
                        chosen = torch.tensor([[ids.codes[real[place], level]]])
                        total -= scores[0, 0, chosen[0, 0]].item()
                    one_by_one.append(total)
        assert loss == pytest.approx(np.mean(one_by_one), rel=1e-5)

    def test_only_targets_are_trained(self):
        """A piece whose last item alone is a target has the loss of that item."""
        model = make("onepass", random_ids(40, (5, 6, 4), 0))
        pieces = np.array([[3, 1, 4, 1, 5], [9, 2, 6, 7, PADDING]])

        def loss(items, *first):
            batch = SequenceBatch(np.arange(len(items)), items, np.array(first))
            with torch.no_grad():
                return model(batch, torch.Generator())["loss"].item()

        both = loss(pieces, 4, 2)
        alone = [loss(pieces[:1], 4), loss(pieces[1:], 2)]
        assert both == pytest.approx((alone[0] + 2 * alone[1]) / 3, rel=1e-5)
        assert loss(pieces[:1], 1) != pytest.approx(alone[0], rel=1e-3)

    @pytest.mark.parametrize("asking", [2, 300])  # both ways of multiplying
    @pytest.mark.parametrize("sizes", [(4, 3, 5), (2, 40, 3)])
    def test_the_products_with_nodes(self, asking, sizes):
        ids, vectors = random_ids(90, sizes, 0), random_vectors(90, 1)
        random = np.random.default_rng(2)
        for level in range(3):
            branches = Branches(ids, level, vectors)
            nodes = torch.from_numpy(random.integers(-1, ids.nodes(level), asking))
            asked = torch.from_numpy(random.normal(size=(asking, 3)).astype(np.float32))
            wanted = torch.zeros(asking, sizes[level])
            for row, node in enumerate(nodes.tolist()):
                for code in range(sizes[level]):
                    below = (ids.node_of(level) == node) & (ids.codes[:, level] == code)
                    if below.any():
                        mean = vectors[torch.from_numpy(below)].mean(dim=0)
                        wanted[row, code] = asked[row] @ mean / mean.norm()
            scores = torch.from_numpy(random.normal(size=wanted.shape).astype(np.float32))
            assert torch.allclose(branches.add_products(scores, asked, nodes), scores + wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "onepass"])
class TestDecoding:
    def test_the_vector_of_an_item_is_read(self, kind):
        ids, vectors = random_ids(30, (5, 6), 0, unique=True), random_vectors(30, 0)
        vectors = vectors[: len(ids)]
        rows, probabilities = torch.tensor([[3, 1], [4, 5]]), []
        for item in (None, 1):
            changed = vectors.clone()
            if item is not None:
                changed[item] += 5
            model = make(kind, ids, vectors=changed)
            if kind == "onepass":
                model.decoders = make(kind, ids, vectors=vectors).decoders  # what is written stays the same
            with torch.no_grad():
                probabilities.append(model.next(model.read(rows), None, None)[0])
        before, after = probabilities
        assert not torch.allclose(before[0], after[0], atol=1e-4)
        assert torch.equal(before[1], after[1])

    def test_padding_and_the_batch_do_not_matter(self, kind):
        ids = random_ids(60, (5, 4, 6), 1, unique=True)
        model, tables = make(kind, ids, vectors=random_vectors(len(ids), 0)), PrefixTables(ids)
        rows = histories(ids, 3)
        together = beam_search(model, rows, tables, 10)
        for user, row in enumerate(rows):
            alone = beam_search(model, row[row != PADDING][None], tables, 10)
            assert torch.allclose(alone.scores[0], together.scores[user], atol=1e-5)

    @settings(max_examples=20)
    @given(
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        items=st.integers(1, 40),
        seed=st.integers(0, 999),
        with_vectors=st.booleans(),
    )
    def test_a_beam_as_wide_as_the_catalogue_scores_all_items(self, kind, sizes, items, seed, with_vectors):
        ids = random_ids(items, tuple(sizes), seed)
        vectors = random_vectors(items, seed) if with_vectors else None
        model, tables = make(kind, ids, seed, vectors), PrefixTables(ids)
        rows = histories(ids, seed, users=2)
        found, scores = items_of(beam_search(model, rows, tables, items), tables, items)
        assert (np.sort(found, axis=1) == np.arange(items)).all()
        assert (np.diff(scores, axis=1) <= 0).all()
        expected = np.zeros((2, items))
        with torch.no_grad():
            memory = model.read(rows)
            for item in range(items):
                written, chosen = None, None
                for level in range(ids.levels):
                    values, written = model.next(memory, written, chosen)
                    chosen = torch.full((2, 1), int(ids.codes[item, level]))
                    expected[:, item] += values[:, 0, chosen[0, 0]].numpy()
        assert np.take_along_axis(expected, found, axis=1) == pytest.approx(scores, abs=1e-4)

    def test_constrained_beams_end_at_items_and_free_ones_may_not(self, kind):
        ids = random_ids(20, (6, 6, 6), 2, unique=True)
        model, tables = make(kind, ids), PrefixTables(ids)
        rows = histories(ids, 5)
        bound = beam_search(model, rows, tables, 12)
        assert (bound.nodes >= 0).all()
        assert all(len(set(row.tolist())) == 12 for row in bound.nodes)
        free = beam_search(model, rows, tables, 216, constrained=False)
        assert (free.nodes >= 0).sum(dim=1).tolist() == [len(ids)] * 4
        items, scores = items_of(free, tables, 5)
        exact, exact_scores = items_of(beam_search(model, rows, tables, 216), tables, 5)
        assert np.array_equal(items, exact)
        assert scores == pytest.approx(exact_scores, abs=1e-5)

    def test_items_of_one_id_and_too_few(self, kind):
        ids = SemanticIds([[0, 1], [1, 0], [0, 1], [1, 1], [0, 1]], (2, 2))
        model, tables = make(kind, ids), PrefixTables(ids)
        items, scores = items_of(beam_search(model, torch.tensor([[3, 1]]), tables, 9), tables, 7)
        place = items[0].tolist().index(0)
        assert items[0, place : place + 3].tolist() == [0, 2, 4]
        assert items[0, 5:].tolist() == [-1, -1]
        assert np.isneginf(scores[0, 5:]).all()
