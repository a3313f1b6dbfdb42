"""GAOQ, the Q-stage of ReSID: a balanced tree whose codes mean the same under every parent.

Section "Globally Aligned Orthogonal Quantization" and Algorithm 1 of the paper. Items are split by balanced k-means, the
clusters again, and so on; the last level tells the items of a leaf apart, so every ID is unique. From the second level on,
the children of a node take their codes from anchors, directions that all nodes of the level share, by the directions in
which they lie from their parent.
"""

from collections.abc import Sequence
from numbers import Integral
from typing import Any, Literal, Self

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.alignment import make_anchors, match
from resid.quantize.base import Quantizer
from resid.quantize.points import as_points
from resid.quantize.tree import checked_branching, grow, members_of, number_within


class GAOQ(Quantizer):
    """Globally aligned orthogonal quantization.

    Parameters
    ----------
    branching : sequence of int or "auto", default="auto"
        Clusters of every node, level by level; one more level, whose size is computed, tells the items of a leaf apart.
    anchors : sequence of int or None, default=None
        How many anchors each level has from the second on, the last included; by default as many as a node has children.
        More of them leave codes free for items to come.
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

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Give every row of X, shape (n_samples, n_features), an ID."""
        vectors = as_points(self, X, reset=True)
        branching = checked_branching(self.branching, len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        levels = grow(vectors, branching, seed, self.max_iter, self.tol)
        leaves = levels[-1].parents * branching[-1] + levels[-1].children
        largest = int(np.bincount(leaves).max())
        self.branching_ = (*branching, largest)
        counts = self._anchor_counts()
        self.anchors_ = [
            make_anchors(count, vectors.shape[1], [seed, 1_000 + level]) for level, count in enumerate(counts, 1)
        ]
        codes = [levels[0].children]
        for number, level in enumerate(levels[1:]):
            parents = levels[number].centers.flatten(0, 1)
            matched = match(level.centers, level.counts, parents, self._anchors(number, vectors))
            codes.append(matched[level.parents, level.children])
        codes.append(self._number_leaves(vectors, leaves))
        self.codes_ = np.stack(codes, axis=1).astype(np.int32)
        self.level_sizes_ = (branching[0], *counts)
        self.product_flops_ = tuple(level.products for level in levels)
        self.n_iter_ = max(1, *(level.steps for level in levels))
        self._levels = [(level.centers, level.counts) for level in levels]
        self._leaves, self._keys = leaves, _row_keys(vectors)
        return self

    def _anchor_counts(self) -> tuple[int, ...]:
        wanted = self.branching_[1:] if self.anchors is None else tuple(self.anchors)
        if len(wanted) != len(self.branching_) - 1:
            raise ValueError(f"anchors={self.anchors!r} must have {len(self.branching_) - 1} numbers, from level 2 on.")
        for level, (count, children) in enumerate(zip(wanted, self.branching_[1:], strict=True), 2):
            if not isinstance(count, Integral) or count < children:
                raise ValueError(f"level {level} has {children} children and needs as many anchors, not {count!r}.")
        return tuple(int(count) for count in wanted)

    def _anchors(self, number: int, vectors: Tensor) -> Tensor:
        return torch.from_numpy(self.anchors_[number]).to(vectors.device)

    def _number_leaves(self, vectors: Tensor, leaves: NDArray[np.int64]) -> NDArray[np.int64]:
        """Tell the items of every leaf apart, by the directions from their mean."""
        if not self.align_last:
            return number_within(leaves)
        codes = np.zeros(len(vectors), dtype=np.int64)
        anchors = self._anchors(-1, vectors)
        for _, members in members_of(leaves, np.unique(leaves), 3 * vectors.shape[1]):
            real = torch.from_numpy(members >= 0).to(vectors.device)
            items = vectors[torch.from_numpy(members).clamp_min(0).to(vectors.device)]  # (leaves, items, d)
            counts = real.sum(dim=1)
            means = torch.einsum("lid,li->ld", items, real / counts[:, None])
            matched = match(items, counts.cpu().numpy(), means, anchors)
            codes[members[members >= 0]] = matched[members >= 0]
        return codes

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the IDs of vectors, shape (n_samples, n_levels).

        A row that was fitted has its own ID, and rows that are equal have theirs in the order of the items. Another takes the nearest child of the nearest child, and so on, and in that
        leaf the free code whose anchor is nearest in direction. Where a leaf is full, the nearest leaf of the same parent
        that is not takes it. Rows of one call get different IDs; no ID that was given moves.

        Raises
        ------
        ValueError
            If all leaves of the parent are full: fit with more `anchors` at the last level.
        """
        check_is_fitted(self)
        vectors = as_points(self, X, reset=False)
        codes = np.full((len(vectors), len(self.level_sizes_)), -1, dtype=np.int32)
        taken: dict[int, list[int]] = {}
        for item in np.argsort(self._keys, kind="stable")[::-1]:
            taken.setdefault(int(self._keys[item]), []).append(int(item))
        new = []
        for row, key in enumerate(_row_keys(vectors)):
            if same := taken.get(int(key)):
                codes[row] = self.codes_[same.pop()]
            else:
                new.append(row)
        if new:
            self._place(vectors[torch.tensor(new)], codes, new)
        return codes

    def _place(self, vectors: Tensor, codes: NDArray[np.int32], rows: list[int]) -> None:
        """Give vectors that are new, one after the other, free codes; write them to the rows of codes."""
        used: dict[int, set[int]] = {}
        for leaf, code in zip(self._leaves, self.codes_[:, -1], strict=True):
            used.setdefault(int(leaf), set()).add(int(code))
        # The codes of a node's children, by leaf, as the items that are there show them.
        prefixes = dict(zip(self._leaves.tolist(), self.codes_[:, :-1].tolist(), strict=True))
        anchors = self._anchors(-1, vectors)
        room = self.level_sizes_[-1]
        for row, vector in zip(rows, vectors, strict=True):
            node = 0
            for centers, counts in self._levels[:-1]:
                node = node * centers.shape[1] + int(_by_distance(vector, centers[node, : counts[node]])[0])
            centers, counts = self._levels[-1]
            for child in _by_distance(vector, centers[node, : counts[node]]).tolist():
                leaf = node * centers.shape[1] + child
                if len(used[leaf]) < room:
                    break
            else:
                raise ValueError("all leaves near a new vector are full; fit with more anchors at the last level.")
            for code in (anchors @ (vector - centers[node, child])).argsort(descending=True).tolist():
                if code not in used[leaf]:
                    used[leaf].add(code)
                    codes[row] = [*prefixes[leaf], code]
                    break


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
