"""Item embeddings as sums of field embeddings; the item ID is the first field."""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.data.dataset import Dataset


class FieldTables(nn.ModuleList):
    """One embedding table for the item ID and one for each field.

    Parameters
    ----------
    codes
        The field codes of every item, the item ID first, shape (items, J).
    sizes
        The vocabulary size of each field, the item ID first, length J.
    width
        Embedding dimension.
    sparse
        Which tables have sparse gradients, so that the cost of a step does not grow with them, length J.
    std
        Standard deviation of the initial weights.
    """

    codes: Tensor

    def __init__(
        self, codes: NDArray[np.integer], sizes: Sequence[int], width: int, sparse: Sequence[bool], std: float = 0.02
    ) -> None:
        super().__init__(nn.Embedding(size, width, sparse=few) for size, few in zip(sizes, sparse, strict=True))
        # A copy: DDP cannot broadcast a view with the strides of a column.
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
        for field, table in enumerate(others, 1):  # one field at a time: each is as large as the catalogue
            summed = summed + table(self.codes[:, field])
        return summed


def item_and_fields(data: Dataset, *, fields: bool = True) -> tuple[NDArray[np.integer], dict[str, int]]:
    """Return the field codes of every item, the item ID first, and the vocabulary size of every field.

    Returns
    -------
    codes, sizes
        Codes of shape (items, J), and sizes by field name; J is 1 without fields.
    """
    own, count = np.arange(data.n_items, dtype=np.int32)[:, None], {"item": data.n_items}
    if not fields:
        return own, count
    sizes = dict(zip(data.field_names, data.field_sizes, strict=True))
    return np.concatenate([own, data.fields], axis=1), count | sizes
