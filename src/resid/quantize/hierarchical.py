"""Hierarchical k-means: the tree of GAOQ, with numbers that mean something only under their parent (ablation Q2)."""

from collections.abc import Sequence
from typing import Any, Literal, Self

import numpy as np
from sklearn.utils import check_random_state

from resid.quantize.base import Quantizer
from resid.quantize.points import as_points
from resid.quantize.tree import checked_branching, grow, number_within


class HierarchicalKMeans(Quantizer):
    """Balanced clusters of balanced clusters; the children of every node are numbered in an order of their own.

    With the same `random_state`, the tree is that of `GAOQ`.

    Parameters
    ----------
    branching : sequence of int or "auto", default="auto"
        Clusters of every node, level by level; one more level, whose size is computed, tells the items of a leaf apart.
    max_iter, tol : int, float
        Of balanced k-means.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        Every row of it is another.
    level_sizes_ : tuple of int
    n_iter_ : int
    n_features_in_ : int
    """

    def __init__(
        self,
        branching: Sequence[int] | Literal["auto"] = "auto",
        *,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.branching = branching
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Give every row of X, shape (n_samples, n_features), an ID."""
        vectors = as_points(self, X, reset=True)
        branching = checked_branching(self.branching, len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        levels = grow(vectors, branching, seed, self.max_iter, self.tol)
        leaves = levels[-1].parents * branching[-1] + levels[-1].children
        random = np.random.default_rng([seed, 2_000])
        codes = [levels[0].children]
        for level, width in zip(levels[1:], branching[1:], strict=True):
            # A random order of the numbers, another for every node, so that nothing is aligned by accident.
            order = random.permuted(np.tile(np.arange(width), (len(level.counts), 1)), axis=1)
            codes.append(order[level.parents, level.children])
        shuffled = random.permutation(len(vectors))
        last = np.empty(len(vectors), dtype=np.int64)
        last[shuffled] = number_within(leaves[shuffled])
        self.codes_ = np.stack([*codes, last], axis=1).astype(np.int32)
        self.level_sizes_ = (*branching, int(last.max()) + 1)
        self.n_iter_ = max(1, *(level.steps for level in levels))
        return self

    def fit_transform(self, X: Any, y: None = None, **_: Any) -> Any:  # noqa: N803
        """Return the codes of X."""
        return self.fit(X).codes_
