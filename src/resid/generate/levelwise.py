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
from resid.nn import Dropout, normalize
from resid.quantize.ids import SemanticIds

_INITIAL_SCALE = 12.0  # of cosines
_COPIED_NODES = 128  # nodes whose children's vectors are copied at a time, so that they fit the processor's cache
_WINDOWS = 64  # nodes whose children's vectors are copied at a time in decoding
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
    padded: Tensor | None

    def __init__(self, ids: SemanticIds, level: int, vectors: Tensor | None) -> None:
        super().__init__(ids, level)
        node_of, means = torch.from_numpy(ids.node_of(level + 1)), None  # (items,)
        if vectors is not None:
            counts = torch.bincount(node_of, minlength=len(self))
            means = torch.zeros(len(self), vectors.shape[1]).index_add_(0, node_of, vectors) / counts[:, None]
            # Further rows, so that as many rows as the largest node has children begin at every node.
            means = f.pad(f.normalize(means, dim=1), (0, 0, 0, self.max_children))
        self.register_buffer("node_of", node_of, persistent=False)
        self.register_buffer("padded", means, persistent=False)

    @property
    def vectors(self) -> Tensor | None:
        """The vectors of the nodes, shape (nodes, d)."""
        return None if self.padded is None else self.padded[: len(self)]

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
        vectors = self.vectors
        if vectors is None:
            return scores
        queries = queries * (nodes >= 0)[..., None]  # no node, no products
        if len(self.first) == 2:  # only the root
            return scores.index_add(-1, self.codes, queries @ vectors.T)
        rows, known = queries.flatten(0, -2), nodes.clamp_min(0).flatten()
        many = len(rows) * self.max_children > _ONE_BY_ONE * len(self.first)
        if not queries.requires_grad and (not many or len(rows) < len(self.first)):
            products = self._products_of_windows(rows, known)
        elif many or self.max_children > _ONE_BY_ONE:
            products = self._products_by_node(rows, known)
        else:
            below = self.child_nodes(known)[0]
            pairs = zip(torch.split(rows, _COPIED_NODES), torch.split(below, _COPIED_NODES), strict=True)
            products = torch.cat([(vectors[some] @ few[:, :, None])[:, :, 0] for few, some in pairs])
        products = products.view(*nodes.shape, self.max_children)
        if self.full:
            return scores + products
        children, exist = self.child_nodes(nodes)
        return scores.scatter_add(-1, self.codes[children], products * exist)

    def _products_of_windows(self, queries: Tensor, nodes: Tensor) -> Tensor:
        """Multiply queries with the children of their nodes, which are copied in whole blocks to one small buffer.

        Parameters
        ----------
        queries
            Shape (n, d).
        nodes
            Shape (n,).

        Returns
        -------
        Tensor
            Shape (n, max_children); of any value where there is no child.
        """
        padded, (n, width) = cast(Tensor, self.padded), queries.shape
        windows = padded.as_strided((len(self) + 1, self.max_children * width), (width, 1))  # of each node as the first
        buffer = padded.new_empty(min(n, _WINDOWS), windows.shape[1])
        products = queries.new_empty(n, self.max_children)
        for begin in range(0, n, _WINDOWS):
            some = slice(begin, begin + _WINDOWS)
            first = self.first[nodes[some]]
            block = torch.index_select(windows, 0, first, out=buffer[: len(first)])
            below = block.view(-1, self.max_children, width).transpose(1, 2)
            torch.bmm(queries[some, None], below, out=products[some, None])
        return products

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
        vectors = cast(Tensor, self.padded)
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
        return scores, normalize(self.query(state)) * self.scale


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
