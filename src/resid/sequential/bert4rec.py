"""BERT4Rec: a bidirectional Transformer that predicts masked items; at inference a mask follows the history.

Sun et al., "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from Transformer", CIKM 2019.
In half of the windows only the last item is masked, as at inference; in the others every item may be masked. A masked item,
with all its fields, is replaced by one mask embedding.
"""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.registry import register
from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset
from resid.nn import Dropout, EncoderLayer
from resid.sequential.base import SequentialModel, SequentialRecommender, windows
from resid.sequential.sasrec import initialize
from resid.sequential.settings import BERT4RecSettings


class BERT4RecModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, field_sizes, settings
        See `SequentialModel`.
    max_length
        Maximum length of a window, including its target.
    """

    settings: BERT4RecSettings

    def __init__(
        self, codes: NDArray[np.integer], field_sizes: Sequence[int], settings: BERT4RecSettings, max_length: int
    ) -> None:
        super().__init__(codes, field_sizes, settings)
        self.positions = nn.Parameter(torch.empty(max_length, settings.width))
        self.mask = nn.Parameter(torch.empty(settings.width))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(settings.width, settings.heads, settings.ffn_width, settings.dropout)
            for _ in range(settings.layers)
        )
        self.head = nn.Linear(settings.width, settings.width)
        self.head_norm = nn.LayerNorm(settings.width)
        initialize(self, self.positions, self.mask)

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the mean loss over the masked items."""
        window = np.concatenate([batch.histories, batch.targets[:, None]], axis=1)
        items = torch.from_numpy(window).to(self.positions.device)
        masked = self.draw_masks(items, rng)
        return {"loss": self.loss(self.states(items, masked), items[masked], rng)}

    def draw_masks(self, items: Tensor, rng: torch.Generator) -> Tensor:
        """Draw which items are masked, at least one per window; boolean, shape (windows, length)."""
        chances = torch.rand(items.shape, generator=rng).to(items.device)
        last_only = torch.rand(len(items), generator=rng).to(items.device) < self.settings.last_only_prob
        masked = (chances < self.settings.mask_prob) & (items != PADDING) & ~last_only[:, None]
        masked[:, -1] |= ~masked.any(dim=1)
        return masked

    def states(self, items: Tensor, masked: Tensor) -> Tensor:
        """Return the output states of the masked items.

        Parameters
        ----------
        items
            Item indices, `PADDING` on the left, shape (windows, length).
        masked
            Which items are masked, boolean, same shape.

        Returns
        -------
        Tensor
            Shape (masked items, width).
        """
        real = items != PADDING
        tokens = torch.where(masked[..., None], self.mask, self.tables.vectors(items.clamp_min(0)))
        tokens = self.dropout(self.norm(tokens + self.positions[-items.shape[1] :]))
        for layer in self.layers[:-1]:
            tokens = layer(tokens, real)
        states = self.layers[-1].at(tokens, real, *masked.nonzero(as_tuple=True))  # type: ignore[operator]
        queries: Tensor = self.head_norm(f.gelu(self.head(states)))
        return queries

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """Append a mask to each history; see `SequentialModel.query`."""
        items = f.pad(histories, (0, 1), value=0)  # masked, so the item does not matter
        masked = torch.zeros_like(items, dtype=torch.bool)
        masked[:, -1] = True
        return self.states(items, masked)


@register("recommender", "bert4rec")
class BERT4Rec(SequentialRecommender[BERT4RecSettings, BERT4RecModel]):
    """Bidirectional encoder representations for recommendation; with ``use_fields=True`` in the settings, BERT4Rec*.

    Parameters
    ----------
    settings
        See `BERT4RecSettings`.
    """

    settings_class = BERT4RecSettings

    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> BERT4RecModel:
        return BERT4RecModel(codes, field_sizes, self.settings, self.catalogue_.max_history + 1)

    def _batches(self, data: Dataset) -> Batches:
        return windows(data, self.settings)
