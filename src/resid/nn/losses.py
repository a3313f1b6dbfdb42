"""What queries lose that should be nearest to their targets: over all candidates, or over a few that are drawn.

A score is a product; queries and candidates of length 1, times a scale, make it a scaled cosine. The losses over candidates
that are drawn are for each query, shape (queries,).
"""

from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor
from torch.autograd.function import once_differentiable

_SCORES = 2**22  # that are in memory at a time


def whole_softmax(queries: Tensor, candidates: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of the targets among all candidates.

    As `cross_entropy` of the product, but a few queries at a time and with their gradients at once: the scores of all
    queries are never in memory together, where they would take longer to write and read than to compute.

    Parameters
    ----------
    queries
        Shape (queries, width).
    candidates
        Shape (candidates, width).
    targets
        The number of each query's candidate, shape (queries,).
    """
    precise = torch.promote_types(queries.dtype, torch.float32)
    with torch.autocast(queries.device.type, enabled=False):
        loss: Tensor = _WholeSoftmax.apply(queries.to(precise), candidates.to(precise), targets)  # type: ignore[no-untyped-call]
    return loss


class _WholeSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(context: Any, queries: Tensor, candidates: Tensor, targets: Tensor) -> Tensor:
        of_queries, of_candidates = torch.empty_like(queries), torch.zeros_like(candidates)
        total = queries.new_zeros(())
        step = max(1, _SCORES // len(candidates))
        for some in (slice(first, first + step) for first in range(0, len(queries), step)):
            scores, wanted = queries[some] @ candidates.T, targets[some, None]
            own, highest = scores.gather(1, wanted), scores.amax(dim=1, keepdim=True)
            mass = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
            total += (mass.log() + highest - own).sum()
            slopes = scores.div_(mass).scatter_add_(1, wanted, torch.full_like(own, -1.0))  # of the loss, by score
            of_queries[some] = slopes @ candidates
            of_candidates.addmm_(slopes.T, queries[some])
        context.save_for_backward(of_queries, of_candidates)
        return total / len(queries)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        of_queries, of_candidates = context.saved_tensors
        share = gradients[0] / len(of_queries)
        return of_queries * share, of_candidates * share, None


def draw_candidates(queries: int, size: int, count: int, share: int, generator: torch.Generator) -> Tensor:
    """Draw candidates uniformly, shape (groups, count).

    The queries of a group, at most `share` that follow each other, have the same candidates, so that a step reads and
    updates a few thousand rows of a table and not a hundred thousand.
    """
    return torch.randint(size, (-(-queries // share), count), generator=generator)


def grouped_scores(queries: Tensor, targets: Tensor, vectors: Tensor, drawn: Tensor) -> Tensor:
    """Return the scores of every query with its group's candidates, -inf where a candidate is the query's target.

    Parameters
    ----------
    queries
        Shape (queries, width).
    targets
        Shape (queries,).
    vectors
        Of the candidates, shape (groups, count, width).
    drawn
        Which candidates these are, shape (groups, count).

    Returns
    -------
    Tensor
        Shape (queries, count).
    """
    groups, count = drawn.shape
    share = -(-len(queries) // groups)
    short = groups * share - len(queries)
    scores = f.pad(queries, (0, 0, 0, short)).view(groups, share, -1) @ vectors.transpose(1, 2)
    same = f.pad(targets, (0, short), value=-1).view(groups, share, 1) == drawn[:, None]
    return scores.masked_fill(same, -torch.inf).view(-1, count)[: len(queries)]


def sampled_softmax(queries: Tensor, targets: Tensor, own: Tensor, vectors: Tensor, drawn: Tensor) -> Tensor:
    """Return −log of the targets' share of the softmax over them and the candidates drawn; see `grouped_scores`.

    Parameters
    ----------
    own
        The targets' vectors, shape (queries, width).
    """
    score = (queries * own).sum(dim=1, keepdim=True)
    others = grouped_scores(queries, targets, vectors, drawn)
    return torch.cat([score, others], dim=1).logsumexp(dim=1) - score[:, 0]


def binary(queries: Tensor, targets: Tensor, own: Tensor, vectors: Tensor, drawn: Tensor) -> Tensor:
    """Return −log σ(score) of the targets and −log σ(−score) of the candidates drawn; see `sampled_softmax`."""
    others = grouped_scores(queries, targets, vectors, drawn)  # -inf, the target drawn again, loses nothing
    return f.softplus(-(queries * own).sum(dim=1)) + f.softplus(others).sum(dim=1)
