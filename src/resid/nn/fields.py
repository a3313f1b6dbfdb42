"""Item embeddings as sums of field embeddings; the item ID is the first field.

The codes of items have the shape (..., J), or (..., J, values) if a field can have several values, as tags do. Then the first
place of a field has its code, or 0 if it is missing, and the others have further codes or 0 for none. The embedding of tags
is the mean of the embeddings of the single tags.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.data.dataset import Dataset


class FieldTables(nn.ModuleList):
    """One embedding table for the item ID and one for each field.

    Parameters
    ----------
    codes
        The field codes of every item, the item ID first, shape (items, J) or (items, J, values).
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
        self.has_tags = [own.ndim == 3 and bool((own[:, field, 1:] > 0).any()) for field in range(own.shape[1])]
        for table in self.embeddings():
            nn.init.normal_(table.weight, std=std)

    def embeddings(self) -> list[nn.Embedding]:
        """Return the tables, each of shape (values, width)."""
        return [table for table in self if isinstance(table, nn.Embedding)]

    def values(self, field: int, codes: Tensor) -> Tensor:
        """Return the codes of one field, from (..., J) or (..., J, values) to (...), or (..., values) if it has tags."""
        if self.codes.ndim == 2:
            return codes[..., field]
        return codes[..., field, :] if self.has_tags[field] else codes[..., field, 0]

    def part(self, field: int, codes: Tensor) -> Tensor:
        """Return the embeddings of one field, from (..., J) or (..., J, values) to (..., width)."""
        table, values = self.embeddings()[field], self.values(field, codes)
        if self.has_tags[field]:
            return mean_rows(table.weight, values, sparse=table.sparse)
        rows: Tensor = table(values)
        return rows

    def vectors(self, items: Tensor) -> Tensor:
        """Return the sum of all field embeddings of items; any shape to (..., width)."""
        tables = self.embeddings()
        if len(tables) == 1:
            own: Tensor = tables[0](items)
            return own
        codes = self.codes[items]
        return torch.stack([self.part(field, codes) for field in range(len(tables))]).sum(dim=0)

    def all_vectors(self) -> Tensor:
        """Return the sum of all field embeddings of every item, shape (items, width)."""
        first, *others = self.embeddings()
        summed: Tensor = first.weight
        for field, _ in enumerate(others, 1):  # one field at a time: each is as large as the catalogue
            summed = summed + self.part(field, self.codes)
        return summed


def value_weights(codes: Tensor) -> Tensor:
    """Return the weight of every value of a field: 1 / n for each of n tags, 0 for padding, 1 for "missing" without tags.

    Parameters
    ----------
    codes
        Shape (..., values), 0 for padding.

    Returns
    -------
    Tensor
        Of the same shape; the weights of an item sum to 1.
    """
    present = codes > 0
    present = torch.where(present.any(dim=-1, keepdim=True), present, is_value(codes))
    return present / present.sum(dim=-1, keepdim=True)


def is_value(codes: Tensor) -> Tensor:
    """Return which codes, shape (..., values), are values and not padding; the first place is one even if it is 0."""
    return (codes != 0) | (torch.arange(codes.shape[-1], device=codes.device) == 0)


def mean_rows(rows: Tensor, codes: Tensor, *, sparse: bool = False) -> Tensor:
    """Return the mean of the rows of each item's values.

    Parameters
    ----------
    rows
        A row for each code, shape (codes, width).
    codes
        Shape (..., values), 0 for padding; see `value_weights`.
    sparse
        Whether the gradient of the rows is sparse.

    Returns
    -------
    Tensor
        Shape (..., width).
    """
    flat = codes.reshape(-1, codes.shape[-1])
    weights = value_weights(flat).to(rows.dtype)
    summed = f.embedding_bag(flat, rows, mode="sum", per_sample_weights=weights, sparse=sparse)
    return summed.view(*codes.shape[:-1], rows.shape[1])


def item_and_fields(data: Dataset, *, fields: bool = True) -> tuple[NDArray[np.integer], dict[str, int]]:
    """Return the field codes of every item, the item ID first, and the vocabulary size of every field.

    Returns
    -------
    codes, sizes
        Codes of shape (items, J) or (items, J, values), and sizes by field name; J is 1 without fields.
    """
    own, count = np.arange(data.n_items, dtype=np.int32), {"item": data.n_items}
    if not fields:
        return own[:, None], count
    sizes = dict(zip(data.field_names, data.field_sizes, strict=True))
    return with_item_ids(own, data.fields), count | sizes


def with_item_ids(ids: NDArray[np.integer], fields: NDArray[np.integer]) -> NDArray[np.integer]:
    """Return field codes with the item ID as the first field.

    Parameters
    ----------
    ids
        The codes of the item IDs, shape (items,).
    fields
        Shape (items, fields) or (items, fields, values).
    """
    own = np.zeros((len(ids), 1, *fields.shape[2:]), dtype=ids.dtype)
    own.reshape(len(ids), -1)[:, 0] = ids
    return np.concatenate([own, fields], axis=1)
