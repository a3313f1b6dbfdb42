"""Level-wise decoding from one state: a light decoder per level, shared by the one-pass and the joint generator.

From the state after a history, the codes of the next item are predicted level by level, each from the state and the codes
before it. If item embeddings are given, each code is scored twice: by a row of the level's output table, which has the same
meaning under every prefix, and by the cosine with the mean embedding of the items below the node that it leads to. The second
term only learns a linear map, so it is good after a few epochs.
"""

from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.generate.base import GeneratorModel
from resid.generate.prefix_tree import TreeLevel
from resid.nn import Dropout
from resid.quantize.ids import SemanticIds

_INITIAL_SCALE = 12.0  # of cosines
_COPIED_NODES = 128  # nodes whose children's vectors are copied at a time, so that they fit the processor's cache
_ONE_BY_ONE = 32  # vectors per node from which it pays to visit nodes one by one instead of copying


@dataclass
class DecoderState:
    """The state of the beams.

    Attributes
    ----------
    level : int
        The level of the last scores.
    hidden : Tensor
        The state of the history plus the embeddings of the codes taken so far, shape (users, beams, width).
    nodes : Tensor
        The node of the prefix tree, -1 for none; shape (users, beams).
    """

    level: int
    hidden: Tensor
    nodes: Tensor


class Branches(TreeLevel):
    """One level of the prefix tree whose nodes may have vectors.

    Parameters
    ----------
    ids, level
        See `TreeLevel`.
    vectors
        Item vectors, shape (items, d); the vector of a node is the normalized mean of its items. None for no vectors.
    """

    node_of: Tensor
    vectors: Tensor | None

    def __init__(self, ids: SemanticIds, level: int, vectors: Tensor | None) -> None:
        super().__init__(ids, level)
        node_of, means = torch.from_numpy(ids.node_of(level + 1)), None  # (items,)
        if vectors is not None:
            counts = torch.bincount(node_of, minlength=len(self))
            means = torch.zeros(len(self), vectors.shape[1]).index_add_(0, node_of, vectors) / counts[:, None]
            means = f.normalize(means, dim=1)
        self.register_buffer("node_of", node_of, persistent=False)
        self.register_buffer("vectors", means, persistent=False)

    def add_products(self, scores: Tensor, queries: Tensor, nodes: Tensor) -> Tensor:
        """Add the dot products of queries with the vectors of child nodes to the scores of their codes.

        Parameters
        ----------
        scores
            Shape (..., codes).
        queries
            Shape (..., d).
        nodes
            The parents, -1 for none; shape (...).
        """
        if self.vectors is None:
            return scores
        queries = queries * (nodes >= 0)[..., None]  # no node, no products
        if len(self.first) == 2:  # only the root
            return scores.index_add(-1, self.codes, queries @ self.vectors.T)
        known = nodes.clamp_min(0)
        if nodes.numel() * self.max_children > _ONE_BY_ONE * len(self.first) or self.max_children > _ONE_BY_ONE:
            products = self._products_by_node(queries.flatten(0, -2), known.flatten()).view(
                *nodes.shape, self.max_children
            )
            if self.full:
                return scores + products
        else:
            products = None
        children, exist = self.child_nodes(nodes)
        if products is None:
            parts = (torch.split(part.flatten(0, -2), _COPIED_NODES) for part in (queries, children))
            vectors, pairs = self.vectors, zip(*parts, strict=True)
            products = torch.cat([(vectors[below] @ rows[:, :, None])[:, :, 0] for rows, below in pairs])
            products = products.view(exist.shape) * exist
        return scores.scatter_add(-1, self.codes[children], products)

    def _products_by_node(self, queries: Tensor, nodes: Tensor) -> Tensor:
        """Multiply all queries of a node with its children at once, without copying vectors.

        Parameters
        ----------
        queries
            Shape (n, d).
        nodes
            Shape (n,).

        Returns
        -------
        Tensor
            Shape (n, max_children); 0 where there is no child.
        """
        vectors = cast(Tensor, self.vectors)
        ordered, order = nodes.sort(stable=True)
        at, counts = torch.unique_consecutive(ordered, return_counts=True)
        firsts, lasts = self.first[at].tolist(), self.first[at + 1].tolist()
        parts = [
            f.pad(rows @ vectors[first:last].T, (0, self.max_children - last + first))
            for rows, first, last in zip(torch.split(queries[order], counts.tolist()), firsts, lasts, strict=True)
        ]
        return torch.cat(parts)[order.argsort()]


class LevelDecoder(nn.Module):
    """Scores the codes of a level: a residual feed-forward network, then an output layer and cosines with nodes."""

    def __init__(self, branches: Branches, width: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.branches = branches
        self.norm = nn.LayerNorm(width)
        self.ffn_in = nn.Linear(width, ffn_width)
        self.ffn_out = nn.Linear(ffn_width, width)
        self.out_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, branches.size)
        self.dropout = Dropout(dropout)
        self.query = None
        if branches.vectors is not None:
            self.query = nn.Linear(width, branches.vectors.shape[1], bias=False)
            nn.init.normal_(self.query.weight, std=0.02)
            self.scale = nn.Parameter(torch.tensor(_INITIAL_SCALE))

    def forward(self, state: Tensor, nodes: Tensor) -> Tensor:
        """Return the logits of codes after nodes, shape (...), from states; shape (..., width) to (..., codes)."""
        scores, queries = self.scores_and_queries(state)
        return scores if queries is None else self.branches.add_products(scores, queries, nodes)

    def scores_and_queries(self, state: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the logits of the output layer, (..., codes), and the queries of nodes, (..., d), if nodes have vectors."""
        hidden = self.dropout(f.gelu(self.ffn_in(self.norm(state))))
        state = self.dropout.add(state, self.ffn_out(hidden))
        state = self.out_norm(state)
        scores: Tensor = self.out(state)
        if self.query is None:
            return scores, None
        return scores, f.normalize(self.query(state), dim=-1) * self.scale


class LevelwiseModel(GeneratorModel):
    """Base class of networks whose state after a history is a vector; a subclass computes it.

    Attributes
    ----------
    code_tables : ModuleList
        The embeddings of codes that were taken, of every level but the last.
    decoders : ModuleList of LevelDecoder
    """

    code_tables: nn.ModuleList
    decoders: nn.ModuleList

    def code_losses(
        self, states: Tensor, targets: Tensor, label_smoothing: float, temperature: float = 1.0
    ) -> dict[str, Tensor]:
        """Return the mean cross-entropy of the targets' codes at every level.

        Parameters
        ----------
        states
            After the histories, shape (targets, width).
        targets
            Item indices, shape (targets,).
        label_smoothing
            Of the cross-entropy.
        temperature
            Divides the logits.
        """
        labels = self.codes[targets]  # (targets, levels)
        nodes = torch.zeros_like(targets)
        terms = {}
        for level, decoder in enumerate(self._decoders()):
            logits = decoder(states, nodes) / temperature
            terms[f"loss.{level + 1}"] = f.cross_entropy(logits, labels[:, level], label_smoothing=label_smoothing)
            if level + 1 < len(self.level_sizes):
                states = states + self.code_tables[level](labels[:, level])
                nodes = decoder.branches.node_of[targets]
        return terms

    def next_level(
        self, memory: Tensor, state: DecoderState | None, codes: Tensor | None
    ) -> tuple[Tensor, DecoderState]:
        """See `Decodable.next_level`."""
        if state is None or codes is None:
            level, hidden = 0, memory[:, None]
            nodes = torch.zeros(hidden.shape[:2], dtype=torch.long, device=hidden.device)
        else:
            level, hidden = state.level + 1, state.hidden + self.code_tables[state.level](codes)
            nodes = self._decoders()[state.level].branches.follow(state.nodes, codes)
        log_probs = self._decoders()[level](hidden, nodes).log_softmax(dim=2)
        return log_probs, DecoderState(level, hidden, nodes)

    def reorder(self, state: DecoderState, parents: Tensor) -> DecoderState:
        """See `Decodable.reorder`."""
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return DecoderState(state.level, state.hidden[users, parents], state.nodes[users, parents])

    def _decoders(self) -> list[LevelDecoder]:
        return cast(list[LevelDecoder], list(self.decoders))


def make_decoders(
    ids: SemanticIds, vectors: Tensor | None, width: int, ffn_width: int, dropout: float
) -> nn.ModuleList:
    """Return a decoder for every level; `vectors` are those of items, shape (items, d), or None."""
    levels = (Branches(ids, level, vectors) for level in range(ids.levels))
    return nn.ModuleList(LevelDecoder(branches, width, ffn_width, dropout) for branches in levels)
