"""The prefix tree of semantic IDs as tensors: the children of every node, and their codes."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.quantize.ids import SemanticIds


@dataclass(frozen=True, eq=False)
class UntrainedCodes:
    """The last codes of items that were added after training, by the prefix that they follow.

    In training, such a code never followed its prefix, so its log-probability says nothing about the item. It is replaced by the
    mean of those of the items with the same prefix that the model was fitted to.

    Parameters
    ----------
    ids
        The IDs of all items.
    trained
        Which items the model was fitted to, or has been updated with, shape (items,); the others were added.
    """

    ids: SemanticIds
    trained: NDArray[np.bool_]

    @cached_property
    def tables(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.bool_]]:
        """The row of every item's prefix, 0 for one without added items, and for each row the weights and the added codes.

        Shapes (items,), (rows, codes) and (rows, codes). Prefixes that no fitted item has are not replaced.
        """
        parents, last = self.ids.node_of(self.ids.levels - 1), self.ids.codes[:, -1]
        fitted = self.trained
        known = np.bincount(parents[fitted], minlength=self.ids.nodes(self.ids.levels - 1)) > 0
        affected = np.unique(parents[~fitted & known[parents]])
        rows = np.zeros(len(known), dtype=np.int64)
        rows[affected] = 1 + np.arange(len(affected))
        row, shape = rows[parents], (len(affected) + 1, self.ids.level_sizes[-1])
        weights, added = np.zeros(shape, dtype=np.float32), np.zeros(shape, dtype=bool)
        np.add.at(weights, (row[fitted], last[fitted]), 1)
        added[row[~fitted], last[~fitted]] = True
        added[0] = False
        return row, weights / np.maximum(weights.sum(axis=1, keepdims=True), 1), added & (weights == 0)


class TreeLevel(nn.Module):
    """The nodes of one level; the children of a node are consecutive, in the order of their codes.

    Parameters
    ----------
    ids
        The IDs.
    level
        Counted from 0, the children of the root.

    Attributes
    ----------
    size : int
        Number of codes of the level.
    max_children : int
        The largest number of children of a node.
    full : bool
        Whether every parent has every code, as at all levels of a balanced tree but the last; then no lookup is needed.
    first : Tensor
        The first child of every parent, followed by the number of nodes; shape (parents + 1,).
    parents, codes : Tensor
        The parent of every node, and the code that leads to it; shape (nodes,).
    """

    first: Tensor
    parents: Tensor
    codes: Tensor
    keys: Tensor

    def __init__(self, ids: SemanticIds, level: int) -> None:
        super().__init__()
        self.size = ids.level_sizes[level]
        first, parents = torch.from_numpy(ids.first_child(level)), torch.from_numpy(ids.parent_of(level + 1))
        codes = torch.from_numpy(ids.node_codes(level + 1)).long()
        self.max_children, self.full = int(first.diff().max()), bool((first.diff() == self.size).all())
        keys = torch.from_numpy(ids.keys(level))
        for name, values in (("first", first), ("parents", parents), ("codes", codes), ("keys", keys)):
            self.register_buffer(name, values, persistent=False)

    def __len__(self) -> int:
        return len(self.codes)

    def child_nodes(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the children of nodes, shape (...) to (..., max_children), and which of them exist."""
        known = nodes.clamp_min(0)
        nodes_below = self.first[known][..., None] + torch.arange(self.max_children, device=nodes.device)
        exist = nodes_below < self.first[known + 1][..., None]
        return nodes_below.clamp_max_(len(self) - 1), exist

    def follow(self, nodes: Tensor, codes: Tensor) -> Tensor:
        """Return the child of each node by its code, -1 where no item has that prefix; any shape."""
        wanted = nodes * self.size + codes
        place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self) - 1)
        return place.masked_fill((self.keys[place] != wanted) | (nodes < 0), -1)


class PrefixTree:
    """All levels of the tree, for decoding.

    Parameters
    ----------
    ids
        The IDs.
    device
        Where decoding runs.
    """

    def __init__(self, ids: SemanticIds, device: torch.device | str = "cpu") -> None:
        self.ids = ids
        self.levels = [TreeLevel(ids, level).to(device) for level in range(ids.levels)]
        self.untrained: tuple[Tensor, Tensor, Tensor] | None = None

    def replace_untrained(self, codes: UntrainedCodes, numbers: NDArray[np.int64]) -> None:
        """Replace log-probabilities of the codes of added items in `last_log_probs`.

        Parameters
        ----------
        codes
            Of the whole catalogue.
        numbers
            The catalogue's index of every item of the tree, shape (items,).
        """
        row, weights, added = codes.tables
        first = self.ids.order[
            self.ids.first_item[self.ids.first_child(self.ids.levels - 1)[:-1]]
        ]  # item of each prefix
        device = self.levels[0].codes.device
        self.untrained = (
            torch.from_numpy(row[numbers[first]]).to(device),
            torch.from_numpy(weights).to(device),
            torch.from_numpy(added).to(device),
        )

    def last_log_probs(self, nodes: Tensor, log_probs: Tensor) -> Tensor:
        """Return the log-probabilities of the codes of the last level with those of added items replaced.

        Parameters
        ----------
        nodes
            The prefixes, -1 for none; shape (users, beams).
        log_probs
            Shape (users, beams, codes).
        """
        if self.untrained is None:
            return log_probs
        row, weights, added = self.untrained
        rows = row[nodes.clamp_min(0)].masked_fill(nodes < 0, 0)
        means = (log_probs * weights[rows]).sum(dim=2, keepdim=True)
        return torch.where(added[rows], means, log_probs)
