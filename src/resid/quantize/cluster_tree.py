"""The cluster tree of GAOQ and hierarchical k-means: the items of a node are split into balanced clusters, its children.

All nodes of a level are processed together, in batches that fit a fixed amount of memory. The quantizers decide which code a
child gets.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from numbers import Integral
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.quantize.kmeans import balanced_kmeans

_BYTES = 2**27  # of points, distances and sums in memory at a time


@dataclass
class Level:
    """The split of all nodes of a level.

    Attributes
    ----------
    parents : ndarray of int64, shape (items,)
        The node of every item before the split.
    children : ndarray of int64, shape (items,)
        The child of that node, from 0.
    centers : Tensor, shape (nodes, branching, d)
        The means of the children; zeros where a node has fewer children.
    counts : ndarray of int64, shape (nodes,)
        The number of children of every node; 0 for a node without items.
    products : int
        Floating-point operations of the distance products.
    steps : int
        The largest number of Lloyd iterations of a node.
    """

    parents: NDArray[np.int64]
    children: NDArray[np.int64]
    centers: Tensor
    counts: NDArray[np.int64]
    products: int
    steps: int


def build_tree(vectors: Tensor, branching: Sequence[int], seed: int, max_iter: int, tol: float) -> list[Level]:
    """Split the items recursively.

    Parameters
    ----------
    vectors
        Shape (items, d), float32.
    branching
        Number of children of a node at every level. A node with fewer items has one child per item.
    seed
        Determines the initialization of k-means; the result of a node does not depend on other nodes.
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
        # The root contains all items, so no copy is needed.
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
    """Yield batches of nodes with their items, shape (nodes, largest node), padded with -1.

    Parameters
    ----------
    parents
        The node of every item, shape (items,).
    nodes
        The nodes to visit.
    floats
        Memory per item in 32-bit numbers, which determines the batch size.
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


def automatic_branching(n_items: int) -> tuple[int, int]:
    """Return (b1, b2) for a catalogue: about N/14 leaves, with b2 ≈ 1.5 b1.

    The paper states b1·b2 ≈ N/10 to N/20, and its table agrees for six of ten data sets; Toys (N/4.2), Health (N/7.2),
    Books (N/7.4) and Sports (N/9.2) have more leaves. Values from 16 on are multiples of 8. Compared with the paper: Arts is
    equal; Musical Instruments (32, 56) instead of (32, 40); Video Games (32, 56) instead of (32, 64); Beauty & Personal Care
    (96, 144) instead of (96, 192); Books (152, 232) instead of (256, 256).
    """
    leaves, least = max(1.0, n_items / 14), 2 if n_items >= 8 else 1  # a level with one code tells nothing

    def rounded(value: float) -> int:
        return max(least, round(value / 8) * 8 if value >= 16 else round(value))

    first = rounded((leaves / 1.5) ** 0.5)
    return first, min(rounded(leaves / first), max(1, n_items // first))


def check_branching(branching: Sequence[int] | str, n_items: int) -> tuple[int, ...]:
    """Return the branching of a tree over the items, or raise a ValueError."""
    if isinstance(branching, str):
        if branching != "auto":
            raise ValueError(f"branching={branching!r} must be integers or 'auto'.")
        return automatic_branching(n_items)
    given: tuple[Any, ...] = tuple(branching) if isinstance(branching, Sequence | np.ndarray) else ()
    if not given or any(not isinstance(width, Integral) or width < 1 for width in given):
        raise ValueError(f"branching={branching!r} must be positive integers, one per level, for example (32, 40).")
    widths = tuple(int(width) for width in given)
    if math.prod(widths) > n_items:
        raise ValueError(
            f"branching={branching!r} has {math.prod(widths):,} leaves for n_samples={n_items:,} items; use fewer."
        )
    return widths


def number_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the position of every item within its group, in item order; shape (items,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    numbers = np.empty(len(groups), dtype=np.int64)
    numbers[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return numbers
