"""Normalization against that of PyTorch."""

import pytest
import torch

from resid.nn import normalize


@pytest.fixture
def vectors():
    rng = torch.Generator().manual_seed(0)
    return torch.randn(3, 7, 5, generator=rng, dtype=torch.float64) * torch.tensor([1e-3, 1.0, 1e3])[:, None, None]


def test_values_and_gradients_are_those_of_pytorch(vectors):
    weights = torch.arange(vectors.numel(), dtype=vectors.dtype).view(vectors.shape)
    results = []
    for function in (normalize, lambda some: torch.nn.functional.normalize(some, dim=-1)):
        own = vectors.clone().requires_grad_()
        unit = function(own)
        (weights * unit).sum().backward()
        results.append((unit.detach(), own.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_gradient_by_differences(vectors):
    assert torch.autograd.gradcheck(normalize, vectors.requires_grad_())


def test_zeros_have_finite_gradients():
    zeros = torch.zeros(2, 4, requires_grad=True)
    normalize(zeros).sum().backward()
    assert zeros.grad.isfinite().all()


def test_without_a_gradient(vectors):
    assert not normalize(vectors).requires_grad
    torch.testing.assert_close(normalize(vectors).norm(dim=-1), torch.ones(3, 7, dtype=torch.float64))


def test_gradient_has_the_precision_of_the_vectors(vectors):
    half = vectors.bfloat16().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        normalize(half).sum().backward()
    assert half.grad.dtype == torch.bfloat16
