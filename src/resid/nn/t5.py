"""T5 encoder and decoder stacks: T5 1.0 (Raffel et al., 2020), weight for weight.

RMS norms before each sublayer, no biases, unscaled attention, and relative position buckets shared by the layers of a stack.
Encoder and decoder can be used separately; the decoder also decodes step by step with a key-value cache.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from resid.nn.dropout import Dropout

N_BUCKETS, MAX_DISTANCE = 32, 128  # of relative positions


def _inverse_rms(tokens: Tensor) -> Tensor:
    return torch.rsqrt(tokens.square().mean(dim=-1, keepdim=True) + 1e-6)


class _RootMeanSquare(torch.autograd.Function):
    """RMS normalization with a hand-written gradient, in half the operations of autograd."""

    @staticmethod
    def forward(context: Any, tokens: Tensor) -> Tensor:
        """Return tokens divided by their root mean square."""
        inverse = _inverse_rms(tokens)
        normed = tokens * inverse
        context.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient with respect to the tokens: its component orthogonal to them, divided by their RMS."""
        normed, inverse = context.saved_tensors
        along = (gradients[0] * normed).mean(dim=-1, keepdim=True)
        return torch.addcmul(gradients[0], normed, along, value=-1).mul_(inverse)


class RMSNorm(nn.Module):
    """Root-mean-square normalization, as `torch.nn.RMSNorm`."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return normalized tokens of the same shape."""
        return self._normalize(tokens) * self.weight

    def linear(self, tokens: Tensor, weight: Tensor) -> Tensor:
        """Return ``linear(forward(tokens), weight)``.

        In training there are many tokens, and scaling the weight, shape (out, width), is cheaper than scaling all of them.
        """
        if self.training:
            return f.linear(self._normalize(tokens), weight * self.weight)
        return f.linear(self(tokens), weight)

    def _normalize(self, tokens: Tensor) -> Tensor:
        if not self.training:
            return tokens * _inverse_rms(tokens)
        normalized: Tensor = _RootMeanSquare.apply(tokens)  # type: ignore[no-untyped-call]
        return normalized


class Attention(nn.Module):
    """Multi-head attention without biases and without scaling."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.inner = heads, heads * head_width
        self.qkv = nn.Linear(width, 3 * self.inner, bias=False)
        self.out = nn.Linear(self.inner, width, bias=False)
        self.dropout = Dropout(dropout)

    def project(self, norm: RMSNorm, tokens: Tensor) -> Tensor:
        """Return queries, keys and values of normalized tokens, shape (3, batch, heads, length, head width)."""
        return self._split(norm.linear(tokens, self.qkv.weight), 3)

    def queries(self, norm: RMSNorm, tokens: Tensor) -> Tensor:
        """Return the queries of normalized tokens, shape (batch, heads, length, head width)."""
        return self._split(norm.linear(tokens, self.qkv.weight[: self.inner]), 1)[0]

    def keys_values(self, tokens: Tensor) -> Tensor:
        """Return keys and values, shape (2, batch, heads, length, head width)."""
        return self._split(f.linear(tokens, self.qkv.weight[self.inner :]), 2)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Return the attention output, shape (batch, queries, width); `bias` is added to the scores."""
        if self.training and queries.device.type == "cpu":  # PyTorch's function is slow here: see `Dropout`
            attended = self.dropout((queries @ keys.mT + bias).softmax(dim=-1)) @ values
        else:
            p = self.dropout.p if self.training else 0.0
            attended = f.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=p, scale=1.0)
        result: Tensor = self.out(attended.transpose(1, 2).flatten(2))
        return result

    def from_tokens(self, queries: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
        """Return what `forward` returns without computing keys and values of tokens, shape (batch, length, width).

        Queries are mapped to the space of tokens, and weighted means of tokens to values: cheaper for few queries.
        """
        batch, heads, n_queries, _ = queries.shape
        width = tokens.shape[2]
        keys, values = self.qkv.weight[self.inner :].view(2, heads, -1, width)
        mapped = (queries.transpose(0, 1).flatten(1, 2) @ keys).view(heads, batch, n_queries, width)
        scores = (mapped.transpose(0, 1).flatten(1, 2) @ tokens.mT).view(batch, heads, n_queries, -1) + bias
        means = self.dropout(scores.softmax(dim=-1)).flatten(1, 2) @ tokens  # (batch, heads · queries, width)
        attended = means.view(batch, heads, n_queries, width).transpose(0, 1).flatten(1, 2) @ values.mT
        result: Tensor = self.out(attended.view(heads, batch, n_queries, -1).permute(1, 2, 0, 3).flatten(2))
        return result

    def _split(self, tokens: Tensor, parts: int) -> Tensor:
        return tokens.view(*tokens.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4)


class FeedForward(nn.Module):
    """Two linear layers with ReLU."""

    def __init__(self, width: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.ffn_in = nn.Linear(width, ffn_width, bias=False)
        self.ffn_out = nn.Linear(ffn_width, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, norm: RMSNorm, tokens: Tensor) -> Tensor:
        """Return the output for normalized tokens, same shape."""
        return self.dropout.relu_linear(norm.linear(tokens, self.ffn_in.weight), self.ffn_out)


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward network, each with a residual connection."""

    def __init__(self, width: int, heads: int, head_width: int, ffn_width: int, dropout: float) -> None:
        super().__init__()
        self.attention = Attention(width, heads, head_width, dropout)
        self.attention_norm = RMSNorm(width)
        self.ffn = FeedForward(width, ffn_width, dropout)
        self.ffn_norm = RMSNorm(width)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Return new hidden states, shape (batch, length, width)."""
        queries, keys, values = self.attention.project(self.attention_norm, hidden)
        return self.feed_forward(self.dropout.add(hidden, self.attention(queries, keys, values, bias)))

    def feed_forward(self, hidden: Tensor) -> Tensor:
        """Apply the feed-forward sublayer."""
        return self.dropout.add(hidden, self.ffn(self.ffn_norm, hidden))


class DecoderBlock(EncoderBlock):
    """An encoder block with cross-attention between its two sublayers."""

    def __init__(self, width: int, heads: int, head_width: int, ffn_width: int, dropout: float) -> None:
        super().__init__(width, heads, head_width, ffn_width, dropout)
        self.cross_attention = Attention(width, heads, head_width, dropout)
        self.cross_norm = RMSNorm(width)

    def decode(
        self, hidden: Tensor, cache: Tensor | None, bias: Tensor, memory: "Memory", layer: int
    ) -> tuple[Tensor, Tensor]:
        """Return new hidden states, shape (users, beams, length, width), and the key-value cache of all tokens so far.

        Parameters
        ----------
        hidden
            The hidden states of new tokens.
        cache
            Keys and values of the tokens before, shape (2, users · beams, heads, tokens, head width).
        bias
            Of the self-attention scores.
        memory
            The encoder output, which all beams of a user share.
        layer
            The index of this layer.
        """
        projected = self.attention.project(self.attention_norm, hidden.flatten(0, 1))
        queries, keys, values = projected.unbind()  # its gradient is one copy; slices would make several
        new_cache = projected[1:]
        if cache is not None:
            new_cache = torch.cat([cache, new_cache], dim=3)
            keys, values = new_cache
        hidden = self.dropout.add(hidden, self.attention(queries, keys, values, bias).view(hidden.shape))
        queries = self.cross_attention.queries(self.cross_norm, hidden.flatten(1, 2))  # beams share one attention
        if memory.keys_values is None:
            attended = self.cross_attention.from_tokens(queries, memory.tokens, memory.bias)
        else:
            attended = self.cross_attention(queries, *memory.keys_values[layer], memory.bias)
        return self.feed_forward(self.dropout.add(hidden, attended.view(hidden.shape))), new_cache


@dataclass
class Memory:
    """The encoder output of some users, computed once for all their beams.

    Attributes
    ----------
    tokens : Tensor
        Shape (users, length, width).
    bias : Tensor
        0 for tokens and -inf for padding, shape (users, 1, 1, length).
    keys_values : list of Tensor or None
        Keys and values of every decoder layer, shape (2, users, heads, length, head width), if there are many beams.
    """

    tokens: Tensor
    bias: Tensor
    keys_values: list[Tensor] | None = None


class _Stack(nn.Module):
    """What encoder and decoder share: blocks, the final norm and the relative position bias."""

    buckets: Tensor

    def __init__(
        self, blocks: list[EncoderBlock], width: int, heads: int, dropout: float, length: int, *, causal: bool
    ):
        super().__init__()
        self.blocks = nn.ModuleList(blocks)
        self.norm = RMSNorm(width)
        self.position_bias = nn.Embedding(N_BUCKETS, heads)
        self.dropout = Dropout(dropout)
        place = torch.arange(length)
        buckets = relative_buckets(place[None] - place[:, None], bidirectional=not causal)
        self.register_buffer("buckets", buckets, persistent=False)

    def relative_bias(self, length: int) -> Tensor:
        """Return the relative position bias, shape (heads, length, length)."""
        bias: Tensor = self.position_bias(self.buckets[:length, :length]).permute(2, 0, 1)
        return bias


class T5Encoder(_Stack):
    """The encoder stack.

    Parameters
    ----------
    width, heads, head_width, ffn_width, layers, dropout
        Of the stack.
    max_length
        The largest number of tokens.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, ffn_width: int, layers: int, dropout: float, max_length: int
    ) -> None:
        blocks = [EncoderBlock(width, heads, head_width, ffn_width, dropout) for _ in range(layers)]
        super().__init__(blocks, width, heads, dropout, max_length, causal=False)

    def forward(self, tokens: Tensor, padding_bias: Tensor) -> Memory:
        """Encode tokens, shape (users, length, width); `padding_bias` is -inf for padding, shape (users, 1, 1, length)."""
        hidden = self.dropout(tokens)
        bias = self.relative_bias(hidden.shape[1]) + padding_bias
        for block in self.blocks:
            hidden = block(hidden, bias)
        return Memory(self.dropout(self.norm(hidden)), padding_bias)


class T5Decoder(_Stack):
    """The decoder stack.

    Parameters
    ----------
    width, heads, head_width, ffn_width, layers, dropout
        Of the stack.
    max_length
        The largest number of tokens.
    """

    def __init__(
        self, width: int, heads: int, head_width: int, ffn_width: int, layers: int, dropout: float, max_length: int
    ) -> None:
        blocks: list[EncoderBlock] = [DecoderBlock(width, heads, head_width, ffn_width, dropout) for _ in range(layers)]
        super().__init__(blocks, width, heads, dropout, max_length, causal=True)

    def forward(self, tokens: Tensor, memory: Memory) -> Tensor:
        """Return the states of teacher-forced tokens, shape (users, length, width), before the output layer."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        bias = self.relative_bias(len(self.buckets))[:, :length, :length].masked_fill(later, -torch.inf)
        hidden = self.dropout(tokens)[:, None]  # one beam
        for layer, block in enumerate(self._blocks()):
            hidden, _ = block.decode(hidden, None, bias, memory, layer)
        return self.output(hidden[:, 0])

    def step(self, tokens: Tensor, memory: Memory, cache: Tensor | None, position: int) -> tuple[Tensor, Tensor]:
        """Return the states of one more token per beam and the extended key-value cache.

        Parameters
        ----------
        tokens
            Shape (users, beams, width).
        memory
            With `keys_values`, see `prepare`.
        cache
            Of the tokens before, shape (layers, 2, users, beams, heads, tokens, head width); None at the first.
        position
            Of the token, from 0.
        """
        bias = self.relative_bias(len(self.buckets))[:, position : position + 1, : position + 1]
        hidden, caches = tokens[:, :, None], []  # (users, beams, 1, width)
        for layer, block in enumerate(self._blocks()):
            before = cache[layer].flatten(1, 2) if cache is not None else None
            hidden, own = block.decode(hidden, before, bias, memory, layer)
            caches.append(own)
        stacked = torch.stack(caches)
        return self.output(hidden[:, :, 0]), stacked.view(*stacked.shape[:2], *tokens.shape[:2], *stacked.shape[3:])

    def prepare(self, memory: Memory) -> Memory:
        """Return the memory with the keys and values of every layer, for many beams."""
        keys_values = [block.cross_attention.keys_values(memory.tokens) for block in self._blocks()]
        return Memory(memory.tokens, memory.bias, keys_values)

    def output(self, hidden: Tensor) -> Tensor:
        """Return the states that the output layer reads."""
        states: Tensor = self.dropout(self.norm(hidden)) * hidden.shape[-1] ** -0.5
        return states

    def _blocks(self) -> Iterator[DecoderBlock]:
        return cast(Iterator[DecoderBlock], iter(self.blocks))


def initialize_t5(model: nn.Module) -> None:
    """Draw weights as T5 does: attention is not scaled, so the queries are small."""
    stacks = [module for module in model.modules() if isinstance(module, _Stack)]
    for stack in stacks:
        nn.init.normal_(stack.position_bias.weight, std=len(stack.norm.weight) ** -0.5)
    for module in model.modules():
        if isinstance(module, Attention):
            width, head_width = module.qkv.weight.shape[1], module.inner // module.heads
            nn.init.normal_(module.qkv.weight[: module.inner], std=(width * head_width) ** -0.5)
            nn.init.normal_(module.qkv.weight[module.inner :], std=width**-0.5)
            nn.init.normal_(module.out.weight, std=module.inner**-0.5)
        elif isinstance(module, FeedForward):
            ffn_width, width = module.ffn_in.weight.shape
            nn.init.normal_(module.ffn_in.weight, std=width**-0.5)
            nn.init.normal_(module.ffn_out.weight, std=ffn_width**-0.5)


def relative_buckets(distance: Tensor, *, bidirectional: bool) -> Tensor:
    """Return the bucket of relative positions, key minus query: exact for near ones, logarithmic for far ones."""
    buckets = N_BUCKETS
    first = torch.zeros_like(distance)
    if bidirectional:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = buckets // 2
    share = torch.log(distance.clamp_min(1) / exact) / math.log(MAX_DISTANCE / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first + torch.where(distance < exact, distance, far)
