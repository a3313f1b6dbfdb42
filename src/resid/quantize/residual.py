"""RQ-KMeans: k-means, then k-means of what it leaves over, and so on; plain or with balanced clusters."""

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.quantize.base import Quantizer
from resid.quantize.kmeans import BalancedKMeans
from resid.quantize.points import KnownRows, as_points, check_numbers


class RQKMeans(Quantizer):
    """Residual quantization by k-means.

    Several items may have the same codes; `deduplicated` adds a level that tells them apart.

    Parameters
    ----------
    n_levels : int, default=3
    n_clusters : int, default=256
        Of every level.
    balanced : bool, default=False
        Clusters whose sizes differ by at most one.
    max_iter : int, default=100
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
    level_sizes_ : tuple of int
    codebooks_ : list of ndarray, each of shape (n_clusters, n_features)
    n_iter_ : int
    n_features_in_ : int
    """

    def __init__(
        self,
        n_levels: int = 3,
        n_clusters: int = 256,
        *,
        balanced: bool = False,
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_levels = n_levels
        self.n_clusters = n_clusters
        self.balanced = balanced
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learn the codebooks from X, shape (n_samples, n_features), and give every row its codes."""
        check_numbers(self, n_levels=1, n_clusters=1, max_iter=1)
        residual = as_points(self, X, reset=True).cpu().clone()
        if len(residual) < self.n_clusters:
            raise ValueError(f"n_samples={len(residual)} should be >= n_clusters={self.n_clusters}: ask for fewer.")
        self._known = KnownRows(residual)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_levels)
        self.codebooks_, codes, steps = [], [], []
        for seed in seeds:
            options = {"max_iter": self.max_iter, "n_init": 1, "random_state": int(seed)}
            kind = BalancedKMeans if self.balanced else KMeans
            found = kind(self.n_clusters, **options).fit(residual.numpy())
            book = found.cluster_centers_.astype(np.float32)
            residual -= torch.from_numpy(book)[torch.from_numpy(found.labels_.astype(np.int64))]
            self.codebooks_.append(book)
            codes.append(found.labels_)
            steps.append(found.n_iter_)
        self.codes_ = np.stack(codes, axis=1).astype(np.int32)
        self.level_sizes_ = (self.n_clusters,) * self.n_levels
        self.n_iter_ = max(steps)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the nearest codes, level by level, shape (n_samples, n_levels).

        Rows that were fitted have the codes that they got, which balance may have made others than the nearest.
        """
        check_is_fitted(self)
        residual = as_points(self, X, reset=False).cpu().clone()
        known = self._known.find(residual)
        codes: list[Tensor] = []
        for book in map(torch.from_numpy, self.codebooks_):
            codes.append(torch.cdist(residual, book).argmin(dim=1))
            residual -= book[codes[-1]]
        return np.where(known[:, None] >= 0, self.codes_[known], torch.stack(codes, dim=1).to(torch.int32).numpy())
