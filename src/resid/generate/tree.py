"""The tree of IDs as tensors: which nodes follow which, and by which codes."""

import torch
from torch import Tensor, nn

from resid.quantize.ids import SemanticIds


class TreeLevel(nn.Module):
    """The nodes of one level: those that follow a node of the level above are neighbours, in the order of their codes.

    Parameters
    ----------
    ids
        The IDs.
    level
        From 0, whose nodes follow the root.

    Attributes
    ----------
    size : int
        Codes of the level.
    most : int
        The most nodes that follow one.
    full : bool
        Every node above has every code, as in all levels of a balanced tree but the last; then nothing has to be looked up.
    first : Tensor
        Where the nodes that follow each node above begin, and where the last ones end; shape (nodes above + 1,).
    parents, codes : Tensor
        The node above, and the code that leads from it; shape (nodes,).
    """

    first: Tensor
    parents: Tensor
    codes: Tensor
    keys: Tensor

    def __init__(self, ids: SemanticIds, level: int) -> None:
        super().__init__()
        self.size = ids.sizes[level]
        first, parents = torch.from_numpy(ids.first_child(level)), torch.from_numpy(ids.parent_of(level + 1))
        codes = torch.from_numpy(ids.node_codes(level + 1)).long()
        self.most, self.full = int(first.diff().max()), bool((first.diff() == self.size).all())
        keys = torch.from_numpy(ids.keys(level))
        for name, values in (("first", first), ("parents", parents), ("codes", codes), ("keys", keys)):
            self.register_buffer(name, values, persistent=False)

    def __len__(self) -> int:
        return len(self.codes)

    def below(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Return the nodes that follow others, shape (...) to (..., most), and which of them do: the rest are filled up."""
        known = nodes.clamp_min(0)
        children = self.first[known][..., None] + torch.arange(self.most, device=nodes.device)
        real = children < self.first[known + 1][..., None]
        return children.clamp_max_(len(self) - 1), real

    def follow(self, nodes: Tensor, codes: Tensor) -> Tensor:
        """Return the nodes that codes below `size` lead to, -1 where no item has that prefix; any shape."""
        wanted = nodes * self.size + codes
        place = torch.searchsorted(self.keys, wanted).clamp_max_(len(self) - 1)
        return place.masked_fill((self.keys[place] != wanted) | (nodes < 0), -1)


class PrefixTables:
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
