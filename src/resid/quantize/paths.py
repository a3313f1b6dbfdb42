"""What GAOQ and hierarchical k-means share: items are leaves of a tree, their IDs are the paths to them.

The tree is grown once. A vector that comes later takes the nearest path that has a free code at its end; the IDs that were
given before do not move.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.base import Quantizer
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.tree import Level, grow


class TreeQuantizer(Quantizer):
    """Base of the quantizers that cut a tree; a subclass says how it branches and which numbers children get."""

    max_iter: int
    tol: float
    random_state: Any

    @abstractmethod
    def _branching(self, items: int) -> tuple[int, ...]:
        """Return the clusters of a node, level by level, without the last level, or raise a ValueError."""

    @abstractmethod
    def _number(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        """Return the codes of all items, level by level, and the sizes of the levels."""

    @abstractmethod
    def _preferred_codes(self, vector: Tensor, leaf_mean: Tensor) -> NDArray[np.int64]:
        """Return the codes of the last level in the order in which a new item of a leaf should take them."""

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Give every row of X, shape (n_samples, n_features), an ID."""
        check_numbers(self, max_iter=1, tol=0.0)
        vectors = as_points(self, X, reset=True)
        branching = self._branching(len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        levels = grow(vectors, branching, seed, self.max_iter, self.tol)
        leaves = np.zeros(len(vectors), dtype=np.int64)
        for level, width in zip(levels, branching, strict=True):
            leaves = leaves * width + level.children
        codes, self.level_sizes_ = self._number(vectors, levels, leaves, seed)
        self.codes_ = np.stack(codes, axis=1).astype(np.int32)
        self.product_flops_ = tuple(level.products for level in levels)
        self.n_iter_ = max([1, *(level.steps for level in levels)])
        self._tree = [(level.centers.cpu(), level.counts) for level in levels]
        self._leaves, self._known = leaves, KnownRows(vectors)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of vectors, shape (n_samples, n_levels).

        A row that was fitted has its own ID, and rows that are equal have theirs in the order of the items. Another takes
        the nearest child of the nearest child, and so on, and in that leaf a free code. Where a leaf is full, the nearest
        of its parent's leaves that is not takes it, and where all are, the next parent's. Rows of one call get different
        IDs; the next call starts from the same free codes again. `extend` keeps what it gives.

        Raises
        ------
        ValueError
            If no code of the whole tree is free.
        """
        return self._transform(X)[0]

    def extend(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of new vectors as `transform` does, and keep them: they are appended to `codes_`.

        No ID that was given moves, by `fit` or by `extend`, and none is given twice. Rows that are there already get
        their own ID and are not appended.
        """
        codes, leaves, vectors = self._transform(X)
        new = leaves >= 0
        self.codes_ = np.concatenate([self.codes_, codes[new]])
        self._leaves = np.concatenate([self._leaves, leaves[new]])
        self._known.add(vectors[np.flatnonzero(new)])
        return codes

    def _transform(self, X: Any) -> tuple[NDArray[np.int32], NDArray[np.int64], Tensor]:  # noqa: N803
        """Return the IDs of rows, the leaves of those that are new and -1 for others, and the rows."""
        check_is_fitted(self)
        vectors = as_points(self, X, reset=False).cpu()
        found = self._known.find(vectors)
        codes = self.codes_[found]
        leaves = np.full(len(vectors), -1, dtype=np.int64)
        new = np.flatnonzero(found < 0)
        if len(new):
            used: dict[int, set[int]] = {}
            for leaf, code in zip(self._leaves.tolist(), self.codes_[:, -1].tolist(), strict=True):
                used.setdefault(leaf, set()).add(code)
            # The codes on the way to a leaf, as the items that are there show them.
            prefixes = dict(zip(self._leaves.tolist(), self.codes_[:, :-1].tolist(), strict=True))
            for row in new:
                leaf, mean = self._free_leaf(vectors[row], used, int(row))
                code = next(int(c) for c in self._preferred_codes(vectors[row], mean) if int(c) not in used[leaf])
                used[leaf].add(code)
                codes[row], leaves[row] = [*prefixes[leaf], code], leaf
        return codes, leaves, vectors

    def fit_transform(self, X: Any, y: None = None, **_: Any) -> Any:  # noqa: N803
        """Return the codes of X."""
        return self.fit(X).codes_

    def _free_leaf(self, vector: Tensor, used: dict[int, set[int]], row: int) -> tuple[int, Tensor]:
        """Return the nearest leaf with a free code, and its mean."""
        for leaf, mean in self._leaves_by_distance(vector, vector, 0, 0):
            if len(used[leaf]) < self.level_sizes_[-1]:
                return leaf, mean
        raise ValueError(
            f"row {row}: all {len(used) * self.level_sizes_[-1]:,} IDs are given; fit again with all vectors, or fit GAOQ "
            "with more anchors at the last level, which leaves codes free."
        )

    def _leaves_by_distance(self, vector: Tensor, mean: Tensor, depth: int, node: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the leaves below a node with their means: those of the nearest child first, and so on at every level."""
        if depth == len(self._tree):
            yield node, mean
            return
        centers, counts = self._tree[depth]
        for child in _by_distance(vector, centers[node, : counts[node]]).tolist():
            yield from self._leaves_by_distance(
                vector, centers[node, child], depth + 1, node * centers.shape[1] + child
            )


def _by_distance(vector: Tensor, centers: Tensor) -> Tensor:
    return (centers - vector).square().sum(dim=1).argsort(stable=True)
