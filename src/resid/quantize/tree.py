"""The tree of GAOQ and of hierarchical k-means: each node's items are split into balanced clusters, its children.

All nodes of a level are worked on together, as many at a time as a fixed amount of memory holds. Which number a child gets
is not decided here: that is what the quantizers differ in.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.quantize.kmeans import balanced_kmeans

_BYTES = 2**28  # of points, distances and sums that are worked on at a time


@dataclass
class Level:
    """How the items of the nodes of a level are split.

    Attributes
    ----------
    parents : ndarray of int64, shape (items,)
        The node of every item at this level, before it is split.
    children : ndarray of int64, shape (items,)
        The child of that node that the item goes to, from 0.
    centers : Tensor, shape (nodes, branching, d)
        The means of the children; zeros where a node has fewer.
    counts : ndarray of int64, shape (nodes,)
        How many children a node has; 0 if it has no items.
    products : int
        Floating-point operations of the distance products.
    steps : int
        The most of Lloyd's steps that a node took.
    """

    parents: NDArray[np.int64]
    children: NDArray[np.int64]
    centers: Tensor
    counts: NDArray[np.int64]
    products: int
    steps: int


def grow(vectors: Tensor, branching: Sequence[int], seed: int, max_iter: int, tol: float) -> list[Level]:
    """Split items again and again.

    Parameters
    ----------
    vectors
        Shape (items, d), float32.
    branching
        Children of a node, level by level. A node with fewer items has as many children as items.
    seed
        Decides where k-means starts; a node's result does not depend on the other nodes.
    max_iter, tol
        See `balanced_kmeans`.
    """
    nodes = np.zeros(len(vectors), dtype=np.int64)
    levels = []
    for depth, width in enumerate(branching):
        above = int(np.prod(branching[:depth], dtype=np.int64))
        level = _split(vectors, nodes, above, width, [seed, depth], max_iter, tol)
        levels.append(level)
        nodes = nodes * width + level.children
    return levels


def _split(
    vectors: Tensor, parents: NDArray[np.int64], nodes: int, width: int, seed: list[int], max_iter: int, tol: float
) -> Level:
    children = np.zeros(len(vectors), dtype=np.int64)
    counts = np.bincount(parents, minlength=nodes)
    centers = torch.zeros(nodes, width, vectors.shape[1], device=vectors.device)
    products = steps = 0
    for some, members in members_of(parents, np.flatnonzero(counts >= width), vectors.shape[1] + 4 * width):
        # The root has all items, which need no copy.
        points = vectors[None] if nodes == 1 else vectors[torch.from_numpy(members).clamp_min(0).to(vectors.device)]
        found = balanced_kmeans(
            points, width, [[*seed, int(node)] for node in some], counts=counts[some], max_iter=max_iter, tol=tol
        )
        real = members >= 0
        children[members[real]] = found.labels[real]
        centers[torch.from_numpy(some).to(vectors.device)] = found.centers
        products += found.products
        steps = max(steps, int(found.steps.max()))
    for some, members in members_of(parents, np.flatnonzero((counts > 0) & (counts < width)), vectors.shape[1]):
        row, place = np.nonzero(members >= 0)
        items = members[row, place]
        children[items] = place
        centers[torch.from_numpy(some[row]), torch.from_numpy(place)] = vectors[torch.from_numpy(items)]
    return Level(parents, children, centers, np.minimum(counts, width), products, steps)


def members_of(
    parents: NDArray[np.int64], nodes: NDArray[np.int64], floats: int
) -> Iterator[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Yield some nodes at a time with their items, shape (nodes, most items of one), -1 where a node has fewer.

    Parameters
    ----------
    parents
        The node of every item, shape (items,).
    nodes
        The nodes to go through.
    floats
        Numbers of 32 bits that an item will take, from which follows how many nodes are worked on at a time.
    """
    order = np.argsort(parents, kind="stable")
    starts = np.searchsorted(parents[order], nodes)
    stops = np.searchsorted(parents[order], nodes, side="right")
    lengths = stops - starts
    if not len(nodes):
        return
    at_once = max(1, _BYTES // int(4 * floats * lengths.max()))
    for first in range(0, len(nodes), at_once):
        part = slice(first, first + at_once)
        position = starts[part, None] + np.arange(lengths[part].max())
        inside = position < stops[part, None]
        yield nodes[part], np.where(inside, order[np.where(inside, position, 0)], -1)
