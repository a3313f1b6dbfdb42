"""Each loss against its formula, one query at a time."""

import math

import pytest
import torch

from resid.nn.losses import binary, draw_candidates, grouped_scores, sampled_softmax, whole_softmax

N, WIDTH, ITEMS = 11, 6, 9


@pytest.fixture
def parts():
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(ITEMS, WIDTH, generator=generator)
    queries, targets = torch.randn(N, WIDTH, generator=generator), torch.randint(ITEMS, (N,), generator=generator)
    return table, queries, targets, generator


def scores_one_by_one(table, queries, targets, drawn):
    """Yield the score of the target, and those of the candidates that are not the target."""
    for row in range(len(queries)):
        own = float(queries[row] @ table[targets[row]])
        others = drawn[row // -(-len(queries) // len(drawn))].tolist()
        yield own, [float(queries[row] @ table[item]) for item in others if item != targets[row]]


@pytest.mark.parametrize("in_memory", [1, 3 * ITEMS, 2**22])
def test_whole_softmax(parts, in_memory, monkeypatch):
    monkeypatch.setattr("resid.nn.losses._SCORES", in_memory)
    table, queries, targets, _ = parts
    table, queries = 30 * table.double(), queries.double()  # so that exponentials would overflow
    for part in (table, queries):
        part.requires_grad_()
    wanted = torch.nn.functional.cross_entropy(queries @ table.T, targets)
    found = whole_softmax(queries, table, targets)
    torch.testing.assert_close(found, wanted)
    for ours, theirs in zip(
        *(torch.autograd.grad(3 * loss, (queries, table)) for loss in (found, wanted)), strict=True
    ):
        torch.testing.assert_close(ours, theirs)
    half = whole_softmax(queries.detach().bfloat16(), table.detach().bfloat16(), targets)
    assert half.dtype == torch.float32
    assert float(half) == pytest.approx(wanted.item(), rel=0.05)


@pytest.mark.parametrize("share", [1, 4, 32])
def test_sampled_softmax(parts, share):
    table, queries, targets, generator = parts
    drawn = draw_candidates(N, ITEMS, 5, share, generator)
    assert drawn.shape == (-(-N // share), 5)
    found = sampled_softmax(queries, targets, table[targets], table[drawn], drawn)
    for loss, (own, others) in zip(found, scores_one_by_one(table, queries, targets, drawn), strict=True):
        whole = math.exp(own) + sum(math.exp(score) for score in others)
        assert float(loss) == pytest.approx(-math.log(math.exp(own) / whole), abs=1e-5)


def test_with_every_item_drawn_it_is_the_whole_softmax(parts):
    table, queries, targets, _ = parts
    drawn = torch.arange(ITEMS)[None]
    found = sampled_softmax(queries, targets, table[targets], table[drawn], drawn)
    torch.testing.assert_close(found, torch.nn.functional.cross_entropy(queries @ table.T, targets, reduction="none"))


@pytest.mark.parametrize("count", [1, 3])
def test_binary(parts, count):
    table, queries, targets, generator = parts
    drawn = draw_candidates(N, ITEMS, count, 1, generator)
    drawn[0, 0] = targets[0]  # which does not count
    found = binary(queries, targets, table[targets], table[drawn], drawn)
    for loss, (own, others) in zip(found, scores_one_by_one(table, queries, targets, drawn), strict=True):
        wanted = -math.log(1 / (1 + math.exp(-own))) - sum(math.log(1 - 1 / (1 + math.exp(-s))) for s in others)
        assert float(loss) == pytest.approx(wanted, abs=1e-5)


def test_a_target_that_was_drawn_has_no_gradient_of_its_own(parts):
    table, queries, targets, _ = parts
    table.requires_grad_()
    drawn = targets[:, None].clone()
    assert torch.isneginf(grouped_scores(queries, targets, table[drawn], drawn)).all()
    loss = sampled_softmax(queries, targets, table[targets], table[drawn], drawn)
    loss.sum().backward()
    assert loss.abs().max() < 1e-6
    assert torch.isfinite(table.grad).all()
