"""Global alignment: the children of every node get their numbers from anchors that all nodes of a level share."""

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from torch import Tensor


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
    cosines = (f.normalize(children - parents[:, None], dim=2) @ anchors.T).cpu().numpy()
    matched = np.full(children.shape[:2], -1, dtype=np.int64)
    for node, count in enumerate(counts):
        rows, columns = linear_sum_assignment(cosines[node, :count], maximize=True)
        matched[node, rows] = columns
    return matched


def mean_of(vectors: Tensor, members: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
    """Return the vectors of items, shape (nodes, items, d), -1 standing for none, and their mean, shape (nodes, d)."""
    real = torch.from_numpy(members >= 0).to(vectors.device)
    gathered = vectors[torch.from_numpy(members).clamp_min(0).to(vectors.device)] * real[:, :, None]
    return gathered, gathered.sum(dim=1) / real.sum(dim=1, keepdim=True)
