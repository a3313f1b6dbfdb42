"""Items as the sum of the embeddings of their fields, the item-ID first."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.data.dataset import Dataset


class FieldTables(nn.ModuleList):
    """An embedding table for the item-ID and one for each field.

    Parameters
    ----------
    codes
        The field codes of every item, the item-ID first, shape (items, J).
    sizes
        The number of codes of each field, the item-ID first; J of them.
    width
        Of a vector.
    sparse
        Which tables get sparse gradients, so that a step's cost does not grow with them; J of them.
    std
        Of the normal distribution from which they are drawn.
    """

    codes: Tensor

    def __init__(
        self, codes: NDArray[np.integer], sizes: Sequence[int], width: int, sparse: Sequence[bool], std: float = 0.02
    ) -> None:
        super().__init__(nn.Embedding(size, width, sparse=few) for size, few in zip(sizes, sparse, strict=True))
        # A copy, for a view of one column has strides that several processes cannot exchange.
        own = torch.as_tensor(np.asarray(codes), dtype=torch.int64).clone(memory_format=torch.contiguous_format)
        self.register_buffer("codes", own, persistent=False)
        for table in self.embeddings():
            nn.init.normal_(table.weight, std=std)

    def embeddings(self) -> list[nn.Embedding]:
        """Return the tables, each of shape (values, width)."""
        return [table for table in self if isinstance(table, nn.Embedding)]

    def vectors(self, items: Tensor) -> Tensor:
        """Return the sum of all field embeddings of items; any shape to (..., width)."""
        tables = self.embeddings()
        if len(tables) == 1:
            own: Tensor = tables[0](items)
            return own
        codes = self.codes[items]
        return torch.stack([table(codes[..., field]) for field, table in enumerate(tables)]).sum(dim=0)

    def all_vectors(self) -> Tensor:
        """Return the sum of all field embeddings of every item, shape (items, width)."""
        first, *others = self.embeddings()
        summed: Tensor = first.weight
        for field, table in enumerate(others, 1):  # one by one, for they are as many as the catalogue
            summed = summed + table(self.codes[:, field])
        return summed


def item_and_fields(data: Dataset, *, fields: bool = True) -> tuple[NDArray[np.integer], dict[str, int]]:
    """Return the codes of every item, its item-ID first and then those of its fields, and how many there are of each.

    Returns
    -------
    codes, sizes
        The first of shape (items, J); without fields J is 1.
    """
    own, count = np.arange(data.n_items, dtype=np.int32)[:, None], {"item": data.n_items}
    if not fields:
        return own, count
    sizes = dict(zip(data.field_names, data.field_sizes, strict=True))
    return np.concatenate([own, data.fields], axis=1), count | sizes
