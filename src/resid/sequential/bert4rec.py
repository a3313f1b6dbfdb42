"""BERT4Rec: a bidirectional Transformer that fills in masked items; to recommend, a mask stands after the history.

Sun et al., "BERT4Rec: Sequential Recommendation with Bidirectional Encoder Representations from Transformer", CIKM 2019.
Half of the windows have their last item masked alone, as when it recommends; in the others each item may be. A masked item
is replaced whole, fields and all, by one vector.
"""

from collections.abc import Sequence
from typing import Annotated

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset
from resid.nn import Dropout, EncoderLayer
from resid.sequential.base import SequentialModel, VectorRecommender, windows
from resid.sequential.sasrec import initialize
from resid.sequential.settings import TransformerSettings
from resid.core.settings import checked


@checked
class BERT4RecSettings(TransformerSettings):
    """Settings of BERT4Rec.

    Parameters
    ----------
    mask_share
        Chance of an item to be masked, in the windows that are not masked at their end alone.
    last_share
        Chance of a window to have its last item masked alone.
    width, layers, heads, hidden, dropout, fields, target, loss, similarity, negatives, share_negatives
        See `TransformerSettings`.
    full_softmax_up_to, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    last_share: Annotated[float, Field(ge=0, le=1)] = 0.5


class BERT4RecModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, sizes, settings
        See `SequentialModel`.
    max_length
        The most items of a window, its target included.
    """

    settings: BERT4RecSettings

    def __init__(
        self, codes: NDArray[np.integer], sizes: Sequence[int], settings: BERT4RecSettings, max_length: int
    ) -> None:
        super().__init__(codes, sizes, settings)
        self.positions = nn.Parameter(torch.empty(max_length, settings.width))
        self.mask = nn.Parameter(torch.empty(settings.width))
        self.norm = nn.LayerNorm(settings.width)
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(settings.width, settings.heads, settings.hidden, settings.dropout)
            for _ in range(settings.layers)
        )
        self.head = nn.Linear(settings.width, settings.width)
        self.head_norm = nn.LayerNorm(settings.width)
        initialize(self, self.positions, self.mask)

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of the masked items, the mean over them."""
        window = np.concatenate([batch.histories, batch.targets[:, None]], axis=1)
        items = torch.from_numpy(window).to(self.positions.device)
        masked = self.draw_masks(items, generator)
        return {"loss": self.loss(self.states(items, masked), items[masked], generator)}

    def draw_masks(self, items: Tensor, generator: torch.Generator) -> Tensor:
        """Draw which items of windows are masked, one in each at least; boolean, shape (windows, length)."""
        chances = torch.rand(items.shape, generator=generator).to(items.device)
        last_alone = torch.rand(len(items), generator=generator).to(items.device) < self.settings.last_share
        masked = (chances < self.settings.mask_share) & (items != PADDING) & ~last_alone[:, None]
        masked[:, -1] |= ~masked.any(dim=1)
        return masked

    def states(self, items: Tensor, masked: Tensor) -> Tensor:
        """Return what is made of the masked items of windows, one after the other.

        Parameters
        ----------
        items
            Item indices, `PADDING` on the left, shape (windows, length).
        masked
            Which of them are masked, boolean, of the same shape.

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
        asked: Tensor = self.head_norm(f.gelu(self.head(states)))
        return asked

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """Put a mask after each history; see `SequentialModel.query`."""
        items = f.pad(histories, (0, 1), value=0)  # what stands under the mask is not looked at
        masked = torch.zeros_like(items, dtype=torch.bool)
        masked[:, -1] = True
        return self.states(items, masked)


class BERT4Rec(VectorRecommender[BERT4RecSettings, BERT4RecModel]):
    """Bidirectional encoder representations for recommendation; with ``fields=True`` in the settings, BERT4Rec*.

    Parameters
    ----------
    settings
        See `BERT4RecSettings`.
    """

    name = "bert4rec"
    settings_class = BERT4RecSettings

    def _network(self, codes: NDArray[np.integer], sizes: Sequence[int]) -> BERT4RecModel:
        return BERT4RecModel(codes, sizes, self.settings, self.catalogue_.max_history + 1)

    def _batches(self, data: Dataset) -> Batches:
        return windows(data, self.settings)
