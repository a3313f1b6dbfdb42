"""Global alignment: the children of every node get their codes from anchors that all nodes of a level share."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

_FLOATS = 2**22  # of centered children in memory at a time


def make_anchors(count: int, d: int, seed: list[int]) -> NDArray[np.float32]:
    """Return anchor directions, shape (count, d): Q of the QR decomposition of a Gaussian matrix.

    If there are more anchors than dimensions, they come in blocks of d, each orthonormal.
    """
    rng = np.random.default_rng(seed)
    blocks = []
    for first in range(0, count, d):
        gaussian = rng.standard_normal((d, min(d, count - first)))
        q, r = np.linalg.qr(gaussian)
        blocks.append((q * np.sign(np.diag(r))).T)  # the signs make the distribution uniform
    return np.concatenate(blocks).astype(np.float32)


def match(children: Tensor, counts: NDArray[np.int64], parents: Tensor, anchors: Tensor) -> NDArray[np.int64]:
    """Match the children of every node to distinct anchors so that the sum of cosines is maximal.

    Lines 3 to 12 of Algorithm 1: center the children by their parent, compute the cosines with the anchors, and solve the
    assignment problem.

    Parameters
    ----------
    children
        Vectors of the children, shape (nodes, children, d).
    counts
        Number of children of every node, shape (nodes,).
    parents
        Vectors of the nodes, shape (nodes, d).
    anchors
        Shape (anchors, d), at least as many as children.

    Returns
    -------
    ndarray
        The anchor of every child, shape (nodes, children); -1 where there is no child.
    """
    matched = np.full(children.shape[:2], -1, dtype=np.int64)
    at_once = max(1, _FLOATS // children[0].numel())
    for first in range(0, len(children), at_once):
        part = slice(first, first + at_once)
        centered = children[part] - parents[part, None]
        cosines = (centered @ anchors.T) / centered.norm(dim=2, keepdim=True).clamp_min_(1e-30)
        for node, cosine in enumerate(cosines.cpu().numpy(), first):
            rows, columns = linear_sum_assignment(cosine[: counts[node]], maximize=True)
            matched[node, rows] = columns
    return matched
