"""GAOQ, the Q-stage of ReSID: a balanced tree whose codes mean the same under every parent.

Section "Globally Aligned Orthogonal Quantization" and Algorithm 1 of the paper. Items are split by balanced k-means, the
clusters again, and so on; the last level tells the items of a leaf apart, so every ID is unique. From the second level on,
the children of a node take their codes from anchors, directions that all nodes of the level share, by the directions in
which they lie from their parent.
"""

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.quantize.alignment import make_anchors, match
from resid.quantize.paths import TreeQuantizer
from resid.quantize.tree import Level, checked_branching, members_of, number_within


class GAOQ(TreeQuantizer):
    """Globally aligned orthogonal quantization.

    Parameters
    ----------
    branching : sequence of int or "auto", default="auto"
        Clusters of every node, level by level; one more level, whose size is computed, tells the items of a leaf apart.
    anchors : sequence of int or None, default=None
        How many anchors each level has from the second on, the last included; by default as many as a node has children.
        More of them leave codes free for items to come. They are orthogonal as far as there are dimensions; further ones
        come in blocks that are orthogonal among themselves, with a warning.
    align_last : bool, default=True
        Whether the last level is aligned too, or numbered in the order of the items.
    max_iter, tol : int, float
        Of balanced k-means.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        Every row of it is another.
    level_sizes_ : tuple of int
    branching_ : tuple of int
        With the last level.
    anchors_ : list of ndarray
        Of every level from the second on, shape (anchors, n_features).
    product_flops_ : tuple of int
        Floating-point operations of the distance products of every level that was clustered.
    n_iter_ : int
        The most of Lloyd's steps that a node took.
    n_features_in_ : int
    """

    def __init__(
        self,
        branching: Sequence[int] | Literal["auto"] = "auto",
        *,
        anchors: Sequence[int] | None = None,
        align_last: bool = True,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.branching = branching
        self.anchors = anchors
        self.align_last = align_last
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _branching(self, items: int) -> tuple[int, ...]:
        branching = checked_branching(self.branching, items)
        largest = items  # of the nodes of a level: halves and so on are rounded up, as clusters are balanced
        for width in branching:
            largest = -(-largest // width)
        self.branching_ = (*branching, largest)
        self.level_sizes_ = (branching[0], *self._anchor_counts())
        return branching

    def _number(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        self.anchors_ = [
            make_anchors(count, vectors.shape[1], [seed, 1_000 + level])
            for level, count in enumerate(self.level_sizes_[1:], 1)
        ]
        if max(self.level_sizes_[1:]) > vectors.shape[1]:
            warnings.warn(
                f"there are up to {max(self.level_sizes_[1:])} anchors in {vectors.shape[1]} dimensions, so not all of them are "
                "orthogonal: they come in blocks that are.",
                stacklevel=4,
            )
        codes = [levels[0].children]
        for number, level in enumerate(levels[1:]):
            parents = levels[number].centers.flatten(0, 1)
            matched = match(level.centers, level.counts, parents, self._anchors(number, vectors))
            codes.append(matched[level.parents, level.children])
        codes.append(self._number_leaves(vectors, leaves, levels[-1].centers.flatten(0, 1)))
        return codes, self.level_sizes_

    def _preferred_codes(self, vector: Tensor, leaf_mean: Tensor) -> NDArray[np.int64]:
        return (self._anchors(-1, vector) @ (vector - leaf_mean)).argsort(descending=True, stable=True).cpu().numpy()

    def _anchor_counts(self) -> tuple[int, ...]:
        """Return the number of anchors from the second level on, or raise a ValueError."""
        children = self.branching_[1:]
        if self.anchors is None:
            return children
        if not isinstance(self.anchors, Sequence | np.ndarray) or len(self.anchors) != len(children):
            raise ValueError(f"anchors={self.anchors!r} must be {len(children)} numbers, one for each level from 2 on.")
        for level, (count, least) in enumerate(zip(self.anchors, children, strict=True), 2):
            if not isinstance(count, Integral) or count < least:
                raise ValueError(f"level {level} has {least} children and needs as many anchors, not {count!r}.")
        return tuple(int(count) for count in self.anchors)

    def _anchors(self, number: int, vectors: Tensor) -> Tensor:
        return torch.from_numpy(self.anchors_[number]).to(vectors.device)

    def _number_leaves(self, vectors: Tensor, leaves: NDArray[np.int64], means: Tensor) -> NDArray[np.int64]:
        """Tell the items of every leaf apart, by the directions from its mean; means have shape (leaves, d)."""
        if not self.align_last:
            return number_within(leaves)
        codes = np.zeros(len(vectors), dtype=np.int64)
        anchors = self._anchors(-1, vectors)
        for some, members in members_of(leaves, np.unique(leaves), 16 * vectors.shape[1]):
            real = members >= 0
            items = vectors[torch.from_numpy(members).clamp_min(0).to(vectors.device)]  # (leaves, items, d)
            matched = match(items, real.sum(axis=1), means[torch.from_numpy(some).to(vectors.device)], anchors)
            codes[members[real]] = matched[real]
        return codes
