"""FAMAE, the E-stage of ReSID: learn field embeddings by predicting masked fields of the next item from the history.

Section "Field-Aware Masked Auto-Encoding" of the paper. A token is the sum of an item's field embeddings and a position.
The target stands last; a random part of its fields is replaced by mask vectors, and what the Transformer makes of it,
h_T, is compared with the embeddings of every candidate value by scaled cosine. The item-ID is the first field.

For comparison, "random" masks several positions of the window instead, as BERT does.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.data.batches import PADDING, Batch
from resid.nn import Dropout, EncoderLayer, FieldTables
from resid.nn.losses import draw_candidates, sampled_softmax

_RANDOM_SHARE = 0.2  # of the positions that "random" masks, as in BERT4Rec


class FamaeModel(nn.Module):
    """The network and its loss.

    Parameters
    ----------
    codes
        The field codes of every item, the item-ID first, shape (items, J).
    sizes
        The number of codes of each field, by name, the item-ID first; J of them.
    max_length
        The longest window, target included.
    width, layers, heads, hidden, dropout
        Of the Transformer.
    weights
        The α_k of the loss, length J; all 1 by default.
    negatives
        Candidates drawn for a field whose vocabulary is not scored whole.
    share_negatives
        So many targets share the candidates that are drawn.
    full_softmax_up_to
        Vocabularies of at most this size are scored whole. Larger tables get sparse gradients, so that a step's cost
        does not grow with them.
    masking
        ``"last"`` masks fields of the target alone, ``"random"`` those of a fifth of all positions.
    """

    def __init__(
        self,
        codes: NDArray[np.integer],
        sizes: Mapping[str, int],
        *,
        max_length: int = 32,
        width: int = 128,
        layers: int = 2,
        heads: int = 4,
        hidden: int = 512,
        dropout: float = 0.1,
        weights: Sequence[float] | None = None,
        negatives: int = 128,
        share_negatives: int = 32,
        full_softmax_up_to: int = 32_768,
        masking: Literal["last", "random"] = "last",
    ) -> None:
        super().__init__()
        self.names = tuple(sizes)
        self.sizes = tuple(sizes.values())
        self.masking = masking
        self.negatives = negatives
        self.weights = tuple(weights) if weights is not None else (1.0,) * len(self.sizes)
        self.share_negatives = share_negatives
        self.sampled = tuple(size > full_softmax_up_to for size in self.sizes)
        self.tables = FieldTables(codes, self.sizes, width, self.sampled)
        self.masks = nn.Parameter(torch.empty(len(self.sizes), width))  # m_j
        self.positions = nn.Parameter(torch.empty(max_length, width))
        self.dropout = Dropout(dropout)
        self.layers = nn.ModuleList(EncoderLayer(width, heads, hidden, dropout) for _ in range(layers))
        for parameter in (self.masks, self.positions):
            nn.init.normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def embeddings(self) -> list[nn.Embedding]:
        """Return the tables of the fields, the item-ID first, each of shape (values, width)."""
        return self.tables.embeddings()

    @property
    def codes(self) -> Tensor:
        """The field codes of every item, shape (items, J)."""
        return self.tables.codes

    @property
    def n_fields(self) -> int:
        """J, the item-ID included."""
        return len(self.sizes)

    def draw_masks(self, count: int, generator: torch.Generator) -> Tensor:
        """Draw the masked fields: K ~ U{1..J}, then a random K-subset. Boolean, shape (count, J)."""
        ranks = torch.rand(count, self.n_fields, generator=generator).argsort(dim=1).argsort(dim=1)
        masked = torch.randint(1, self.n_fields + 1, (count, 1), generator=generator)
        return (ranks < masked).to(self.codes.device)

    def windows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the histories of a batch, shape (batch, length), and the field codes of its targets, (batch, J)."""
        device = self.codes.device
        return torch.from_numpy(batch.histories).to(device), self.codes[torch.from_numpy(batch.targets).to(device)]

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch, and its part for each field, "loss.item" being the item-ID's."""
        histories, targets = self.windows(batch)
        if self.masking == "random":
            hidden, targets, masked = self.hidden_at_random(histories, targets, generator)
        else:
            masked = self.draw_masks(len(targets), generator)
            hidden = self.hidden(histories, targets, masked)
        return self.loss(hidden, targets, masked, self.draw_negatives(len(targets), generator))

    def hidden(self, histories: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        """Return h_T, shape (batch, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (batch, length).
        targets
            Field codes of the target, shape (batch, J); those that are masked are not looked at.
        masked
            Which fields are hidden, boolean, shape (batch, J).
        """
        tokens, attend = self.tokens(histories, targets, masked)
        for layer in self.layers[:-1]:
            tokens = layer(tokens, attend)
        last: Tensor = self.layers[-1](tokens, attend, last_only=True)  # only h_T is needed
        return last[:, 0]

    def attention(self, histories: Tensor, targets: Tensor, masked: Tensor) -> list[Tensor]:
        """Return the target's attention weights in every layer, each of shape (batch, heads, length + 1)."""
        tokens, attend = self.tokens(histories, targets, masked)
        weights = []
        for layer in self.layers:
            weights.append(layer.attention_of_last(tokens, attend))  # type: ignore[operator]
            tokens = layer(tokens, attend)
        return weights

    def hidden_at_random(
        self, histories: Tensor, targets: Tensor, generator: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mask fields at random positions, one at least in every window, the target's among them by chance.

        Returns
        -------
        hidden, codes, masked
            Of the masked positions: what the Transformer makes of them, shape (positions, width), their field codes and
            which are hidden, shape (positions, J).
        """
        attend = f.pad(histories != PADDING, (0, 1), value=True)
        codes = torch.cat([self.codes[histories.clamp_min(0)], targets[:, None]], dim=1)  # (batch, length + 1, J)
        chosen = attend & (torch.rand(attend.shape, generator=generator) < _RANDOM_SHARE).to(attend.device)
        chosen[:, -1] |= ~chosen.any(dim=1)
        masked = torch.zeros_like(codes, dtype=torch.bool)
        masked[chosen] = self.draw_masks(int(chosen.sum()), generator)
        tokens = self.place(self.fuse(codes, masked))
        for layer in self.layers:
            tokens = layer(tokens, attend)
        return tokens[chosen], codes[chosen], masked[chosen]

    def tokens(self, histories: Tensor, targets: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input tokens, shape (batch, length + 1, width), and which of them are real."""
        real = histories != PADDING
        items, where = torch.unique(histories[real], return_inverse=True)  # an item that stands often is fused once
        vectors = self.tables.vectors(items)
        tokens = vectors.new_zeros(*histories.shape, vectors.shape[1])
        tokens[real] = vectors[where]
        tokens = torch.cat([tokens, self.fuse(targets, masked)[:, None]], dim=1)
        return self.place(tokens), f.pad(real, (0, 1), value=True)

    def fuse(self, codes: Tensor, masked: Tensor) -> Tensor:
        """Sum the field embeddings, with mask vectors for what is hidden; from shape (..., J) to (..., width)."""
        fused = self.masks.new_zeros(())
        for field, table in enumerate(self.embeddings()):
            hide = masked[..., field]
            vectors = table(codes[..., field].masked_fill(hide, 0))
            fused = fused + torch.where(hide[..., None], self.masks[field], vectors)
        return fused

    def place(self, tokens: Tensor) -> Tensor:
        """Add the positions, of which the last is always the target's; shape (batch, length, width)."""
        placed: Tensor = self.dropout(tokens + self.positions[-tokens.shape[1] :])
        return placed

    def draw_negatives(self, count: int, generator: torch.Generator) -> list[Tensor | None]:
        """Draw candidates for the fields that are not scored whole, for so many targets.

        Returns
        -------
        list
            For each field None, or candidates as `draw_candidates` gives them, shape (groups, negatives).
        """
        how = (self.negatives, self.share_negatives, generator)
        return [
            draw_candidates(count, size, *how).to(self.codes.device) if sampled else None
            for size, sampled in zip(self.sizes, self.sampled, strict=True)
        ]

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        masked: Tensor,
        negatives: Sequence[Tensor | None],
        units: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return Σ_{k masked} α_k · (−log q_k), the mean over the batch, and its terms.

        Parameters
        ----------
        hidden
            h_T, shape (batch, width).
        targets, masked
            Field codes and which are hidden, shape (batch, J).
        negatives
            For each field None, to score its whole vocabulary, or candidates as `draw_negatives` gives them; a candidate
            that is the target itself does not count.
        units
            The tables' rows at length 1, if they are at hand.
        """
        scale = hidden.shape[1] ** 0.5
        queries = f.normalize(hidden, dim=1) * scale  # so that a product with a unit vector is √d·cos
        terms: dict[str, Tensor] = {}
        for field, table in enumerate(self.embeddings()):
            rows, drawn = masked[:, field], negatives[field]
            if drawn is None:
                unit = units[field] if units else f.normalize(table.weight, dim=1)
                logits = queries[rows] @ unit.T
                summed = f.cross_entropy(logits, targets[rows, field], reduction="sum")
            else:
                own, others = (f.normalize(table(values), dim=-1) for values in (targets[:, field], drawn))
                summed = sampled_softmax(queries, targets[:, field], own, others, drawn)[rows].sum()
            terms[f"loss.{self.names[field]}"] = summed / len(hidden)
        weighted = [weight * term for weight, term in zip(self.weights, terms.values(), strict=True)]
        return {"loss": torch.stack(weighted).sum(), **terms}
