"""Decoding: beam search over the prefix tree, for all users of a batch at once, and exact scoring of all IDs.

A network encodes histories once (`encode_histories`), returns the log-probabilities of a level's codes for every beam
(`next_level`), and reorders its decoder state when beams are selected (`reorder`). Valid continuations come from the prefix
tree. A beam as wide as the catalogue is exact: the score of every item is its log-probability.
"""

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from resid.generate.prefix_tree import PrefixTree, TreeLevel

_MAX_PREFIXES = 500_000  # over all users, scored at a time


class Decodable(Protocol):
    """What decoding needs of a network."""

    level_sizes: tuple[int, ...]

    def encode_histories(self, histories: Tensor) -> Any:
        """Return what is computed once per user."""

    def next_level(self, memory: Any, state: Any, codes: Tensor | None) -> tuple[Tensor, Any]:
        """Return log-probabilities, shape (users, beams, codes of the level), and the decoder state.

        Parameters
        ----------
        memory
            The result of `encode_histories`.
        state
            The decoder state of the beams; None at the first level.
        codes
            The codes that the beams took at the level before, shape (users, beams); None at the first level.
        """

    def reorder(self, state: Any, parents: Tensor) -> Any:
        """Return the decoder state of the selected beams; `parents` are their indices before, shape (users, beams)."""


@dataclass
class Beams:
    """The IDs that beams ended at, best first.

    Attributes
    ----------
    nodes : Tensor
        Leaf nodes of the prefix tree, shape (users, beams); -1 for an ID that no item has.
    scores : Tensor
        Log-probabilities, shape (users, beams); -inf for an ID that no item has.
    """

    nodes: Tensor
    scores: Tensor


@torch.inference_mode()
def beam_search(
    model: Decodable,
    histories: Tensor,
    tree: PrefixTree,
    beam_size: int,
    *,
    constrained: bool = True,
    memory: Any = None,
) -> Beams:
    """Return the most probable IDs after each history.

    Parameters
    ----------
    model
        In evaluation mode.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    tree
        The prefix tree.
    beam_size
        Number of prefixes per user that are kept at each level.
    constrained
        Generate only IDs that an item has. Otherwise beams may end at IDs that no item has.
    memory
        What `encode_histories` returned, if it was called before.
    """
    memory = model.encode_histories(histories) if memory is None else memory
    nodes = torch.zeros(len(histories), 1, dtype=torch.long, device=histories.device)
    scores = torch.zeros(len(histories), 1, device=histories.device)
    state, codes = None, None
    for level in tree.levels:
        log_probs, state = model.next_level(memory, state, codes)  # (users, beams, codes)
        if level is tree.levels[-1]:
            log_probs = tree.last_log_probs(nodes, log_probs)
        continuations = _child_values(level, nodes, log_probs) if constrained else log_probs
        values = scores[:, :, None] + continuations
        scores, place = values.flatten(1).topk(min(beam_size, values[0].numel()), dim=1)
        parents, step = place // values.shape[2], place % values.shape[2]
        nodes = nodes.gather(1, parents)
        if constrained:
            nodes = (level.first[nodes.clamp_min(0)] + step).masked_fill(scores == -torch.inf, -1)
            codes = level.codes[nodes.clamp_min(0)]
        else:
            nodes, codes = level.follow(nodes, step), step
        if level is not tree.levels[-1]:
            state = model.reorder(state, parents)
    return Beams(nodes, scores.masked_fill(nodes < 0, -torch.inf))


def _child_values(level: TreeLevel, nodes: Tensor, values: Tensor) -> Tensor:
    """Return the values of the children of nodes.

    Parameters
    ----------
    level
        The level of the children.
    nodes
        The nodes of the beams, -1 for none; shape (users, beams).
    values
        The values of all codes, shape (users, beams, codes).

    Returns
    -------
    Tensor
        Shape (users, beams, max_children), -inf where there is no child.
    """
    if level.full:
        return values
    children, exist = level.child_nodes(nodes)
    return values.gather(2, level.codes[children]).masked_fill_(~exist, -torch.inf)


@torch.inference_mode()
def score_all(model: Decodable, histories: Tensor, tree: PrefixTree, count: int) -> Beams:
    """Score every ID after each history.

    Parameters
    ----------
    model
        In evaluation mode.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    tree
        The prefix tree.
    count
        Number of IDs to return.

    Returns
    -------
    Beams
        The best IDs of every user. The cost grows with the catalogue, so users are processed in small batches.
    """
    found = []
    step = max(1, _MAX_PREFIXES // max(len(level) for level in tree.levels))
    for some in (histories[first : first + step] for first in range(0, len(histories), step)):
        scores = score_nodes(model, model.encode_histories(some), len(some), tree)
        found.append(scores.topk(min(count, scores.shape[1]), dim=1))
    return Beams(torch.cat([nodes for _, nodes in found]), torch.cat([best for best, _ in found]))


@torch.inference_mode()
def score_nodes(model: Decodable, memory: Any, n_users: int, tree: PrefixTree) -> Tensor:
    """Return the log-probability of every ID for every user, shape (users, IDs).

    Parameters
    ----------
    model
        In evaluation mode.
    memory
        What `encode_histories` returned.
    n_users
        Number of users.
    tree
        The prefix tree.
    """
    scores = torch.zeros(n_users, 1, device=tree.levels[0].codes.device)
    state, codes = None, None
    for level in tree.levels:
        log_probs, state = model.next_level(memory, state, codes)  # (users, parents, codes)
        if level is tree.levels[-1]:
            parents = torch.arange(log_probs.shape[1], device=log_probs.device).expand(n_users, -1)
            log_probs = tree.last_log_probs(parents, log_probs)
        scores = scores[:, level.parents] + log_probs[:, level.parents, level.codes]  # (users, nodes)
        if level is not tree.levels[-1]:
            codes = level.codes.expand(n_users, -1)
            state = model.reorder(state, level.parents.expand(n_users, -1))
    return scores


@torch.inference_mode()
def score_codes(model: Decodable, memory: Any, codes: Tensor) -> Tensor:
    """Return the log-probabilities of given IDs, the sum over their codes, each given the codes before it.

    Parameters
    ----------
    model
        In evaluation mode.
    memory
        What `encode_histories` returned.
    codes
        Shape (users, n, levels).

    Returns
    -------
    Tensor
        Shape (users, n).
    """
    log_probs, state = model.next_level(memory, None, None)
    scores = log_probs[:, 0].gather(1, codes[:, :, 0])
    for level in range(1, codes.shape[2]):
        if level == 1:  # from the root to n beams
            state = model.reorder(state, torch.zeros_like(codes[:, :, 0]))
        log_probs, state = model.next_level(memory, state, codes[:, :, level - 1])
        scores = scores + log_probs.gather(2, codes[:, :, level, None])[:, :, 0]
    return scores


def beam_items(beams: Beams, tree: PrefixTree, k: int) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Return the k best items of each user and their scores, -1 and -inf where there are fewer.

    Items with the same ID are consecutive, in the order of `tree.ids`, with the same score.
    """
    ids = tree.ids
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
