"""SASRec: a causal Transformer over the history, whose last state looks for the next item.

Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018. Positions are counted from the first item that is
read, and padding stands on the right, so the state after an item depends on that item and those before it alone: one pass
over a history is the same as a window for each of its targets.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.nn import Dropout, EncoderLayer, padded_right
from resid.sequential.base import SequentialModel, VectorRecommender, whole_histories
from resid.sequential.settings import TransformerSettings
from resid.core.settings import checked


@checked
class SASRecSettings(TransformerSettings):
    """Settings of SASRec; see `TransformerSettings`."""


class SASRecModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, sizes, settings
        See `SequentialModel`.
    max_length
        The most items of a history.
    """

    settings: TransformerSettings

    def __init__(
        self, codes: NDArray[np.integer], sizes: Sequence[int], settings: TransformerSettings, max_length: int
    ) -> None:
        super().__init__(codes, sizes, settings)
        self.positions = nn.Parameter(torch.empty(max_length, settings.width))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(settings.width, settings.heads, settings.hidden, settings.dropout)
            for _ in range(settings.layers)
        )
        initialize(self, self.positions)

    def forward(self, batch: SequenceBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of every position's next item, the mean over positions."""
        items = torch.from_numpy(batch.items).to(self.positions.device)
        trained = torch.from_numpy(batch.are_targets).to(items.device)
        states = self.states(items[:, :-1])[trained]
        return {"loss": self.loss(states, items[:, 1:][trained], generator)}

    def states(self, items: Tensor) -> Tensor:
        """Return the state after every item, shape (users, length) to (users, length, width); padding is on the right."""
        return self.encode(self.tables.vectors(items.clamp_min(0)), None)

    def encode(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Put tokens through the Transformer, shape (users, length, width); see `EncoderLayer` for what may be looked at."""
        states: Tensor = self.layers[-1](self.below(tokens, attend), attend)
        return states

    def below(self, tokens: Tensor, attend: Tensor | None) -> Tensor:
        """Place tokens, and put them through all layers but the last."""
        states: Tensor = self.dropout(self.norm(tokens + self.positions[: tokens.shape[1]]))
        for layer in self.layers[:-1]:
            states = layer(states, attend)
        return states

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """See `SequentialModel.query`; the last layer is computed for the last item alone, which may look at all."""
        items, lengths = padded_right(histories)
        tokens = self.below(self.tables.vectors(items.clamp_min(0)), None)
        rows = torch.arange(len(items), device=items.device)
        last: Tensor = self.layers[-1].at(tokens, items != PADDING, rows, lengths - 1)  # type: ignore[operator]
        return last


def initialize(model: nn.Module, *parameters: nn.Parameter) -> None:
    """Draw the weights of linear layers, and these parameters, from a narrow normal distribution; biases are zero."""
    for parameter in parameters:
        nn.init.normal_(parameter, std=0.02)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            nn.init.zeros_(module.bias)


class SASRec(VectorRecommender[SASRecSettings, SASRecModel]):
    """Self-attentive sequential recommendation; with ``fields=True`` in the settings, SASRec*.

    Parameters
    ----------
    settings
        See `SASRecSettings`.
    """

    name = "sasrec"
    settings_class = SASRecSettings

    def _network(self, codes: NDArray[np.integer], sizes: Sequence[int]) -> SASRecModel:
        return SASRecModel(codes, sizes, self.settings, self.catalogue_.max_history)

    def _batches(self, data: Dataset) -> SequenceBatches:
        return whole_histories(data, self.settings)
