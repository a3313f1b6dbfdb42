"""What queries lose that should be nearest to their targets: over all candidates, or over a few that are drawn.

A score is a product; queries and candidates of length 1, times a scale, make it a scaled cosine. Every function returns a
loss for each query, shape (queries,).
"""

import torch
import torch.nn.functional as f
from torch import Tensor


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
