"""Quality of semantic IDs, measured before any generator is trained on them.

According to the paper, codes should be used evenly, be predictable from the codes before them, and be informative about the
vector z by themselves. In its equation H(z | c_l) = H(z | c_l, C_<l) + I(z; C_<l | c_l), the last term is the prefix-dependent
ambiguity: how much the meaning of a code depends on its prefix.

**Estimators.** C is a function of z, so the exact information I(z; C_<l | c_l) is H(C_<l | c_l), which is the same for aligned
and for local codes; they differ in how much z varies. Entropies of z are therefore measured by distortion, the mean squared
distance to the mean of a group, converted to bits per dimension as for a Gaussian with the same mean variance:

    I ≈ ½ log₂(distortion given c_l / distortion given c_l and C_<l)

with unbiased variances. This is exact if z given c_l is an isotropic Gaussian, within and between prefixes. The same is measured
for the step of a level, z − E[z | C_<l], the direction from a parent to its child: it is zero for perfectly aligned codes, and
everything that the level explains for random codes.
"""

from typing import Any

import numpy as np
import scipy.sparse
from numpy.typing import ArrayLike, NDArray
from sklearn.utils import check_array

from resid.core.errors import InputError, first_line
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.quantize.ids import SemanticIds
from resid.quantize.points import LARGEST

_ROWS = 16_384  # vectors that are processed at a time
_QUERIES = 1_000  # items whose nearest neighbors are searched
_NEIGHBORS = 10
_NOTHING = 1e-9  # smaller fractions of the variance count as zero


def id_quality(
    ids: SemanticIds, vectors: ArrayLike | None = None, data: Dataset | None = None, *, seed: int = 0
) -> dict[str, Any]:
    """Measure semantic IDs.

    Parameters
    ----------
    ids
        The IDs.
    vectors
        The item vectors, shape (items, d), in the order of the IDs; metrics that need them are omitted without them.
    data
        The Dataset of the same items; its validation windows are used for the overlap of targets and histories.
    seed
        Seed of the sample of items whose neighbors are searched.

    Returns
    -------
    dict
        ``items``; ``ids``, the number of distinct IDs; ``unique``, the share of items with an ID of their own;
        ``largest_collision``, the largest number of items with the same ID; ``levels``, a dictionary for every level with

        - ``size``, ``dead``: number of codes, and number of codes that no item has;
        - ``entropy`` in bits, at most log₂(size), ``perplexity``, ``gini``: how evenly the codes are used;
        - ``conditional_entropy``: H(c_l | C_<l) in bits;
        - ``distortion``, ``distortion_code``: share of the variance that remains given the prefix up to this level, and
          given this code alone; ``ambiguity``: I(z; C_<l | c_l) in bits per dimension;
        - ``step_explained``, ``step_explained_code``: share of the variance of steps that the code explains with its
          prefix, and by itself; ``step_ambiguity`` in bits per dimension;
        - ``cosine``: mean cosine of the steps of two items with the same code, from the second level on;
          ``cosine_between``: the same for items with different prefixes;
        - ``overlap``: share of history items that have the code of the target; ``overlap_chance``: the same for two random
          interactions;
        - ``neighbors``: share of the ten nearest neighbors of an item that have the same prefix; ``neighbors_chance``: the
          same for random items.
    """
    if not isinstance(ids, SemanticIds) or not isinstance(data, Dataset | None):
        raise TypeError("id_quality takes SemanticIds, such as a quantizer's semantic_ids_, and a Dataset.")
    sizes = np.diff(ids.first_item)
    found: dict[str, Any] = {
        "items": len(ids),
        "ids": ids.nodes(ids.levels),
        "unique": float((sizes == 1).sum() / len(ids)),
        "largest_collision": int(sizes.max()),
    }
    levels = [_usage(ids, level) for level in range(ids.levels)]
    if vectors is not None:
        points = _check_vectors(vectors, len(ids))
        _update(levels, _distortions(ids, points))
        _update(levels, _neighbors(ids, points, seed))
    if data is not None:
        if data.n_items != len(ids):
            raise InputError(
                f"there are {len(ids):,} IDs, but {data.n_items:,} items in the Dataset; use the Dataset of the same items."
            )
        _update(levels, _overlaps(ids, data.validation))
    return found | {"levels": levels}


def _check_vectors(vectors: ArrayLike, items: int) -> NDArray[Any]:
    if np.ndim(vectors) == 2 and len(np.asarray(vectors)) != items:
        raise InputError(f"there are {items:,} IDs, but vectors of shape {np.shape(vectors)}; pass one row per ID.")
    try:
        points: NDArray[Any] = check_array(vectors, dtype=[np.float32, np.float64], input_name="vectors")
    except (ValueError, TypeError) as error:
        raise InputError(f"the vectors are invalid: {first_line(error)}.") from error
    if np.abs(points).max() > LARGEST:
        raise InputError(f"the vectors have values beyond {LARGEST:g}, whose squares overflow; scale them.")
    return points


def _update(levels: list[dict[str, Any]], more: list[dict[str, Any]]) -> None:
    for level, values in zip(levels, more, strict=True):
        level.update(values)


def entropy_bits(counts: NDArray[np.int64]) -> float:
    """Return the entropy of a distribution given by counts, in bits."""
    shares = counts[counts > 0] / counts.sum()
    return float(max(0.0, -(shares * np.log2(shares)).sum()))


def gini(counts: NDArray[np.int64]) -> float:
    """Return the Gini coefficient of counts: 0 if all are equal, close to 1 if one code has all items."""
    ordered = np.sort(counts)
    ranks = np.arange(1, len(ordered) + 1)
    return float((2 * ranks - len(ordered) - 1) @ ordered / (len(ordered) * ordered.sum()))


def _usage(ids: SemanticIds, level: int) -> dict[str, Any]:
    counts = np.bincount(ids.codes[:, level], minlength=ids.level_sizes[level])
    entropy = entropy_bits(counts)
    joint, before = (entropy_bits(np.bincount(ids.node_of(depth))) for depth in (level + 1, level))
    return {
        "level": level + 1,
        "size": ids.level_sizes[level],
        "dead": int((counts == 0).sum()),
        "entropy": entropy,
        "perplexity": 2**entropy,
        "gini": gini(counts),
        "conditional_entropy": max(0.0, joint - before),
    }


def _distortions(ids: SemanticIds, vectors: NDArray[Any]) -> list[dict[str, Any]]:
    """Return the variance that remains given prefixes, codes and steps, and the cosines of steps, for every level."""
    items, center = len(vectors), vectors.mean(axis=0, dtype=np.float64)
    total = sum(float(np.square(part - center).sum()) for part in _parts(vectors))
    total = total or 1.0  # all vectors equal: nothing to explain
    found = []
    above = np.zeros((1, vectors.shape[1]))  # the means of the prefixes, relative to the center
    above_left = 1.0
    for level, size in enumerate(ids.level_sizes):
        parents, nodes, codes = ids.node_of(level), ids.node_of(level + 1), ids.codes[:, level]
        counts, of_code = np.bincount(nodes), np.bincount(codes, minlength=size)
        alone = len(counts) == items  # every item has a node of its own, whose mean is its vector
        means = above if alone else _group_sums(nodes, vectors, len(counts)) / counts[:, None] - center
        left = 0.0 if alone else 1 - _between(counts[:, None] * means, counts) / total
        by_code = _group_sums(codes, vectors, size) - of_code[:, None] * center
        code_explains = _between(by_code, of_code) / total
        step_explains = 0.0
        if above_left > _NOTHING:  # otherwise prefixes identify the items, and there are no steps
            under = scipy.sparse.csr_matrix((np.ones(items), (codes, parents)), shape=(size, len(above)))
            step_explains = _between(by_code - under @ above, of_code) / total
        # Sums of squares with their degrees of freedom: every estimated mean takes one.
        given_all = (left, items - len(counts))
        given_code = (1 - code_explains, items - int(np.count_nonzero(of_code)))
        # What codes explain of pure noise around the means of the prefixes.
        share = counts**2 / np.bincount(parents)[ids.parent_of(level + 1)] / of_code[ids.node_codes(level + 1)]
        step_given_code = (above_left - step_explains, given_code[1] - len(above) + round(share.sum()))
        values = {
            "distortion": max(0.0, left),
            "distortion_code": 1 - code_explains,
            "ambiguity": _bits(given_code, given_all),
            "step_explained": 1 - left / above_left if above_left > _NOTHING else 1.0,
            "step_explained_code": step_explains / above_left if above_left > _NOTHING else 1.0,
            "step_ambiguity": _bits(step_given_code, given_all),
        }
        if level:
            told_apart = above_left <= _NOTHING  # prefixes identify the items, so there are no steps
            values |= {} if told_apart else _cosines(ids, level, vectors, above + center)
        found.append(values)
        above, above_left = means, left
    return found


def _parts(vectors: NDArray[Any]) -> list[NDArray[Any]]:
    return [vectors[first : first + _ROWS] for first in range(0, len(vectors), _ROWS)]


def _group_sums(groups: NDArray[Any], vectors: NDArray[Any], count: int) -> NDArray[np.float64]:
    """Return the sums of the vectors of every group, shape (groups, d)."""
    sums = np.zeros((count, vectors.shape[1]))
    for first in range(0, len(vectors), _ROWS):
        found, own = np.unique(groups[first : first + _ROWS], return_inverse=True)
        member = scipy.sparse.csr_matrix((np.ones(len(own)), (own.ravel(), np.arange(len(own)))))
        sums[found] += member @ vectors[first : first + _ROWS]
    return sums


def _between(sums: NDArray[np.float64], counts: NDArray[np.int64]) -> float:
    """Return the sum of squares that the means of groups explain, from the groups' sums."""
    return float((np.square(sums).sum(axis=1) / np.maximum(counts, 1)).sum())


def _bits(given_code: tuple[float, int], given_all: tuple[float, int]) -> float | None:
    """Return the information of a Gaussian in bits per dimension, from sums of squares and their degrees of freedom.

    None if no variance remains given prefix and code, as at a level that numbers items.
    """
    if given_all[0] < _NOTHING or given_all[1] < 1 or given_code[1] < 1:
        return None
    return max(0.0, float(0.5 * np.log2(given_code[0] / given_code[1] * given_all[1] / given_all[0])))


def _cosines(
    ids: SemanticIds, level: int, vectors: NDArray[Any], means: NDArray[np.float64]
) -> dict[str, float | None]:
    """Return the mean cosine of the steps of two items with the same code: of all pairs, and of pairs with different parents.

    The sum of the cosines of all pairs of a group is the squared norm of the sum of their unit vectors.
    """
    parents, nodes, codes = ids.node_of(level), ids.node_of(level + 1), ids.codes[:, level]
    of_node, of_code = np.bincount(nodes), np.bincount(codes, minlength=ids.level_sizes[level])
    alone = len(of_node) == len(vectors)
    code_sums = np.zeros((len(of_code), vectors.shape[1]))
    node_sums = np.zeros((0 if alone else len(of_node), vectors.shape[1]))
    own = 0.0  # the pairs of an item with itself
    none = 1e-6 * float(np.abs(vectors).max()) + 1e-300  # shorter steps are rounding errors of items without siblings
    for first in range(0, len(vectors), _ROWS):
        part = slice(first, first + _ROWS)
        steps = vectors[part] - means[parents[part]]
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        steps = np.where(lengths > none, steps / np.maximum(lengths, none), 0)
        own += float((lengths > none).sum())
        code_sums += _group_sums(codes[part], steps, len(of_code))
        if not alone:
            found, inverse = np.unique(nodes[part], return_inverse=True)
            node_sums[found] += _group_sums(inverse.ravel(), steps, len(found))
    same = float(np.square(code_sums).sum())
    within = own if alone else float(np.square(node_sums).sum())
    pairs = float((of_code.astype(float) ** 2).sum())
    between = pairs - float((of_node.astype(float) ** 2).sum())
    return {
        "cosine": (same - own) / (pairs - len(vectors)) if pairs > len(vectors) else None,
        "cosine_between": (same - within) / between if between else None,
    }


def _neighbors(ids: SemanticIds, vectors: NDArray[Any], seed: int) -> list[dict[str, Any]]:
    """Return the share of nearest neighbors with the same prefix, and the share of random items, for every level."""
    rng = np.random.default_rng(seed)
    queries = np.sort(rng.choice(len(ids), min(_QUERIES, len(ids)), replace=False))
    k = min(_NEIGHBORS, len(ids) - 1)
    best = np.full((len(queries), k), np.inf)
    where = np.zeros((len(queries), k), dtype=np.int64)
    center = vectors.mean(axis=0)
    wanted = vectors[queries] - center
    for first in range(0, len(vectors), _ROWS):
        part = vectors[first : first + _ROWS] - center
        distances = np.square(part).sum(axis=1) - 2 * wanted @ part.T  # up to the norm of the query
        own = (queries >= first) & (queries < first + len(part))
        distances[own, queries[own] - first] = np.inf
        all_best = np.concatenate([best, distances], axis=1)
        all_where = np.concatenate(
            [where, np.broadcast_to(np.arange(first, first + len(part)), distances.shape)], axis=1
        )
        nearest = np.argpartition(all_best, min(k, all_best.shape[1] - 1), axis=1)[:, :k]
        best, where = (np.take_along_axis(a, nearest, axis=1) for a in (all_best, all_where))
    found = []
    for depth in range(1, ids.levels + 1):
        nodes = ids.node_of(depth)
        counts = np.bincount(nodes)
        chance = float(((counts[nodes[queries]] - 1) / max(len(ids) - 1, 1)).mean())
        shared = float((nodes[where] == nodes[queries][:, None]).mean()) if k else 0.0
        found.append({"neighbors": shared, "neighbors_chance": chance})
    return found


def _overlaps(ids: SemanticIds, windows: Split) -> list[dict[str, Any]]:
    """Return the share of history items that have the code of the target, and of random pairs, for every level."""
    lengths = windows.end - windows.begin
    place = np.arange(lengths.sum()) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    histories = windows.sequence[np.repeat(windows.begin, lengths) + place]
    targets = np.repeat(windows.targets, lengths)
    found = []
    for level in range(ids.levels):
        codes = ids.codes[:, level]
        seen, wanted = codes[histories], codes[targets]
        size = ids.level_sizes[level]
        chance = np.bincount(seen, minlength=size) @ np.bincount(wanted, minlength=size) / max(len(seen), 1) ** 2
        overlap = float((seen == wanted).mean()) if len(seen) else None
        found.append({"overlap": overlap, "overlap_chance": float(chance)})
    return found
