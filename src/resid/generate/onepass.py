"""OnePassGenerator: one token per item, every position of a history a target, a light decoder per level.

The paper's generator sees one window per target and several tokens per item, which is most of what it costs. Here the codes
of an item are fused to one token, a causal Transformer goes once over a history, and from its state at any position the
next item's codes are written level by level, each from the state and the codes written before it.

Where the items have vectors, each code is scored twice: by what it means everywhere, a row of the level's table, and by
where it leads from here, the cosine with the mean vector of the items below. The second needs no learning of its own but a
linear map, so the generator is good after a few epochs.

What is read may be richer than what is written: besides its codes, a token has the item's vector, projected, and a vector of
the item's own that is learnt with the rest and begins at zero, where it stays for an item that training never saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import PADDING, SequenceBatch
from resid.generate.tree import TreeLevel
from resid.nn import CausalLayer, Dropout, padded_right
from resid.quantize.ids import SemanticIds

_SCALE = 12.0  # of cosines, before training
_MANY_ITEMS = 32_768  # from here on a table of items gets sparse gradients, so that a step does not grow with it
_COPIED = 128  # nodes whose children's vectors are copied at a time, which the processor's cache can hold
_ONE_BY_ONE = 32  # vectors for which it pays to go through the nodes one by one instead of copying them


@dataclass
class Written:
    """What beams have written so far.

    Attributes
    ----------
    level : int
        Of the last scores.
    state : Tensor
        What they were made from, the state of the history with the codes that were taken added to it; shape (users, beams,
        width).
    nodes : Tensor
        The node of the tree of IDs that was reached, -1 for none; shape (users, beams).
    """

    level: int
    state: Tensor
    nodes: Tensor


class Branches(TreeLevel):
    """One level of the tree of IDs, whose nodes may have vectors.

    Parameters
    ----------
    ids, level
        See `TreeLevel`.
    vectors
        Item vectors, shape (items, d); a node has the direction of its items' mean. None where they are not used.
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

    def add_products(self, scores: Tensor, asked: Tensor, nodes: Tensor) -> Tensor:
        """Add to the scores of codes the products of a vector with those of the nodes that they lead to.

        Parameters
        ----------
        scores
            Shape (..., codes).
        asked
            Shape (..., d).
        nodes
            Where the codes lead from, -1 for nowhere; shape (...).
        """
        if self.vectors is None:
            return scores
        asked = asked * (nodes >= 0)[..., None]  # where nothing was reached nothing is added
        if len(self.first) == 2:  # the root alone
            return scores.index_add(-1, self.codes, asked @ self.vectors.T)
        known = nodes.clamp_min(0)
        if nodes.numel() * self.most > _ONE_BY_ONE * len(self.first) or self.most > _ONE_BY_ONE:
            products = self._products_by_node(asked.flatten(0, -2), known.flatten()).view(*nodes.shape, self.most)
            if self.full:
                return scores + products
        else:
            products = None
        children, real = self.below(nodes)
        if products is None:
            parts = (torch.split(part.flatten(0, -2), _COPIED) for part in (asked, children))
            vectors, pairs = self.vectors, zip(*parts, strict=True)
            products = torch.cat([(vectors[below] @ rows[:, :, None])[:, :, 0] for rows, below in pairs])
            products = products.view(real.shape) * real
        return scores.scatter_add(-1, self.codes[children], products)

    def _products_by_node(self, asked: Tensor, nodes: Tensor) -> Tensor:
        """Multiply all that ask at a node with its children at once: nothing is copied, but nodes come one by one.

        Parameters
        ----------
        asked
            Shape (n, d).
        nodes
            Shape (n,).

        Returns
        -------
        Tensor
            Shape (n, most); 0 beyond a node's children.
        """
        vectors = cast(Tensor, self.vectors)
        ordered, order = nodes.sort(stable=True)
        at, counts = torch.unique_consecutive(ordered, return_counts=True)
        firsts, lasts = self.first[at].tolist(), self.first[at + 1].tolist()
        parts = [
            f.pad(rows @ vectors[first:last].T, (0, self.most - last + first))
            for rows, first, last in zip(torch.split(asked[order], counts.tolist()), firsts, lasts, strict=True)
        ]
        return torch.cat(parts)[order.argsort()]


class LevelDecoder(nn.Module):
    """Scores the codes of a level: a perceptron beside the state, then products with codes and cosines with nodes."""

    def __init__(self, branches: Branches, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.branches = branches
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.out_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, branches.size)
        self.dropout = Dropout(dropout)
        self.ask = None
        if branches.vectors is not None:
            self.ask = nn.Linear(width, branches.vectors.shape[1], bias=False)
            nn.init.normal_(self.ask.weight, std=0.02)
            self.scale = nn.Parameter(torch.tensor(_SCALE))

    def forward(self, state: Tensor, nodes: Tensor) -> Tensor:
        """Return scores, shape (..., width) to (..., codes), after the nodes that were reached, shape (...)."""
        wide = self.dropout(f.gelu(self.widen(self.norm(state))))
        state = self.dropout.added(state, self.narrow(wide))
        state = self.out_norm(state)
        scores: Tensor = self.out(state)
        if self.ask is None:
            return scores
        asked = f.normalize(self.ask(state), dim=-1) * self.scale
        return self.branches.add_products(scores, asked, nodes)


class OnePassModel(nn.Module):
    """The network.

    Parameters
    ----------
    codes
        The IDs of all items, shape (items, levels).
    sizes
        Codes of every level.
    width, hidden, heads, layers, dropout
        Of the Transformer.
    max_length
        The most items of a history.
    smoothing
        Share of the targets' probability that goes to all codes alike.
    forget
        Chance of an item of the history not to be read in a step of training.
    vectors
        Item vectors, shape (items, d), if there are any.
    read_vectors
        Whether they are projected and added to the tokens.
    write_vectors
        Whether they score what is written.
    read_items
        Whether a token also has a vector of the item's own.
    """

    codes: Tensor
    vectors: Tensor | None

    def __init__(
        self,
        codes: Tensor,
        sizes: Sequence[int],
        *,
        width: int = 128,
        hidden: int = 512,
        heads: int = 4,
        layers: int = 2,
        dropout: float = 0.2,
        max_length: int = 31,
        smoothing: float = 0.1,
        forget: float = 0.1,
        vectors: Tensor | None = None,
        read_vectors: bool = True,
        write_vectors: bool = True,
        read_items: bool = True,
    ) -> None:
        super().__init__()
        self.sizes, self.smoothing, self.forget = tuple(sizes), smoothing, forget
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.read_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.sizes)
        self.written_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.sizes[:-1])
        self.distances = nn.Parameter(torch.zeros(heads, max_length))  # added to attention, by how far back a token is
        self.layers = nn.ModuleList(CausalLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        ids, scored = SemanticIds(codes.numpy(), self.sizes), vectors if write_vectors else None
        self.decoders = nn.ModuleList(
            LevelDecoder(Branches(ids, level, scored), width, hidden, dropout) for level in range(len(self.sizes))
        )
        self.project = nn.Linear(vectors.shape[1], width) if vectors is not None and read_vectors else None
        self.dropout = Dropout(dropout)
        for table in (*self.read_tables, *self.written_tables):
            nn.init.normal_(table.weight, std=0.02)
        self.own = nn.Embedding(len(codes), width, sparse=len(codes) > _MANY_ITEMS) if read_items else None
        if self.own is not None:
            nn.init.zeros_(self.own.weight)

    def forward(self, batch: SequenceBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the cross-entropy of the codes of every position's next item, the mean over positions and levels' sum."""
        items = torch.from_numpy(batch.items).to(self.codes.device)
        trained = torch.from_numpy(batch.are_targets).to(items.device)
        states = self.states(items[:, :-1], generator)[trained]  # (targets, width)
        targets = items[:, 1:][trained]
        wanted = self.codes[targets]  # (targets, levels)
        nodes = torch.zeros_like(targets)
        terms = {}
        for level, decoder in enumerate(self._decoders()):
            loss = f.cross_entropy(decoder(states, nodes), wanted[:, level], label_smoothing=self.smoothing)
            terms[f"loss.{level + 1}"] = loss
            if level + 1 < len(self.sizes):
                states = states + self.written_tables[level](wanted[:, level])
                nodes = decoder.branches.node_of[targets]
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def states(self, items: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        real = items != PADDING
        known = items.clamp_min(0)
        codes = self.codes[known]
        tokens = torch.stack([table(codes[..., level]) for level, table in enumerate(self.read_tables)]).sum(dim=0)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + self.project(self.vectors[known])
        if self.own is not None:
            tokens = tokens + self.own(known)
        if generator is not None and self.training and self.forget:
            kept = torch.rand(items.shape, generator=generator).to(items.device) >= self.forget
            tokens = tokens * kept[..., None]
        hidden = self.dropout(tokens * real[..., None])
        place = torch.arange(items.shape[1], device=items.device)
        back = place[:, None] - place
        bias = self.distances[:, back.clamp_min(0)].masked_fill(back < 0, -torch.inf)  # (heads, length, length)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        normed: Tensor = self.norm(hidden)
        return normed

    def read(self, histories: Tensor) -> Tensor:
        """Return the state after each history, item indices with `PADDING` on the left; shape (users, width)."""
        items, lengths = padded_right(histories)
        return self.states(items)[torch.arange(len(items), device=items.device), (lengths - 1).clamp_min(0)]

    def next(self, memory: Tensor, written: Written | None, codes: Tensor | None) -> tuple[Tensor, Written]:
        """Return the log-probabilities of a level's codes after what every beam has written; see `T5Model.next`."""
        if written is None or codes is None:
            level, state = 0, memory[:, None]
            nodes = torch.zeros(state.shape[:2], dtype=torch.long, device=state.device)
        else:
            level, state = written.level + 1, written.state + self.written_tables[written.level](codes)
            nodes = self._decoders()[written.level].branches.follow(written.nodes, codes)
        return self._decoders()[level](state, nodes).log_softmax(dim=2), Written(level, state, nodes)

    def keep(self, written: Written, parents: Tensor) -> Written:
        """Return what the beams that are kept have written; parents says which they were, shape (users, beams)."""
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return Written(written.level, written.state[users, parents], written.nodes[users, parents])

    def _decoders(self) -> list[LevelDecoder]:
        return cast(list[LevelDecoder], list(self.decoders))
