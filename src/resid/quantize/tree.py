"""The tree of GAOQ and of hierarchical k-means: each node's items are split into balanced clusters, its children.

All nodes of a level are worked on together, as many at a time as a fixed amount of memory holds. Which number a child gets
is not decided here: that is what the quantizers differ in.
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

_BYTES = 2**27  # of points, distances and sums that are worked on at a time


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


def automatic_branching(items: int) -> tuple[int, int]:
    """Return (b1, b2) for a catalogue: about a fourteenth of the items as leaves, b2 half as much again as b1.

    The paper says b1·b2 ≈ N/10 to N/20, and its table follows that for six of ten data sets; Toys (N/4.2), Health (N/7.2),
    Books (N/7.4) and Sports (N/9.2) have more leaves. From 16 on, multiples of 8. Beside the table: Arts is equal; Musical
    Instruments (32, 56), the paper (32, 40); Video Games (32, 56), (32, 64); Beauty & Personal Care (96, 144), (96, 192);
    Books (152, 232), (256, 256).
    """
    leaves = max(1.0, items / 14)

    def rounded(value: float) -> int:
        return max(1, round(value / 8) * 8 if value >= 16 else round(value))

    first = rounded((leaves / 1.5) ** 0.5)
    return first, min(rounded(leaves / first), max(1, items // first))


def checked_branching(branching: Sequence[int] | str, items: int) -> tuple[int, ...]:
    """Return the branching of a tree over so many items, or raise a ValueError that says what is wrong."""
    if isinstance(branching, str):
        if branching != "auto":
            raise ValueError(f"branching={branching!r} must be numbers, or 'auto'.")
        return automatic_branching(items)
    given: tuple[Any, ...] = tuple(branching) if isinstance(branching, Sequence | np.ndarray) else ()
    if not given or any(not isinstance(width, Integral) or width < 1 for width in given):
        raise ValueError(
            f"branching={branching!r} must be whole numbers of at least 1, one for every level, as (32, 40)."
        )
    widths = tuple(int(width) for width in given)
    if math.prod(widths) > items:
        raise ValueError(
            f"branching={branching!r} makes {math.prod(widths):,} leaves for {items:,} items (n_samples={items}); use fewer."
        )
    return widths


def number_within(groups: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the number of every item among those of its group, from 0, in their order; shape (items,)."""
    order = np.argsort(groups, kind="stable")
    ordered = groups[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    numbers = np.empty(len(groups), dtype=np.int64)
    numbers[order] = np.arange(len(groups)) - np.repeat(starts, np.diff(np.r_[starts, len(groups)]))
    return numbers
