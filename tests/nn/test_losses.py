"""Each loss against its formula, one query at a time."""

import math

import pytest
import torch

from resid.nn.losses import binary_loss, full_softmax_loss, grouped_scores, sample_negatives, sampled_softmax_loss

N, WIDTH, ITEMS = 11, 6, 9


@pytest.fixture
def parts():
    rng = torch.Generator().manual_seed(0)
    table = torch.randn(ITEMS, WIDTH, generator=rng)
    queries, targets = torch.randn(N, WIDTH, generator=rng), torch.randint(ITEMS, (N,), generator=rng)
    return table, queries, targets, rng


def scores_one_by_one(table, queries, targets, negatives):
    """Yield the score of the target, and those of the negatives that are not the target."""
    for row in range(len(queries)):
        own = float(queries[row] @ table[targets[row]])
        others = negatives[row // -(-len(queries) // len(negatives))].tolist()
        yield own, [float(queries[row] @ table[item]) for item in others if item != targets[row]]


@pytest.mark.parametrize("in_memory", [1, 3 * ITEMS, 2**22])
def test_full_softmax(parts, in_memory, monkeypatch):
    monkeypatch.setattr("resid.nn.losses._MAX_SCORES", in_memory)
    table, queries, targets, _ = parts
    table, queries = 30 * table.double(), queries.double()  # so that exponentials would overflow
    for part in (table, queries):
        part.requires_grad_()
    wanted = torch.nn.functional.cross_entropy(queries @ table.T, targets)
    found = full_softmax_loss(queries, table, targets)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(
        *(torch.autograd.grad(3 * loss, (queries, table)) for loss in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    half = full_softmax_loss(queries.detach().bfloat16(), table.detach().bfloat16(), targets)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(wanted.item(), rel=0.05)


def test_full_softmax_under_autocast(parts):
    """Products are rounded; the softmax has single precision."""
    table, queries, targets, _ = parts
    table, queries = table.clone().requires_grad_(), queries.clone().requires_grad_()
    with torch.autocast("cpu", torch.bfloat16):
        found = full_softmax_loss(queries, table, targets)
    assert found.dtype == torch.float32
    rounded = (queries.detach().bfloat16() @ table.detach().bfloat16().T).float()
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(rounded, targets))
    exact = torch.nn.functional.cross_entropy(queries @ table.T, targets)
    assert 0 < abs(found.item() - exact.item()) < 0.01 * exact.item()
    for ours, theirs in zip(*(torch.autograd.grad(loss, (queries, table)) for loss in (found, exact)), strict=True):
        assert ours.dtype == torch.float32
        assert torch.nn.functional.cosine_similarity(ours.flatten(), theirs.flatten(), dim=0) > 0.999


def test_full_softmax_without_queries(parts):
    table, queries, targets, _ = parts
    table = table.clone().requires_grad_()
    loss = full_softmax_loss(queries[:0], table, targets[:0])
    loss.backward()
    assert loss.item() == 0
    assert not table.grad.any()


@pytest.mark.parametrize("group_size", [1, 4, 32])
def test_sampled_softmax(parts, group_size):
    table, queries, targets, rng = parts
    negatives = sample_negatives(N, ITEMS, 5, group_size, rng)
    assert negatives.shape == (-(-N // group_size), 5)
    found = sampled_softmax_loss(queries, targets, table[targets], table[negatives], negatives)
    for loss, (own, others) in zip(found, scores_one_by_one(table, queries, targets, negatives), strict=True):
        whole = math.exp(own) + sum(math.exp(score) for score in others)
        assert float(loss) == pytest.approx(-math.log(math.exp(own) / whole), abs=1e-5)


def test_sampling_every_item_equals_the_full_softmax(parts):
    table, queries, targets, _ = parts
    negatives = torch.arange(ITEMS)[None]
    found = sampled_softmax_loss(queries, targets, table[targets], table[negatives], negatives)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(queries @ table.T, targets, reduction="none"))


@pytest.mark.parametrize("count", [1, 3])
def test_binary(parts, count):
    table, queries, targets, rng = parts
    negatives = sample_negatives(N, ITEMS, count, 1, rng)
    negatives[0, 0] = targets[0]  # ignored
    found = binary_loss(queries, targets, table[targets], table[negatives], negatives)
    for loss, (own, others) in zip(found, scores_one_by_one(table, queries, targets, negatives), strict=True):
        wanted = -math.log(1 / (1 + math.exp(-own))) - sum(math.log(1 - 1 / (1 + math.exp(-s))) for s in others)
        assert float(loss) == pytest.approx(wanted, abs=1e-5)


def test_a_negative_that_equals_the_target_is_ignored(parts):
    table, queries, targets, _ = parts
    table.requires_grad_()
    negatives = targets[:, None].clone()
    assert torch.isneginf(grouped_scores(queries, targets, table[negatives], negatives)).all()
    loss = sampled_softmax_loss(queries, targets, table[targets], table[negatives], negatives)
    loss.sum().backward()
    assert loss.abs().max() < 1e-6
    assert torch.isfinite(table.grad).all()
