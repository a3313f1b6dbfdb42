"""The networks of generators: T5 against transformers, causality, padding, and beams against exhaustive search."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from resid import InputError
from resid.data import PADDING, Batch, SequenceBatch
from resid.generate.decode import beam_items, beam_search, score_all
from resid.generate.exchange import from_transformers, to_transformers
from resid.generate.levelwise import Branches
from resid.generate.onepass import OnePassModel, OnePassSettings
from resid.generate.prefix_tree import PrefixTree
from resid.generate.t5 import T5Model, T5Settings
from resid.nn import Dropout
from resid.nn.t5 import Memory, T5Decoder, T5Encoder, _RootMeanSquare, initialize_t5
from resid.quantize import SemanticIds


def random_ids(items, sizes, seed, unique=False):
    random = np.random.default_rng(seed)
    codes = np.column_stack([random.integers(0, size, items) for size in sizes])
    return SemanticIds(np.unique(codes, axis=0) if unique else codes, sizes)


def make(kind, ids, seed=0, vectors=None, dropout=0.1, smoothing=0.1):
    torch.manual_seed(seed)
    codes = torch.from_numpy(ids.codes)
    shape = {"width": 16, "ffn_width": 24, "heads": 2, "layers": 2}
    if kind == "t5":
        t5 = T5Settings(**shape, head_width=8, dropout=dropout)
        return T5Model(codes, ids.level_sizes, t5, vectors=vectors).eval()
    onepass = OnePassSettings(**shape, label_smoothing=smoothing)
    return OnePassModel(codes, ids.level_sizes, onepass, vectors=vectors).eval()


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

    def test_logits_equal_those_of_transformers(self, pair):
        ids, model, theirs = pair
        rows = histories(ids, 1, users=5)
        wanted = model.codes[torch.tensor([3, 1, 4, 1, 5])] + model.offsets
        before = torch.nn.functional.pad(wanted[:, :-1], (1, 0))
        with torch.no_grad():
            ours = model.logits(model.encode(rows), before)
            real = rows != PADDING
            tokens = ((model.codes[rows.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
            answer = theirs(
                input_ids=tokens, attention_mask=real.repeat_interleave(3, dim=1).long(), decoder_input_ids=before
            )
        assert ours.shape == (5, 3, 22)
        assert torch.allclose(ours, answer.logits, atol=1e-5)

    def test_small_weights(self):
        """The epsilon of the norm matters for them."""
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids)
        with torch.no_grad():
            model.table.weight *= 0.003
        theirs = to_transformers(model)
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 50, (3, 4)))
        before = torch.zeros(3, 1, dtype=torch.long)
        with torch.no_grad():
            ours = model.logits(model.encode(rows), before)
            tokens = (model.codes[rows] + model.offsets).flatten(1)
            answer = theirs(input_ids=tokens, decoder_input_ids=before).logits
        assert torch.allclose(ours, answer, rtol=1e-3, atol=1e-6)

    def test_round_trip(self, pair):
        ids, model, theirs = pair
        other = make("t5", ids, seed=9)
        assert not torch.equal(other.table.weight, model.table.weight)
        from_transformers(other, theirs)
        for name, weight in model.state_dict().items():
            assert torch.equal(other.state_dict()[name], weight)
        with pytest.raises(
            InputError, match=r"the weight 'shared\.weight' is missing from the other model or has another"
        ):
            from_transformers(make("t5", random_ids(50, (6, 7, 9), 0)), theirs)
        with pytest.raises(
            InputError, match="T5 of transformers reads tokens only; use a generator with input_embeddings=False"
        ):
            to_transformers(make("t5", ids, vectors=torch.zeros(50, 3)))
        with pytest.raises(
            InputError, match="T5 of transformers reads tokens only; use a generator with input_embeddings=False"
        ):
            from_transformers(make("t5", ids, vectors=torch.zeros(50, 3)), theirs)

    def test_training_loss_and_gradients(self):
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids, dropout=0.0).train()
        theirs = to_transformers(model).train()
        rows = histories(ids, 2)
        targets = np.array([7, 8, 9, 10])
        batch = Batch(np.arange(4), np.arange(4), rows.numpy(), targets)
        loss = model(batch, torch.Generator())["loss"]
        real = rows != PADDING
        tokens = ((model.codes[rows.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
        labels = model.codes[torch.from_numpy(targets)] + model.offsets
        answer = theirs(input_ids=tokens, attention_mask=real.repeat_interleave(3, dim=1).long(), labels=labels)
        assert loss.item() == pytest.approx(answer.loss.item(), abs=1e-5)
        loss.backward()
        answer.loss.backward()
        with torch.no_grad():  # store the gradients as weights, which `from_transformers` renames
            for parameter in theirs.parameters():
                parameter.copy_(parameter.grad)
        wanted = make("t5", ids)
        from_transformers(wanted, theirs)
        for (name, parameter), other in zip(model.named_parameters(), wanted.parameters(), strict=True):
            assert torch.allclose(parameter.grad, other, atol=1e-5), name
            assert other.abs().max() > 1e-4, name

    def test_gradient_of_the_norm(self):
        tokens = torch.randn(2, 3, 8, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(_RootMeanSquare.apply, (tokens,))

    def test_attention_dropout(self):
        ids = random_ids(50, (6, 7, 8), 0)
        model = make("t5", ids, dropout=0.5).train()
        for module in model.modules():
            if isinstance(module, Dropout):
                module.p = 0.0
        model.encoder.blocks[0].attention.dropout.p = 0.5
        rows = histories(ids, 2)
        first, second = (model.encode(rows).tokens for _ in range(2))
        assert not torch.allclose(first, second)


class TestT5Stacks:
    """`T5Encoder` and `T5Decoder` without `T5Model`."""

    SHAPE = (16, 2, 8, 24, 2, 0.0)  # width, heads, head width, feed-forward width, layers, dropout

    @pytest.fixture(scope="class")
    @classmethod
    def apart(cls):
        """Return a T5Model, and an encoder and a decoder of their own with its weights."""
        model = make("t5", random_ids(50, (6, 7, 8), 0), dropout=0.0)
        encoder, decoder = T5Encoder(*cls.SHAPE, max_length=31 * 3), T5Decoder(*cls.SHAPE, max_length=3)
        encoder.load_state_dict(model.encoder.state_dict())
        decoder.load_state_dict(model.decoder.state_dict())
        return model, encoder.eval(), decoder.eval()

    def tokens(self, model, rows):
        """Return the embedded tokens of histories, and the bias of their padding."""
        real = rows != PADDING
        tokens = ((model.codes[rows.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
        bias = torch.zeros(tokens.shape).masked_fill(~real.repeat_interleave(3, dim=1), -torch.inf)
        return model.table(tokens), bias[:, None, None]

    def test_encoder(self, apart):
        model, encoder, _ = apart
        rows = histories(random_ids(50, (6, 7, 8), 0), 1)
        with torch.no_grad():
            memory, expected = encoder(*self.tokens(model, rows)), model.encode(rows)
        assert torch.equal(memory.tokens, expected.tokens)
        assert torch.equal(memory.bias, expected.bias)
        assert memory.keys_values is None

    def test_decoder_with_teacher_forcing(self, apart):
        model, encoder, decoder = apart
        rows = histories(random_ids(50, (6, 7, 8), 0), 2)
        before = torch.nn.functional.pad(model.codes[torch.tensor([3, 1, 4, 1]), :2] + model.offsets[:2], (1, 0))
        with torch.no_grad():
            states = decoder(model.table(before), encoder(*self.tokens(model, rows)))
            assert torch.equal(states @ model.table.weight.T, model.logits(model.encode(rows), before))

    def test_decoder_step_by_step(self, apart):
        """One token at a time with the key-value cache equals teacher forcing, and `T5Model.next_level`."""
        model, encoder, decoder = apart
        rows = histories(random_ids(50, (6, 7, 8), 0), 3)
        codes = model.codes[torch.tensor([3, 1, 4, 1])]
        before = torch.nn.functional.pad(codes[:, :2] + model.offsets[:2], (1, 0))
        with torch.no_grad():
            memory = encoder(*self.tokens(model, rows))
            expected = decoder(model.table(before), memory)
            prepared, cache, state = decoder.prepare(memory), None, None
            for position in range(3):
                tokens = model.table(before[:, position : position + 1])
                states, cache = decoder.step(tokens, prepared, cache, position)
                assert torch.allclose(states[:, 0], expected[:, position], atol=1e-5)
                taken = codes[:, position - 1 : position] if position else None
                log_probs, state = model.next_level(prepared, state, taken)
                first, size = int(model.offsets[position]), model.level_sizes[position]
                ours = (states @ model.table.weight.T).log_softmax(dim=2)[..., first : first + size]
                assert torch.allclose(ours, log_probs, atol=1e-6)
            assert cache.shape == (2, 2, 4, 1, 2, 3, 8)

    def test_decoder_over_any_memory(self):
        """A decoder reads the output of another encoder, and both are initialized and trained on their own."""
        torch.manual_seed(0)
        decoder = T5Decoder(*self.SHAPE, max_length=5)
        initialize_t5(decoder)
        memory = Memory(torch.randn(3, 7, 16, requires_grad=True), torch.zeros(3, 1, 1, 7))
        tokens = torch.randn(3, 5, 16)
        states = decoder(tokens, memory)
        assert states.shape == (3, 5, 16)
        later = tokens.clone()
        later[:, 3:] += 1
        assert torch.equal(decoder(later, memory)[:, :3], states[:, :3])  # causal
        states.sum().backward()
        assert memory.tokens.grad.abs().sum() > 0
        assert all(parameter.grad is not None for parameter in decoder.parameters())


class TestOnePass:
    def test_causality(self):
        ids = random_ids(40, (5, 6), 0)
        model = make("onepass", ids)
        rows = torch.from_numpy(np.random.default_rng(0).integers(0, 40, (3, 9)))
        changed = rows.clone()
        changed[:, 5] = (rows[:, 5] + 1) % 40
        with torch.no_grad():
            before, after = model.states(rows), model.states(changed)
        assert torch.equal(before[:, :5], after[:, :5])
        assert not torch.allclose(before[:, 5:], after[:, 5:])

    def test_loss_equals_the_mean_over_single_targets(self):
        ids = random_ids(40, (5, 6, 4), 0)
        model = make("onepass", ids, smoothing=0.0)
        items = np.array([[3, 1, 4, 1, 5], [9, 2, 6, PADDING, PADDING]])
        with torch.no_grad():
            loss = model(SequenceBatch(np.arange(2), items, np.ones(2, dtype=np.int64)), torch.Generator())[
                "loss"
            ].item()
            one_by_one = []
            for row in items:
                real = row[row != PADDING]
                for place in range(1, len(real)):
                    memory = model.encode_histories(torch.from_numpy(real[None, :place]))
                    state, codes, total = None, None, 0.0
                    for level in range(3):
                        log_probs, state = model.next_level(memory, state, codes)
                        codes = torch.tensor([[ids.codes[real[place], level]]])
                        total -= log_probs[0, 0, codes[0, 0]].item()
                    one_by_one.append(total)
        assert loss == pytest.approx(np.mean(one_by_one), rel=1e-5)

    def test_only_targets_are_trained(self):
        """The loss of a sequence in which only the last items are targets is that of these items."""
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

    @pytest.mark.parametrize("n_queries", [2, 300])  # both ways of multiplying
    @pytest.mark.parametrize("sizes", [(4, 3, 5), (2, 40, 3)])
    def test_products_with_nodes(self, n_queries, sizes):
        ids, vectors = random_ids(90, sizes, 0), random_vectors(90, 1)
        random = np.random.default_rng(2)
        for level in range(3):
            branches = Branches(ids, level, vectors)
            nodes = torch.from_numpy(random.integers(-1, ids.nodes(level), n_queries))
            queries = torch.from_numpy(random.normal(size=(n_queries, 3)).astype(np.float32))
            wanted = torch.zeros(n_queries, sizes[level])
            for row, node in enumerate(nodes.tolist()):
                for code in range(sizes[level]):
                    below = (ids.node_of(level) == node) & (ids.codes[:, level] == code)
                    if below.any():
                        mean = vectors[torch.from_numpy(below)].mean(dim=0)
                        wanted[row, code] = queries[row] @ mean / mean.norm()
            scores = torch.from_numpy(random.normal(size=wanted.shape).astype(np.float32))
            assert torch.allclose(branches.add_products(scores, queries, nodes), scores + wanted, atol=1e-5)


@pytest.mark.parametrize("kind", ["t5", "onepass"])
class TestDecoding:
    def test_item_vectors_are_read(self, kind):
        ids, vectors = random_ids(30, (5, 6), 0, unique=True), random_vectors(30, 0)
        vectors = vectors[: len(ids)]
        rows, probabilities = torch.tensor([[3, 1], [4, 5]]), []
        for item in (None, 1):
            changed = vectors.clone()
            if item is not None:
                changed[item] += 5
            model = make(kind, ids, vectors=changed)
            if kind == "onepass":
                model.decoders = make(kind, ids, vectors=vectors).decoders  # only the input changes
            with torch.no_grad():
                probabilities.append(model.next_level(model.encode_histories(rows), None, None)[0])
        before, after = probabilities
        assert not torch.allclose(before[0], after[0], atol=1e-4)
        assert torch.equal(before[1], after[1])

    def test_padding_and_batch_do_not_matter(self, kind):
        ids = random_ids(60, (5, 4, 6), 1, unique=True)
        model, tree = make(kind, ids, vectors=random_vectors(len(ids), 0)), PrefixTree(ids)
        rows = histories(ids, 3)
        together = beam_search(model, rows, tree, 10)
        for user, row in enumerate(rows):
            alone = beam_search(model, row[row != PADDING][None], tree, 10)
            assert torch.allclose(alone.scores[0], together.scores[user], atol=1e-5)

    @settings(max_examples=20)
    @given(
        sizes=st.lists(st.integers(1, 6), min_size=1, max_size=4),
        items=st.integers(1, 40),
        seed=st.integers(0, 999),
        with_vectors=st.booleans(),
    )
    def test_beam_as_wide_as_the_catalogue_equals_exhaustive_search(self, kind, sizes, items, seed, with_vectors):
        ids = random_ids(items, tuple(sizes), seed)
        vectors = random_vectors(items, seed) if with_vectors else None
        model, tree = make(kind, ids, seed, vectors), PrefixTree(ids)
        rows = histories(ids, seed, users=2)
        found, scores = beam_items(beam_search(model, rows, tree, items), tree, items)
        assert (np.sort(found, axis=1) == np.arange(items)).all()
        assert (np.diff(scores, axis=1) <= 0).all()
        expected = np.zeros((2, items))
        with torch.no_grad():
            memory = model.encode_histories(rows)
            for item in range(items):
                state, codes = None, None
                for level in range(ids.levels):
                    log_probs, state = model.next_level(memory, state, codes)
                    codes = torch.full((2, 1), int(ids.codes[item, level]))
                    expected[:, item] += log_probs[:, 0, codes[0, 0]].numpy()
        assert np.take_along_axis(expected, found, axis=1) == pytest.approx(scores, abs=1e-4)
        exact, exact_scores = beam_items(score_all(model, rows, tree, items), tree, items)
        assert (np.sort(exact, axis=1) == np.arange(items)).all()
        assert np.take_along_axis(expected, exact, axis=1) == pytest.approx(exact_scores, abs=1e-4)

    def test_constrained_and_unconstrained_beams(self, kind):
        ids = random_ids(20, (6, 6, 6), 2, unique=True)
        model, tree = make(kind, ids), PrefixTree(ids)
        rows = histories(ids, 5)
        bound = beam_search(model, rows, tree, 12)
        assert (bound.nodes >= 0).all()
        assert all(len(set(row.tolist())) == 12 for row in bound.nodes)
        free = beam_search(model, rows, tree, 216, constrained=False)
        assert (free.nodes >= 0).sum(dim=1).tolist() == [len(ids)] * 4
        items, scores = beam_items(free, tree, 5)
        exact, exact_scores = beam_items(beam_search(model, rows, tree, 216), tree, 5)
        assert np.array_equal(items, exact)
        assert scores == pytest.approx(exact_scores, abs=1e-5)

    def test_items_with_the_same_id_and_too_few_items(self, kind):
        ids = SemanticIds([[0, 1], [1, 0], [0, 1], [1, 1], [0, 1]], (2, 2))
        model, tree = make(kind, ids), PrefixTree(ids)
        items, scores = beam_items(beam_search(model, torch.tensor([[3, 1]]), tree, 9), tree, 7)
        place = items[0].tolist().index(0)
        assert items[0, place : place + 3].tolist() == [0, 2, 4]
        assert items[0, 5:].tolist() == [-1, -1]
        assert np.isneginf(scores[0, 5:]).all()
