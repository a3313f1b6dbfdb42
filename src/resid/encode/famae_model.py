"""The network of FAMAE: its input tokens, the Transformer and the loss.

Section "Field-Aware Masked Auto-Encoding" of the paper. A token is the sum of an item's field embeddings. The target follows
the history; a random subset of its fields is replaced by mask embeddings, and the output h_T at its position is compared with
the embeddings of all candidate values by scaled cosine. The item ID is the first field. The embedding of a field with tags is
the mean over the item's tags, and its loss is the mean of their cross-entropies: −log q of a tag drawn at random, in
expectation. In the shapes below, field codes (..., J) have one more axis if there are tags, see `resid.nn.fields`.

There are two forms of attention:

- ``"bidirectional"``, the paper's: a window per target, whose tokens all see each other and have position embeddings.
- ``"causal"``: the items of a history see the items before them, and a target sees its history and itself. All targets of a
  history are trained in one pass, which gives the same loss as one window per target, except that a history longer than the
  window is cut into overlapping pieces. Positions are biases of the attention by distance, as they must not depend on the
  target.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.errors import InputError
from resid.data.batches import PADDING, Batch, SequenceBatch
from resid.encode.settings import FamaeSettings
from resid.nn import Dropout, EncoderLayer, FieldTables, normalize, value_weights
from resid.nn.losses import full_softmax_loss, sample_negatives, sampled_softmax_loss
from resid.train import TrainableModule

_RANDOM_MASK_PROB = 0.2  # of positions, with masking="random", as in BERT4Rec


class FamaeModel(TrainableModule):
    """The network and its loss.

    Parameters
    ----------
    codes
        The field codes of every item, the item ID first, shape (items, J) or (items, J, values).
    field_sizes
        The vocabulary size of each field by name, the item ID first, length J.
    settings
        See `FamaeSettings`.
    max_length
        Maximum length of a window, including its target.
    """

    def __init__(
        self, codes: NDArray[np.integer], field_sizes: Mapping[str, int], settings: FamaeSettings, max_length: int = 32
    ) -> None:
        super().__init__()
        if settings.field_weights is not None and len(settings.field_weights) != len(field_sizes):
            raise InputError(
                f"field_weights has {len(settings.field_weights)} values; give one for each of {', '.join(field_sizes)}."
            )
        self.settings, self.field_names, self.field_sizes = settings, tuple(field_sizes), tuple(field_sizes.values())
        self.weights = settings.field_weights or (1.0,) * len(self.field_sizes)
        self.sampled = tuple(size > settings.full_softmax_limit for size in self.field_sizes)
        width = settings.width
        self.tables = FieldTables(codes, self.field_sizes, width, self.sampled)
        self.masks = nn.Parameter(torch.empty(len(self.field_sizes), width))  # m_j
        if settings.attention == "causal":
            self.distance_bias = nn.Parameter(torch.zeros(settings.layers, settings.heads, max_length))
        else:
            self.positions = nn.Parameter(torch.empty(max_length, width))
            nn.init.normal_(self.positions, std=0.02)
        self.max_length = max_length
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(width, settings.heads, settings.ffn_width, settings.dropout) for _ in range(settings.layers)
        )
        nn.init.normal_(self.masks, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def embeddings(self) -> list[nn.Embedding]:
        """Return the embedding tables of the fields, the item ID first, each of shape (values, width)."""
        return self.tables.embeddings()

    @property
    def codes(self) -> Tensor:
        """The field codes of every item, shape (items, J)."""
        return self.tables.codes

    @property
    def n_fields(self) -> int:
        """J, including the item ID."""
        return len(self.field_sizes)

    def draw_masks(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw the masked fields: K ~ U{1..J}, then a random K-subset. Boolean, shape (count, J)."""
        ranks = torch.rand(count, self.n_fields, generator=rng).argsort(dim=1).argsort(dim=1)
        masked = torch.randint(1, self.n_fields + 1, (count, 1), generator=rng)
        return (ranks < masked).to(self.codes.device)

    def all_masked(self, count: int) -> Tensor:
        """Return masks of all fields, boolean, shape (count, J)."""
        return torch.ones(count, self.n_fields, dtype=torch.bool, device=self.codes.device)

    def windows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the histories of a batch, shape (batch, length), and the field codes of its targets, (batch, J)."""
        device = self.codes.device
        return torch.from_numpy(batch.histories).to(device), self.codes[torch.from_numpy(batch.targets).to(device)]

    def forward(self, batch: Batch | SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch and its term for each field; "loss.item" is the item ID."""
        if isinstance(batch, SequenceBatch):
            items = torch.from_numpy(batch.items).to(self.codes.device)
            trained = torch.from_numpy(batch.are_targets).to(items.device)
            targets = self.codes[items[:, 1:].clamp_min(0)]
            masked = self.draw_masks(trained.numel(), rng).view(*trained.shape, self.n_fields)
            hidden = self.hidden_in_one_pass(items, masked)[trained]
            targets, masked = targets[trained], masked[trained]
        elif self.settings.masking == "random":
            hidden, targets, masked = self.hidden_at_random(*self.windows(batch), rng)
        else:
            histories, targets = self.windows(batch)
            masked = self.draw_masks(len(targets), rng)
            hidden = self.hidden(histories, targets, masked)
        return self.loss(hidden, targets, masked, self.draw_negatives(len(targets), rng))

    def hidden(self, histories: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        """Return h_T, shape (batch, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (batch, length).
        targets
            Field codes of the target, shape (batch, J); masked ones are not read.
        masked
            Which fields are masked, boolean, shape (batch, J).
        """
        return self.encode(*self.tokens(histories, targets, masked), n_last=1)[:, 0]

    def hidden_in_one_pass(self, items: Tensor, masked: Tensor) -> Tensor:
        """Return h_T of every item but the first as the target of the items before it; causal attention only.

        Parameters
        ----------
        items
            Item indices, `PADDING` on the right, shape (users, length).
        masked
            Which fields of the targets are masked, boolean, shape (users, length - 1, J).

        Returns
        -------
        Tensor
            Shape (users, length - 1, width).
        """
        history, targets = items[:, :-1].clamp_min(0), items[:, 1:].clamp_min(0)
        n_read = history.shape[1]
        tokens = torch.cat([self.tables.vectors(history), self.fuse(self.codes[targets], masked)], dim=1)
        place = torch.arange(n_read, device=items.device)
        place, is_target = torch.cat([place, place + 1]), torch.arange(2 * n_read, device=items.device) >= n_read
        distance = place[:, None] - place
        # Items see themselves and earlier items; a target sees earlier items and, alone, itself.
        visible = ~is_target & (distance >= is_target[:, None].long())
        visible |= torch.eye(2 * n_read, dtype=torch.bool, device=items.device)
        return self.encode(self.dropout(tokens), self.bias(distance, visible), n_last=n_read)

    def encode(self, tokens: Tensor, attend: Sequence[Tensor], n_last: int | None = None) -> Tensor:
        """Apply the layers, each with its attention mask; the last one may compute the last positions only."""
        for layer, mask in zip(self.layers[:-1], attend[:-1], strict=True):
            tokens = layer(tokens, mask)
        outputs: Tensor = self.layers[-1](tokens, attend[-1], n_last=n_last)
        return outputs

    def attention(self, histories: Tensor, targets: Tensor, masked: Tensor) -> list[Tensor]:
        """Return the target's attention weights in every layer, each of shape (batch, heads, length + 1)."""
        tokens, attend = self.tokens(histories, targets, masked)
        weights = []
        for layer, mask in zip(self.layers, attend, strict=True):
            weights.append(layer.attention_of_last(tokens, mask))  # type: ignore[operator]
            tokens = layer(tokens, mask)
        return weights

    def hidden_at_random(
        self, histories: Tensor, targets: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mask fields at random positions, at least one per window.

        Returns
        -------
        hidden, codes, masked
            Of the masked positions: outputs, shape (positions, width), field codes and masked fields, shape (positions, J).
        """
        attend = f.pad(histories != PADDING, (0, 1), value=True)
        codes = torch.cat([self.codes[histories.clamp_min(0)], targets[:, None]], dim=1)  # (batch, length + 1, J)
        chosen = attend & (torch.rand(attend.shape, generator=rng) < _RANDOM_MASK_PROB).to(attend.device)
        chosen[:, -1] |= ~chosen.any(dim=1)
        masked = torch.zeros(*attend.shape, self.n_fields, dtype=torch.bool, device=codes.device)
        masked[chosen] = self.draw_masks(int(chosen.sum()), rng)
        tokens = self.encode(self.place(self.fuse(codes, masked)), [attend] * len(self.layers))
        return tokens[chosen], codes[chosen], masked[chosen]

    def tokens(self, histories: Tensor, targets: Tensor, masked: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the input tokens, shape (batch, length + 1, width), and the attention mask of every layer."""
        real = histories != PADDING
        items, where = torch.unique(histories[real], return_inverse=True)  # each item is fused once
        vectors = self.tables.vectors(items)
        tokens = vectors.new_zeros(*histories.shape, vectors.shape[1])
        tokens[real] = vectors[where]
        return self.with_target(tokens, real, self.fuse(targets, masked))

    def with_target(self, tokens: Tensor, real: Tensor, target: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Append the target's token, shape (batch, width), to those of histories; return what `tokens` returns.

        Parameters
        ----------
        tokens
            Shape (batch, length, width).
        real
            Which of them are items, boolean, shape (batch, length).
        target
            Shape (batch, width).
        """
        tokens = self.place(torch.cat([tokens, target[:, None]], dim=1))
        attend = f.pad(real, (0, 1), value=True)
        if self.settings.attention == "bidirectional":
            return tokens, [attend] * len(self.layers)
        place = torch.arange(tokens.shape[1], device=tokens.device)
        distance = place[:, None] - place
        # Padding sees itself, as a softmax needs something to see.
        visible = (attend[:, None] & (distance >= 0)) | (distance == 0)
        return tokens, self.bias(distance, visible[:, None])

    def bias(self, distance: Tensor, visible: Tensor) -> list[Tensor]:
        """Return what every layer adds to its attention scores.

        Parameters
        ----------
        distance
            How far a key is behind its query, shape (queries, keys).
        visible
            Which keys a query sees, boolean, shape (queries, keys) or (batch, 1, queries, keys).

        Returns
        -------
        list of Tensor
            Shape (heads, queries, keys) or (batch, heads, queries, keys).
        """
        index = distance.clamp(0, self.max_length - 1)
        return [layer[:, index].masked_fill(~visible, -torch.inf) for layer in self.distance_bias]

    def fuse(self, codes: Tensor, masked: Tensor) -> Tensor:
        """Return the sum of the field embeddings, with mask embeddings for masked fields; from (..., J) to (..., width)."""
        fused = self.masks.new_zeros(())
        visible = codes.masked_fill(masked if codes.ndim == masked.ndim else masked[..., None], 0)
        for field in range(self.n_fields):
            fused = fused + torch.where(masked[..., field, None], self.masks[field], self.tables.part(field, visible))
        return fused

    def place(self, tokens: Tensor) -> Tensor:
        """Add position embeddings, aligned at the target, if there are any, and apply dropout; (batch, length, width)."""
        if self.settings.attention == "bidirectional":
            tokens = tokens + self.positions[-tokens.shape[1] :]
        placed: Tensor = self.dropout(tokens)
        return placed

    def draw_negatives(self, count: int, rng: torch.Generator) -> list[Tensor | None]:
        """Draw negatives for a number of targets; None for fields with a full softmax.

        Returns
        -------
        list
            For each field None, or negatives as `sample_negatives` returns them, shape (groups, n_negatives).
        """
        sizes = (self.settings.n_negatives, self.settings.negative_group_size)
        return [
            sample_negatives(count, size, *sizes, rng).to(self.codes.device) if sampled else None
            for size, sampled in zip(self.field_sizes, self.sampled, strict=True)
        ]

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        masked: Tensor,
        negatives: Sequence[Tensor | None],
        units: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return Σ_{k masked} α_k · (−log q_k), the mean over the batch, and its terms; for tags, −log q_k is a mean.

        Parameters
        ----------
        hidden
            h_T, shape (batch, width).
        targets, masked
            Field codes and which are masked, shape (batch, J).
        negatives
            As `draw_negatives` returns them; negatives that equal a target are ignored.
        units
            The normalized rows of the tables, if they are available.
        """
        scale = hidden.shape[1] ** 0.5
        queries = normalize(hidden) * scale  # the dot product with a unit vector is √d·cos
        terms: dict[str, Tensor] = {}
        for field, table in enumerate(self.embeddings()):
            rows, others, values = masked[:, field], negatives[field], self.tables.values(field, targets)
            shares = value_weights(values) if self.tables.has_tags[field] else None
            if others is None:
                unit = units[field] if units else normalize(table.weight)
                chosen = shares[rows] if shares is not None else None
                term = full_softmax_loss(queries[rows], unit, values[rows], chosen) * rows.float().mean()
            else:
                if shares is not None:  # padding must not exclude "missing" from the negatives
                    values = torch.where(shares > 0, values, values[:, :1])
                own, vectors = (normalize(table(some)) for some in (values, others))
                losses = sampled_softmax_loss(queries, values, own, vectors, others)
                losses = (losses * shares).sum(dim=1) if shares is not None else losses
                term = losses[rows].sum() / len(hidden)
            terms[f"loss.{self.field_names[field]}"] = term
        weighted = [weight * term for weight, term in zip(self.weights, terms.values(), strict=True)]
        return {"loss": torch.stack(weighted).sum(), **terms}
