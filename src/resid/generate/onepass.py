"""One-pass generator: one token per item, every position of a history is a target, and a light decoder per level.

The paper's generator reads one window per target and several tokens per item, which dominates its cost. Here the codes of an
item are fused to one token, a causal Transformer runs once over a history, and at every position the codes of the next item
are predicted level by level; see `resid.generate.levelwise`.

The input may be richer than the output: besides its codes, a token has the projected item embedding, and a learned embedding
of the item that is initialized to zero and stays zero for items that training never saw.
"""

from collections.abc import Sequence
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.registry import register
from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.data.new_items import NewItems
from resid.generate.base import Generator
from resid.generate.levelwise import LevelwiseModel, make_decoders
from resid.generate.settings import OnePassSettings
from resid.nn import CausalLayer, Dropout, pad_right
from resid.quantize.ids import SemanticIds
from resid.train.weights import weight_name

_SPARSE_FROM = 32_768  # items from which the item table has sparse gradients, so that the cost of a step does not grow


class OnePassModel(LevelwiseModel):
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
    n_fitted
        The number of items that the decoders know, all by default; later ones were added to a fitted model.
    """

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: OnePassSettings,
        max_length: int = 31,
        vectors: Tensor | None = None,
        n_fitted: int | None = None,
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
        # Without added items, so that these change no score of the others.
        ids = SemanticIds(codes[:n_fitted].numpy(), self.level_sizes)
        scored = vectors[:n_fitted] if vectors is not None and s.output_embeddings else None
        self.decoders = make_decoders(ids, scored, width, s.ffn_width, s.dropout)
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
        terms = self.code_losses(states, targets, self.settings.label_smoothing, self.settings.temperature)
        return {"loss": torch.stack(list(terms.values())).sum(), **terms}

    def states(self, items: Tensor, rng: torch.Generator | None = None) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        real = items != PADDING
        tokens = self._tokens(items.clamp_min(0))
        if rng is not None and self.training and self.settings.item_dropout:
            kept = torch.rand(items.shape, generator=rng).to(items.device) >= self.settings.item_dropout
            tokens = tokens * kept[..., None]
        hidden, bias = self.dropout(tokens * real[..., None]), self._attention_bias(items.shape[1])
        for layer in self.layers:
            hidden = layer(hidden, bias)
        states: Tensor = self.norm(hidden)
        return states

    def encode_histories(self, histories: Tensor) -> Tensor:
        """Return the state after each history, item indices with `PADDING` on the left; shape (users, width).

        Padding is left out, and the last layer computes the last state only.
        """
        items, lengths = pad_right(histories)
        real, last = items != PADDING, lengths.cumsum(dim=0) - 1
        hidden, bias = self._tokens(items[real]), self._attention_bias(items.shape[1])
        for layer in cast(list[CausalLayer], list(self.layers)):
            hidden = layer.packed(hidden, real, bias, last if layer is self.layers[-1] else None)
        states: Tensor = self.norm(hidden)
        return states

    def _tokens(self, items: Tensor) -> Tensor:
        """Return the tokens of items, shape (...) to (..., width)."""
        codes = self.codes[items]
        tokens = torch.stack([table(codes[..., level]) for level, table in enumerate(self.input_tables)]).sum(dim=0)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + self.project(self.vectors[items])
        return tokens if self.item_table is None else tokens + self.item_table(items)

    def _attention_bias(self, length: int) -> Tensor:
        """Return the bias of attention by distance, -inf for later items; shape (heads, length, length)."""
        place = torch.arange(length, device=self.distance_bias.device)
        distance = place[:, None] - place
        return self.distance_bias[:, distance.clamp_min(0)].masked_fill(distance < 0, -torch.inf)


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
        return OnePassModel(codes, level_sizes, self.settings, max_length, vectors, self.n_decoded)

    def _new_rows(self, new: NewItems) -> dict[str, NDArray[np.float32]]:
        """Return zeros, as the learned embedding of an item that training never saw is zero."""
        table = self.model_.item_table
        zeros = np.zeros((len(new), self.settings.width), dtype=np.float32)
        return {weight_name(self.model_, table.weight): zeros} if table is not None else {}

    def _batches(self, data: Dataset) -> SequenceBatches:
        s = self.settings
        return SequenceBatches(
            data.train, s.batch_size_for(len(data.train)), data.settings.max_length, count_targets=True, seed=s.seed
        )
