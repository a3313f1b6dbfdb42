"""T5Generator, the paper's G-stage: a T5-style encoder–decoder that reads the codes of a history and writes the next ID.

The network is that of T5 1.0 (Raffel et al., 2020), weight for weight: root-mean-square norms before each part, no biases,
relative positions in buckets shared by the layers of a stack, and output scores from the input table. One token table:
0 is padding and the beginning, then the codes of the levels, one level after the other.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from resid.data.batches import PADDING, Batch
from resid.nn import Dropout

BUCKETS, FARTHEST = 32, 128  # relative positions: so many buckets, the last for all that are farther


def _over_root_mean_square(tokens: Tensor) -> Tensor:
    return torch.rsqrt(tokens.square().mean(dim=-1, keepdim=True) + 1e-6)


class _RootMeanSquare(torch.autograd.Function):
    """The norm's arithmetic with a gradient by hand, in half the operations of the automatic one."""

    @staticmethod
    def forward(context: Any, tokens: Tensor) -> Tensor:
        """Return tokens over the root of their mean square."""
        inverse = _over_root_mean_square(tokens)
        normed = tokens * inverse
        context.save_for_backward(normed, inverse)
        return normed

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> Tensor:
        """Return the gradient of tokens: for n the tokens over r, the gradient minus its part along n, over r."""
        normed, inverse = context.saved_tensors
        along = (gradients[0] * normed).mean(dim=-1, keepdim=True)
        return torch.addcmul(gradients[0], normed, along, value=-1).mul_(inverse)


class Norm(nn.Module):
    """Divides by the root of the mean square, as `torch.nn.RMSNorm` does."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, tokens: Tensor) -> Tensor:
        """Return new vectors of the same shape."""
        return self._normed(tokens) * self.weight

    def then(self, layer: Tensor, tokens: Tensor) -> Tensor:
        """Return the product of normalised tokens with a layer's weight, shape (out, width).

        Where there are many tokens, as in training, it is cheaper to scale the layer than all of them.
        """
        if self.training:
            return f.linear(self._normed(tokens), layer * self.weight)
        return f.linear(self(tokens), layer)

    def _normed(self, tokens: Tensor) -> Tensor:
        if not self.training:
            return tokens * _over_root_mean_square(tokens)
        normed: Tensor = _RootMeanSquare.apply(tokens)  # type: ignore[no-untyped-call]
        return normed


class Attention(nn.Module):
    """Attention without biases and without scaling, whose scores may have a bias by position."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.inner = heads, heads * head_width
        self.project_in = nn.Linear(width, 3 * self.inner, bias=False)  # queries, keys, values
        self.out = nn.Linear(self.inner, width, bias=False)
        self.dropout = Dropout(dropout)

    def project(self, norm: Norm, tokens: Tensor) -> Tensor:
        """Return queries, keys and values of normalised tokens, shape (3, batch, heads, length, head width)."""
        return self._split(norm.then(self.project_in.weight, tokens), 3)

    def queries(self, norm: Norm, tokens: Tensor) -> Tensor:
        """Return queries alone, shape (batch, heads, length, head width)."""
        return self._split(norm.then(self.project_in.weight[: self.inner], tokens), 1)[0]

    def keys_values(self, tokens: Tensor) -> Tensor:
        """Return keys and values, shape (2, batch, heads, length, head width)."""
        return self._split(f.linear(tokens, self.project_in.weight[self.inner :]), 2)

    def forward(self, queries: Tensor, keys: Tensor, values: Tensor, bias: Tensor) -> Tensor:
        """Return what queries get from keys and values, shape (batch, queries, width); bias is added to the scores."""
        if self.training and queries.device.type == "cpu":  # where PyTorch's function is slow: see `Dropout`
            mixed = self.dropout((queries @ keys.mT + bias).softmax(dim=-1)) @ values
        else:
            chance = self.dropout.chance if self.training else 0.0
            mixed = f.scaled_dot_product_attention(queries, keys, values, attn_mask=bias, dropout_p=chance, scale=1.0)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def from_few(self, queries: Tensor, tokens: Tensor, bias: Tensor) -> Tensor:
        """Do what `forward` does without the keys and values of tokens, shape (batch, length, width), ever being made.

        Queries are turned to what tokens are, and the mean of tokens to values: cheaper where queries are few.
        """
        batch, heads, asking, _ = queries.shape
        width = tokens.shape[2]
        keys, values = self.project_in.weight[self.inner :].view(2, heads, -1, width)
        asked = (queries.transpose(0, 1).flatten(1, 2) @ keys).view(heads, batch, asking, width)
        scores = (asked.transpose(0, 1).flatten(1, 2) @ tokens.mT).view(batch, heads, asking, -1) + bias
        means = self.dropout(scores.softmax(dim=-1)).flatten(1, 2) @ tokens  # (batch, heads · queries, width)
        mixed = means.view(batch, heads, asking, width).transpose(0, 1).flatten(1, 2) @ values.mT
        result: Tensor = self.out(mixed.view(heads, batch, asking, -1).permute(1, 2, 0, 3).flatten(2))
        return result

    def _split(self, tokens: Tensor, parts: int) -> Tensor:
        return tokens.view(*tokens.shape[:2], parts, self.heads, -1).permute(2, 0, 3, 1, 4)


class FeedForward(nn.Module):
    """Two linear layers with a rectifier."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden, bias=False)
        self.narrow = nn.Linear(hidden, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, norm: Norm, tokens: Tensor) -> Tensor:
        """Return new vectors of normalised tokens, of the same shape."""
        return self.dropout.rectified(norm.then(self.widen.weight, tokens), self.narrow)


class Block(nn.Module):
    """A layer of the encoder: self-attention, then two linear layers, each added to what came in."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attend = Attention(width, heads, head_width, dropout)
        self.attend_norm = Norm(width)
        self.feed = FeedForward(width, hidden, dropout)
        self.feed_norm = Norm(width)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Return new vectors of the same shape, (batch, length, width)."""
        queries, keys, values = self.attend.project(self.attend_norm, hidden)
        return self.feed_on(self.dropout.added(hidden, self.attend(queries, keys, values, bias)))

    def feed_on(self, hidden: Tensor) -> Tensor:
        """Do the second part."""
        return self.dropout.added(hidden, self.feed(self.feed_norm, hidden))


class DecoderBlock(Block):
    """A layer of the decoder: between the two parts it looks at what the encoder made."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, dropout: float) -> None:
        super().__init__(width, heads, head_width, hidden, dropout)
        self.cross = Attention(width, heads, head_width, dropout)
        self.cross_norm = Norm(width)

    def decode(
        self, hidden: Tensor, past: Tensor | None, bias: Tensor, memory: "Memory", layer: int
    ) -> tuple[Tensor, Tensor]:
        """Return new vectors of tokens, shape (users, beams, length, width), and the keys and values of all tokens so far.

        Parameters
        ----------
        hidden
            The tokens.
        past
            Keys and values of what the beams wrote before, shape (2, users · beams, heads, tokens, head width).
        bias
            Of the scores among the tokens.
        memory
            Of the history, which all beams of a user share.
        layer
            The number of this one.
        """
        projected = self.attend.project(self.attend_norm, hidden.flatten(0, 1))
        queries, keys, values = projected.unbind()  # whose gradient is one copy, that of slices several
        own = projected[1:]
        if past is not None:
            own = torch.cat([past, own], dim=3)
            keys, values = own
        hidden = self.dropout.added(hidden, self.attend(queries, keys, values, bias).view(hidden.shape))
        asked = self.cross.queries(self.cross_norm, hidden.flatten(1, 2))  # beams are queries of one attention
        if memory.layers is None:
            seen = self.cross.from_few(asked, memory.tokens, memory.bias)
        else:
            seen = self.cross(asked, *memory.layers[layer], memory.bias)
        return self.feed_on(self.dropout.added(hidden, seen.view(hidden.shape))), own


@dataclass
class Memory:
    """What the decoder needs of some users' histories, computed once for all their beams.

    Attributes
    ----------
    tokens : Tensor
        What the encoder made of them, shape (users, length, width).
    bias : Tensor
        0 where there is a token and -inf where there is padding, shape (users, 1, 1, length).
    layers : list of Tensor or None
        Keys and values for every layer of the decoder, shape (2, users, heads, length, head width), where many beams need
        them.
    """

    tokens: Tensor
    bias: Tensor
    layers: list[Tensor] | None = None


@dataclass
class Written:
    """What beams have written so far.

    Attributes
    ----------
    level : int
        The level of the last scores.
    past : Tensor
        Keys and values of every layer of the decoder, shape (layers, 2, users, beams, heads, tokens, head width).
    """

    level: int
    past: Tensor


class T5Model(nn.Module):
    """The network.

    Parameters
    ----------
    codes
        The IDs of all items, shape (items, levels).
    sizes
        Codes of every level.
    width, hidden, heads, head_width, layers, dropout
        Of the network; as many layers in the encoder as in the decoder.
    max_length
        The most items of a history.
    vectors
        Item vectors, shape (items, d), that are projected and added to the tokens of the history; None reads codes alone.
    """

    codes: Tensor
    offsets: Tensor
    encoder_buckets: Tensor
    decoder_buckets: Tensor
    vectors: Tensor | None

    def __init__(
        self,
        codes: Tensor,
        sizes: Sequence[int],
        *,
        width: int = 128,
        hidden: int = 512,
        heads: int = 4,
        head_width: int = 32,
        layers: int = 4,
        dropout: float = 0.1,
        max_length: int = 31,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__()
        self.sizes = tuple(sizes)
        first = [1 + sum(self.sizes[:level]) for level in range(len(self.sizes))]
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("offsets", torch.tensor(first), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.table = nn.Embedding(1 + sum(self.sizes), width)
        shape = (width, heads, head_width, hidden, dropout)
        self.encoder = nn.ModuleList(Block(*shape) for _ in range(layers))
        self.decoder = nn.ModuleList(DecoderBlock(*shape) for _ in range(layers))
        self.encoder_norm, self.decoder_norm = Norm(width), Norm(width)
        self.encoder_bias, self.decoder_bias = nn.Embedding(BUCKETS, heads), nn.Embedding(BUCKETS, heads)
        self.dropout = Dropout(dropout)
        for name, length, both_ways in (
            ("encoder", max_length * len(self.sizes), True),
            ("decoder", len(self.sizes), False),
        ):
            place = torch.arange(length)
            buckets = _bucket(place[None] - place[:, None], both_ways=both_ways)
            self.register_buffer(f"{name}_buckets", buckets, persistent=False)
        self.project = nn.Linear(vectors.shape[1], width, bias=False) if vectors is not None else None
        self._initialise(width, heads, head_width, hidden)

    def _initialise(self, width: int, heads: int, head_width: int, hidden: int) -> None:
        """Draw weights as T5 does: the scores of attention are not scaled, so the queries are small."""
        nn.init.normal_(self.table.weight)
        for bias in (self.encoder_bias, self.decoder_bias):
            nn.init.normal_(bias.weight, std=width**-0.5)
        for module in self.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.project_in.weight[: module.inner], std=(width * head_width) ** -0.5)
                nn.init.normal_(module.project_in.weight[module.inner :], std=width**-0.5)
                nn.init.normal_(module.out.weight, std=(heads * head_width) ** -0.5)
            elif isinstance(module, FeedForward):
                nn.init.normal_(module.widen.weight, std=width**-0.5)
                nn.init.normal_(module.narrow.weight, std=hidden**-0.5)

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean cross-entropy of the targets' codes over the whole vocabulary."""
        device = self.codes.device
        memory = self.encode(torch.from_numpy(batch.histories).to(device))
        wanted = self.codes[torch.from_numpy(batch.targets).to(device)] + self.offsets  # (batch, levels)
        logits = self.write(memory, f.pad(wanted[:, :-1], (1, 0)))
        return {"loss": f.cross_entropy(logits.flatten(0, 1), wanted.flatten())}

    def read(self, histories: Tensor) -> Memory:
        """Encode histories for many beams; see `encode`."""
        memory = self.encode(histories)
        memory.layers = [block.cross.keys_values(memory.tokens) for block in self._decoder_blocks()]
        return memory

    def encode(self, histories: Tensor) -> Memory:
        """Encode histories, item indices with `PADDING`, shape (users, items); `levels` tokens for every item."""
        real = histories != PADDING
        items = histories.clamp_min(0)
        tokens = self.table((self.codes[items] + self.offsets) * real[:, :, None])  # (users, items, levels, width)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + (self.project(self.vectors[items]) * real[:, :, None])[:, :, None]
        hidden = self.dropout(tokens.flatten(1, 2))
        length = hidden.shape[1]
        padding = torch.zeros(real.shape, dtype=hidden.dtype, device=hidden.device).masked_fill_(~real, -torch.inf)
        padding = padding.repeat_interleave(len(self.sizes), dim=1)[:, None, None]
        padding = padding.masked_fill(~real.any(dim=1)[:, None, None, None], 0)  # an empty history reads padding
        bias = self.encoder_bias(self.encoder_buckets[:length, :length]).permute(2, 0, 1) + padding
        for block in self.encoder:
            hidden = block(hidden, bias)
        return Memory(self.dropout(self.encoder_norm(hidden)), padding)

    def write(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return the scores of all tokens after each of these, shape (users, length) to (users, length, vocabulary)."""
        length = tokens.shape[1]
        later = torch.ones(length, length, dtype=torch.bool, device=tokens.device).triu(1)
        bias = self._own_bias()[:, :length, :length].masked_fill(later, -torch.inf)
        hidden = self.dropout(self.table(tokens))[:, None]  # one beam
        for layer, block in enumerate(self._decoder_blocks()):
            hidden, _ = block.decode(hidden, None, bias, memory, layer)
        return self._scores(hidden[:, 0], self.table.weight)

    def next(self, memory: Memory, written: Written | None, codes: Tensor | None) -> tuple[Tensor, Written]:
        """Return the log-probabilities of a level's codes after what every beam has written.

        Parameters
        ----------
        memory
            Of the users' histories, from `read`.
        written
            What `next` returned for the level before, with the beams that were kept; None at the first level.
        codes
            The codes of that level that the beams have taken, shape (users, beams); None at the first level.

        Returns
        -------
        log_probabilities, written
            The first of shape (users, beams, codes of the level); one beam at the first level.
        """
        level = 0 if written is None else written.level + 1
        if codes is None:
            tokens = torch.zeros(len(memory.bias), 1, dtype=torch.long, device=self.codes.device)
        else:
            tokens = codes + self.offsets[level - 1]
        bias = self._own_bias()[:, level : level + 1, : level + 1]
        hidden = self.table(tokens)[:, :, None]  # (users, beams, 1, width)
        past = []
        for layer, block in enumerate(self._decoder_blocks()):
            before = written.past[layer].flatten(1, 2) if written is not None else None
            hidden, own = block.decode(hidden, before, bias, memory, layer)
            past.append(own)
        first = 1 + sum(self.sizes[:level])
        scores = self._scores(hidden[:, :, 0], self.table.weight).log_softmax(dim=2)  # as in training, over all tokens
        kept = torch.stack(past)
        kept = kept.view(*kept.shape[:2], *tokens.shape, *kept.shape[3:])
        return scores[:, :, first : first + self.sizes[level]], Written(level, kept)

    def keep(self, written: Written, parents: Tensor) -> Written:
        """Return what the beams that are kept have written; parents says which they were, shape (users, beams)."""
        if written.past.shape[3] == 1:  # the root, which all come from
            return Written(written.level, written.past.expand(-1, -1, -1, parents.shape[1], -1, -1, -1))
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return Written(written.level, written.past[:, :, users, parents])

    def _decoder_blocks(self) -> Iterator[DecoderBlock]:
        return cast(Iterator[DecoderBlock], iter(self.decoder))

    def _own_bias(self) -> Tensor:
        """Return the decoder's bias of relative positions, shape (heads, levels, levels)."""
        bias: Tensor = self.decoder_bias(self.decoder_buckets).permute(2, 0, 1)
        return bias

    def _scores(self, hidden: Tensor, table: Tensor) -> Tensor:
        scores: Tensor = (self.dropout(self.decoder_norm(hidden)) * hidden.shape[-1] ** -0.5) @ table.T
        return scores


def _bucket(distance: Tensor, *, both_ways: bool) -> Tensor:
    """Return the bucket of relative positions, key minus query: exact for near ones, logarithmic for far ones."""
    buckets = BUCKETS
    first = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = buckets // 2
    share = torch.log(distance.clamp_min(1) / exact) / math.log(FARTHEST / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first + torch.where(distance < exact, distance, far)
