"""Global alignment: the children of every node get their numbers from anchors that all nodes of a level share."""

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor

_FLOATS = 2**22  # of children that are centred at a time


def make_anchors(count: int, d: int, seed: list[int]) -> NDArray[np.float32]:
    """Return directions, shape (count, d), orthonormal as far as there are dimensions.

    The Q of a QR decomposition of a Gaussian matrix. Where anchors outnumber dimensions, further ones come in blocks of d,
    each orthonormal by itself.
    """
    random = np.random.default_rng(seed)
    blocks = []
    for first in range(0, count, d):
        gaussian = random.standard_normal((d, min(d, count - first)))
        q, r = np.linalg.qr(gaussian)
        blocks.append((q * np.sign(np.diag(r))).T)  # the signs make the directions uniform
    return np.concatenate(blocks).astype(np.float32)


def match(children: Tensor, counts: NDArray[np.int64], parents: Tensor, anchors: Tensor) -> NDArray[np.int64]:
    """Match the children of every node to anchors, each to another, so that the sum of the cosines is greatest.

    Lines 3 to 12 of Algorithm 1: centre the children by their parent, compare with the anchors, match by the Hungarian
    method.

    Parameters
    ----------
    children
        Vectors of the children, shape (nodes, children, d).
    counts
        How many of them each node has, shape (nodes,).
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
        centred = children[part] - parents[part, None]
        cosines = (centred @ anchors.T) / centred.norm(dim=2, keepdim=True).clamp_min_(1e-30)
        for node, cosine in enumerate(cosines.cpu().numpy(), first):
            rows, columns = linear_sum_assignment(cosine[: counts[node]], maximize=True)
            matched[node, rows] = columns
    return matched
