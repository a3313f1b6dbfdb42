"""Losses of queries against their target items: full softmax, sampled softmax, binary cross-entropy and contrastive.

A score is a dot product; with normalized vectors and a scale it is a scaled cosine. The losses over sampled negatives are
returned per query, shape (queries,).
"""

from functools import reduce
from typing import Any

import torch
import torch.nn.functional as f
from torch import Tensor
from torch.autograd.function import once_differentiable

from resid.nn.normalization import normalize

_MAX_SCORES = 2**22  # in memory at a time


def full_softmax_loss(queries: Tensor, candidates: Tensor, targets: Tensor, weights: Tensor | None = None) -> Tensor:
    """Return the mean cross-entropy of the targets among all candidates, 0 without queries.

    Equal to `cross_entropy` of all scores, but computed in chunks of queries together with the gradient: the full score
    matrix, which takes longer to write and read than to compute, is never in memory. Under autocast, the inputs and outputs of
    matrix products have its precision; the softmax and the sums over chunks have single precision.

    Parameters
    ----------
    queries
        Shape (queries, width).
    candidates
        Shape (candidates, width).
    targets
        The index of each query's candidate, shape (queries,), or of its candidates, shape (queries, n).
    weights
        Of several candidates of a query, whose cross-entropies are averaged; they sum to 1; shape (queries, n).
    """
    precise, device = torch.promote_types(queries.dtype, torch.float32), queries.device.type
    product = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else precise
    if weights is None:
        targets, weights = targets[:, None], torch.ones_like(targets, dtype=precise)[:, None]
    with torch.autocast(device, enabled=False):
        inputs = (queries.to(precise), candidates.to(precise), targets, weights.to(precise), product)
        loss: Tensor = _FullSoftmax.apply(*inputs)  # type: ignore[no-untyped-call]
    return loss


class _FullSoftmax(torch.autograd.Function):
    @staticmethod
    def forward(
        context: Any, queries: Tensor, candidates: Tensor, targets: Tensor, weights: Tensor, product: torch.dtype
    ) -> Tensor:
        query_grad, candidate_grad = torch.empty_like(queries), torch.zeros_like(candidates)
        rounded_queries, rounded_candidates = queries.to(product), candidates.to(product)
        total = queries.new_zeros(())
        step = max(1, _MAX_SCORES // len(candidates))
        for some in (slice(first, first + step) for first in range(0, len(queries), step)):
            scores = (rounded_queries[some] @ rounded_candidates.T).to(queries.dtype)
            index, weight = targets[some], weights[some]
            target_score = (scores.gather(1, index) * weight).sum(dim=1, keepdim=True)
            highest = scores.amax(dim=1, keepdim=True)
            mass = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
            total += (mass.log() + highest - target_score).sum()
            grad = scores.div_(mass).scatter_add_(1, index, -weight)  # of the loss with respect to the scores
            grad = grad.to(product)
            query_grad[some] = grad @ rounded_candidates
            if product == queries.dtype:
                candidate_grad.addmm_(grad.T, queries[some])
            else:
                candidate_grad += grad.T @ rounded_queries[some]
        context.save_for_backward(query_grad, candidate_grad)
        return total / max(1, len(queries))

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        query_grad, candidate_grad = context.saved_tensors
        share = gradients[0] / max(1, len(query_grad))
        return query_grad * share, candidate_grad * share, None, None, None


def sample_negatives(n_queries: int, n_items: int, n_negatives: int, group_size: int, rng: torch.Generator) -> Tensor:
    """Draw negatives uniformly, shape (groups, n_negatives).

    Up to `group_size` consecutive queries share their negatives, so that a step reads and updates a few thousand rows of a
    table instead of a hundred thousand.
    """
    return torch.randint(n_items, (-(-n_queries // group_size), n_negatives), generator=rng)


def grouped_scores(queries: Tensor, targets: Tensor, vectors: Tensor, negatives: Tensor) -> Tensor:
    """Return the scores of every query with its group's negatives, -inf where a negative is a target of the query.

    Parameters
    ----------
    queries
        Shape (queries, width).
    targets
        Shape (queries,), or (queries, n) for several.
    vectors
        Of the negatives, shape (groups, n_negatives, width).
    negatives
        Their indices, shape (groups, n_negatives).

    Returns
    -------
    Tensor
        Shape (queries, n_negatives).
    """
    groups, count = negatives.shape
    size = -(-len(queries) // groups)
    missing = groups * size - len(queries)
    scores = f.pad(queries, (0, 0, 0, missing)).view(groups, size, -1) @ vectors.transpose(1, 2)
    places = f.pad(targets.view(len(queries), -1).T, (0, missing), value=-1).view(-1, groups, size, 1)
    same = reduce(torch.logical_or, (target == negatives[:, None] for target in places))
    return scores.masked_fill(same, -torch.inf).view(-1, count)[: len(queries)]


def sampled_softmax_loss(
    queries: Tensor, targets: Tensor, target_vectors: Tensor, vectors: Tensor, negatives: Tensor
) -> Tensor:
    """Return the cross-entropy of each target among itself and its negatives; see `grouped_scores`.

    Parameters
    ----------
    target_vectors
        Shape (queries, width), or (queries, n, width) for several targets of a query.

    Returns
    -------
    Tensor
        Of the shape of `targets`.
    """
    others = grouped_scores(queries, targets, vectors, negatives)
    if targets.ndim == 2:
        scores = (target_vectors * queries[:, None]).sum(dim=2)
        # Finite, so that the gradient exists if all negatives of a query are its targets.
        rest = others.clamp_min(torch.finfo(others.dtype).min / 2).logsumexp(dim=1, keepdim=True)
        return torch.logaddexp(scores, rest) - scores
    score = (queries * target_vectors).sum(dim=1, keepdim=True)
    return torch.cat([score, others], dim=1).logsumexp(dim=1) - score[:, 0]


def binary_loss(queries: Tensor, targets: Tensor, target_vectors: Tensor, vectors: Tensor, negatives: Tensor) -> Tensor:
    """Return the binary cross-entropy of each target and its negatives; see `sampled_softmax_loss`."""
    others = grouped_scores(queries, targets, vectors, negatives)  # -inf, a negative that is the target, adds nothing
    return f.softplus(-(queries * target_vectors).sum(dim=1)) + f.softplus(others).sum(dim=1)


def symmetric_contrastive_loss(ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """Return InfoNCE of pairs, the mean of both directions: each vector among those of the other side, by cosine.

    Parameters
    ----------
    ours, theirs
        The two sides of the pairs, shape (pairs, width).
    temperature
        By which the cosines are divided.
    """
    scores = normalize(ours) @ normalize(theirs).T / temperature
    own = torch.arange(len(scores), device=scores.device)
    return (f.cross_entropy(scores, own) + f.cross_entropy(scores.T, own)) / 2
