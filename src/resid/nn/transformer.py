"""Transformer layers: a post-norm encoder layer, bidirectional or causal, and a pre-norm causal layer."""

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import PADDING
from resid.nn.dropout import Dropout


class EncoderLayer(nn.Module):
    """Post-norm Transformer encoder layer, the same function as `torch.nn.TransformerEncoderLayer` with ReLU.

    Parameters
    ----------
    width
        Embedding dimension.
    heads
        Number of attention heads.
    ffn_width
        Hidden size of the feed-forward network.
    dropout
        Applied to attention weights, to the feed-forward hidden layer and to both residual branches.
    """

    def __init__(self, width: int, heads: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)  # queries, keys, values
        self.out = nn.Linear(width, width)
        self.ffn_in = nn.Linear(width, ffn_width)
        self.ffn_out = nn.Linear(ffn_width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.ffn_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, attend: Tensor | None, *, n_last: int | None = None) -> Tensor:
        """Return the output of all positions, or only of the last ones, at a fraction of the cost.

        Parameters
        ----------
        tokens
            Shape (batch, length, width).
        attend
            Which tokens are attended to, boolean, shape (batch, length); or a mask of `scaled_dot_product_attention`, boolean
            or added to the scores, with at least three dimensions, that broadcasts to (batch, heads, length, length). None is
            causal attention.
        n_last
            Compute only this many last positions; at most 1 with causal attention.

        Returns
        -------
        Tensor
            Shape (batch, length, width), or (batch, n_last, width).
        """
        if attend is None and n_last not in (None, 1):
            raise ValueError("causal attention of several last positions needs a mask")
        targets = tokens if n_last is None else tokens[:, -n_last:]
        query, key, value = self._qkv(tokens, targets)
        mask = _mask(attend, targets.shape[1]) if attend is not None else None
        return self._finish(targets, query, key, value, mask, attend is None and n_last is None)

    def at(self, tokens: Tensor, attend: Tensor, rows: Tensor, places: Tensor) -> Tensor:
        """Return the output of selected positions only.

        Parameters
        ----------
        tokens, attend
            As for `forward`.
        rows, places
            The sequence and the position of each, shape (n,).

        Returns
        -------
        Tensor
            Shape (n, width).
        """
        targets = tokens[rows, places][:, None]
        query, key, value = self._qkv(tokens, targets)
        return self._finish(targets, query, key[rows], value[rows], attend[rows, None, None, :], False)[:, 0]

    def _finish(
        self, targets: Tensor, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, causal: bool
    ) -> Tensor:
        """Compute the layer from the attention on, for the target positions; shape (batch, targets, width)."""
        p = self.dropout.p if self.training else 0.0
        attended = f.scaled_dot_product_attention(query, key, value, mask, dropout_p=p, is_causal=causal)
        attended = self.out(attended.transpose(1, 2).flatten(2))
        hidden = self.attention_norm(self.dropout.add(targets, attended))
        fed = self.dropout.relu_linear(self.ffn_in(hidden), self.ffn_out)
        output: Tensor = self.ffn_norm(self.dropout.add(hidden, fed))
        return output

    def attention_of_last(self, tokens: Tensor, attend: Tensor) -> Tensor:
        """Return the attention weights of the last token, shape (batch, heads, length); `attend` as for `forward`."""
        query, key, _ = self._qkv(tokens, tokens[:, -1:])
        scores, mask = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5, _mask(attend, 1)
        scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
        return torch.softmax(scores.squeeze(2), dim=-1)

    def _qkv(self, tokens: Tensor, targets: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries of the targets, keys and values of all tokens; each (batch, heads, length, width / heads)."""
        width = tokens.shape[-1]
        weight, bias = self.qkv.weight, self.qkv.bias
        query = f.linear(targets, weight[:width], bias[:width])
        key, value = f.linear(tokens, weight[width:], bias[width:]).chunk(2, dim=-1)
        query, key, value = (part.view(*part.shape[:2], self.heads, -1).transpose(1, 2) for part in (query, key, value))
        return query, key, value


def _mask(attend: Tensor, n_queries: int) -> Tensor:
    """Return the attention mask of the last tokens, which broadcasts to (batch, heads, n_queries, length)."""
    return attend[:, None, None, :] if attend.dim() == 2 else attend[..., -n_queries:, :]


class CausalLayer(nn.Module):
    """Pre-norm causal Transformer layer with GELU.

    Parameters
    ----------
    width
        Embedding dimension.
    heads
        Number of attention heads.
    ffn_width
        Hidden size of the feed-forward network.
    dropout
        Applied to the feed-forward hidden layer and to both residual branches.
    """

    def __init__(self, width: int, heads: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.ffn_in = nn.Linear(width, ffn_width)
        self.ffn_out = nn.Linear(ffn_width, width)
        self.attention_norm = nn.LayerNorm(width)
        self.ffn_norm = nn.LayerNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor, bias: Tensor) -> Tensor:
        """Return the output of all positions; padding is on the right, where causal attention ignores it.

        Parameters
        ----------
        tokens
            Shape (batch, length, width).
        bias
            Added to the attention scores, -inf where a key comes after its query; shape (heads, length, length).
        """
        return self._finish(tokens, self._attend(self.qkv(self.attention_norm(tokens)), bias))

    def packed(self, tokens: Tensor, real: Tensor, bias: Tensor, last: Tensor | None = None) -> Tensor:
        """Return the same for the tokens of sequences without their padding, which saves its share of the cost.

        Parameters
        ----------
        tokens
            The tokens of all sequences one after the other, shape (n, width).
        real
            Where they are in the padded sequences, boolean, shape (batch, length).
        bias
            As for `forward`.
        last
            The indices of the tokens whose output is wanted, shape (m,); all by default.

        Returns
        -------
        Tensor
            Shape (n, width), or (m, width).
        """
        projected = self.qkv(self.attention_norm(tokens))
        padded = projected.new_zeros(*real.shape, projected.shape[1])
        padded[real] = projected
        attended = self._attend(padded, bias)[real]
        return self._finish(tokens, attended) if last is None else self._finish(tokens[last], attended[last])

    def _attend(self, projected: Tensor, bias: Tensor) -> Tensor:
        """Return what is attended to from queries, keys and values, shape (batch, length, 3 width) to (batch, length, width)."""
        split = projected.view(*projected.shape[:2], 3, self.heads, -1)
        query, key, value = split.permute(2, 0, 3, 1, 4)  # (batch, heads, length, width / heads) each
        return f.scaled_dot_product_attention(query, key, value, attn_mask=bias).transpose(1, 2).flatten(2)

    def _finish(self, tokens: Tensor, attended: Tensor) -> Tensor:
        """Compute the layer from the attention on; shape (..., width)."""
        tokens = self.dropout.add(tokens, self.out(attended))
        hidden = self.dropout(f.gelu(self.ffn_in(self.ffn_norm(tokens))))
        return self.dropout.add(tokens, self.ffn_out(hidden))


def pad_right(histories: Tensor) -> tuple[Tensor, Tensor]:
    """Return histories with their padding moved to the right, shape (users, length), and their lengths, shape (users,)."""
    lengths = (histories != PADDING).sum(dim=1)
    shift = torch.arange(histories.shape[1], device=histories.device) - lengths[:, None]
    return histories.gather(1, torch.where(shift < 0, shift + histories.shape[1], shift)), lengths
