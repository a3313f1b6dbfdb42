"""Maps of vectors in two dimensions: t-SNE and UMAP, by cosine."""

import warnings
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE

from resid.core.errors import InputError

Projection = Literal["umap", "tsne"]
TITLES = {"umap": "UMAP", "tsne": "t-SNE"}
_COMPONENTS = 50  # to which t-SNE's vectors are reduced first, as is usual


def unit_rows(vectors: NDArray[Any]) -> NDArray[np.float32]:
    """Return vectors of length one."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-12), dtype=np.float32)


def project(vectors: NDArray[Any], projection: Projection, seed: int) -> NDArray[np.float32]:
    """Return coordinates of vectors, shape (n, 2)."""
    unit = unit_rows(vectors)
    if projection == "umap":
        return np.asarray(_umap()(metric="cosine", random_state=seed, n_jobs=1).fit_transform(unit))
    reduced = PCA(min(_COMPONENTS, *unit.shape), random_state=seed).fit_transform(unit)
    perplexity = min(30, (len(unit) - 1) / 3)
    return np.asarray(TSNE(perplexity=perplexity, init="pca", random_state=seed).fit_transform(reduced))


def _umap() -> Any:
    """Return the class; its import compiles for some seconds, and warns that TensorFlow, which is not used, is missing."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ImportWarning)
            from umap import UMAP
    except ImportError as error:
        raise InputError(
            "UMAP needs umap-learn; install it with: pip install 'resid[plots]', or use --projection tsne"
        ) from error
    return UMAP
