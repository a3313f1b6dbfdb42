"""The scores of items that the joint generator blends with those of their codes.

- ``item``: the similarity of the trunk's state and the item;
- ``encoder``: the encoder's own similarity of history and item, if it ranks items;
- ``cooccurrence``: the logarithm of the co-occurrence with the last items.

Items that training never saw get the scores of their stand-ins (`resid.generate.stand_ins`).
"""

from collections.abc import Collection

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse
from torch import Tensor

from resid.data.batches import PADDING
from resid.encode.base import Encoder
from resid.generate.stand_ins import fill_unseen
from resid.sequential.cooccurrence import CoOccurrence
from resid.sequential.sasrec import SASRecModel

COOCCURRENCE_FLOOR = 0.01  # added to co-occurrences before the logarithm


class ItemScores:
    """Scores items by name; the vectors of all items are computed once, so it is made anew when weights change.

    Parameters
    ----------
    names
        The scores to compute, as far as there is what they need.
    trunk
        Gives the vectors of ``item``.
    encoder, cooccurrence
        Give the other two, or None.
    stand_ins
        Shape (items, items), or None if all items were seen.
    by_fields
        Items that keep their own vectors, though training never saw them, boolean, shape (items,); none by default.
    known_as
        The index by which the encoder knows each item, shape (items,); by default its own.
    """

    def __init__(
        self,
        names: Collection[str],
        trunk: SASRecModel,
        encoder: Encoder | None,
        cooccurrence: CoOccurrence | None,
        stand_ins: sparse.csr_array | None,
        *,
        by_fields: NDArray[np.bool_] | None = None,
        known_as: NDArray[np.integer] | None = None,
    ) -> None:
        self._names, self._trunk, self._cooccurrence = names, trunk, cooccurrence
        self._encoder = encoder if encoder is not None and encoder.ranks_items else None
        self._stand_ins, self._by_fields = stand_ins, by_fields
        self._known_as = None if known_as is None else torch.from_numpy(known_as)
        self._vectors: dict[str, Tensor] = {}

    def of(self, recent: Tensor, states: Tensor, items: Tensor | None) -> dict[str, Tensor]:
        """Return the scores by name, each of shape (users, n).

        Parameters
        ----------
        recent
            Histories, `PADDING` on the left, shape (users, length).
        states
            The trunk's states of these histories, shape (users, width).
        items
            Those of every user, shape (users, n), or the same for all, shape (n,); all items if None.
        """
        scores = {}
        if "item" in self._names:
            scores["item"] = self.similarity("item", self._trunk.scale_queries(states), items)
        if "encoder" in self._names and self._encoder is not None:
            read = recent
            if self._known_as is not None:
                read = torch.where(recent == PADDING, PADDING, self._known_as.to(recent.device)[recent.clamp_min(0)])
            scores["encoder"] = self.similarity("encoder", self._encoder.queries(read).to(recent.device), items)
        if self._cooccurrence is not None:
            scores["cooccurrence"] = self._cooccurrences(self._cooccurrence, recent, items)
        return scores

    def similarity(self, name: str, queries: Tensor, items: Tensor | None) -> Tensor:
        """Return the dot products of queries, shape (users, d), with the vectors of items, as `of` takes them."""
        vectors = self.vectors(name)
        if items is None or items.ndim == 1:
            return queries @ (vectors if items is None else vectors[items]).T
        return (vectors[items] @ queries[:, :, None])[:, :, 0]

    def vectors(self, name: str) -> Tensor:
        """Return the vectors of all items for ``item`` or ``encoder``, shape (items, d)."""
        found = self._vectors.get(name)
        if found is None:
            source = self._trunk if name == "item" or self._encoder is None else self._encoder
            vectors = source.candidates().detach().to(next(self._trunk.parameters()).device)
            if source is self._encoder and self._known_as is not None:
                vectors = vectors[self._known_as.to(vectors.device)]
            found = fill_unseen(vectors, self._stand_ins)
            if self._by_fields is not None:
                found = torch.where(torch.from_numpy(self._by_fields).to(found.device)[:, None], vectors, found)
            self._vectors[name] = found
        return found

    def _cooccurrences(self, model: CoOccurrence, recent: Tensor, items: Tensor | None) -> Tensor:
        found = model.sparse_scores(recent.cpu().numpy())  # (users, items)
        if self._stand_ins is not None:
            found = found @ self._stand_ins.T
        if items is None or items.ndim == 1:
            values = (found if items is None else found[:, items.cpu().numpy()]).toarray()
        else:
            rows = np.repeat(np.arange(len(items)), items.shape[1])
            values = np.asarray(found[rows, items.cpu().numpy().ravel()]).reshape(items.shape)
        return torch.from_numpy(values.astype(np.float32)).to(recent.device).add_(COOCCURRENCE_FLOOR).log_()
