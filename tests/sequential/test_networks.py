"""The networks of the sequential recommenders, against computations by hand."""

import math

import numpy as np
import pytest
import torch
import torch.nn.functional as f

from resid import Dataset
from resid.data import PADDING, Batches, SequenceBatches
from resid.data.batches import Batch, SequenceBatch
from resid.sequential import BERT4RecSettings, HGNSettings, S3RecSettings, SASRecSettings
from resid.sequential.base import whole_histories
from resid.sequential.bert4rec import BERT4RecModel
from resid.sequential.hgn import HGNModel
from resid.sequential.s3rec import Pretraining
from resid.sequential.sasrec import SASRecModel

ITEMS, STORES, WIDTH = 20, 4, 8
PLAIN = (np.arange(ITEMS)[:, None], [ITEMS])
FIELDS = (np.stack([np.arange(ITEMS), np.arange(ITEMS) % STORES], axis=1), [ITEMS, STORES])
SMALL = {"width": WIDTH, "heads": 2, "ffn_width": 16, "layers": 2}


def random_weights(model):
    """Weights large enough to tell things apart."""
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(3)
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape) * 0.5)
    return model.eval().requires_grad_(False)


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def sasrec(codes_and_sizes=PLAIN, max_length=31, **more):
    return random_weights(SASRecModel(*codes_and_sizes, SASRecSettings(**SMALL, **more), max_length))


class TestItemVectors:
    @pytest.mark.parametrize("similarity", ["cosine", "dot"])
    @pytest.mark.parametrize("target", ["fused", "id"])
    def test_candidates_and_queries(self, similarity, target):
        model = sasrec(FIELDS, similarity=similarity, target=target)
        item, store = (table.weight for table in model.tables.embeddings())
        wanted = item + (store[torch.arange(ITEMS) % STORES] if target == "fused" else 0)
        if similarity == "cosine":
            wanted = wanted / wanted.norm(dim=1, keepdim=True)
        torch.testing.assert_close(model.candidates(), wanted)
        some = torch.tensor([[3, 7], [7, 0]])
        torch.testing.assert_close(model.candidates(some), wanted[some])
        query = torch.randn(2, WIDTH)
        length = WIDTH**0.5 / query.norm(dim=1, keepdim=True) if similarity == "cosine" else 1
        torch.testing.assert_close(model.scale_queries(query), query * length)

    def test_loss_kinds(self):
        queries, targets = torch.randn(5, WIDTH), torch.arange(5)
        for loss, items, wanted in (("auto", 30, "softmax"), ("auto", 10, "sampled"), ("binary", 30, "binary")):
            model = sasrec(FIELDS, loss=loss, full_softmax_limit=items, n_negatives=3, negative_group_size=2)
            assert model.loss_kind == wanted
            assert [table.sparse for table in model.tables.embeddings()] == [wanted == "sampled", False]
            found = model.loss(queries, targets, torch.Generator().manual_seed(0))
            if wanted == "softmax":
                torch.testing.assert_close(
                    found, f.cross_entropy(model.scale_queries(queries) @ model.candidates().T, targets)
                )
            assert found > 0

    def test_codes_can_be_exchanged_between_processes(self):
        assert sasrec(PLAIN).tables.codes.stride() == (1, 1)


class TestSASRec:
    def test_attention_is_causal(self):
        model = sasrec(FIELDS)
        items = torch.tensor([[3, 7, 1, 9, 4, 12]])
        states = model.states(items)
        for place in range(6):
            changed = items.clone()
            changed[0, place] = 15
            moved = (model.states(changed) - states).abs().amax(dim=2)[0] > 1e-6
            assert moved.tolist() == [False] * place + [True] * (6 - place)

    def test_padding_does_not_matter(self):
        model = sasrec(FIELDS)
        alone = model.query(torch.tensor([[3, 7, 1]]))
        beside = model.query(torch.tensor([[PADDING, PADDING, PADDING, 3, 7, 1], [1, 2, 3, 4, 5, 6]]))
        torch.testing.assert_close(beside[:1], alone)
        torch.testing.assert_close(model.states(torch.tensor([[3, 7, 1, PADDING]]))[:, 2], alone)

    def test_one_pass_is_the_same_as_a_window_for_each_target(self, data):
        """Also where histories are longer than a window: the same samples, the same loss."""
        longest = 6
        codes = np.arange(data.n_items)[:, None]
        settings = SASRecSettings(**SMALL, batch_size=64)
        model = random_weights(SASRecModel(codes, [data.n_items], settings, longest - 1))
        windows = Batches(data.train, 10_000, shuffle=False).batch(np.arange(len(data.train)))
        histories = torch.from_numpy(windows.histories[:, -(longest - 1) :])
        assert (windows.histories[:, : -(longest - 1)] != PADDING).any()
        one_by_one = model.loss(model.query(histories), torch.from_numpy(windows.targets), torch.Generator())
        total, count = 0.0, 0
        for batch in SequenceBatches(data.train, 50, longest, stride=1):
            trained = (batch.items[:, 1:] != PADDING) & (
                np.arange(1, batch.items.shape[1]) >= batch.first_target[:, None]
            )
            total += float(model(batch, torch.Generator())["loss"]) * trained.sum()
            count += trained.sum()
        assert count == len(data.train)
        assert total / count == pytest.approx(float(one_by_one), rel=1e-5)

    def test_every_batch_has_about_batch_size_targets(self, data):
        batches = whole_histories(data, SASRecSettings(batch_size=256))
        windows = [int(((batch.items != PADDING).sum(axis=1) - batch.first_target).sum()) for batch in batches]
        assert sum(windows) == len(data.train)
        assert len(windows) == len(batches) > 2
        mean = len(data.train) / len(batches)
        assert all(abs(count - mean) <= 32 for count in windows)  # up to one long history

    def test_the_order_of_a_history_matters(self):
        model = sasrec(FIELDS)
        one, other = model.query(torch.tensor([[3, 7, 1], [7, 3, 1]]))
        assert not torch.allclose(one, other)


class TestBERT4Rec:
    def model(self, **more):
        return random_weights(BERT4RecModel(*FIELDS, BERT4RecSettings(**SMALL, **more), 12))

    def test_what_is_masked(self):
        model, rng = self.model(), torch.Generator().manual_seed(0)
        items = torch.ones(20_000, 10, dtype=torch.int64)
        items[:, :3] = PADDING
        masked = model.draw_masks(items, rng)
        assert not masked[:, :3].any()
        assert masked.any(dim=1).all()
        # Half of the windows have the last one masked alone; in the others each of seven with a chance of 0.2, and the last
        # one if that leaves none.
        none = 0.8**7
        assert masked[:, 3:-1].float().mean() == pytest.approx(0.5 * 0.2, abs=0.005)
        assert masked[:, -1].float().mean() == pytest.approx(0.5 + 0.5 * (0.2 + none), abs=0.01)
        for share, rate in ((0.0, 0.2), (1.0, 0.0)):
            masked = self.model(last_only_prob=share).draw_masks(items, rng)
            assert masked[:, 3:-1].float().mean() == pytest.approx(rate, abs=0.01)

    def test_a_masked_item_and_its_fields_are_invisible(self):
        model = self.model()
        items, masked = torch.tensor([[3, 7, 1, 9]]), torch.tensor([[False, True, False, False]])
        states = model.states(items, masked)
        hidden, seen = items.clone(), items.clone()
        hidden[0, 1], seen[0, 2] = 14, 14
        torch.testing.assert_close(model.states(hidden, masked), states)
        assert ((model.states(seen, masked) - states).abs().amax(dim=1) > 1e-6).all()  # what comes after it is seen

    def test_the_query_is_the_state_of_a_mask_after_the_history(self):
        model = self.model()
        query = model.query(torch.tensor([[PADDING, 3, 7], [4, 5, 6]]))
        masked = torch.tensor([[False, False, True]])
        torch.testing.assert_close(query[:1], model.states(torch.tensor([[3, 7, 0]]), masked))

    def test_the_head_by_hand(self):
        model = self.model()
        tokens = model.tables.vectors(torch.tensor([[3, 7]]))
        tokens = model.norm(torch.cat([tokens, model.mask[None, None]], dim=1) + model.positions[-3:])
        for layer in model.layers:
            tokens = layer(tokens, torch.ones(1, 3, dtype=torch.bool))
        head = f.gelu(model.head.weight @ tokens[0, -1] + model.head.bias)
        wanted = (head - head.mean()) / (head.var(unbiased=False) + 1e-5).sqrt()
        wanted = wanted * model.head_norm.weight + model.head_norm.bias
        torch.testing.assert_close(model.query(torch.tensor([[3, 7]]))[0], wanted)

    def test_the_loss_is_the_cross_entropy_of_the_masked_items(self):
        model = self.model(last_only_prob=1.0)
        batch = Batch(np.arange(2), np.arange(2), np.array([[PADDING, 3], [4, 5]]), np.array([9, 2]))
        queries = model.query(torch.from_numpy(batch.histories))
        wanted = f.cross_entropy(model.scale_queries(queries) @ model.candidates().T, torch.tensor([9, 2]))
        torch.testing.assert_close(model(batch, torch.Generator().manual_seed(0))["loss"], wanted)


class TestHGN:
    def test_the_gates_by_hand(self):
        """Two users, one with a short history, in plain loops."""
        settings = HGNSettings(width=WIDTH, n_recent=4, dropout=0.0, use_fields=True, user_embeddings=True)
        model = random_weights(HGNModel(*FIELDS, settings, n_users=3))
        histories, users = torch.tensor([[1, 2, 3, 4, 5], [PADDING, PADDING, PADDING, 7, 8]]), torch.tensor([2, 0])
        found = model.query(histories, users)
        item, store = (table.weight for table in model.tables.embeddings())
        for row, history in enumerate([[2, 3, 4, 5], [7, 8]]):
            user = model.users.weight[users[row]]
            pooled, weights, plain = torch.zeros(WIDTH), 0.0, torch.zeros(WIDTH)
            for place, number in enumerate(history):
                vector = item[number] + store[number % STORES]
                gate = torch.sigmoid(
                    model.feature_items.weight @ vector + model.feature_users.weight @ user + model.feature_items.bias
                )
                passed = vector * gate
                slot = 4 - len(history) + place
                weight = torch.sigmoid(
                    model.instance_items.weight[0] @ passed + model.instance_users.weight[slot] @ user
                )
                pooled, weights, plain = pooled + weight * passed, weights + weight, plain + vector
            torch.testing.assert_close(found[row], user + pooled / weights + plain)

    def test_inputs_and_candidates_have_separate_tables(self):
        model = random_weights(HGNModel(*FIELDS, HGNSettings(width=WIDTH, similarity="dot"), n_users=3))
        before = model.candidates().clone()
        with torch.no_grad():
            model.tables.embeddings()[0].weight += 1
        torch.testing.assert_close(model.candidates(), before)
        with torch.no_grad():
            model.outputs.embeddings()[1].weight += 1
        torch.testing.assert_close(model.candidates(), before + 1)

    def test_candidates_without_fields_have_one_table(self):
        model = HGNModel(*FIELDS, HGNSettings(width=WIDTH, use_fields=True, target="id"), n_users=3)
        assert len(model.outputs) == 1
        assert model.candidates().shape == (ITEMS, WIDTH)

    def test_one_embedding_for_all_users(self):
        model = random_weights(HGNModel(*PLAIN, HGNSettings(width=WIDTH), n_users=1))
        histories = torch.tensor([[1, 2], [1, 2]])
        query = model.query(histories, torch.tensor([7, -1]))
        torch.testing.assert_close(query[0], query[1])
        with torch.no_grad():
            model.users.weight += 1
        assert not torch.allclose(model.query(histories)[0], query[0])

    def test_an_unknown_user_gets_the_mean_embedding(self):
        model = random_weights(HGNModel(*PLAIN, HGNSettings(width=WIDTH, user_embeddings=True), n_users=3))
        histories = torch.tensor([[1, 2], [1, 2]])
        query = model.query(histories, torch.tensor([-1, 1]))
        torch.testing.assert_close(query[0], model.query(histories)[0])
        assert not torch.allclose(query[0], query[1])


def pairwise_loss(positive, negative, nested):
    """The loss of two scores, by hand."""
    if nested:
        positive, negative = (1 / (1 + math.exp(-score)) for score in (positive, negative))
    return -math.log(1 / (1 + math.exp(negative - positive)))


class TestS3Rec:
    def tasks(self, codes_and_sizes=FIELDS, **more):
        settings = S3RecSettings(**{**SMALL, "dropout": 0.0, "use_fields": len(codes_and_sizes[1]) > 1, **more})
        model = SASRecModel(*codes_and_sizes, settings, 12)
        return random_weights(Pretraining(model, torch.arange(ITEMS).repeat(3), settings))

    ITEMS = torch.tensor([[3, 7, 1, 9, 4], [5, 6, 2, PADDING, PADDING]])
    MASKED = torch.tensor([[False, True, False, False, True], [False, False, True, False, False]])

    def states(self, tasks):
        """What the network makes of masked histories, one history at a time, both directions."""
        found = []
        for items, masked in zip(self.ITEMS, self.MASKED, strict=True):
            real = items != PADDING
            tokens = tasks.model.tables.vectors(items[real]).clone()
            tokens[masked[real]] = tasks.mask
            found.append(tasks.model.encode(tokens[None], torch.ones(1, int(real.sum()), dtype=torch.bool))[0])
        return found

    @pytest.mark.parametrize("nested", [False, True])
    def test_mip_by_hand(self, nested, monkeypatch):
        tasks = self.tasks(nested_sigmoids=nested)
        others = (self.ITEMS + 10).clamp(max=ITEMS - 1)
        monkeypatch.setattr(
            tasks, "draw_negatives", lambda items, _: (others, torch.ones_like(items, dtype=torch.bool))
        )
        found = tasks.items_and_attributes(self.ITEMS, self.MASKED, torch.Generator())["mip"]
        total = 0.0
        for row, states in enumerate(self.states(tasks)):
            for place in self.MASKED[row].nonzero()[:, 0]:
                query = tasks.maps["mip"](states[place])
                own, other = (tasks.model.tables.vectors(t[row, place]) for t in (self.ITEMS, others))
                total += pairwise_loss(float(query @ own), float(query @ other), nested)
        assert float(found) == pytest.approx(total / 2, rel=1e-5)

    @pytest.mark.parametrize("name", ["aap", "map"])
    def test_attributes_by_hand(self, name):
        tasks = self.tasks()
        found = tasks.items_and_attributes(self.ITEMS, self.MASKED, torch.Generator().manual_seed(0))[name]
        stores, total = tasks.model.tables.embeddings()[1].weight, 0.0
        for row, states in enumerate(self.states(tasks)):
            for place, state in enumerate(states):
                if bool(self.MASKED[row, place]) == (name == "map"):
                    for store in range(1, STORES):  # the first code is a missing value
                        chance = 1 / (1 + math.exp(-float(tasks.maps[name](state) @ stores[store])))
                        has = int(self.ITEMS[row, place]) % STORES == store
                        total += -math.log(chance if has else 1 - chance)
        assert float(found) == pytest.approx(total / 2, rel=1e-5)

    def test_sampled_attributes_give_the_same_loss_on_average(self):
        whole, drawn = self.tasks(), self.tasks(n_sampled_attributes=2)
        items, queries = torch.tensor([5, 6, 8]), torch.randn(3, WIDTH)
        wanted = float(whole.attribute_loss(queries, items, torch.Generator().manual_seed(0)))
        rng = torch.Generator().manual_seed(0)
        found = [float(drawn.attribute_loss(queries, items, rng)) for _ in range(2_000)]
        assert np.std(found) > 0
        assert np.mean(found) == pytest.approx(wanted, rel=0.03)

    @pytest.mark.parametrize("nested", [False, True])
    def test_sp_by_hand(self, nested, monkeypatch):
        """A history of four: the gap is its second item, or the second and third; the log begins with item 0."""
        tasks = self.tasks(nested_sigmoids=nested)
        items = torch.tensor([[3, 7, 1, 9]])
        for size, first, begin in ((1, 1, 11), (2, 1, 4)):
            chances = torch.tensor([(size - 0.5) / 2, (first + 0.5) / (4 - size + 1), (begin + 0.5) / (60 - size + 1)])
            monkeypatch.setattr(torch, "rand", lambda *_, chances=chances, **__: chances[:, None])
            found = tasks.segments(items, torch.Generator())
            monkeypatch.undo()
            gap = list(range(first, first + size))
            outside = items.clone()
            outside[0, gap] = torch.arange(begin, begin + size)
            states = []
            for some, hidden in ((items, gap), (items, [p for p in range(4) if p not in gap]), (outside, None)):
                tokens = tasks.model.tables.vectors(some).clone()
                hidden = [p for p in range(4) if p not in gap] if hidden is None else hidden
                tokens[0, hidden] = tasks.mask
                states.append(tasks.model.encode(tokens, torch.ones(1, 4, dtype=torch.bool))[0, -1])
            query = tasks.maps["sp"](states[0])
            positive, negative = (float(query @ state) for state in states[1:])
            assert float(found) == pytest.approx(pairwise_loss(positive, negative, nested), rel=1e-5)

    def test_the_loss_is_the_weighted_sum(self):
        batch = SequenceBatch(np.arange(2), self.ITEMS.numpy(), np.ones(2, np.int64))
        for codes_and_sizes, names in ((FIELDS, {"aap", "mip", "map", "sp"}), (PLAIN, {"mip", "sp"})):
            terms = self.tasks(codes_and_sizes)(batch, torch.Generator().manual_seed(0))
            assert set(terms) == {"loss", *(f"loss.{name}" for name in names)}
            weights = {"aap": 0.2, "mip": 1.0, "map": 1.0, "sp": 0.5}
            total = sum(weights[name] * float(terms[f"loss.{name}"]) for name in names)
            assert float(terms["loss"]) == pytest.approx(total, rel=1e-5)

    def test_the_losses_are_means_over_histories(self, monkeypatch):
        """So the shares of two processes, weighed by `batch_weight`, give the loss of the whole batch."""
        tasks = self.tasks()
        monkeypatch.setattr(tasks, "draw_negatives", lambda items, _: ((items + 10) % ITEMS, items != PADDING))
        batch = SequenceBatch(np.arange(2), self.ITEMS.numpy(), np.ones(2, np.int64))
        assert batch.share(0, 2).weight != batch.share(1, 2).weight  # the numbers of items differ
        assert tasks.batch_weight(batch) == 2
        whole = tasks.items_and_attributes(self.ITEMS, self.MASKED, torch.Generator())
        totals = dict.fromkeys(whole, 0.0)
        for rank in range(2):
            share = batch.share(rank, 2)
            terms = tasks.items_and_attributes(torch.from_numpy(share.items), self.MASKED[rank::2], torch.Generator())
            for name, term in terms.items():
                totals[name] += float(term) * tasks.batch_weight(share) / tasks.batch_weight(batch)
        assert totals == pytest.approx({name: float(term) for name, term in whole.items()}, rel=1e-5)

    def test_a_field_that_no_item_has(self):
        codes = np.concatenate([FIELDS[0], np.zeros((ITEMS, 1), dtype=np.int64)], axis=1)
        tasks = self.tasks((codes, [ITEMS, STORES, 1]), n_sampled_attributes=2)
        assert torch.isfinite(tasks.attribute_loss(torch.randn(3, WIDTH), torch.arange(3), torch.Generator()))

    def test_histories_are_cut_and_their_last_item_masked(self):
        tasks, rng = self.tasks(), torch.Generator().manual_seed(0)
        many = self.ITEMS.repeat(2_000, 1)
        lengths = (tasks.cut(many, rng) != PADDING).sum(dim=1)
        for row, longest in ((0, 5), (1, 3)):
            counts = torch.bincount(lengths[row::2], minlength=6)
            assert counts[2 : longest + 1].sum() == 2_000
            assert (counts[2 : longest + 1] / 2_000).tolist() == pytest.approx(
                [1 / (longest - 1)] * (longest - 1), abs=0.05
            )
        masked = tasks.draw_masks(many, rng)
        assert masked[0::2, 4].all()
        assert masked[1::2, 2].all()
        assert masked[0::2, :4].float().mean() == pytest.approx(0.2, abs=0.02)
        assert not masked[1::2, 3:].any()

    def test_negatives_are_not_in_the_history(self):
        tasks = self.tasks()
        negatives, valid = tasks.draw_negatives(torch.arange(ITEMS - 2)[None], torch.Generator().manual_seed(0))
        assert (negatives[valid] >= ITEMS - 2).all()
        assert valid.sum() > 5
        _, valid = tasks.draw_negatives(torch.arange(ITEMS)[None], torch.Generator().manual_seed(0))
        assert not valid.any()  # where every item is in the history, there is no other
