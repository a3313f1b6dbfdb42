"""Ranking with several IDs per item, as in EAGER: every stream proposes items, and all streams score them.

A stream is a network that generates one of the IDs. Its beams propose items. The score of a proposed item, its confidence, is
the sum over all streams of the log-probability of the item's ID in that stream.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl
import torch
from torch import Tensor

from resid.generate.decode import Decodable, beam_items, beam_search, score_codes, score_nodes
from resid.generate.prefix_tree import PrefixTree
from resid.quantize.ids import SemanticIds
from resid.recommend.histories import Indices, Scores

STREAMS = ("behavior", "semantic")
_MAX_SCORES = 500_000  # users times IDs, scored at a time; decoder states take far more memory than the scores


@dataclass(frozen=True)
class Stream:
    """A network in evaluation mode, and the prefix tree of its IDs; the trees of all streams have their items in one order."""

    model: Decodable
    tree: PrefixTree


def rank_streams(
    streams: Sequence[Stream], histories: Tensor, k: int, beam_size: int | None, *, constrained: bool = True
) -> tuple[Indices, Scores]:
    """Return the k best items after each history, as positions in the trees, and their scores; shape (users, k).

    Parameters
    ----------
    streams
        At least one.
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    k
        Number of items; missing ones are -1 with score -inf.
    beam_size
        Number of prefixes that each stream keeps at every level; None scores all items.
    constrained
        Generate only IDs that an item has.
    """
    n_items = len(streams[0].tree.ids)
    step = len(histories) if beam_size is not None else max(1, _MAX_SCORES // n_items)
    items = np.full((len(histories), k), -1, dtype=np.int64)
    scores = np.full((len(histories), k), -np.inf, dtype=np.float32)
    for some in (slice(first, first + step) for first in range(0, len(histories), step)):
        if beam_size is None:
            found, values = _all_items(streams, histories[some])
        else:
            found, values = _proposed_items(streams, histories[some], beam_size, constrained)
        best, place = values.sort(dim=1, descending=True, stable=True)  # ties in the order of the trees
        best, chosen = best[:, :k], found.gather(1, place)[:, :k]
        items[some, : best.shape[1]] = chosen.masked_fill(best == -torch.inf, -1).cpu().numpy()
        scores[some, : best.shape[1]] = best.cpu().numpy()
    return items, scores


@torch.inference_mode()
def _proposed_items(
    streams: Sequence[Stream], histories: Tensor, beam_size: int, constrained: bool
) -> tuple[Tensor, Tensor]:
    """Return the union of the items that the streams' beams lead to, ascending, and their scores; -inf where there is none."""
    memories, proposed = [], []
    for stream in streams:
        memory = stream.model.encode_histories(histories)
        beams = beam_search(stream.model, histories, stream.tree, beam_size, constrained=constrained, memory=memory)
        memories.append(memory)
        proposed.append(beam_items(beams, stream.tree, beam_size)[0])
    items = torch.from_numpy(np.sort(np.concatenate(proposed, axis=1), axis=1)).to(histories.device)
    missing = items < 0
    missing[:, 1:] |= items[:, 1:] == items[:, :-1]  # proposed by another stream as well
    items = items.clamp_min(0)
    scores = torch.zeros(items.shape, device=items.device)
    for stream, memory in zip(streams, memories, strict=True):
        codes = torch.from_numpy(stream.tree.ids.codes).to(items.device).long()
        scores = scores + score_codes(stream.model, memory, codes[items])
    return items, scores.masked_fill(missing, -torch.inf)


@torch.inference_mode()
def _all_items(streams: Sequence[Stream], histories: Tensor) -> tuple[Tensor, Tensor]:
    """Return all items and their scores, shape (users, items)."""
    scores = torch.zeros(len(histories), 1, device=histories.device)
    for stream in streams:
        nodes = torch.from_numpy(stream.tree.ids.node_of(stream.tree.ids.levels)).to(histories.device)
        memory = stream.model.encode_histories(histories)
        scores = scores + score_nodes(stream.model, memory, len(histories), stream.tree)[:, nodes]
    return torch.arange(scores.shape[1], device=scores.device).expand(len(scores), -1), scores


def table_of_streams(ids: Sequence[SemanticIds]) -> pl.DataFrame:
    """Return the IDs of both streams: a table with the columns item, behavior_c1, behavior_c2 and so on, semantic_c1 and so on."""
    parts = []
    for name, some in zip(STREAMS, ids, strict=True):
        codes = some.table().drop("item")
        parts.append(codes.rename({column: f"{name}_{column}" for column in codes.columns}))
    return pl.concat([ids[0].item_ids.to_frame("item"), *parts], how="horizontal")
