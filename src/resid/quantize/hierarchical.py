"""Hierarchical k-means: a balanced tree with numbers that mean something only under their parent.

The tree of GAOQ without its alignment (ablation Q2 of the paper), or the k-ary tree of EAGER.
"""

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resid.quantize.paths import TreeQuantizer
from resid.quantize.tree import Level, checked_branching, number_within


class HierarchicalKMeans(TreeQuantizer):
    """Balanced clusters of balanced clusters; the children of every node are numbered in an order of their own.

    With the same `branching` and `random_state`, the tree is that of `GAOQ`.

    Parameters
    ----------
    branching : sequence of int, int or "auto", default="auto"
        Clusters of every node, level by level; one more level, whose size is computed, tells the items of a leaf apart.
        A single number k is EAGER's tree: every level has k codes, and there are as few levels as hold all items.
    max_iter, tol : int, float
        Of balanced k-means.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        Every row of it is another.
    level_sizes_ : tuple of int
    product_flops_ : tuple of int
        Floating-point operations of the distance products of every level that was clustered.
    n_iter_ : int
        The most of Lloyd's steps that a node took.
    n_features_in_ : int

    Notes
    -----
    EAGER fills its tree up to k^levels with copies of items. Here nodes have equal numbers of items, up to one, and the
    items of the last nodes take different codes at random: the same IDs, without the copies.
    """

    def __init__(
        self,
        branching: Sequence[int] | int | Literal["auto"] = "auto",
        *,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.branching = branching
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _branching(self, items: int) -> tuple[int, ...]:
        if not isinstance(self.branching, int | np.integer):
            return checked_branching(self.branching, items)
        if self.branching < 2:
            raise ValueError(f"branching={self.branching!r} must be at least 2, or one number for each level.")
        levels = 1
        while self.branching**levels < items:
            levels += 1
        return (int(self.branching),) * (levels - 1)

    def _number(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        random = np.random.default_rng([seed, 2_000])
        codes, sizes = [], []
        for depth, level in enumerate(levels):
            width = level.centers.shape[1]
            if depth == 0:  # no parents that it could differ between
                codes.append(level.children)
            else:
                codes.append(_shuffled(width, len(level.counts), random)[level.parents, level.children])
            sizes.append(width)
        if isinstance(self.branching, int | np.integer):
            room = int(self.branching)
            last = _shuffled(room, int(leaves.max()) + 1, random)[leaves, number_within(leaves)]
        else:
            order = random.permutation(len(vectors))
            last = np.empty(len(vectors), dtype=np.int64)
            last[order] = number_within(leaves[order])
            room = int(last.max()) + 1
        return [*codes, last], (*sizes, room)

    def _preferred_codes(self, vector: Tensor, leaf_mean: Tensor) -> NDArray[np.int64]:
        return np.arange(self.level_sizes_[-1])


def _shuffled(width: int, nodes: int, random: np.random.Generator) -> NDArray[np.int64]:
    """Return the numbers below width in an order of its own for every node, so that nothing is aligned by accident."""
    return random.permuted(np.tile(np.arange(width, dtype=np.int64), (nodes, 1)), axis=1)
