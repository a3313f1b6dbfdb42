"""The base class of GAOQ and hierarchical k-means: IDs are paths in a tree of balanced clusters.

The tree is built once. A new vector gets the nearest path with a free code at its end; existing IDs never change.
"""

from abc import abstractmethod
from collections.abc import Iterator, Sequence
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


class TreeQuantizer(Quantizer):
    """Base class of tree quantizers; a subclass defines the branching and the codes of children."""

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
    def _preferred_codes(self, vector: Tensor, leaf_mean: Tensor) -> NDArray[np.int64]:
        """Return the codes of the last level in the order in which a new item of the leaf prefers them."""

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, max_iter=1, tol=0.0)
        self._branching(n_items)

    def fit(self, X: Any, y: None = None, *, runtime: Runtime | None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Give every row of X, shape (n_samples, n_features), an ID."""
        check_numbers(self, max_iter=1, tol=0.0)
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

    def extend(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of new vectors as `transform` does, and keep them: they are appended to `codes_`.

        Existing IDs never change and are never given twice. Known rows get their own ID and are not appended.
        """
        codes, leaves, vectors = self._transform(X)
        new = leaves >= 0
        self.codes_ = np.concatenate([self.codes_, codes[new]])
        self._leaves = np.concatenate([self._leaves, leaves[new]])
        self._known.add(vectors[np.flatnonzero(new)])
        return codes

    def _transform(self, X: Any) -> tuple[NDArray[np.int32], NDArray[np.int64], Tensor]:  # noqa: N803
        """Return the IDs of rows, the leaves of new rows and -1 for known ones, and the rows."""
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
            # The path to a leaf, read from the items in it.
            prefixes = dict(zip(self._leaves.tolist(), self.codes_[:, :-1].tolist(), strict=True))
            for row in new:
                leaf, mean = self._free_leaf(vectors[row], used, int(row))
                code = next(int(c) for c in self._preferred_codes(vectors[row], mean) if int(c) not in used[leaf])
                used[leaf].add(code)
                codes[row], leaves[row] = [*prefixes[leaf], code], leaf
        return codes, leaves, vectors

    def _free_leaf(self, vector: Tensor, used: dict[int, set[int]], row: int) -> tuple[int, Tensor]:
        """Return the nearest leaf with a free code, and its mean."""
        for leaf, mean in self._leaves_by_distance(vector, vector, 0, 0):
            if len(used[leaf]) < self.level_sizes_[-1]:
                return leaf, mean
        raise ValueError(
            f"row {row}: all {len(used) * self.level_sizes_[-1]:,} IDs are taken; fit again with all vectors, or fit GAOQ "
            "with more anchors at the last level to leave codes free."
        )

    def _leaves_by_distance(self, vector: Tensor, mean: Tensor, depth: int, node: int) -> Iterator[tuple[int, Tensor]]:
        """Yield the leaves below a node with their means, nearest child first at every level."""
        if depth == len(self._tree):
            yield node, mean
            return
        centers, counts = self._tree[depth]
        for child in _by_distance(vector, centers[node, : counts[node]]).tolist():
            yield from self._leaves_by_distance(
                vector, centers[node, child], depth + 1, node * centers.shape[1] + child
            )

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


def _by_distance(vector: Tensor, centers: Tensor) -> Tensor:
    return (centers - vector).square().sum(dim=1).argsort(stable=True)
