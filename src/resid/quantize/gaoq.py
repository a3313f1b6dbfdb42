"""GAOQ, the Q-stage of ReSID: a balanced tree whose codes mean the same under every parent.

Section "Globally Aligned Orthogonal Quantization" and Algorithm 1 of the paper. Items are split recursively by balanced
k-means; the last level numbers the items of a leaf, so every ID is unique. From the second level on, the children of a node
are matched to anchors, directions that all nodes of the level share, by their direction from the parent.
"""

import warnings
from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.quantize.alignment import make_anchors, match
from resid.quantize.cluster_tree import Level, check_branching, members_of, number_within
from resid.quantize.settings import GAOQSettings
from resid.quantize.tree_quantizer import TreeQuantizer


@register("quantizer", "gaoq")
class GAOQ(TreeQuantizer):
    """Globally aligned orthogonal quantization.

    Parameters
    ----------
    branching : tuple of int or "auto", default="auto"
        Number of children of a node at every level; one more level, whose size is computed, numbers the items of a leaf.
        ``"auto"`` has about one leaf per 14 items.
    anchors : tuple of int or None, default=None
        Number of anchors of every level from the second on, including the last; by default the number of children. More
        anchors leave codes free for new items. If there are more anchors than dimensions, they come in blocks that are
        orthogonal, with a warning.
    align_last : bool, default=True
        Align the last level too; otherwise number the items of a leaf in their order.
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
    branching_ : tuple of int
        Including the last level.
    anchors_ : list of ndarray
        Anchors of every level from the second on, shape (anchors, n_features).
    product_flops_ : tuple of int
        Floating-point operations of the distance computations of every clustered level.
    n_iter_ : int
        The largest number of Lloyd iterations of a node.
    n_features_in_ : int
    """

    settings_class = GAOQSettings

    def __init__(
        self,
        branching: tuple[int, ...] | Literal["auto"] = "auto",
        *,
        anchors: tuple[int, ...] | None = None,
        align_last: bool = True,
        spare: float = 0.0,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.branching = branching
        self.anchors = anchors
        self.align_last = align_last
        self.spare = spare
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def _branching(self, n_items: int) -> tuple[int, ...]:
        branching = check_branching(self.branching, n_items)
        self._anchor_counts(self._with_spare(_largest_nodes(branching, n_items)))
        return branching

    def _assign_codes(
        self, vectors: Tensor, levels: Sequence[Level], leaves: NDArray[np.int64], seed: int
    ) -> tuple[list[NDArray[np.int64]], tuple[int, ...]]:
        widths = tuple(level.centers.shape[1] for level in levels)
        self.branching_ = (*widths, *_largest_nodes(widths, len(vectors))[-1:])
        level_sizes = (widths[0], *self._anchor_counts(self._with_spare(self.branching_[1:])))
        self.anchors_ = [
            make_anchors(count, vectors.shape[1], [seed, 1_000 + level])
            for level, count in enumerate(level_sizes[1:], 1)
        ]
        if max(level_sizes[1:]) > vectors.shape[1]:
            warnings.warn(
                f"there are up to {max(level_sizes[1:])} anchors in {vectors.shape[1]} dimensions, so only blocks of them are "
                "orthogonal.",
                stacklevel=4,
            )
        codes = [levels[0].children]
        for number, level in enumerate(levels[1:]):
            parents = levels[number].centers.flatten(0, 1)
            matched = match(level.centers, level.counts, parents, self._anchors(number, vectors))
            codes.append(matched[level.parents, level.children])
        codes.append(self._leaf_codes(vectors, leaves, levels[-1].centers.flatten(0, 1)))
        return codes, level_sizes

    def _code_preferences(self, offset: NDArray[np.float32]) -> NDArray[np.float32]:
        preferences: NDArray[np.float32] = self.anchors_[-1] @ offset
        return preferences

    def _with_spare(self, children: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of codes that the levels from the second on need: those of the children, and spare ones."""
        return (*children[:-1], self._codes_with_spare(children[-1]))

    def _anchor_counts(self, children: tuple[int, ...]) -> tuple[int, ...]:
        """Return the number of anchors of levels from the second on that need so many codes, or raise a ValueError."""
        if self.anchors is None:
            return children
        if not isinstance(self.anchors, Sequence | np.ndarray) or len(self.anchors) != len(children):
            raise ValueError(
                f"anchors={self.anchors!r} must be {len(children)} integers, one per level from the second on."
            )
        for level, (count, least) in enumerate(zip(self.anchors, children, strict=True), 2):
            if not isinstance(count, Integral) or count < least:
                raise ValueError(
                    f"level {level} has {least} children and needs at least as many anchors, not {count!r}."
                    if not self.spare
                    else f"level {level} needs {least} anchors for its children and spare={self.spare:g}, not {count!r}."
                )
        return tuple(int(count) for count in self.anchors)

    def _anchors(self, number: int, vectors: Tensor) -> Tensor:
        return torch.from_numpy(self.anchors_[number]).to(vectors.device)

    def _leaf_codes(self, vectors: Tensor, leaves: NDArray[np.int64], means: Tensor) -> NDArray[np.int64]:
        """Return the codes of items within their leaf, by the direction from its mean; means have shape (leaves, d)."""
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

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        anchors = {f"anchors.{number}": anchors for number, anchors in enumerate(self.anchors_)}
        facts = {**content["facts"], "branching": self.branching_}
        return {"facts": facts, "arrays": {**content["arrays"], **anchors}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        quantizer = super()._unpack(artifact)
        quantizer.branching_ = tuple(artifact.facts["branching"])
        quantizer.anchors_ = [artifact.arrays[f"anchors.{n}"] for n in range(len(quantizer.level_sizes_) - 1)]
        return quantizer


def _largest_nodes(branching: tuple[int, ...], n_items: int) -> tuple[int, ...]:
    """Return the number of children of the levels from the second on, the last being the size of the largest leaf."""
    largest = n_items
    for width in branching:  # balanced clusters differ by at most one item
        largest = -(-largest // width)
    return (*branching[1:], largest)
