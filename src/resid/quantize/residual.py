"""RQ-KMeans: residual quantization by k-means, plain or with balanced clusters."""

from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.quantize.base import ResidualQuantizer
from resid.quantize.kmeans import BalancedKMeans
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.settings import RQKMeansSettings


@register("quantizer", "rq-kmeans")
class RQKMeans(ResidualQuantizer):
    """Residual quantization by k-means.

    Parameters
    ----------
    n_levels : int, default=3
    codebook_size : int or "auto", default="auto"
        Number of codes of every level; ``"auto"`` is 256, or a quarter of the items if that is less.
    balanced : bool, default=False
        Use clusters whose sizes differ by at most one.
    collisions : {"deduplicate", "keep"}, default="deduplicate"
        ``"deduplicate"`` adds a level to `semantic_ids_` that numbers the items with the same codes, so that IDs are unique.
    max_iter : int, default=100
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
    level_sizes_ : tuple of int
    codebooks_ : list of ndarray, each of shape (codebook_size, n_features)
    n_iter_ : int
    n_features_in_ : int
    """

    settings_class = RQKMeansSettings

    def __init__(
        self,
        n_levels: int = 3,
        codebook_size: int | Literal["auto"] = "auto",
        *,
        balanced: bool = False,
        collisions: Literal["deduplicate", "keep"] = "deduplicate",
        max_iter: int = 100,
        random_state: Any = None,
    ) -> None:
        self.n_levels = n_levels
        self.codebook_size = codebook_size
        self.balanced = balanced
        self.collisions = collisions
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, *, runtime: Runtime | None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Learn the codebooks from X, shape (n_samples, n_features), and give every row its codes."""
        residual = as_points(self, X, reset=True).cpu().clone()
        self._check_items(len(residual))
        size = self._codebook_size(len(residual))
        self._known = KnownRows(residual)
        seeds = check_random_state(self.random_state).randint(2**31 - 1, size=self.n_levels)
        self.codebooks_, codes, steps = [], [], []
        for seed in seeds:
            options = {"max_iter": self.max_iter, "n_init": 1, "random_state": int(seed)}
            kind = BalancedKMeans if self.balanced else KMeans
            found = kind(size, **options).fit(residual.numpy())
            book = found.cluster_centers_.astype(np.float32)
            residual -= torch.from_numpy(book)[torch.from_numpy(found.labels_.astype(np.int64))]
            self.codebooks_.append(book)
            codes.append(found.labels_)
            steps.append(found.n_iter_)
        self.codes_ = np.stack(codes, axis=1).astype(np.int32)
        self.level_sizes_ = (size,) * self.n_levels
        self.n_iter_ = max(steps)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the nearest codes, level by level, shape (n_samples, n_levels).

        Rows that were fitted have their own codes, which differ from the nearest ones where clusters are balanced.
        """
        check_is_fitted(self)
        vectors = as_points(self, X, reset=False).cpu()
        residual = vectors.clone()
        codes: list[Tensor] = []
        for book in map(torch.from_numpy, self.codebooks_):
            codes.append(torch.cdist(residual, book).argmin(dim=1))
            residual -= book[codes[-1]]
        return self._own_codes(vectors, torch.stack(codes, dim=1).to(torch.int32).numpy())

    def _last_distances(self, vectors: Tensor, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `ResidualQuantizer._last_distances`."""
        residual = vectors - sum(torch.from_numpy(book[codes[:, n]]) for n, book in enumerate(self.codebooks_[:-1]))
        return torch.cdist(residual, torch.from_numpy(self.codebooks_[-1])).numpy()

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, n_levels=1, max_iter=1)
        super()._check_items(n_items)

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        return {**content, "arrays": {**content["arrays"], "codebooks": np.stack(self.codebooks_)}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        quantizer = super()._unpack(artifact)
        quantizer.codebooks_ = list(artifact.arrays["codebooks"])
        return quantizer
