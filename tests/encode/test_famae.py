"""FAMAE's network: masks, leaks, the loss against the formula, and the plain way of computing the same."""

import numpy as np
import pytest
import torch
import torch.nn.functional as f
from torch import nn

from resid import Dataset
from resid.data import Batches
from resid.encode.famae import FamaeModel

WIDTH = 16


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


def make(data, **options):
    torch.manual_seed(0)
    codes = np.concatenate([np.arange(data.n_items)[:, None], data.fields], axis=1)
    options = {"width": WIDTH, "hidden": 32, "dropout": 0.0, "max_length": data.settings.max_length} | options
    model = FamaeModel(codes, (data.n_items, *data.field_sizes), **options)
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


class TestLeaks:
    def test_masked_values_do_not_reach_the_hidden_state(self, data, batch):
        model = make(data)
        histories, targets, masked = inputs(model, batch)
        other = torch.where(masked, torch.zeros_like(targets), targets)
        assert torch.equal(model.hidden(histories, targets, masked), model.hidden(histories, other, masked))
        visible = torch.where(masked, targets, (targets + 1) % torch.tensor(model.sizes))
        assert not torch.allclose(model.hidden(histories, targets, masked), model.hidden(histories, visible, masked))

    def test_padding_does_not_matter(self, data, batch):
        model = make(data)
        histories, targets, masked = inputs(model, batch)
        padded = f.pad(histories, (9, 0), value=-1)
        torch.testing.assert_close(model.hidden(padded, targets, masked), model.hidden(histories, targets, masked))

    def test_a_window_does_not_see_the_others_of_its_batch(self, data, batch):
        model = make(data)
        histories, targets, masked = inputs(model, batch)
        alone = model.hidden(histories[3:4], targets[3:4], masked[3:4])
        torch.testing.assert_close(model.hidden(histories, targets, masked)[3:4], alone)


def slow_loss(model, hidden, targets, masked, negatives):
    """The formula, one window and one field at a time."""
    total = 0.0
    for row in range(len(hidden)):
        for field in range(model.n_fields):
            if not masked[row, field]:
                continue
            table, own = model.tables[field].weight, int(targets[row, field])
            drawn = negatives[field]
            others = range(len(table)) if drawn is None else [own, *drawn[row].tolist()]
            cosines = {
                value: f.cosine_similarity(hidden[row], table[value], dim=0) * WIDTH**0.5 for value in set(others)
            }
            denominator = sum(torch.exp(cosines[value]) for value in others)
            total = total - model.weights[field] * torch.log(torch.exp(cosines[own]) / denominator)
    return total / len(hidden)


class TestLoss:
    @pytest.mark.parametrize("threshold", [10_000, 20, 1])
    def test_equals_the_formula(self, data, batch, threshold):
        model = make(data, full_softmax_up_to=threshold, negatives=7, weights=[1.0, 0.5, 2.0, 0.0, 1.0])
        histories, targets, masked = inputs(model, batch)
        hidden = model.hidden(histories, targets, masked)
        negatives = model.draw_negatives(targets, torch.Generator().manual_seed(0))
        terms = model.loss(hidden, targets, masked, negatives)
        torch.testing.assert_close(terms["loss"], slow_loss(model, hidden, targets, masked, negatives))

    def test_sampling_approaches_the_whole_vocabulary(self, data, batch):
        """With every other value drawn exactly once, the sampled loss is the full one."""
        model = make(data)
        histories, targets, masked = inputs(model, batch)
        hidden = model.hidden(histories, targets, masked)
        everything = []
        for field, size in enumerate(model.sizes):
            others = torch.arange(size - 1).expand(len(targets), -1)
            everything.append(others + (others >= targets[:, field, None]))
        full = model.loss(hidden, targets, masked, [None] * model.n_fields)["loss"]
        torch.testing.assert_close(model.loss(hidden, targets, masked, everything)["loss"], full)

    def test_negatives_are_never_the_target(self, data, batch):
        model = make(data, full_softmax_up_to=1, negatives=500)
        _, targets, _ = inputs(model, batch)
        for field, drawn in enumerate(model.draw_negatives(targets, torch.Generator().manual_seed(0))):
            assert (drawn != targets[:, field, None]).all()
            assert set(drawn.flatten().tolist()) == set(range(model.sizes[field]))

    def test_a_constant_field_is_no_trouble(self, log, items):
        data = Dataset.from_tables(log, items.with_columns(constant=1), ["constant"])
        model = make(data)
        terms = model(next(iter(Batches(data.train, 4))), torch.Generator().manual_seed(0))
        terms["loss"].backward()
        assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)


class Plain(nn.Module):
    """The plain way: every window padded to the full length, PyTorch's encoder, all positions in every layer."""

    def __init__(self, model):
        super().__init__()
        self.model = model
        width, hidden = model.positions.shape[1], model.layers[0].widen.out_features
        layer = nn.TransformerEncoderLayer(width, model.layers[0].heads, hidden, 0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, len(model.layers), enable_nested_tensor=False)
        names = {"project_in.weight": "self_attn.in_proj_weight", "project_in.bias": "self_attn.in_proj_bias",
                 "project_out": "self_attn.out_proj", "widen": "linear1", "narrow": "linear2",
                 "attention_norm": "norm1", "perceptron_norm": "norm2"}  # fmt: skip
        for ours, theirs in zip(model.layers, self.encoder.layers, strict=True):
            for old, new in names.items():
                if old.endswith(("weight", "bias")):
                    module, attribute = new.rsplit(".", 1)
                    setattr(theirs.get_submodule(module), attribute, ours.get_parameter(old))
                else:
                    for attribute in ("weight", "bias"):
                        setattr(theirs.get_submodule(new), attribute, ours.get_parameter(f"{old}.{attribute}"))

    def hidden(self, histories, targets, masked):
        model = self.model
        length = len(model.positions)
        histories = f.pad(histories, (length - 1 - histories.shape[1], 0), value=-1)
        codes = torch.cat([model.codes[histories.clamp_min(0)], targets[:, None]], dim=1)
        parts = [table(codes[..., field]) for field, table in enumerate(model.tables)]
        last = [torch.where(masked[:, j, None], model.masks[j], part[:, -1]) for j, part in enumerate(parts)]
        tokens = torch.cat([sum(parts)[:, :-1], sum(last)[:, None]], dim=1)
        tokens = model.input_norm(tokens + model.positions)
        padding = f.pad(histories == -1, (0, 1), value=False)
        return self.encoder(tokens, src_key_padding_mask=padding)[:, -1]


def test_the_plain_way_gives_the_same_loss_and_gradients(data, batch):
    model = make(data)
    histories, targets, masked = inputs(model, batch)
    results = []
    for way in (model, Plain(model)):
        model.zero_grad()
        loss = model.loss(way.hidden(histories, targets, masked), targets, masked, [None] * model.n_fields)["loss"]
        loss.backward()
        results.append((loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}))
    torch.testing.assert_close(results[0][0], results[1][0], atol=1e-5, rtol=1e-5)
    for name, gradient in results[0][1].items():
        torch.testing.assert_close(
            gradient, results[1][1][name], atol=1e-5, rtol=1e-4, msg=lambda m, n=name: f"{n}: {m}"
        )


def test_attention_of_the_target(data, batch):
    model = make(data)
    histories, targets, masked = inputs(model, batch)
    weights = model.attention(histories, targets, masked)
    assert len(weights) == 2
    assert weights[0].shape == (len(targets), 4, histories.shape[1] + 1)
    assert torch.allclose(weights[1].sum(dim=-1), torch.tensor(1.0))
    assert (weights[0][:, :, :-1][(histories == -1)[:, None].expand(-1, 4, -1)] == 0).all()
