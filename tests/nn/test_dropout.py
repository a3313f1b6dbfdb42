"""Dropout: how many elements it drops, what it makes of the others, and that it repeats."""

import pytest
import torch

from resid.nn import Dropout


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.9])
def test_share_and_scale(chance):
    torch.manual_seed(0)
    values = torch.full((1001, 333), 2.0)  # no multiple of four
    dropped = Dropout(chance).train()(values)
    assert (dropped == 0).double().mean().item() == pytest.approx(chance, abs=0.003)
    assert dropped[dropped != 0].unique().tolist() == pytest.approx([2 / (1 - chance)], rel=1e-4)
    assert dropped.mean().item() == pytest.approx(2.0, rel=0.02)


def test_neighbours_are_independent():
    """Four elements come from one draw; knowing one must tell nothing of the next."""
    torch.manual_seed(0)
    kept = (Dropout(0.3).train()(torch.ones(400_000)) != 0).view(-1, 4).double()
    correlations = torch.corrcoef(kept.T) - torch.eye(4)
    assert correlations.abs().max() < 0.01


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
