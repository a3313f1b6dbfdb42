"""OnePassGenerator: one token per item, every position of a history a target, a light decoder per level.

The paper's generator sees one window per target and several tokens per item, which is most of what it costs. Here the codes
of an item are fused to one token, a causal Transformer goes once over a history, and from its state at any position the
next item's codes are written level by level, each from the state and the codes written before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import PADDING, SequenceBatch
from resid.nn import CausalLayer, Dropout


@dataclass
class Written:
    """What beams have written so far: the level of the last scores, and the vector that they were made from.

    The vector, shape (users, beams, width), is the state of the history with the codes that were taken added to it.
    """

    level: int
    state: Tensor


class LevelDecoder(nn.Module):
    """Scores the codes of a level: a perceptron beside the state, then the product with the level's codes."""

    def __init__(self, width: int, hidden: int, size: int, dropout: float) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.out_norm = nn.LayerNorm(width)
        self.out = nn.Linear(width, size)
        self.dropout = Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        """Return scores, shape (..., width) to (..., size)."""
        state = state + self.dropout(self.narrow(self.dropout(f.gelu(self.widen(self.norm(state))))))
        scores: Tensor = self.out(self.out_norm(state))
        return scores


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
        Item vectors, shape (items, d), that are projected and added to the tokens; None reads codes alone.
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
        layers: int = 4,
        dropout: float = 0.4,
        max_length: int = 31,
        smoothing: float = 0.1,
        forget: float = 0.1,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.sizes, self.smoothing, self.forget = tuple(sizes), smoothing, forget
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.read_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.sizes)
        self.written_tables = nn.ModuleList(nn.Embedding(size, width) for size in self.sizes[:-1])
        self.positions = nn.Parameter(torch.empty(max_length, width))
        self.layers = nn.ModuleList(CausalLayer(width, heads, hidden, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.decoders = nn.ModuleList(LevelDecoder(width, hidden, size, dropout) for size in self.sizes)
        self.project = nn.Linear(vectors.shape[1], width) if vectors is not None else None
        self.dropout = Dropout(dropout)
        for table in (*self.read_tables, *self.written_tables):
            nn.init.normal_(table.weight, std=0.02)
        nn.init.normal_(self.positions, std=0.02)

    def forward(self, batch: SequenceBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the cross-entropy of the codes of every position's next item, the mean over positions and levels' sum."""
        items = torch.from_numpy(batch.items).to(self.codes.device)
        real = items[:, 1:] != PADDING  # positions that have a next item
        states = self.states(items[:, :-1], generator)[real]  # (targets, width)
        wanted = self.codes[items[:, 1:][real]]  # (targets, levels)
        terms = {}
        for level in range(len(self.sizes)):
            logits = self.decoders[level](states)
            loss = f.cross_entropy(logits, wanted[:, level], label_smoothing=self.smoothing)
            terms[f"loss.{level + 1}"] = loss
            if level + 1 < len(self.sizes):
                states = states + self.written_tables[level](wanted[:, level])
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def states(self, items: Tensor, generator: torch.Generator | None = None) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        real = items != PADDING
        known = items.clamp_min(0)
        codes = self.codes[known]
        tokens = torch.stack([table(codes[..., level]) for level, table in enumerate(self.read_tables)]).sum(dim=0)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + self.project(self.vectors[known])
        if generator is not None and self.training and self.forget:
            kept = torch.rand(items.shape, generator=generator).to(items.device) >= self.forget
            tokens = tokens * kept[..., None]
        hidden = self.dropout((tokens + self.positions[: items.shape[1]]) * real[..., None])
        for layer in self.layers:
            hidden = layer(hidden)
        normed: Tensor = self.norm(hidden)
        return normed

    def read(self, histories: Tensor) -> Tensor:
        """Return the state after each history, item indices with `PADDING` on the left; shape (users, width)."""
        lengths = (histories != PADDING).sum(dim=1)
        place = torch.arange(histories.shape[1], device=histories.device)
        shifted = (place + histories.shape[1] - lengths[:, None]) % max(1, histories.shape[1])
        states = self.states(histories.gather(1, shifted))  # the items first, padding after them
        return states[torch.arange(len(histories), device=histories.device), (lengths - 1).clamp_min(0)]

    def next(self, memory: Tensor, written: Written | None, codes: Tensor | None) -> tuple[Tensor, Written]:
        """Return the log-probabilities of a level's codes after what every beam has written; see `T5Model.next`."""
        if written is None or codes is None:
            level, state = 0, memory[:, None]
        else:
            level, state = written.level + 1, written.state + self.written_tables[written.level](codes)
        return self.decoders[level](state).log_softmax(dim=2), Written(level, state)

    def keep(self, written: Written, parents: Tensor) -> Written:
        """Return what the beams that are kept have written; parents says which they were, shape (users, beams)."""
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return Written(written.level, written.state[users, parents])
