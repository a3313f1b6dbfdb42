"""One-pass generator: one token per item, every position of a history is a target, and a light decoder per level.

The paper's generator reads one window per target and several tokens per item, which dominates its cost. Here the codes of an
item are fused to one token, a causal Transformer runs once over a history, and at every position the codes of the next item
are predicted level by level, each from the state and the codes before it.

If item embeddings are given, each code is scored twice: by a row of the level's output table, which has the same meaning
under every prefix, and by the cosine with the mean embedding of the items below the node that it leads to. The second term
only learns a linear map, so the generator is good after a few epochs.

The input may be richer than the output: besides its codes, a token has the projected item embedding, and a learned embedding
of the item that is initialized to zero and stays zero for items that training never saw.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, cast

import torch
import torch.nn.functional as f
from pydantic import Field
from torch import Tensor, nn

from resid.core.registry import register
from resid.core.settings import validated
from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.generate.base import Generator, GeneratorModel, GeneratorSettings
from resid.generate.prefix_tree import TreeLevel
from resid.nn import CausalLayer, Dropout, pad_right
from resid.quantize.ids import SemanticIds

_INITIAL_SCALE = 12.0  # of cosines
_SPARSE_FROM = 32_768  # items from which the item table has sparse gradients, so that the cost of a step does not grow
_COPIED_NODES = 128  # nodes whose children's vectors are copied at a time, so that they fit the processor's cache
_ONE_BY_ONE = 32  # vectors per node from which it pays to visit nodes one by one instead of copying


@validated
class OnePassSettings(GeneratorSettings):
    """Settings of the one-pass generator.

    Parameters
    ----------
    label_smoothing
        Of the cross-entropy of the codes.
    item_dropout
        Probability of an item of the history to be dropped from the input in a training step.
    output_embeddings
        Score a code also by the mean embedding of the items that it leads to.
    learned_item_embeddings
        Add a learned embedding of the item to its token.
    width, layers, heads, ffn_width, dropout, input_embeddings, beam_size, validation_users
        See `GeneratorSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`; a step reads histories with about `batch_size` targets in total.
    """

    renamed: ClassVar[dict[str, str]] = {
        "smoothing": "label_smoothing",
        "forget": "item_dropout",
        "write_vectors": "output_embeddings",
        "read_items": "learned_item_embeddings",
    }

    layers: Annotated[int, Field(ge=1)] = 2
    epochs: Annotated[int, Field(ge=1)] = 20
    batch_size: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    item_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    output_embeddings: bool = True
    learned_item_embeddings: bool = True
    patience: Annotated[int, Field(ge=0)] = 5

    @property
    def uses_embeddings(self) -> bool:
        """Whether the generator reads item embeddings."""
        return self.input_embeddings or self.output_embeddings


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
        hidden = self.dropout(f.gelu(self.ffn_in(self.norm(state))))
        state = self.dropout.add(state, self.ffn_out(hidden))
        state = self.out_norm(state)
        scores: Tensor = self.out(state)
        if self.query is None:
            return scores
        queries = f.normalize(self.query(state), dim=-1) * self.scale
        return self.branches.add_products(scores, queries, nodes)


class OnePassModel(GeneratorModel):
    """The network.

    Parameters
    ----------
    codes
        The IDs of all items, shape (items, levels).
    level_sizes
        Number of codes of every level.
    settings
        See `OnePassSettings`.
    max_length
        Maximum length of a history.
    vectors
        Item vectors, shape (items, d), if there are any.
    """

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: OnePassSettings,
        max_length: int = 31,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        s, width = settings, settings.width
        self.settings, self.level_sizes = settings, tuple(level_sizes)
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.input_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.level_sizes)
        self.code_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.level_sizes[:-1])
        self.distance_bias = nn.Parameter(torch.zeros(s.heads, max_length))  # of attention, by distance
        self.layers = nn.ModuleList(CausalLayer(width, s.heads, s.ffn_width, s.dropout) for _ in range(s.layers))
        self.norm = nn.LayerNorm(width)
        ids, scored = SemanticIds(codes.numpy(), self.level_sizes), vectors if s.output_embeddings else None
        self.decoders = nn.ModuleList(
            LevelDecoder(Branches(ids, level, scored), width, s.ffn_width, s.dropout)
            for level in range(len(self.level_sizes))
        )
        projected = vectors is not None and s.input_embeddings
        self.project = nn.Linear(cast(Tensor, vectors).shape[1], width) if projected else None
        self.dropout = Dropout(s.dropout)
        for table in (*self.input_tables, *self.code_tables):
            nn.init.normal_(table.weight, std=0.02)
        self.item_table = None
        if s.learned_item_embeddings:
            self.item_table = nn.Embedding(len(codes), width, sparse=len(codes) > _SPARSE_FROM)
            nn.init.zeros_(self.item_table.weight)

    def forward(self, batch: SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the cross-entropy of the next item's codes, averaged over positions and summed over levels."""
        items = torch.from_numpy(batch.items).to(self.codes.device)
        trained = torch.from_numpy(batch.are_targets).to(items.device)
        states = self.states(items[:, :-1], rng)[trained]  # (targets, width)
        targets = items[:, 1:][trained]
        labels = self.codes[targets]  # (targets, levels)
        nodes = torch.zeros_like(targets)
        terms = {}
        for level, decoder in enumerate(self._decoders()):
            loss = f.cross_entropy(
                decoder(states, nodes), labels[:, level], label_smoothing=self.settings.label_smoothing
            )
            terms[f"loss.{level + 1}"] = loss
            if level + 1 < len(self.level_sizes):
                states = states + self.code_tables[level](labels[:, level])
                nodes = decoder.branches.node_of[targets]
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def states(self, items: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        real = items != PADDING
        known = items.clamp_min(0)
        codes = self.codes[known]
        tokens = torch.stack([table(codes[..., level]) for level, table in enumerate(self.input_tables)]).sum(dim=0)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + self.project(self.vectors[known])
        if self.item_table is not None:
            tokens = tokens + self.item_table(known)
        if rng is not None and self.training and self.settings.item_dropout:
            kept = torch.rand(items.shape, generator=rng).to(items.device) >= self.settings.item_dropout
            tokens = tokens * kept[..., None]
        hidden = self.dropout(tokens * real[..., None])
        place = torch.arange(items.shape[1], device=items.device)
        distance = place[:, None] - place
        bias = self.distance_bias[:, distance.clamp_min(0)].masked_fill(
            distance < 0, -torch.inf
        )  # (heads, length, length)
        for layer in self.layers:
            hidden = layer(hidden, bias)
        states: Tensor = self.norm(hidden)
        return states

    def encode_histories(self, histories: Tensor) -> Tensor:
        """Return the state after each history, item indices with `PADDING` on the left; shape (users, width)."""
        items, lengths = pad_right(histories)
        return self.states(items)[torch.arange(len(items), device=items.device), (lengths - 1).clamp_min(0)]

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


@register("generator", "onepass")
class OnePassGenerator(Generator[OnePassSettings, OnePassModel]):
    """A causal Transformer over items, in which every position is a target; see `OnePassModel`.

    Parameters
    ----------
    settings
        See `OnePassSettings`.
    """

    settings_class = OnePassSettings

    def _network(
        self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int
    ) -> OnePassModel:
        return OnePassModel(codes, level_sizes, self.settings, max_length, vectors)

    def _batches(self, data: Dataset) -> SequenceBatches:
        s = self.settings
        return SequenceBatches(
            data.train, s.batch_size_for(len(data.train)), data.settings.max_length, count_targets=True, seed=s.seed
        )
