"""The base class of GAOQ and hierarchical k-means: IDs are paths in a tree of balanced clusters.

The tree is built once. A new vector gets the nearest path with a free code at its end; existing IDs never change.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.runtime import Runtime
from resid.quantize.base import Quantizer
from resid.quantize.cluster_tree import Level, build_tree
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.room import Room


class TreeQuantizer(Quantizer):
    """Base class of tree quantizers; a subclass defines the branching and the codes of children."""

    spare: float
    max_iter: int
    tol: float
    random_state: Any

    @abstractmethod
    def _branching(self, n_items: int) -> tuple[int, ...]:
        """Return the number of children of a node at every level but the last, or raise a ValueError."""

    @abstractmethod
    def _assign_codes(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        """Return the codes of all items at every level, and the level sizes."""

    @abstractmethod
    def _code_preferences(self, offset: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return how much a new item prefers each code of the last level; the largest free one is taken.

        Parameters
        ----------
        offset
            The difference of its vector and the mean of its leaf, shape (d,).
        """

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, max_iter=1, tol=0.0, spare=0.0)
        self._branching(n_items)

    def _codes_with_spare(self, count: int) -> int:
        """Return how many codes are needed for `count` items and their growth by the share `spare`."""
        return math.ceil(round((1 + self.spare) * count, 6))  # rounded, so that 1.1 · 10 is 11

    def fit(self, X: Any, y: None = None, *, runtime: Runtime | None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Give every row of X, shape (n_samples, n_features), an ID."""
        check_numbers(self, max_iter=1, tol=0.0, spare=0.0)
        vectors = as_points(self, X, reset=True)
        branching = self._branching(len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        levels = build_tree(vectors, branching, seed, self.max_iter, self.tol)
        leaves = np.zeros(len(vectors), dtype=np.int64)
        for level, width in zip(levels, branching, strict=True):
            leaves = leaves * width + level.children
        codes, self.level_sizes_ = self._assign_codes(vectors, levels, leaves, seed)
        self.codes_ = np.stack(codes, axis=1).astype(np.int32)
        self.product_flops_ = tuple(level.products for level in levels)
        self.n_iter_ = max([1, *(level.steps for level in levels)])
        self._tree = [(level.centers.cpu(), level.counts) for level in levels]
        self._leaves, self._known = leaves, KnownRows(vectors)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of vectors, shape (n_samples, n_levels).

        A row that was fitted has its own ID; equal rows have theirs in the order of the items. A new row descends to the
        nearest child at every level and takes a free code in that leaf. If the leaf is full, it takes the nearest leaf of the
        same parent that has a free code, then of the next parent. New rows of one call get different IDs, but the next call
        starts from the same free codes; `extend` keeps the IDs.

        Raises
        ------
        ValueError
            If the tree has no free code.
        """
        return self._transform(X)[0]

    def extend(self, X: Any, *, distinct: bool = False) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of new vectors as `transform` does, and keep them: they are appended to `codes_`.

        Existing IDs never change and are never given twice. Known rows get their own ID and are not appended, unless all rows
        are `distinct` items.
        """
        codes, leaves, vectors = self._transform(X, distinct=distinct)
        new = leaves >= 0
        self.codes_ = np.concatenate([self.codes_, codes[new]])
        self._leaves = np.concatenate([self._leaves, leaves[new]])
        self._known.add(vectors[np.flatnonzero(new)])
        return codes

    def room(self) -> Room:
        """See `Quantizer.room`."""
        check_is_fitted(self)
        _, first = np.unique(self._leaves, return_index=True)
        n_leaves = np.bincount(self.codes_[first, 0], minlength=self.level_sizes_[0])
        taken = np.bincount(self.codes_[:, 0], minlength=self.level_sizes_[0])
        return Room.of(taken, n_leaves * self.level_sizes_[-1])

    def _transform(
        self,
        X: Any,  # noqa: N803
        *,
        distinct: bool = False,
    ) -> tuple[NDArray[np.int32], NDArray[np.int64], Tensor]:
        """Return the IDs of rows, the leaves of new rows and -1 for known ones, and the rows."""
        check_is_fitted(self)
        vectors = as_points(self, X, reset=False).cpu()
        found = np.full(len(vectors), -1) if distinct else self._known.find(vectors)
        codes = self.codes_[found]
        leaves = np.full(len(vectors), -1, dtype=np.int64)
        new = np.flatnonzero(found < 0)
        if len(new):
            free = _FreeCodes(self._leaves, self.codes_[:, -1], self.level_sizes_[-1], self._tree)
            known, first = np.unique(self._leaves, return_index=True)
            rows = vectors.numpy()
            for row in new:
                if not free.total:
                    raise ValueError(
                        f"row {row}: all {len(known) * self.level_sizes_[-1]:,} IDs are taken; fit again, and leave "
                        "room for new items with 'spare', for example 0.2 (--set quantizer.spare=0.2)."
                    )
                leaf, mean = free.nearest_leaf(rows[row])
                code = free.take(leaf, self._code_preferences(rows[row] - mean))
                # The path to a leaf is read from an item in it.
                codes[row] = [*self.codes_[first[np.searchsorted(known, leaf)], :-1], code]
                leaves[row] = leaf
        return codes, leaves, vectors

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        tree: dict[str, NDArray[Any]] = {}
        for depth, (centers, counts) in enumerate(self._tree):
            tree |= {f"centers.{depth}": centers.numpy(), f"counts.{depth}": counts}
        arrays = {**content["arrays"], **tree, "leaves": self._leaves, "known_rows": self._known.keys}
        return {"facts": {**content["facts"], "product_flops": self.product_flops_}, "arrays": arrays}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        quantizer, arrays = super()._unpack(artifact), artifact.arrays
        quantizer.product_flops_ = tuple(artifact.facts["product_flops"])
        depths = range(len(quantizer.product_flops_))
        quantizer._tree = [(torch.from_numpy(arrays[f"centers.{d}"]), arrays[f"counts.{d}"]) for d in depths]
        quantizer._leaves, quantizer._known = arrays["leaves"], KnownRows(keys=arrays["known_rows"])
        return quantizer


class _FreeCodes:
    """The codes of the last level that are free in every leaf, and their number below every node of the tree.

    Parameters
    ----------
    leaves, codes
        The leaf and the last code of every item, shape (items,).
    size
        Number of codes of the last level.
    tree
        The centers of every level, shape (nodes, branching, d), and the number of children of every node.
    """

    def __init__(
        self,
        leaves: NDArray[np.int64],
        codes: NDArray[np.int32],
        size: int,
        tree: Sequence[tuple[Tensor, NDArray[np.int64]]],
    ) -> None:
        self.centers = [centers.numpy() for centers, _ in tree]
        n_leaves = int(np.prod([centers.shape[1] for centers in self.centers], dtype=np.int64))
        self.free = np.zeros((n_leaves, size), dtype=bool)
        self.free[np.unique(leaves)] = True  # every leaf of the tree has an item
        self.free[leaves, codes] = False
        below = self.free.sum(axis=1)
        self.below = (
            [below] if self.centers else []
        )  # by depth, of all nodes from the children of the root to the leaves
        for centers in reversed(self.centers[1:]):
            self.below.insert(0, self.below[0].reshape(-1, centers.shape[1]).sum(axis=1))
        self.total = int(below.sum())

    def nearest_leaf(self, vector: NDArray[np.float32]) -> tuple[int, NDArray[np.float32]]:
        """Return the leaf that the nearest child with a free code leads to at every level, and its mean."""
        node, mean = 0, vector
        for centers, below in zip(self.centers, self.below, strict=True):
            width = centers.shape[1]
            open_children = np.flatnonzero(below[node * width : (node + 1) * width])
            nearest = np.square(centers[node, open_children] - vector).sum(axis=1).argmin()
            child = int(open_children[nearest])
            node, mean = node * width + child, centers[node, child]
        return node, mean

    def take(self, leaf: int, preferences: NDArray[np.float32]) -> int:
        """Take the preferred free code of a leaf, and return it."""
        code = int(np.where(self.free[leaf], preferences, -np.inf).argmax())
        self.free[leaf, code] = False
        node = leaf
        for centers, below in zip(reversed(self.centers), reversed(self.below), strict=True):
            below[node] -= 1
            node //= centers.shape[1]
        self.total -= 1
        return code
