"""DIN: the attention unit and the perceptron against slow loops, the log-Q term by hand, and what the encoder learns."""

import math

import numpy as np
import polars as pl
import pytest
import torch

from resid import Dataset, InputError
from resid.data.batches import PADDING, Batches
from resid.encode import DINEncoder, DINModel, DINNetwork, DINSettings
from resid.encode.din import Dice, corrected_loss, validation_metrics
from resid.methods.unger import UNGERSettings
from tests.encode.contract import EncoderContract
from tests.recommend.contract import walks

SMALL = DINSettings(width=8, attention_widths=(6, 4), mlp_widths=(10, 5), n_negatives=5, windows=(2, 1), epochs=2)


class TestDINEncoder(EncoderContract):
    @classmethod
    def make(cls):
        return DINEncoder(SMALL)


def test_the_automatic_batch_size_is_limited():
    """By memory: it grows with batch, candidates and history; a size that was chosen is kept."""
    for settings in (DINSettings(), UNGERSettings()):
        assert [settings.batch_size_for(windows) for windows in (10_000, 51_200, 6_000_000)] == [256, 512, 512]
        assert settings.replace(batch_size=2048).batch_size_for(10_000) == 2048


def network(seed=0, **changes):
    """Return a network in evaluation mode with random running statistics and slopes."""
    torch.manual_seed(seed)
    found = DINNetwork(8, SMALL.replace(**changes), 5).eval()
    for module in found.modules():
        if isinstance(module, Dice):
            module.norm.running_mean.normal_()
            module.norm.running_var.uniform_(0.5, 2)
            torch.nn.init.uniform_(module.slope)
    return found


def dice(layer, values):
    gate = torch.sigmoid((values - layer.norm.running_mean) / torch.sqrt(layer.norm.running_var + layer.norm.eps))
    return gate * values + (1 - gate) * layer.slope * values


def layers(sequential, values):
    for layer in sequential:
        values = dice(layer, values) if isinstance(layer, Dice) else layer(values)
    return values


def test_scores_equal_a_loop_over_candidates_and_history():
    net, length = network(), 4
    candidates, history = torch.randn(3, 6, 8), torch.randn(3, length, 8)
    real = torch.tensor([[True] * 4, [False, True, True, True], [False, False, False, True]])
    with torch.no_grad():
        found = net(candidates, history, real)
        for user in range(3):
            for candidate in range(6):
                q, sums = candidates[user, candidate], torch.zeros(2, 8)
                for place in range(length):
                    if real[user, place]:
                        b = history[user, place]
                        hidden = net.attention_input(torch.cat([q, b, q - b, q * b]))
                        # windows (2, 1): the last item alone, the two before it, and older ones with them
                        sums[1 if place == length - 1 else 0] += layers(net.attention, hidden) * b
                score = layers(net.mlp, net.mlp_input(torch.cat([*sums, q])))
                assert found[user, candidate] == pytest.approx(score.item(), abs=1e-5)


@pytest.mark.parametrize(
    ("windows", "longest", "slots"),
    [((2, 1), 5, [0, 0, 0, 0, 1]), ((3, 2, 1), 4, [0, 1, 1, 2]), ((8, 7, 4, 4, 2, 2, 1, 1, 1, 1), 31, None)],
)
def test_windows_end_at_the_most_recent_item(windows, longest, slots):
    found = DINNetwork(8, SMALL.replace(windows=windows), longest).window_of_slot.tolist()
    assert found == (slots or np.repeat(np.arange(len(windows)), windows).tolist())


def test_padding_changes_nothing():
    """Neither scores nor, in training, the statistics of Dice depend on padding."""
    candidates, history = torch.randn(3, 6, 8), torch.randn(3, 2, 8)
    padded = torch.cat([torch.randn(3, 2, 8), history], dim=1)
    real = torch.ones(3, 2, dtype=torch.bool)
    more = torch.cat([~real, real], dim=1)
    for training in (False, True):
        first, second = network(dropout=0.0).train(training), network(dropout=0.0).train(training)
        torch.testing.assert_close(first(candidates, history, real), second(candidates, padded, more))
        for one, other in zip(first.buffers(), second.buffers(), strict=True):
            torch.testing.assert_close(one, other)


def test_gradient_of_dice():
    torch.manual_seed(0)
    layer = Dice(3).double()
    torch.nn.init.uniform_(layer.slope)
    values = torch.randn(7, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, _: layer(x), (values, layer.slope))


def test_log_q_correction_by_hand():
    """Two negatives of eight items: each stands for four. A negative that is the target does not count."""
    scores = torch.tensor([[1.0, 0.5, -1.0], [0.0, 2.0, 3.0]])
    loss = corrected_loss(scores, torch.tensor([4, 2]), torch.tensor([[1, 7], [2, 5]]), 8)
    first = -1 + math.log(math.exp(1) + 4 * math.exp(0.5) + 4 * math.exp(-1))
    second = math.log(1 + 4 * math.exp(3))
    assert loss.tolist() == pytest.approx([first, second], rel=1e-6)


def test_the_corrected_denominator_is_that_of_the_full_softmax():
    torch.manual_seed(0)
    n_items, n_negatives = 20, 3
    scores = torch.randn(n_items)
    negatives = torch.randint(n_items, (200_000, n_negatives))
    targets = torch.full((len(negatives),), 4)
    own = scores[4].expand(len(negatives), 1)
    loss = corrected_loss(torch.cat([own, scores[negatives]], dim=1), targets, negatives, n_items)
    assert (loss + scores[4]).exp().mean() == pytest.approx(scores.exp().sum().item(), rel=5e-3)


def test_loss_of_a_batch():
    """The loss is that of the target and its own negatives, and only their rows and the history's have a gradient."""
    data = walks()
    torch.manual_seed(0)
    model = DINModel(data.n_items, SMALL.replace(n_negatives=2), data.catalogue.max_history).eval()
    batch = Batches(data.train, 4, seed=0).batch(np.array([0, 30, 60, 90]))
    loss = model(batch, torch.Generator().manual_seed(5))["loss"]
    negatives = torch.randint(data.n_items, (4, 2), generator=torch.Generator().manual_seed(5))
    each = []
    for history, target, others in zip(batch.histories, batch.targets, negatives, strict=True):
        items = torch.tensor([[target, *others]])
        past = torch.from_numpy(history[history != PADDING])[None]
        scores = model.network(model.table(items), model.table(past), torch.ones_like(past, dtype=torch.bool))
        each.append(corrected_loss(scores, items[0, :1], others[None], data.n_items))
    torch.testing.assert_close(loss, torch.cat(each).mean())
    loss.backward()
    used = {*negatives.flatten().tolist(), *batch.targets.tolist(), *batch.histories[batch.histories >= 0].tolist()}
    assert set(model.table.weight.grad.abs().sum(dim=1).nonzero()[:, 0].tolist()) == used


def test_it_learns_a_cycle():
    data = walks()
    settings = SMALL.replace(width=16, mlp_widths=(32, 16), epochs=8, batch_size=64, learning_rate=0.02)
    encoder = DINEncoder(settings).fit(data)
    assert validation_metrics(encoder.model_, data.validation)["recall@5"] > 0.95
    assert encoder.embed(data).columns == {"item": (0, 16)}
    assert encoder.best_epoch_ == max(encoder.history_, key=lambda epoch: epoch["ndcg@10"])["epoch"]


def test_validation_ranks_the_target_among_the_candidates():
    data = walks()
    encoder = DINEncoder(SMALL).fit(data)
    model, ranks = encoder.model_, []
    for window in range(len(data.validation)):
        history, target = data.validation.window(window)
        with torch.no_grad():
            scores = model.scores(torch.from_numpy(history.astype(np.int64))[None], torch.arange(12)[None])[0]
        ranks.append(int((scores > scores[target]).sum()))
    found = validation_metrics(model, data.validation)
    assert found["recall@10"] == pytest.approx(np.mean(np.array(ranks) < 10))
    few = DINModel(12, SMALL.replace(validation_candidates=3), data.catalogue.max_history)
    assert validation_metrics(few, data.validation)["recall@5"] == 1  # at most three are better


def test_one_item():
    rows = pl.DataFrame({"user": list("aaaabbbb"), "item": ["x"] * 8, "timestamp": range(8)})
    data = Dataset.from_tables(rows, k_core=1)
    assert DINEncoder(SMALL).fit(data).embed(data).vectors.shape == (1, 8)


@pytest.mark.parametrize("wrong", [{"windows": ()}, {"windows": (0, 1)}, {"n_negatives": 0}, {"mlp_widths": (0,)}])
def test_invalid_settings(wrong):
    with pytest.raises(InputError, match=next(iter(wrong))):
        DINSettings(**wrong)
