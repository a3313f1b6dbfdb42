"""Hierarchical k-means: a balanced tree with local codes, which have a meaning only under their parent.

The tree of GAOQ without alignment (ablation Q2 of the paper), or the k-ary tree of EAGER.
"""

import math
from collections.abc import Sequence
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from resid.core.registry import register
from resid.quantize.cluster_tree import Level, check_branching, number_within
from resid.quantize.settings import HierarchicalKMeansSettings
from resid.quantize.tree_quantizer import TreeQuantizer


@register("quantizer", "hierarchical")
class HierarchicalKMeans(TreeQuantizer):
    """Recursive balanced k-means; the children of every node are numbered in a random order.

    With the same `branching` and `random_state`, the tree is that of `GAOQ`.

    Parameters
    ----------
    branching : tuple of int, int, "k-ary" or "auto", default="auto"
        Number of children of a node at every level; one more level, whose size is computed, numbers the items of a leaf. A
        single integer k is EAGER's tree: every level has k codes, with as few levels as the catalogue needs. With ``"k-ary"``,
        k is 256 and there are at least two levels; for at most 16,384 items, k is the least with k² codes for them, up to 128.
    spare : float, default=0.0
        Share of growth for which IDs are left free: at least ``spare`` times the number of items.
    max_iter : int, default=100
        Maximum number of Lloyd iterations of balanced k-means.
    tol : float, default=1e-4
        Tolerance of balanced k-means.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        All rows are different.
    level_sizes_ : tuple of int
    product_flops_ : tuple of int
        Floating-point operations of the distance computations of every clustered level.
    n_iter_ : int
        The largest number of Lloyd iterations of a node.
    n_features_in_ : int

    Notes
    -----
    EAGER pads its tree to k^levels with copies of items. Here the sizes of nodes differ by at most one, and the items of a leaf
    get distinct random codes: the same IDs without the copies.
    """

    settings_class = HierarchicalKMeansSettings

    def __init__(
        self,
        branching: tuple[int, ...] | int | Literal["k-ary", "auto"] = "auto",
        *,
        spare: float = 0.0,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.branching = branching
        self.spare = spare
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _branching(self, n_items: int) -> tuple[int, ...]:
        codes = self._codes_of_a_level(n_items)
        if codes is None:
            return check_branching(cast(tuple[int, ...] | str, self.branching), n_items)
        if isinstance(self.branching, int | np.integer) and codes < 2:
            raise ValueError(f"branching={self.branching!r} must be at least 2, or one integer per level.")
        levels = 2 if self.branching == "k-ary" else 1
        while codes**levels < self._codes_with_spare(n_items):
            levels += 1
        return (codes,) * (levels - 1)

    def _codes_of_a_level(self, n_items: int) -> int | None:
        """Return the k of a k-ary tree; None for any other tree."""
        if isinstance(self.branching, int | np.integer):
            return int(self.branching)
        if self.branching == "k-ary":
            n_ids = self._codes_with_spare(n_items)
            return 256 if n_ids > 128**2 else math.isqrt(n_ids - 1) + 1
        return None

    def _assign_codes(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        rng = np.random.default_rng([seed, 2_000])
        codes, sizes = [], []
        for depth, level in enumerate(levels):
            width = level.centers.shape[1]
            if depth == 0:  # a single parent
                codes.append(level.children)
            else:
                codes.append(_shuffled(width, len(level.counts), rng)[level.parents, level.children])
            sizes.append(width)
        room = self._codes_of_a_level(len(vectors))
        if room is None and self.spare:
            room = self._codes_with_spare(int(np.bincount(leaves).max()))
        if room is not None:  # every code is used somewhere, so that a generator learns it
            last = _shuffled(room, int(leaves.max()) + 1, rng)[leaves, number_within(leaves)]
        else:
            order = rng.permutation(len(vectors))
            last = np.empty(len(vectors), dtype=np.int64)
            last[order] = number_within(leaves[order])
            room = int(last.max()) + 1
        return [*codes, last], (*sizes, room)

    def _code_preferences(self, offset: NDArray[np.float32]) -> NDArray[np.float32]:
        return -np.arange(self.level_sizes_[-1], dtype=np.float32)


def _shuffled(width: int, nodes: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Return the codes below `width` in a random order for every node, so that codes are not aligned by accident."""
    return rng.permuted(np.tile(np.arange(width, dtype=np.int64), (nodes, 1)), axis=1)
