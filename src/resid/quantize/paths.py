"""What GAOQ and hierarchical k-means share: items are leaves of a tree, their IDs are the paths to them.

The tree is grown once. A vector that comes later takes the nearest path that has a free code at its end; the IDs that were
given before do not move.
"""

from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numba
import numpy as np
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.base import Quantizer
from resid.quantize.points import as_points
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
        self.n_iter_ = max(1, *(level.steps for level in levels), 1)
        self._tree = [(level.centers, level.counts) for level in levels]
        self._leaves, self._keys = leaves, _row_keys(vectors)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of vectors, shape (n_samples, n_levels).

        A row that was fitted has its own ID, and rows that are equal have theirs in the order of the items. Another takes
        the nearest child of the nearest child, and so on, and in that leaf a free code. Where a leaf is full, the nearest
        leaf of the same parent that is not takes it. Rows of one call get different IDs; no ID that was given moves.

        Raises
        ------
        ValueError
            If all leaves of the parent are full.
        """
        check_is_fitted(self)
        vectors = as_points(self, X, reset=False)
        codes = np.full((len(vectors), len(self.level_sizes_)), -1, dtype=np.int32)
        fitted: dict[int, list[int]] = {}
        for item in np.argsort(self._keys, kind="stable")[::-1]:
            fitted.setdefault(int(self._keys[item]), []).append(int(item))
        new = []
        for row, key in enumerate(_row_keys(vectors)):
            if same := fitted.get(int(key)):
                codes[row] = self.codes_[same.pop()]
            else:
                new.append(row)
        if new:
            self._place(vectors, codes, new)
        return codes

    def fit_transform(self, X: Any, y: None = None, **_: Any) -> Any:  # noqa: N803
        """Return the codes of X."""
        return self.fit(X).codes_

    def _place(self, vectors: Tensor, codes: NDArray[np.int32], rows: list[int]) -> None:
        """Give rows that are new, one after the other, free codes."""
        used: dict[int, set[int]] = {}
        for leaf, code in zip(self._leaves.tolist(), self.codes_[:, -1].tolist(), strict=True):
            used.setdefault(leaf, set()).add(code)
        # The codes on the way to a leaf, as the items that are there show them.
        prefixes = dict(zip(self._leaves.tolist(), self.codes_[:, :-1].tolist(), strict=True))
        for row in rows:
            leaf, mean = self._free_leaf(vectors[row], used)
            code = next(int(c) for c in self._preferred_codes(vectors[row], mean) if int(c) not in used[leaf])
            used[leaf].add(code)
            codes[row] = [*prefixes[leaf], code]

    def _free_leaf(self, vector: Tensor, used: dict[int, set[int]]) -> tuple[int, Tensor]:
        """Return the nearest leaf with a free code, and its mean."""
        node, room = 0, self.level_sizes_[-1]
        for centers, counts in self._tree[:-1]:
            node = node * centers.shape[1] + int(_by_distance(vector, centers[node, : counts[node]])[0])
        # A tree without clusters is one leaf; its mean does not matter then.
        centers, counts = self._tree[-1] if self._tree else (vector[None, None], np.array([1]))
        for child in _by_distance(vector, centers[node, : counts[node]]).tolist():
            leaf = node * centers.shape[1] + child
            if len(used[leaf]) < room:
                return leaf, centers[node, child]
        raise ValueError(
            f"all leaves near a new vector are full, {room} items each; fit again with all vectors, or fit GAOQ with more "
            "anchors at the last level, which leaves codes free."
        )


def _by_distance(vector: Tensor, centers: Tensor) -> Tensor:
    return (centers - vector).square().sum(dim=1).argsort(stable=True)


def _row_keys(vectors: Tensor) -> NDArray[np.uint64]:
    """Return a number for every row that is the same for equal rows, and, all but certainly, for no others."""
    words = vectors.cpu().numpy().view(np.uint32)
    factors = np.atleast_1d(np.random.default_rng(0).bit_generator.random_raw(words.shape[1])) | np.uint64(1)
    keys: NDArray[np.uint64] = _multilinear_hash(words, factors)
    return keys


@numba.njit(nogil=True, cache=True)
def _multilinear_hash(words, factors):  # type: ignore[no-untyped-def]
    keys = np.zeros(len(words), np.uint64)
    for row in range(len(words)):
        for column in range(words.shape[1]):
            keys[row] += (np.uint64(words[row, column]) + np.uint64(1)) * factors[column]  # modulo 2^64
    return keys
