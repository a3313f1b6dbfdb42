"""Sinkhorn's algorithm: a soft assignment of rows to codes in which all codes get the same share.

It finds the transport plan of minimum cost plus an entropy term: every row sends the same mass, every code receives the same
mass. LETTER assigns the last code of a batch this way, and separates items with the same codes by it.
"""

import torch
from torch import Tensor

_EPSILON, _ITERATIONS = 0.003, 50  # of LETTER; exp(-2 / _EPSILON) is representable in float64


@torch.no_grad()
def sinkhorn_plan(
    distances: Tensor, present: Tensor | None = None, *, epsilon: float = _EPSILON, n_iter: int = _ITERATIONS
) -> Tensor:
    """Return the transport plans of several problems, float64, of the same shape as the distances.

    Parameters
    ----------
    distances
        Shape (problems, rows, codes); in each problem, they are rescaled to [-1, 1].
    present
        Which rows are real, the rest being padding; shape (problems, rows). By default all.
    epsilon
        Weight of the entropy, relative to the rescaled distances; at least 0.003.
    n_iter
        Number of iterations.

    Returns
    -------
    Tensor
        In each problem, the mass that a row sends to a code. A code receives 1 / codes, what a row sends converges to 1 / rows,
        and padding sends nothing.
    """
    rows_lowest, rows_highest = distances.amin(dim=2), distances.amax(dim=2)  # (problems, rows)
    if present is None:
        present = torch.ones_like(rows_lowest, dtype=torch.bool)
    lowest = rows_lowest.masked_fill(~present, torch.inf).amin(dim=1)
    highest = rows_highest.masked_fill(~present, -torch.inf).amax(dim=1)
    half_range = ((highest - lowest).double() / 2 + 1e-5)[:, None, None]
    # Scaling a row changes nothing, so its largest value may be 1: nothing overflows.
    kernel = ((rows_lowest[:, :, None].double() - distances) / half_range).div_(epsilon).exp_()
    kernel *= present[:, :, None]
    share = present.double() / present.sum(dim=1, keepdim=True)  # of the rows
    codes = torch.full_like(kernel[:, 0], 1 / kernel.shape[2])
    scales = codes
    for _ in range(n_iter):
        sent = torch.bmm(kernel, scales[:, :, None])[:, :, 0]
        rows = share / sent.masked_fill(~present, 1.0)
        scales = codes / torch.bmm(rows[:, None], kernel)[:, 0]
    return rows[:, :, None] * kernel * scales[:, None]


def sinkhorn_codes(distances: Tensor, present: Tensor | None = None) -> Tensor:
    """Return the code to which every row sends most of its mass, shape (problems, rows); see `sinkhorn_plan`."""
    return sinkhorn_plan(distances, present).argmax(dim=2)
