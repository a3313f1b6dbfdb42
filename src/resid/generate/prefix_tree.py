"""The prefix tree of semantic IDs as tensors: the children of every node, and their codes."""

import torch
from torch import Tensor, nn

from resid.quantize.ids import SemanticIds


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
