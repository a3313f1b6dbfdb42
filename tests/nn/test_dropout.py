"""Dropout: the share of dropped elements, the scale of the others, reproducibility."""

import numpy as np
import pytest
import torch

from resid.nn import Dropout


@pytest.mark.parametrize("p", [0.001, 0.1, 0.5, 0.9])
def test_share_and_scale(p):
    torch.manual_seed(0)
    values = torch.full((101, 333), 2.0)  # no multiple of eight
    shares = []
    for _ in range(300):
        dropped = Dropout(p).train()(values)
        shares.append((dropped == 0).double().mean().item())
        assert shares[-1] == pytest.approx(p, abs=1 / 256 + 0.01)
        assert len(dropped[dropped != 0].unique()) == 1
        assert dropped.mean().item() == pytest.approx(2.0, rel=0.2)
    assert np.mean(shares) == pytest.approx(p, abs=0.0008)


def test_neighbours_are_independent():
    """Eight elements come from one draw; knowing one must say nothing about the next."""
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


@pytest.mark.parametrize("p", [0.0, 0.3])
@pytest.mark.parametrize("training", [True, False])
def test_fused_operations_equal_separate_ones(p, training):
    """`add` and `relu_linear` give the same values and gradients as separate operations with the same random numbers."""
    dropout = Dropout(p).train(training)
    first, layer = torch.nn.Linear(6, 9), torch.nn.Linear(9, 5)
    tokens, other = torch.randn(11, 6, requires_grad=True), torch.randn(11, 5, requires_grad=True)
    weights = [tokens, other, *first.parameters(), *layer.parameters()]

    def gradients(compute):
        torch.manual_seed(3)
        values = compute()
        return [values, *torch.autograd.grad(values.square().sum(), weights)]

    separate = gradients(lambda: other + dropout(layer(dropout(first(tokens).relu()))))
    fused = gradients(lambda: dropout.add(other, dropout.relu_linear(first(tokens), layer)))
    for one, two in zip(separate, fused, strict=True):
        assert torch.allclose(one, two, atol=1e-5)
