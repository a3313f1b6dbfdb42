"""Groups of items that embeddings should tell apart: values of a field, and communities of the co-occurrence graph."""

from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

from resid.core.errors import InputError, nearest
from resid.data.dataset import Dataset
from resid.sequential.cooccurrence import CoOccurrence

_NEIGHBORS = 10


@dataclass(frozen=True, eq=False)
class Groups:
    """A group for every item.

    Attributes
    ----------
    title : str
    of_item : ndarray of int64, shape (items,)
        The group of an item, -1 for none.
    names : list of str
        Of the groups.
    """

    title: str
    of_item: NDArray[np.int64]
    names: list[str]

    def largest(self, count: int) -> "Groups":
        """Return the largest groups, largest first; the items of the others have none."""
        sizes = np.bincount(self.of_item[self.of_item >= 0], minlength=len(self.names))
        order = np.argsort(-sizes, kind="stable")[:count]
        place = np.full(len(self.names) + 1, -1)
        place[order] = np.arange(len(order))  # the last entry, which -1 reads, stays -1
        return Groups(self.title, place[self.of_item], [self.names[group] for group in order])


def field_groups(data: Dataset, field: str | None = None) -> Groups:
    """Return the items by the value of a field; by default the category with the fewest values."""
    sizes = dict(zip(data.field_names, data.field_sizes, strict=True))
    single = {name: size for name, size in sizes.items() if data.field_kinds[name] in ("category", "path") and size > 2}
    if field is None and not single:
        raise InputError("the Dataset has no category to color items by; prepare it with one.")
    name = field or min(single, key=lambda each: single[each])
    if name not in single:
        raise InputError(f"there is no category '{name}'{nearest(name, single)}; available: {', '.join(single)}.")
    codes = data.fields[:, data.field_names.index(name)]
    codes = codes if codes.ndim == 1 else codes[:, 0]  # other fields have tags
    return Groups(f"category {name}", codes.astype(np.int64) - 1, data.vocabulary(name).cast(pl.String).to_list())


def communities(data: Dataset, seed: int = 0) -> Groups:
    """Return the Louvain communities of items that share training histories; items without a neighbor have none.

    The weight of an edge is the number of common histories divided by the geometric mean of both items' numbers.
    """
    try:
        from sknetwork.clustering import Louvain
    except ImportError as error:
        raise InputError("communities need scikit-network; install it with: pip install 'resid[plots]'") from error
    from scipy.sparse import csr_matrix  # the only kind of matrix that Louvain takes

    graph = csr_matrix(CoOccurrence().fit(data).similarity_)
    found = Louvain(random_state=seed).fit_predict(graph).astype(np.int64) if graph.nnz else np.zeros(data.n_items, int)
    alone = np.diff(graph.indptr) == 0
    names = [f"community {number + 1}" for number in range(int(found.max()) + 1)]
    return Groups("community", np.where(alone, -1, found), names)


def neighbor_purity(vectors: NDArray[np.float32], of_item: NDArray[np.int64]) -> tuple[float, float]:
    """Return the share of the ten nearest neighbors, by cosine, in the item's own group, and that of random items.

    Parameters
    ----------
    vectors
        Shape (items, d).
    of_item
        The group of every item, shape (items,).
    """
    k = min(_NEIGHBORS, len(vectors) - 1)
    found = NearestNeighbors(n_neighbors=k, metric="cosine").fit(vectors).kneighbors(return_distance=False)
    shares = np.unique(of_item, return_counts=True)[1] / len(of_item)
    return float((of_item[found] == of_item[:, None]).mean()), float((shares**2).sum())
