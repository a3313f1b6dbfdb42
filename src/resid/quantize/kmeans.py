"""Balanced k-means: clusters whose sizes differ by at most one.

Lloyd's algorithm with an exact balanced assignment (`transport.py`). Many problems with the same number of clusters are solved
together, for example all parents of a tree level: distances are one batched matrix product, and the prices of each problem
are reused from one iteration to the next. A large problem is first solved on a sample, to initialize centers and prices.
"""

import math
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Self

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.points import as_points, check_numbers
from resid.quantize.transport import balanced_assignment

_SAMPLE = 128  # points per cluster in the sample on which a large problem is initialized
_STARTS = 3  # initializations of `BalancedKMeans`; the one that is best after a few iterations is used
_DRAWN = 1_024  # points among which k-means++ draws the initial centers; at most a quarter of the points,
_PER_CLUSTER = 4  # but at least so many per cluster
_ROWS = 8_192  # points that are summed at a time


@dataclass
class Clusters:
    """The solutions of several problems with k clusters each.

    Attributes
    ----------
    labels : ndarray of int32, shape (problems, points)
        The cluster of every point; -1 for padding.
    centers : Tensor, shape (problems, k, d)
        The means of the clusters.
    prices : ndarray of float64, shape (problems, k)
    inertia : ndarray of float64, shape (problems,)
        Sums of squared distances to these centers; the error is relative to the total variance of the points.
    steps : ndarray of int64, shape (problems,)
        Number of Lloyd iterations.
    products : int
        Floating-point operations of the distance products.
    """

    labels: NDArray[np.int32]
    centers: Tensor
    prices: NDArray[np.float64]
    inertia: NDArray[np.float64]
    steps: NDArray[np.int64]
    products: int = 0


def balanced_kmeans(
    points: Tensor,
    k: int,
    seeds: Sequence[Sequence[int]],
    *,
    counts: NDArray[np.int64] | None = None,
    starts: int = 1,
    max_iter: int = 100,
    tol: float = 1e-4,
) -> Clusters:
    """Cluster several sets of points, each into k clusters whose sizes differ by at most one.

    Parameters
    ----------
    points
        Shape (problems, points, d), float32, on any device.
    k
        Number of clusters; every problem has at least this many points.
    seeds
        The seed of each problem, a sequence of integers; the result of a problem does not depend on the others.
    counts
        Number of points of each problem, the rest being padding; shape (problems,). By default all points are real.
    starts
        Number of initializations of a problem; the one that is best after a few iterations is used.
    max_iter
        Maximum number of Lloyd iterations.
    tol
        A problem has converged when an iteration lowers its inertia by less than this fraction.
    """
    problems, longest, _ = points.shape
    if counts is None:
        counts = np.full(problems, longest)
    centers, prices, products = _begin(points, k, seeds, counts, starts)
    found = _lloyd(points, counts, centers, prices, max_iter, tol)
    found.products += products
    return found


def _begin(
    points: Tensor, k: int, seeds: Sequence[Sequence[int]], counts: NDArray[np.int64], starts: int
) -> tuple[Tensor, NDArray[np.float64], int]:
    """Return the initial centers and prices, and the operations spent on them.

    Large problems are first solved roughly on a sample. So are all problems, the small ones with all of their points, if
    there are several starts to choose from.
    """
    rngs = [np.random.default_rng(seed) for seed in seeds]
    everyone = np.arange(len(points))
    centers, products = _start(points, counts, everyone, k, rngs)
    prices = np.zeros((len(points), k))
    is_large = counts > 2 * _SAMPLE * k
    some = everyone if starts > 1 else np.flatnonzero(is_large)
    if len(some):
        wanted = np.where(is_large, _SAMPLE * k, counts)[some]
        sample, sizes = _sample(points, counts, some, wanted, rngs)
        where = torch.from_numpy(some).to(points.device)
        best, nothing = np.full(len(some), np.inf), np.zeros((len(some), k))
        for attempt in range(starts):
            first, operations = (centers[where], 0) if attempt == 0 else _start(points, counts, some, k, rngs)
            begun = _lloyd(sample, sizes, first, nothing, 20, 1e-3)
            better = begun.inertia < best
            best[better] = begun.inertia[better]
            centers[where[better]], prices[some[better]] = begun.centers[better], begun.prices[better]
            products += operations + begun.products
    return centers, prices, products


def _sample(
    points: Tensor,
    counts: NDArray[np.int64],
    some: NDArray[np.int64],
    sizes: NDArray[np.int64],
    rngs: list[np.random.Generator],
) -> tuple[Tensor, NDArray[np.int64]]:
    """Return so many random points of some problems, or all points of smaller ones, and their numbers."""
    sizes = np.minimum(counts[some], sizes)
    rows = np.zeros((len(some), int(sizes.max())), dtype=np.int64)
    for row, problem, have in zip(rows, some, sizes, strict=True):
        row[:have] = rngs[problem].choice(counts[problem], have, replace=False)
    place = torch.from_numpy(some).to(points.device)[:, None]
    return points[place, torch.from_numpy(rows).to(points.device)], sizes


def _start(
    points: Tensor, counts: NDArray[np.int64], some: NDArray[np.int64], k: int, rngs: list[np.random.Generator]
) -> tuple[Tensor, int]:
    """Choose the initial centers of some problems among a sample of their points, by greedy k-means++.

    Every step draws a few candidates with probabilities proportional to the squared distances from the centers so far, and
    keeps the one that lowers the sum of these distances the most. So a large group of points is hardly ever left without a
    center, which balanced clusters could not make up for later.

    Returns
    -------
    centers, operations
        The centers, shape (problems, k, d), and the operations of the distance products.
    """
    candidates = 2 + int(math.log(k))  # as many as scikit-learn draws
    draws = torch.from_numpy(np.stack([rngs[problem].random((k, candidates)) for problem in some])).to(points.device)
    sizes = np.maximum(_PER_CLUSTER * k, np.minimum(counts[some] // 4, _DRAWN))
    points, counts = _sample(points, counts, some, sizes, rngs)
    problems, longest, d = points.shape
    place = torch.arange(problems, device=points.device)
    last = torch.from_numpy(counts - 1).to(points.device)[:, None]
    present = torch.arange(longest, device=points.device) <= last
    centered = points - points[:, :1]  # small coordinates are precise
    norms = torch.einsum("pnd,pnd->pn", centered, centered)
    distances = torch.baddbmm(norms[:, None], centered, centered.transpose(1, 2), alpha=-2)
    distances += norms[:, :, None]
    distances.clamp_min_(0).mul_(present[:, None])  # (problems, points, points); the columns of padding are 0
    nearest = torch.ones_like(norms) * present  # the first center is drawn from all points alike
    chosen: list[Tensor] = []
    for draw in draws.unbind(dim=1):
        # A small weight for every point, so that equal points can be drawn too.
        weights = nearest.double()
        cumulated = (weights + (weights.sum(dim=1, keepdim=True) * 1e-9 + 1e-30) * present).cumsum(dim=1)
        drawn = torch.minimum(torch.searchsorted(cumulated, draw * cumulated[:, -1:], right=True), last)
        lowered = distances[place[:, None], drawn]  # (problems, candidates, points)
        if chosen:
            lowered = torch.minimum(lowered, nearest[:, None])
        best = lowered.sum(dim=2, dtype=torch.float64).argmin(dim=1)
        nearest = lowered[place, best]
        chosen.append(drawn[place, best])
    return points[place[:, None], torch.stack(chosen, dim=1)], 2 * problems * longest**2 * d


def _lloyd(
    points: Tensor,
    counts: NDArray[np.int64],
    centers: Tensor,
    prices: NDArray[np.float64],
    max_iter: int,
    tol: float,
) -> Clusters:
    """Alternate assignment and averaging until the inertia no longer decreases."""
    problems, longest, d = points.shape
    k = centers.shape[1]
    origin = centers.mean(dim=1, keepdim=True)  # (problems, 1, d); coordinates relative to it are small, hence precise
    found = Clusters(
        labels=np.full((problems, longest), -1, dtype=np.int32),
        centers=centers,
        prices=prices.copy(),
        inertia=np.full(problems, np.inf),
        steps=np.zeros(problems, dtype=np.int64),
    )
    spread = _spread(points, counts, origin)
    sums = np.zeros((problems, k, d))
    costs = torch.empty(problems, longest, k, device=points.device)
    active, held, here = np.arange(problems), np.arange(problems), points

    def step(row: int) -> float:
        """Assign the points of the problem in this row, update its centers, and return its inertia."""
        number = held[row]
        labels, count = found.labels[number], counts[number]
        before = labels.copy()
        balanced_assignment(on_host[row], count, found.prices[number], labels)
        _move(sums[number], points[number], before, labels)
        sizes = np.bincount(labels[:count], minlength=k)[:, None]
        means = sums[number] / sizes
        found.centers[number] = torch.from_numpy(means).to(found.centers)
        return float(spread[number] - (sizes * np.square(means - origins[number])).sum())

    origins = origin.double().cpu().numpy()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in range(max_iter):
            if 2 * len(active) <= len(held):  # copy the points of the active problems together
                held, here = active, points[torch.from_numpy(active).to(points.device)]
            some = torch.from_numpy(held).to(points.device)
            away = found.centers[some] - origin[some]
            # |x - c|² - |x - o|²: the squared distance up to a term that all centers share.
            distances = torch.bmm(here, -2 * away.transpose(1, 2), out=costs[: len(held)])
            distances += away.square().sum(dim=2)[:, None] + 2 * origin[some] @ away.transpose(1, 2)
            found.products += 2 * here.shape[0] * longest * k * d
            on_host = costs.cpu().numpy()
            total = np.fromiter(pool.map(step, np.flatnonzero(np.isin(held, active))), dtype=np.float64)
            gained = found.inertia[active] - total
            found.inertia[active] = total
            found.steps[active] += 1
            active = active[gained > tol * np.maximum(total, 0)]
            if not len(active):
                break
    return found


def _spread(points: Tensor, counts: NDArray[np.int64], origin: Tensor) -> NDArray[np.float64]:
    """Return the sums of squared distances to an origin, shape (problems,)."""
    problems, longest, _ = points.shape
    there = torch.from_numpy(counts).to(points.device)[:, None]
    total = torch.zeros(problems, dtype=torch.float64, device=points.device)
    for first in range(0, longest, max(1, _ROWS // problems)):
        last = min(longest, first + max(1, _ROWS // problems))
        squares = (points[:, first:last] - origin).square_().sum(dim=2)
        total += (squares * (torch.arange(first, last, device=points.device) < there)).sum(dim=1, dtype=torch.float64)
    return total.cpu().numpy()


def _move(sums: NDArray[np.float64], points: Tensor, old: NDArray[np.int32], new: NDArray[np.int32]) -> None:
    """Update the cluster sums of a problem, shape (k, d), for points that changed their cluster."""
    changed = np.flatnonzero(old != new)
    if points.device.type == "cpu":
        _add_rows(sums, points.numpy(), changed, old[changed], new[changed])
        return
    for first in range(0, len(changed), _ROWS):
        rows = changed[first : first + _ROWS]
        moved = points[torch.from_numpy(rows).to(points.device)].cpu().numpy()
        _add_rows(sums, moved, np.arange(len(rows)), old[rows], new[rows])


@numba.njit(nogil=True, cache=True)
def _add_rows(sums, points, rows, old, new):  # type: ignore[no-untyped-def]
    for number, row in enumerate(rows):
        here, there = old[number], new[number]
        for column in range(points.shape[1]):
            value = np.float64(points[row, column])
            sums[there, column] += value
            if here >= 0:
                sums[here, column] -= value


def _inertia(points: Tensor, labels: NDArray[np.int32], centers: Tensor) -> float:
    """Return the sum of squared distances to the assigned centers, without the cancellation of `Clusters.inertia`."""
    own = torch.from_numpy(labels.astype(np.int64)).to(points.device)
    parts = zip(torch.split(points, _ROWS), torch.split(own, _ROWS), strict=True)
    return sum(float((part.double() - centers[label]).square_().sum()) for part, label in parts)


class BalancedKMeans(ClassNamePrefixFeaturesOutMixin, ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """k-means with clusters whose sizes differ by at most one.

    Parameters
    ----------
    n_clusters : int, default=8
    n_init : int, default=1
        Number of k-means++ initializations; the result with the lowest inertia is kept.
    max_iter : int, default=100
        Maximum number of Lloyd iterations.
    tol : float, default=1e-5
        Stop when an iteration lowers the inertia by less than this fraction.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_samples,)
    cluster_centers_ : ndarray of float32, shape (n_clusters, n_features)
        The means of the clusters.
    inertia_ : float
        Sum of squared distances of the points to the centers of their clusters.
    n_iter_ : int
    n_features_in_ : int

    Notes
    -----
    `fit` also accepts a `torch.Tensor`; distances are then computed on its device. `predict` returns the nearest center of new
    points, without balancing. Besides the points, n_samples × n_clusters distances are held in memory.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 1e-5,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Cluster points, shape (n_samples, n_features)."""
        check_numbers(self, n_clusters=1, n_init=1, max_iter=1, tol=0.0)
        points = as_points(self, X, reset=True)
        if len(points) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(points)} should be >= n_clusters={self.n_clusters}: use more points or fewer clusters."
            )
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_init)
        self.inertia_ = np.inf
        for seed in seeds:
            found = balanced_kmeans(
                points[None], self.n_clusters, [[int(seed)]], starts=_STARTS, max_iter=self.max_iter, tol=self.tol
            )
            labels, centers = found.labels[0], found.centers[0]
            inertia = _inertia(points, labels, centers)
            if inertia < self.inertia_:
                self.labels_, self.inertia_, self.n_iter_ = labels, inertia, int(found.steps[0])
                self.cluster_centers_ = centers.cpu().numpy()
        return self

    def predict(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the nearest center of every point, shape (n_samples,)."""
        return self._distances(X).argmin(dim=1).to(torch.int32).cpu().numpy()

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the distances to all centers, shape (n_samples, n_clusters)."""
        distances: NDArray[np.float32] = self._distances(X).cpu().numpy()
        return distances

    def _distances(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        points = as_points(self, X, reset=False)
        return torch.cdist(points, torch.from_numpy(self.cluster_centers_).to(points.device))

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])
