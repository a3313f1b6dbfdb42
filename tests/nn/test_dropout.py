"""Dropout: how many elements it drops, what it makes of the others, and that it repeats."""

import numpy as np
import pytest
import torch

from resid.nn import Dropout


@pytest.mark.parametrize("chance", [0.001, 0.1, 0.5, 0.9])
def test_share_and_scale(chance):
    torch.manual_seed(0)
    values = torch.full((101, 333), 2.0)  # no multiple of eight
    shares = []
    for _ in range(300):
        dropped = Dropout(chance).train()(values)
        shares.append((dropped == 0).double().mean().item())
        assert shares[-1] == pytest.approx(chance, abs=1 / 256 + 0.01)
        assert len(dropped[dropped != 0].unique()) == 1
        assert dropped.mean().item() == pytest.approx(2.0, rel=0.2)
    assert np.mean(shares) == pytest.approx(chance, abs=0.0008)


def test_neighbours_are_independent():
    """Eight elements come from one draw; knowing one must tell nothing of the next."""
    torch.manual_seed(0)
    kept = (Dropout(0.3).train()(torch.ones(800_000)) != 0).view(-1, 8).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(8)
    assert correlations.abs().max() < 0.015


def test_gradient_seed_and_evaluation():
    values = torch.ones(10, 7, requires_grad=True)
    layer = Dropout(0.5)
    torch.manual_seed(1)
    first = layer(values)
    first.sum().backward()
    torch.manual_seed(1)
    assert torch.equal(layer(values), first)
    assert torch.equal(values.grad, first.detach())
    assert layer.eval()(values) is values
    assert Dropout(0.0).train()(values) is values


@pytest.mark.parametrize("chance", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
def test_the_short_ways_are_the_long_ones(chance, training):
    """Added, and after a rectifier and before a layer: the same values and gradients from the same draws."""
    dropout = Dropout(chance).train(training)
    first, layer = torch.nn.Linear(6, 9), torch.nn.Linear(9, 5)
    tokens, other = torch.randn(11, 6, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    weights = [tokens, other, *first.parameters(), *layer.parameters()]

    def gradients(compute):
        torch.manual_seed(3)
        values = compute()
        return [values, *torch.autograd.grad(values.square().sum(), weights)]

    long = gradients(lambda: other + dropout(layer(dropout(first(tokens).relu()))))
    short = gradients(lambda: dropout.added(other, dropout.rectified(first(tokens), layer)))
    for one, two in zip(long, short, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
