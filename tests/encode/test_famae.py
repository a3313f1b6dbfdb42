"""FAMAE's network: masks, leaks, the loss against its formula, and a plain implementation."""

import numpy as np
import pytest
import torch
import torch.nn.functional as f
from benchmarks.plain_famae import PlainFamae
from torch import nn

from resid import Dataset
from resid.core.errors import InputError
from resid.data import Batches, SequenceBatches
from resid.encode import FamaeModel, FamaeSettings

WIDTH = 16
FORMS = ["bidirectional", "causal"]


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


def make(data, **options):
    torch.manual_seed(0)
    codes = np.concatenate([np.arange(data.n_items)[:, None], data.fields], axis=1)
    settings = FamaeSettings(**{"width": WIDTH, "ffn_width": 32, "dropout": 0.0, **options})
    sizes = dict(zip(("item", *data.field_names), (data.n_items, *data.field_sizes), strict=True))
    model = FamaeModel(codes, sizes, settings, data.settings.max_length)
    for parameter in model.parameters():  # larger weights than at the start, so that differences show
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.fixture
def batch(data):
    return next(iter(Batches(data.train, 48, seed=1)))


def inputs(model, batch):
    targets = model.codes[torch.from_numpy(batch.targets)]
    masked = model.draw_masks(len(targets), torch.Generator().manual_seed(0))
    return torch.from_numpy(batch.histories), targets, masked


class TestMasks:
    def test_statistics(self, data):
        model = make(data)
        masked = model.draw_masks(60_000, torch.Generator().manual_seed(0))
        fields = model.n_fields
        assert masked.double().mean(dim=0).tolist() == pytest.approx([(fields + 1) / (2 * fields)] * fields, abs=0.01)
        counts = torch.bincount(masked.sum(dim=1), minlength=fields + 1).double() / len(masked)
        assert counts.tolist() == pytest.approx([0.0] + [1 / fields] * fields, abs=0.01)

    def test_every_subset_of_a_size_is_as_likely(self, data):
        model = make(data)
        masked = model.draw_masks(60_000, torch.Generator().manual_seed(1))
        pairs = masked[masked.sum(dim=1) == 2]
        codes, counts = torch.unique(pairs.long() @ (2 ** torch.arange(model.n_fields)), return_counts=True)
        assert len(codes) == 10  # 5 over 2
        assert (counts / counts.sum()).tolist() == pytest.approx([0.1] * 10, abs=0.01)


@pytest.mark.parametrize("form", FORMS)
class TestLeaks:
    def test_masked_values_do_not_reach_the_hidden_state(self, data, batch, form):
        model = make(data, attention=form)
        histories, targets, masked = inputs(model, batch)
        other = torch.where(masked, torch.zeros_like(targets), targets)
        assert torch.equal(model.hidden(histories, targets, masked), model.hidden(histories, other, masked))
        visible = torch.where(masked, targets, (targets + 1) % torch.tensor(model.field_sizes))
        assert not torch.allclose(model.hidden(histories, targets, masked), model.hidden(histories, visible, masked))

    def test_padding_does_not_matter(self, data, batch, form):
        model = make(data, attention=form)
        histories, targets, masked = inputs(model, batch)
        padded = f.pad(histories, (9, 0), value=-1)
        torch.testing.assert_close(model.hidden(padded, targets, masked), model.hidden(histories, targets, masked))

    def test_a_window_does_not_see_the_others_of_its_batch(self, data, batch, form):
        model = make(data, attention=form)
        histories, targets, masked = inputs(model, batch)
        alone = model.hidden(histories[3:4], targets[3:4], masked[3:4])
        torch.testing.assert_close(model.hidden(histories, targets, masked)[3:4], alone)


class TestOnePass:
    """All targets of a history in one pass, against one window per target."""

    def test_equals_one_window_per_target(self, data):
        model = make(data)
        longest = data.settings.max_length
        pieces = next(iter(SequenceBatches(data.train, 200, longest, stride=4, count_targets=True, seed=1)))
        items, trained = torch.from_numpy(pieces.items), torch.from_numpy(pieces.are_targets)
        masked = model.draw_masks(trained.numel(), torch.Generator().manual_seed(0)).view(*trained.shape, -1)
        targets = model.codes[items[:, 1:].clamp_min(0)]
        none = [None] * model.n_fields

        found = model.hidden_in_one_pass(items, masked)[trained]
        model.loss(found, targets[trained], masked[trained], none)["loss"].backward()
        gradients = {name: parameter.grad.clone() for name, parameter in model.named_parameters()}
        model.zero_grad()
        windows = []
        for row, place in trained.nonzero().tolist():
            windows.append(
                model.hidden(items[row : row + 1, : place + 1], targets[row, place][None], masked[row, place][None])
            )
        expected = torch.cat(windows)
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)
        model.loss(expected, targets[trained], masked[trained], none)["loss"].backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(
                gradients[name], parameter.grad, atol=1e-5, rtol=1e-3, msg=lambda m, n=name: f"{n}: {m}"
            )

    def test_a_target_sees_neither_itself_nor_what_follows(self, data):
        model = make(data)
        pieces = next(iter(SequenceBatches(data.train, 200, data.settings.max_length, count_targets=True, seed=1)))
        items = torch.from_numpy(pieces.items)
        masked = torch.ones(*items[:, 1:].shape, model.n_fields, dtype=torch.bool)
        before = model.hidden_in_one_pass(items, masked)
        changed = items.clone()
        changed[:, 3:] = torch.where(items[:, 3:] >= 0, (items[:, 3:] + 1) % data.n_items, items[:, 3:])
        after = model.hidden_in_one_pass(changed, masked)
        assert torch.equal(after[:, :3], before[:, :3])  # the targets up to the first item that changed
        assert not torch.allclose(after[:, 3:], before[:, 3:])

    def test_random_masking_needs_windows(self):
        with pytest.raises(InputError, match="needs attention"):
            FamaeSettings(masking="random")


def slow_loss(model, hidden, targets, masked, negatives):
    """The formula, one window and one field at a time."""
    total = 0.0
    for row in range(len(hidden)):
        for field in range(model.n_fields):
            if not masked[row, field]:
                continue
            table, own = model.tables[field].weight, int(targets[row, field])
            drawn = negatives[field]
            others = range(len(table))
            if drawn is not None:
                others = [own, *(value for value in drawn[row * len(drawn) // len(hidden)].tolist() if value != own)]
            cosines = {
                value: f.cosine_similarity(hidden[row], table[value], dim=0) * WIDTH**0.5 for value in set(others)
            }
            denominator = sum(torch.exp(cosines[value]) for value in others)
            total = total - model.weights[field] * torch.log(torch.exp(cosines[own]) / denominator)
    return total / len(hidden)


class TestLoss:
    @pytest.mark.parametrize(("threshold", "group_size"), [(10_000, 32), (20, 32), (1, 32), (1, 1), (1, 48)])
    def test_equals_the_formula(self, data, batch, threshold, group_size):
        options = {"full_softmax_limit": threshold, "negative_group_size": group_size}
        model = make(data, n_negatives=7, field_weights=(1.0, 0.5, 2.0, 0.0, 1.0), **options)
        histories, targets, masked = inputs(model, batch)
        hidden = model.hidden(histories, targets, masked)
        negatives = model.draw_negatives(len(targets), torch.Generator().manual_seed(0))
        terms = model.loss(hidden, targets, masked, negatives)
        torch.testing.assert_close(terms["loss"], slow_loss(model, hidden, targets, masked, negatives))

    def test_sampling_every_value_equals_the_full_softmax(self, data, batch):
        """With every value drawn exactly once, the sampled loss is the full one."""
        model = make(data)
        histories, targets, masked = inputs(model, batch)
        hidden = model.hidden(histories, targets, masked)
        everything = [torch.arange(size).expand(2, -1) for size in model.field_sizes]  # 48 windows are two groups
        full = model.loss(hidden, targets, masked, [None] * model.n_fields)["loss"]
        torch.testing.assert_close(model.loss(hidden, targets, masked, everything)["loss"], full)

    def test_negatives_are_uniform(self, data, batch):
        model = make(data, full_softmax_limit=1, n_negatives=5_000)
        for field, drawn in enumerate(model.draw_negatives(48, torch.Generator().manual_seed(0))):
            assert drawn.shape == (2, 5_000)
            shares = torch.bincount(drawn.flatten(), minlength=model.field_sizes[field]) / drawn.numel()
            assert shares.tolist() == pytest.approx([1 / model.field_sizes[field]] * model.field_sizes[field], abs=0.02)

    def test_a_constant_field_has_finite_gradients(self, log, items):
        data = Dataset.from_tables(log, items.with_columns(constant=1), ["constant"])
        model = make(data)
        terms = model(next(iter(Batches(data.train, 4))), torch.Generator().manual_seed(0))
        terms["loss"].backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


def test_the_plain_implementation_gives_the_same_loss_and_gradients(data, batch):
    model = make(data, attention="bidirectional")
    histories, targets, masked = inputs(model, batch)
    results = []
    for way in (model, PlainFamae(model)):
        model.zero_grad()
        loss = model.loss(way.hidden(histories, targets, masked), targets, masked, [None] * model.n_fields)["loss"]
        loss.backward()
        results.append((loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(
            gradient, results[1][1][name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("form", FORMS)
def test_attention_of_the_target(data, batch, form):
    model = make(data, attention=form)
    histories, targets, masked = inputs(model, batch)
    weights = model.attention(histories, targets, masked)
    assert len(weights) == 2
    assert weights[0].shape == (len(targets), 4, histories.shape[1] + 1)
    assert torch.allclose(weights[1].sum(dim=-1), torch.tensor(1.0))
    assert (weights[0][:, :, :-1][(histories == -1)[:, None].expand(-1, 4, -1)] == 0).all()


class TestRandomPositions:
    def test_which_positions_are_masked(self, data, batch):
        model = make(data, masking="random", attention="bidirectional")
        histories, targets = model.windows(batch)
        rng = torch.Generator().manual_seed(0)
        rows, windows = 0, 0
        for _ in range(100):
            hidden, codes, masked = model.hidden_at_random(histories, targets, rng)
            assert len(hidden) == len(codes) == len(masked)
            assert masked.any(dim=1).all()  # a chosen position has at least one masked field
            rows, windows = rows + len(hidden), windows + len(histories)
        lengths = (histories >= 0).sum(dim=1) + 1
        expected = float((0.2 * lengths + 0.8**lengths).mean())  # a window in which none was drawn masks its target
        assert rows / windows == pytest.approx(expected, rel=0.05)

    def test_the_loss_is_the_mean_over_masked_positions(self, data, batch):
        model = make(data, masking="random", attention="bidirectional")
        terms = model(batch, torch.Generator().manual_seed(3))
        rng = torch.Generator().manual_seed(3)
        hidden, codes, masked = model.hidden_at_random(*model.windows(batch), rng)
        torch.testing.assert_close(terms["loss"], slow_loss(model, hidden, codes, masked, [None] * 5))
        assert set(terms) == {"loss", "loss.item", *(f"loss.{name}" for name in data.field_names)}

    def test_masked_values_do_not_leak(self, data, batch):
        """The states do not depend on the values of masked fields, and depend on the others."""
        model = make(data, masking="random", attention="bidirectional").double()
        histories, targets = model.windows(batch)
        states = []
        for change in (None, "masked", "visible"):
            original = model.fuse
            if change:

                def changed(codes, masked, change=change, original=original):
                    other = (codes + 1) % torch.tensor(model.field_sizes)
                    return original(torch.where(masked if change == "masked" else ~masked, other, codes), masked)

                model.fuse = changed
            states.append(model.hidden_at_random(histories, targets, torch.Generator().manual_seed(5))[0])
            model.fuse = original
        assert torch.equal(states[0], states[1])
        assert not torch.allclose(states[0], states[2])

    def test_what_is_returned_was_masked(self, data, batch):
        """The tokens of the returned positions contain mask embeddings: if these change, so do the states."""
        model = make(data, masking="random", attention="bidirectional")
        histories, targets = model.windows(batch)
        before = model.hidden_at_random(histories, targets, torch.Generator().manual_seed(5))[0]
        with torch.no_grad():
            model.masks *= -2.0
        after = model.hidden_at_random(histories, targets, torch.Generator().manual_seed(5))[0]
        assert not torch.isclose(before, after).all(dim=1).any()
