"""Balanced k-means: clusters whose sizes differ by at most one.

Lloyd's steps with an exact balanced assignment (`transport.py`). Many problems of the same number of clusters are solved
together, as the parents of a level of a tree are: distances are one batched matrix product, and the prices of each
problem go on from step to step. A large problem is first solved on a sample, for its centroids and prices.
"""

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from numbers import Real
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.points import as_points
from resid.quantize.transport import balanced_assignment

_SAMPLE = 64  # points per cluster of the sample on which a large problem is begun
_GROWTH = 1.25  # k-means++ draws its centres in rounds, each a quarter of those that are there
_ROWS = 65_536  # points whose sums are formed at a time


@dataclass
class Clusters:
    """Solutions of some problems of k clusters each.

    Attributes
    ----------
    labels : ndarray of int32, shape (problems, points)
        The cluster of every point; -1 where a problem has fewer points.
    centers : Tensor, shape (problems, k, d)
        The means of the clusters.
    prices : ndarray of float64, shape (problems, k)
    inertia : ndarray of float64, shape (problems,)
        Sums of squared distances to the centres.
    steps : ndarray of int64, shape (problems,)
        Lloyd's steps.
    products : int
        Floating-point operations of all distance products.
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
    max_iter: int = 100,
    tol: float = 1e-4,
) -> Clusters:
    """Cluster several sets of points, each into k clusters whose sizes differ by at most one.

    Parameters
    ----------
    points
        Shape (problems, points, d), float32, on any device.
    k
        Clusters of each problem; no problem has fewer points.
    seeds
        For each problem the numbers that seed its start; a problem's result does not depend on the others.
    counts
        How many of its points each problem has, shape (problems,); all by default.
    max_iter
        At most so many of Lloyd's steps.
    tol
        A problem is done when a step lowers its inertia by less than this share.
    """
    problems, longest, _ = points.shape
    if counts is None:
        counts = np.full(problems, longest)
    draws = np.stack([np.random.default_rng(seed).random(k + 1) for seed in seeds])
    size = _SAMPLE * k
    if longest > 2 * size:
        some = [
            np.sort(np.random.default_rng([*seed, 1]).choice(count, size, replace=False))
            for seed, count in zip(seeds, counts, strict=True)
        ]
        sample = torch.stack([p[torch.from_numpy(rows).to(p.device)] for p, rows in zip(points, some, strict=True)])
        begun = _lloyd(sample, np.full(problems, size), _start(sample, np.full(problems, size), draws), None, 20, 1e-3)
        found = _lloyd(points, counts, begun.centers, begun.prices, max_iter, tol)
        found.products += begun.products
        return found
    return _lloyd(points, counts, _start(points, counts, draws), None, max_iter, tol)


def _start(points: Tensor, counts: NDArray[np.int64], draws: NDArray[np.float64]) -> Tensor:
    """Choose the first centres as k-means++ does, far from each other, in rounds; shape (problems, k, d)."""
    problems, longest, _ = points.shape
    k = draws.shape[1] - 1
    place = torch.arange(problems, device=points.device)[:, None]
    absent = torch.arange(longest) >= torch.from_numpy(counts)[:, None]
    norms = points.square().sum(dim=2)
    uniform = torch.from_numpy(draws).to(points.device)
    chosen = (uniform[:, :1] * torch.from_numpy(counts).to(points.device)[:, None]).long()
    nearest = torch.full_like(norms, torch.inf)
    fresh = chosen
    while True:
        centers = points[place, fresh]  # (problems, new, d)
        distances = norms[:, :, None] - 2 * points @ centers.transpose(1, 2) + centers.square().sum(dim=2)[:, None]
        nearest = torch.minimum(nearest, distances.amin(dim=2)).clamp_min_(0)
        done = chosen.shape[1]
        if done == k:
            return points[place, chosen].clone()
        weights = nearest.double().masked_fill_(absent.to(points.device), 0)
        # A little for every point, so that points that are all equal can be drawn as well.
        weights += (weights.sum(dim=1, keepdim=True) * 1e-9 + 1e-30) * ~absent.to(points.device)
        cumulated = weights.cumsum(dim=1)
        more = min(k - done, max(1, round(done * (_GROWTH - 1))))
        wanted = uniform[:, done : done + more] * cumulated[:, -1:]
        fresh = torch.searchsorted(cumulated, wanted, right=True)
        fresh = torch.minimum(fresh, torch.from_numpy(counts - 1).to(points.device)[:, None])
        chosen = torch.cat([chosen, fresh], dim=1)


def _lloyd(
    points: Tensor,
    counts: NDArray[np.int64],
    centers: Tensor,
    prices: NDArray[np.float64] | None,
    max_iter: int,
    tol: float,
) -> Clusters:
    """Assign and average until nothing is gained."""
    problems, longest, d = points.shape
    k = centers.shape[1]
    found = Clusters(
        labels=np.full((problems, longest), -1, dtype=np.int32),
        centers=centers,
        prices=np.zeros((problems, k)) if prices is None else prices.copy(),
        inertia=np.full(problems, np.inf),
        steps=np.zeros(problems, dtype=np.int64),
    )
    squares = np.array([float(p[:n].square().sum(dtype=torch.float64)) for p, n in zip(points, counts, strict=True)])
    sums = torch.zeros(problems, k, d, dtype=torch.float64, device=points.device)
    active = np.arange(problems)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for _ in range(max_iter):
            here = points if len(active) == problems else points[torch.from_numpy(active).to(points.device)]
            near = found.centers[torch.from_numpy(active).to(points.device)]
            costs = torch.baddbmm(near.square().sum(dim=2)[:, None], here, near.transpose(1, 2), alpha=-2)
            found.products += 2 * costs.numel() * d
            old = found.labels[active]
            on_host = costs.cpu().numpy()

            def assign(row: int, on_host: NDArray[np.float32] = on_host, active: NDArray[np.int64] = active) -> float:
                number = active[row]
                return balanced_assignment(on_host[row], counts[number], found.prices[number], found.labels[number])

            total = np.fromiter(pool.map(assign, range(len(active))), dtype=np.float64) + squares[active]
            del costs, on_host
            for row, number in enumerate(active):
                _move(sums[number], points[number], old[row], found.labels[number])
            sizes = np.stack([np.bincount(found.labels[n][: counts[n]], minlength=k) for n in active])
            index = torch.from_numpy(active).to(points.device)
            found.centers[index] = (sums[index] / torch.from_numpy(sizes).to(sums)[:, :, None]).to(points.dtype)
            gained = found.inertia[active] - total
            found.inertia[active] = total
            found.steps[active] += 1
            active = active[gained > tol * np.maximum(total, 0)]
            if not len(active):
                break
    return found


def _move(sums: Tensor, points: Tensor, old: NDArray[np.int32], new: NDArray[np.int32]) -> None:
    """Bring the sums of the clusters, shape (k, d), up to date with points that changed their cluster."""
    changed = np.flatnonzero(old != new)
    for first in range(0, len(changed), _ROWS):
        rows = changed[first : first + _ROWS]
        moved = points[torch.from_numpy(rows).to(points.device)].to(sums.dtype)
        sums.index_add_(0, torch.from_numpy(new[rows].astype(np.int64)).to(points.device), moved)
        left = old[rows] >= 0
        if left.any():
            where = torch.from_numpy(old[rows][left].astype(np.int64)).to(points.device)
            sums.index_add_(0, where, moved[torch.from_numpy(left).to(points.device)], alpha=-1)


class BalancedKMeans(ClusterMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """k-means whose clusters have equal sizes, up to one point.

    Parameters
    ----------
    n_clusters : int, default=8
    n_init : int, default=1
        Starts from so many k-means++ draws; the best result is kept.
    max_iter : int, default=100
        At most so many of Lloyd's steps.
    tol : float, default=1e-4
        Stop when a step lowers the inertia by less than this share.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    labels_ : ndarray of int32, shape (n_samples,)
    cluster_centers_ : ndarray of float32, shape (n_clusters, n_features)
        The means of the clusters.
    inertia_ : float
        Sum of squared distances to the own centre.
    n_iter_ : int
    n_features_in_ : int

    Notes
    -----
    `fit` also takes a `torch.Tensor`; distances are then computed on its device. `predict` gives the nearest centre, with
    no regard to sizes: it is for new points.
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        n_init: int = 1,
        max_iter: int = 100,
        tol: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_clusters = n_clusters
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Cluster points, shape (n_samples, n_features)."""
        for name, least in (("n_clusters", 1), ("n_init", 1), ("max_iter", 1), ("tol", 0)):
            value = getattr(self, name)
            if not isinstance(value, Real) or value < least:
                raise ValueError(f"{name}={value!r} cannot be used; it must be a number of at least {least}.")
        points = as_points(self, X, reset=True)
        if len(points) < self.n_clusters:
            raise ValueError(
                f"n_samples={len(points)} should be >= n_clusters={self.n_clusters}: give more points or ask for fewer "
                "clusters."
            )
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_init)
        best: Clusters | None = None
        for seed in seeds:
            found = balanced_kmeans(points[None], self.n_clusters, [[int(seed)]], max_iter=self.max_iter, tol=self.tol)
            if best is None or found.inertia[0] < best.inertia[0]:
                best = found
        assert best is not None  # noqa: S101 - n_init is at least 1
        self.labels_ = best.labels[0]
        self.cluster_centers_ = best.centers[0].cpu().numpy()
        self.inertia_ = float(max(best.inertia[0], 0.0))
        self.n_iter_ = int(best.steps[0])
        return self

    def predict(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the nearest centre of every point, shape (n_samples,)."""
        return self._distances(X).argmin(dim=1).to(torch.int32).cpu().numpy()

    def transform(self, X: Any) -> NDArray[np.float32]:  # noqa: N803
        """Return the distances to all centres, shape (n_samples, n_clusters)."""
        distances: NDArray[np.float32] = self._distances(X).cpu().numpy()
        return distances

    def _distances(self, X: Any) -> Tensor:  # noqa: N803
        check_is_fitted(self)
        points = as_points(self, X, reset=False)
        return torch.cdist(points, torch.from_numpy(self.cluster_centers_).to(points.device))

    @property
    def _n_features_out(self) -> int:
        return int(self.cluster_centers_.shape[0])
