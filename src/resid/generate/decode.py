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

from resid.generate.tree import PrefixTables, TreeLevel

_PREFIXES = 500_000  # prefixes, over all users, that are scored at a time


class Generator(Protocol):
    """What decoding needs of a generator."""

    sizes: tuple[int, ...]

    def read(self, histories: Tensor) -> Any:
        """Return what is computed once per user."""

    def next(self, memory: Any, written: Any, codes: Tensor | None) -> tuple[Tensor, Any]:
        """Return log-probabilities, shape (users, beams, codes of the level), and what was written."""

    def keep(self, written: Any, parents: Tensor) -> Any:
        """Return what the beams that are kept have written."""


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


@torch.inference_mode()
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
    nodes = torch.zeros(len(histories), 1, dtype=torch.long, device=histories.device)
    scores = torch.zeros(len(histories), 1, device=histories.device)
    written, chosen = None, None
    for level in tables.levels:
        log_probabilities, written = generator.next(memory, written, chosen)  # (users, beams, codes)
        following = _of_children(level, nodes, log_probabilities) if constrained else log_probabilities
        values = scores[:, :, None] + following
        scores, place = values.flatten(1).topk(min(beam, values[0].numel()), dim=1)
        parents, step = place // values.shape[2], place % values.shape[2]
        nodes = nodes.gather(1, parents)
        if constrained:
            nodes = (level.first[nodes.clamp_min(0)] + step).masked_fill(scores == -torch.inf, -1)
            chosen = level.codes[nodes.clamp_min(0)]
        else:
            nodes, chosen = level.follow(nodes, step), step
        if level is not tables.levels[-1]:
            written = generator.keep(written, parents)
    return Beams(nodes, scores.masked_fill(nodes < 0, -torch.inf))


def _of_children(level: TreeLevel, nodes: Tensor, values: Tensor) -> Tensor:
    """Return the values of the codes by which nodes go on, in their order.

    Parameters
    ----------
    level
        Of the codes.
    nodes
        Where the beams are, -1 for nowhere; shape (users, beams).
    values
        Of all codes, shape (users, beams, codes).

    Returns
    -------
    Tensor
        Shape (users, beams, most children), -inf beyond a node's children.
    """
    if level.full:
        return values
    children, real = level.below(nodes)
    return values.gather(2, level.codes[children]).masked_fill_(~real, -torch.inf)


@torch.inference_mode()
def all_ids(generator: Generator, histories: Tensor, tables: PrefixTables, count: int) -> Beams:
    """Score every ID after each history, through the tree: what a search without end would find.

    Parameters
    ----------
    generator
        In evaluation mode.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    tables
        The tree of IDs.
    count
        How many IDs are wanted.

    Returns
    -------
    Beams
        The best IDs of every user. The cost grows with the catalogue, so users are taken a few at a time.
    """
    found = []
    users = max(1, _PREFIXES // max(len(level) for level in tables.levels))
    for some in (histories[first : first + users] for first in range(0, len(histories), users)):
        memory, scores = generator.read(some), torch.zeros(len(some), 1, device=some.device)
        written, chosen = None, None
        for level in tables.levels:
            log_probabilities, written = generator.next(memory, written, chosen)  # (users, nodes above, codes)
            scores = scores[:, level.parents] + log_probabilities[:, level.parents, level.codes]  # (users, nodes)
            if level is not tables.levels[-1]:
                chosen = level.codes.expand(len(some), -1)
                written = generator.keep(written, level.parents.expand(len(some), -1))
        found.append(scores.topk(min(count, scores.shape[1]), dim=1))
    return Beams(torch.cat([nodes for _, nodes in found]), torch.cat([best for best, _ in found]))


def items_of(beams: Beams, tables: PrefixTables, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the k best items of each user and their scores, -1 and -inf where there are fewer.

    Items that share an ID follow each other in the order of the tables' IDs, with the same score.
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
