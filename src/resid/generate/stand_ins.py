"""Stand-ins: the seen items that lend their scores to items that training never saw."""

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from resid.quantize.ids import SemanticIds
from resid.sequential.cooccurrence import CoOccurrence

_NEIGHBORS = 3  # seen items that stand in for an unseen one
_CHUNK = 20_000_000  # similarities in memory at a time


def stand_ins(
    counts: NDArray[np.int64], ids: SemanticIds, vectors: NDArray[np.float32] | None
) -> sparse.csr_array | None:
    """Return which seen items stand in for each item: itself, or the most similar ones if training never saw it.

    Parameters
    ----------
    counts
        Training counts, shape (items,).
    ids
        The IDs of the items. Without vectors, all seen items of the smallest subtree that has any are the most similar ones.
    vectors
        Item vectors, shape (items, d), or None. With them, the three seen items with the highest cosine are.

    Returns
    -------
    sparse array or None
        Shape (items, items), rows sum to 1; None if all items were seen, or none.
    """
    unseen, seen = np.flatnonzero(counts == 0), np.flatnonzero(counts)
    if not len(unseen) or not len(seen):
        return None
    pairs = [np.column_stack([seen, seen])]
    if vectors is not None:
        units = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
        step = max(1, _CHUNK // len(seen))
        for some in np.split(unseen, range(step, len(unseen), step)):
            few = min(_NEIGHBORS, len(seen))
            nearest = np.argpartition(-(units[some] @ units[seen].T), few - 1, axis=1)[:, :few]
            pairs.append(np.column_stack([np.repeat(some, few), seen[nearest.ravel()]]))
    else:
        left = unseen
        for depth in range(ids.levels - 1, -1, -1):
            nodes = ids.node_of(depth)
            alike = nodes[left, None] == nodes[None, seen]
            row, column = np.nonzero(alike)
            pairs.append(np.column_stack([left[row], seen[column]]))
            left = left[~alike.any(axis=1)]
    rows, columns = np.concatenate(pairs).T
    weights = (1 / np.bincount(rows, minlength=len(counts)))[rows].astype(np.float32)
    return sparse.csr_array((weights, (rows, columns)), shape=(len(counts), len(counts)))


def with_rows(model: CoOccurrence, count: int, weights: sparse.csr_array | None) -> dict[str, NDArray[Any]]:
    """Return the arrays of co-occurrences with the rows of new items, the means of those of their `stand_ins`.

    Their columns stay empty, as `stand_ins` fill these when items are scored.

    Parameters
    ----------
    model
        With the other items.
    count
        The number of new items.
    weights
        As `stand_ins` returns it for all items, the new ones last, shape (items, items).
    """
    known, arrays = len(model.catalogue_), model.arrays()
    if weights is None:
        ends = arrays["indptr"]
        return {**arrays, "indptr": np.concatenate([ends, np.repeat(ends[-1:], count)])}
    rows = (weights[known:, :known] @ model.similarity_).tocsr().astype(np.float32)
    rows.sort_indices()
    joined = {name: np.concatenate([arrays[name], getattr(rows, name)]) for name in ("data", "indices")}
    ends = np.concatenate([arrays["indptr"], arrays["indptr"][-1] + rows.indptr[1:]])
    return {**{name: array.astype(arrays[name].dtype) for name, array in joined.items()}, "indptr": ends}


def fill_unseen(vectors: Tensor, weights: sparse.csr_array | None) -> Tensor:
    """Return item vectors, shape (items, d), those of unseen items replaced by the means of their `stand_ins`."""
    if weights is None:
        return vectors
    unseen = np.flatnonzero(weights.diagonal() == 0)
    filled = vectors.clone()
    filled[torch.from_numpy(unseen)] = torch.from_numpy(weights[unseen] @ vectors.cpu().numpy()).to(vectors)
    return filled
