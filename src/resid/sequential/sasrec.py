"""SASRec: a causal Transformer over the history, whose last state is the query for the next item.

Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018. Positions are counted from the first item that is
read and padding is on the right, so a state depends only on its item and the items before it: one pass over a history is
equivalent to one window per target.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.registry import register
from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.nn import Dropout, EncoderLayer, pad_right
from resid.sequential.base import SequentialModel, SequentialRecommender, whole_histories
from resid.sequential.settings import SASRecSettings, TransformerSettings


class SASRecModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, field_sizes, settings
        See `SequentialModel`.
    max_length
        Maximum length of a history.
    """

    settings: TransformerSettings

    def __init__(
        self, codes: NDArray[np.integer], field_sizes: Sequence[int], settings: TransformerSettings, max_length: int
    ) -> None:
        super().__init__(codes, field_sizes, settings)
        self.positions = nn.Parameter(torch.empty(max_length, settings.width))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(settings.width, settings.heads, settings.ffn_width, settings.dropout)
            for _ in range(settings.layers)
        )
        initialize(self, self.positions)

    def forward(self, batch: SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the mean loss of the next item over all positions."""
        items = torch.from_numpy(batch.items).to(self.positions.device)
        trained = torch.from_numpy(batch.are_targets).to(items.device)
        states = self.states(items[:, :-1])[trained]
        return {"loss": self.loss(states, items[:, 1:][trained], rng)}

    def states(self, items: Tensor) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        return self.encode(self.tables.vectors(items.clamp_min(0)), None)

    def encode(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Return the Transformer's output, shape (users, length, width); `attend` as in `EncoderLayer`."""
        states: Tensor = self.layers[-1](self.all_but_last_layer(tokens, attend), attend)
        return states

    def all_but_last_layer(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Add positions and apply all layers but the last."""
        states: Tensor = self.dropout(self.norm(tokens + self.positions[: tokens.shape[1]]))
        for layer in self.layers[:-1]:
            states = layer(states, attend)
        return states

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """See `SequentialModel.query`; the last layer is computed for the last item only."""
        return self.last_states(histories, [self.layers[-1]])[0]

    def last_states(self, histories: Tensor, last_layers: Sequence[nn.Module]) -> list[Tensor]:
        """Return the state after each history for each of several last layers, shape (users, width)."""
        items, lengths = pad_right(histories)
        tokens = self.all_but_last_layer(self.tables.vectors(items.clamp_min(0)), None)
        rows = torch.arange(items.shape[0], device=items.device)
        return [layer.at(tokens, items != PADDING, rows, lengths - 1) for layer in last_layers]  # type: ignore[operator]


def initialize(model: nn.Module, *parameters: nn.Parameter) -> None:
    """Initialize linear layers and the given parameters from N(0, 0.02²), biases with zeros."""
    for parameter in parameters:
        nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


@register("recommender", "sasrec")
class SASRec(SequentialRecommender[SASRecSettings, SASRecModel]):
    """Self-attentive sequential recommendation; with ``use_fields=True`` in the settings, SASRec*.

    Parameters
    ----------
    settings
        See `SASRecSettings`.
    """

    settings_class = SASRecSettings

    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> SASRecModel:
        return SASRecModel(codes, field_sizes, self.settings, self.catalogue_.max_history)

    def _batches(self, data: Dataset) -> SequenceBatches:
        return whole_histories(data, self.settings)
