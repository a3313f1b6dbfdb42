"""Transformer layers: one normalised after each part, which looks at all tokens or back, and a causal one, before."""

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import PADDING
from resid.nn.dropout import Dropout


class EncoderLayer(nn.Module):
    """Self-attention and a two-layer perceptron, the same function as `torch.nn.TransformerEncoderLayer`.

    Parameters
    ----------
    width
        Size of a token's vector.
    heads
        Number of attention heads.
    hidden
        Size of the perceptron's hidden layer.
    dropout
        On attention weights, on the hidden layer and on what both parts add.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)  # queries, keys, values
        self.project_out = nn.Linear(width, width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, attend: Tensor | None, *, last_only: bool = False) -> Tensor:
        """Return new vectors for all tokens, or for the last one alone, which costs a fraction.

        Parameters
        ----------
        tokens
            Shape (batch, length, width).
        attend
            Which tokens may be looked at, boolean, shape (batch, length) for every query alike. None is causal: each looks
            at those before it and at itself.
        last_only
            Compute only the last token.

        Returns
        -------
        Tensor
            Shape (batch, length, width), or (batch, 1, width).
        """
        asking = tokens[:, -1:] if last_only else tokens
        query, key, value = self._heads(tokens, asking)
        mask, causal = (attend[:, None, None, :], False) if attend is not None else (None, not last_only)
        return self._answer(asking, query, key, value, mask, causal)

    def at(self, tokens: Tensor, attend: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        """Return new vectors for some tokens alone.

        Parameters
        ----------
        tokens, attend
            As for `forward`.
        rows, places
            Where they stand in the batch, each of shape (n,).

        Returns
        -------
        Tensor
            Shape (n, width).
        """
        asking = tokens[rows, places][:, None]
        query, key, value = self._heads(tokens, asking)
        return self._answer(asking, query, key[rows], value[rows], attend[rows, None, None, :], False)[:, 0]

    def _answer(
        self, asking: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Do the rest of the layer, from the attention on; shape (batch, queries, width)."""
        chance = self.dropout.chance if self.training else 0.0
        mixed = f.scaled_dot_product_attention(query, key, value, mask, dropout_p=chance, is_causal=causal)
        mixed = self.project_out(mixed.transpose(1, 2).flatten(2))
        middle = self.attention_norm(self.dropout.added(asking, mixed))
        narrow = self.dropout.rectified(self.widen(middle), self.narrow)
        new: Tensor = self.perceptron_norm(self.dropout.added(middle, narrow))
        return new

    def attention_of_last(self, tokens: Tensor, attend: Tensor) -> Tensor:
        """Return the attention weights of the last token, shape (batch, heads, length)."""
        query, key, _ = self._heads(tokens, tokens[:, -1:])
        scores = (query @ key.transpose(2, 3)).squeeze(2) / query.shape[-1] ** 0.5
        return torch.softmax(scores.masked_fill(~attend[:, None, :], -torch.inf), dim=-1)

    def _heads(self, tokens: Tensor, asking: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Project to queries, keys and values, each of shape (batch, heads, length, width / heads)."""
        width = tokens.shape[-1]
        weight, bias = self.project_in.weight, self.project_in.bias
        query = f.linear(asking, weight[:width], bias[:width])
        key, value = f.linear(tokens, weight[width:], bias[width:]).chunk(2, dim=-1)
        query, key, value = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in (query, key, value))
        return query, key, value


class CausalLayer(nn.Module):
    """Self-attention of every token to those before it and to itself, then a perceptron; each reads normalised tokens.

    Parameters
    ----------
    width
        Size of a token's vector.
    heads
        Number of attention heads.
    hidden
        Size of the perceptron's hidden layer.
    dropout
        On the hidden layer and on what both parts add.
    """

    def __init__(self, width: int, heads: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.project_in = nn.Linear(width, 3 * width)
        self.project_out = nn.Linear(width, width)
        self.widen = nn.Linear(width, hidden)
        self.narrow = nn.Linear(hidden, width)
        self.attention_norm = nn.LayerNorm(width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        """Return new vectors; padding comes last, where no other token looks.

        Parameters
        ----------
        tokens
            Shape (batch, length, width).
        bias
            Added to the attention scores, -inf where a key comes after its query; shape (heads, length, length).
        """
        split = self.project_in(self.attention_norm(tokens)).unflatten(2, (3, self.heads, -1))
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (batch, heads, length, width / heads) each
        mixed = f.scaled_dot_product_attention(query, key, value, attn_mask=bias)
        tokens = self.dropout.added(tokens, self.project_out(mixed.transpose(1, 2).flatten(2)))
        wide = self.dropout(f.gelu(self.widen(self.perceptron_norm(tokens))))
        return self.dropout.added(tokens, self.narrow(wide))


def padded_right(histories: Tensor) -> tuple[Tensor, Tensor]:
    """Return histories with their padding moved to the right, shape (users, length), and their lengths, shape (users,)."""
    lengths = (histories != PADDING).sum(dim=1)
    place = torch.arange(histories.shape[1], device=histories.device)
    return histories.gather(1, (place - lengths[:, None]) % max(1, histories.shape[1])), lengths
