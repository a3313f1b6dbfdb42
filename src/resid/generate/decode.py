"""From a generator's probabilities to items: beams over the tree of IDs, all users of a batch at once.

A generator reads histories once (`read`), gives the log-probabilities of a level's codes after what each beam has written
(`next`), and carries over what the beams that are kept have written (`keep`). Valid continuations come from the tables of
prefixes. A beam as wide as the catalogue is exact: nothing is cut off, and the score of every item is its log-probability.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from resid.quantize.ids import SemanticIds

_PREFIXES = 50_000  # prefixes, over all users, that are scored at a time


class Generator(Protocol):
    """What decoding needs of a generator."""

    sizes: tuple[int, ...]

    def read(self, histories: Tensor) -> Any:
        """Return what is computed once per user."""

    def next(self, memory: Any, written: Any, codes: Tensor | None) -> tuple[Tensor, Any]:
        """Return log-probabilities, shape (users, beams, codes of the level), and what was written."""

    def keep(self, written: Any, parents: Tensor) -> Any:
        """Return what the beams that are kept have written."""


class PrefixTables:
    """The tree of IDs as tensors: where the children of each node begin, and their codes.

    Parameters
    ----------
    ids
        The IDs.
    device
        Where decoding runs.
    """

    def __init__(self, ids: SemanticIds, device: torch.device | str = "cpu") -> None:
        self.ids = ids
        self.parents = [torch.from_numpy(ids.parent_of(depth + 1)).to(device) for depth in range(ids.levels)]
        self.first = [torch.from_numpy(ids.first_child(depth)).to(device) for depth in range(ids.levels)]
        self.codes = [torch.from_numpy(ids.node_codes(depth + 1)).long().to(device) for depth in range(ids.levels)]


@dataclass
class Beams:
    """The IDs that beams ended with, the best first.

    Attributes
    ----------
    nodes : Tensor
        Numbers of the IDs, shape (users, beams); -1 where a beam ended nowhere.
    scores : Tensor
        Log-probabilities, shape (users, beams); -inf where a beam ended nowhere.
    """

    nodes: Tensor
    scores: Tensor


@torch.no_grad()
def beam_search(
    generator: Generator, histories: Tensor, tables: PrefixTables, beam: int, *, constrained: bool = True
) -> Beams:
    """Write the most probable IDs after each history.

    Parameters
    ----------
    generator
        In evaluation mode.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    tables
        The tree of IDs.
    beam
        How many prefixes of a user are kept at each level; as many as items is exact.
    constrained
        Write only IDs that an item has. Otherwise any code may follow, and beams may end nowhere.
    """
    memory = generator.read(histories)
    users, device = len(histories), histories.device
    nodes = torch.zeros(users, 1, dtype=torch.long, device=device)
    scores = torch.zeros(users, 1, device=device)
    written, chosen = None, None
    for level, size in enumerate(generator.sizes):
        log_probabilities, written = generator.next(memory, written, chosen)  # (users, beams, codes)
        codes, following = _children(tables, level, nodes) if constrained else _all_codes(tables, level, nodes, size)
        values = scores[:, :, None] + log_probabilities.gather(2, codes)
        if constrained:
            values = values.masked_fill(following < 0, -torch.inf)
        width = codes.shape[2]
        scores, place = values.flatten(1).topk(min(beam, values[0].numel()), dim=1)
        parents, nodes = place // width, following.flatten(1).gather(1, place)
        chosen = codes.flatten(1).gather(1, place)
        written = generator.keep(written, parents)
    return Beams(nodes.masked_fill(scores == -torch.inf, -1), scores.masked_fill(nodes < 0, -torch.inf))


@torch.no_grad()
def all_ids(generator: Generator, histories: Tensor, tables: PrefixTables) -> Beams:
    """Score every ID after each history, through the tree: what a search without end would find.

    Parameters
    ----------
    generator
        In evaluation mode.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    tables
        The tree of IDs.

    Returns
    -------
    Beams
        All IDs of every user, the best first. The cost grows with the catalogue, so users are taken a few at a time.
    """
    widest = max(len(parents) for parents in tables.parents[:-1]) if len(tables.parents) > 1 else 1
    found = []
    users = max(1, _PREFIXES // widest)
    for some in (histories[first : first + users] for first in range(0, len(histories), users)):
        memory, scores = generator.read(some), torch.zeros(len(some), 1, device=some.device)
        written, chosen = None, None
        for level, (parents, codes) in enumerate(zip(tables.parents, tables.codes, strict=True)):
            log_probabilities, written = generator.next(memory, written, chosen)  # (users, nodes above, codes)
            scores = scores[:, parents] + log_probabilities[:, parents, codes]  # (users, nodes)
            if level + 1 < len(tables.parents):
                chosen = codes.expand(len(some), -1)
                written = generator.keep(written, parents.expand(len(some), -1))
        found.append(scores)
    best, nodes = torch.cat(found).sort(dim=1, descending=True, stable=True)
    return Beams(nodes, best)


def _children(tables: PrefixTables, level: int, nodes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the codes that may follow each beam and the nodes they lead to, -1 for none; (users, beams, most children)."""
    first, known = tables.first[level], nodes.clamp_min(0)
    begin = first[known]
    count = torch.where(nodes >= 0, first[known + 1] - begin, 0)
    step = torch.arange(int(count.max()), device=nodes.device)
    real = step < count[:, :, None]
    children = torch.where(real, begin[:, :, None] + step, 0)
    return tables.codes[level][children], children.masked_fill(~real, -1)


def _all_codes(tables: PrefixTables, level: int, nodes: Tensor, size: int) -> tuple[Tensor, Tensor]:
    """Return all codes of a level and the nodes they lead to, -1 where no item has that prefix."""
    codes = torch.arange(size, device=nodes.device).expand(*nodes.shape, size)
    following = tables.ids.step(level, nodes[:, :, None].cpu().numpy(), codes.cpu().numpy())
    return codes, torch.from_numpy(following).to(nodes.device)


def items_of(beams: Beams, tables: PrefixTables, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the k best items of each user and their scores, -1 and -inf where there are fewer.

    Items that share an ID follow each other in the order of the catalogue, with the same score.
    """
    ids = tables.ids
    nodes, scores = beams.nodes.cpu().numpy(), beams.scores.cpu().numpy()
    begin = ids.first_item
    start = begin[np.maximum(nodes, 0)]
    counts = np.where(nodes >= 0, begin[np.maximum(nodes, 0) + 1] - start, 0)
    before = np.cumsum(counts, axis=1) - counts  # items of better IDs
    user, beam = (np.repeat(index, counts.ravel()) for index in np.indices(counts.shape).reshape(2, -1))
    step = np.arange(len(user)) - np.repeat(np.cumsum(counts) - counts.ravel(), counts.ravel())
    place = before[user, beam] + step
    user, beam, step, place = (values[place < k] for values in (user, beam, step, place))
    items = np.full((len(nodes), k), -1, dtype=np.int64)
    values = np.full((len(nodes), k), -np.inf, dtype=np.float32)
    items[user, place] = ids.order[start[user, beam] + step]
    values[user, place] = scores[user, beam]
    return items, values
