"""T5Generator, the paper's G-stage: a T5-style encoder–decoder that reads the codes of a history and writes the next ID.

The network is that of T5 1.0 (Raffel et al., 2020), weight for weight: root-mean-square norms before each part, no biases,
relative positions in buckets shared by the layers of a stack, and output scores from the input table. One token table:
0 is padding and the beginning, then the codes of the levels, one level after the other.
"""

import importlib
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import PADDING, Batch
from resid.errors import InputError
from resid.nn import Dropout

_BUCKETS, _FARTHEST = 32, 128  # relative positions: so many buckets, the last for all that are farther


class Attention(nn.Module):
    """Attention without biases and without scaling, whose scores may have a bias by position."""

    def __init__(self, width: int, heads: int, head_width: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        inner = heads * head_width
        self.query, self.key, self.value = (nn.Linear(width, inner, bias=False) for _ in range(3))
        self.out = nn.Linear(inner, width, bias=False)
        self.dropout = dropout

    def keys_values(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values, each of shape (batch, heads, length, head width)."""
        return self._split(self.key(tokens)), self._split(self.value(tokens))

    def forward(self, asking: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None) -> Tensor:
        """Return what tokens, shape (batch, queries, width), get from keys and values; bias is added to the scores."""
        chance = self.dropout if self.training else 0.0
        query = self._split(self.query(asking))
        mixed = f.scaled_dot_product_attention(query, keys, values, attn_mask=bias, dropout_p=chance, scale=1.0)
        result: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return result

    def _split(self, tokens: Tensor) -> Tensor:
        return tokens.view(*tokens.shape[:2], self.heads, -1).transpose(1, 2)


class FeedForward(nn.Module):
    """Two linear layers with a rectifier."""

    def __init__(self, width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.widen = nn.Linear(width, hidden, bias=False)
        self.narrow = nn.Linear(hidden, width, bias=False)
        self.dropout = Dropout(dropout)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return new vectors of the same shape."""
        result: Tensor = self.narrow(self.dropout(f.relu(self.widen(tokens))))
        return result


class Block(nn.Module):
    """A layer of the encoder: self-attention, then two linear layers, each added to what came in."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, dropout: float) -> None:
        super().__init__()
        self.attend = Attention(width, heads, head_width, dropout)
        self.attend_norm = nn.RMSNorm(width, eps=1e-6)
        self.feed = FeedForward(width, hidden, dropout)
        self.feed_norm = nn.RMSNorm(width, eps=1e-6)
        self.dropout = Dropout(dropout)

    def forward(self, hidden: Tensor, bias: Tensor) -> Tensor:
        """Return new vectors of the same shape, (batch, length, width)."""
        normed = self.attend_norm(hidden)
        return self.feed_on(hidden + self.dropout(self.attend(normed, *self.attend.keys_values(normed), bias)))

    def feed_on(self, hidden: Tensor) -> Tensor:
        """Do the second part."""
        added: Tensor = self.dropout(self.feed(self.feed_norm(hidden)))
        return hidden + added


class DecoderBlock(Block):
    """A layer of the decoder: between the two parts it looks at what the encoder made."""

    def __init__(self, width: int, heads: int, head_width: int, hidden: int, dropout: float) -> None:
        super().__init__(width, heads, head_width, hidden, dropout)
        self.cross = Attention(width, heads, head_width, dropout)
        self.cross_norm = nn.RMSNorm(width, eps=1e-6)

    def decode(
        self, hidden: Tensor, past: tuple[Tensor, Tensor], bias: Tensor | None, memory: tuple[Tensor, Tensor, Tensor]
    ) -> Tensor:
        """Return new vectors of tokens, shape (users, beams, length, width).

        Parameters
        ----------
        hidden
            The tokens.
        past
            Keys and values of the beams' own tokens, shape (users · beams, heads, tokens so far, head width).
        bias
            Of the scores among them.
        memory
            Keys, values and bias of the history, which all beams of a user share.
        """
        own = self.attend(self.attend_norm(hidden).flatten(0, 1), *past, bias)
        hidden = hidden + self.dropout(own).view(hidden.shape)
        seen = self.cross(self.cross_norm(hidden).flatten(1, 2), *memory)  # beams are queries of one attention
        return self.feed_on(hidden + self.dropout(seen).view(hidden.shape))


@dataclass
class Memory:
    """What the decoder needs of some users' histories, computed once for all their beams.

    Attributes
    ----------
    layers : list of (keys, values, bias)
        For every layer of the decoder; keys and values have shape (users, heads, length, head width), and the bias is 0
        where there is a token and -inf where there is padding, shape (users, 1, 1, length).
    """

    layers: list[tuple[Tensor, Tensor, Tensor]]


@dataclass
class Written:
    """What beams have written so far.

    Attributes
    ----------
    level : int
        The level of the last scores.
    past : list of (keys, values)
        For every layer of the decoder, shape (users, beams, heads, tokens, head width).
    """

    level: int
    past: list[tuple[Tensor, Tensor]]


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
    vectors
        Item vectors, shape (items, d), that are projected and added to the tokens of the history; None reads codes alone.
    """

    codes: Tensor
    offsets: Tensor
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
        self.encoder_norm, self.decoder_norm = nn.RMSNorm(width, eps=1e-6), nn.RMSNorm(width, eps=1e-6)
        self.encoder_bias, self.decoder_bias = nn.Embedding(_BUCKETS, heads), nn.Embedding(_BUCKETS, heads)
        self.dropout = Dropout(dropout)
        self.project = nn.Linear(vectors.shape[1], width, bias=False) if vectors is not None else None
        self._initialise(width, heads, head_width, hidden)

    def _initialise(self, width: int, heads: int, head_width: int, hidden: int) -> None:
        """Draw weights as T5 does: the scores of attention are not scaled, so the queries are small."""
        nn.init.normal_(self.table.weight)
        for bias in (self.encoder_bias, self.decoder_bias):
            nn.init.normal_(bias.weight, std=width**-0.5)
        for module in self.modules():
            if isinstance(module, Attention):
                nn.init.normal_(module.query.weight, std=(width * head_width) ** -0.5)
                nn.init.normal_(module.key.weight, std=width**-0.5)
                nn.init.normal_(module.value.weight, std=width**-0.5)
                nn.init.normal_(module.out.weight, std=(heads * head_width) ** -0.5)
            elif isinstance(module, FeedForward):
                nn.init.normal_(module.widen.weight, std=width**-0.5)
                nn.init.normal_(module.narrow.weight, std=hidden**-0.5)

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the mean cross-entropy of the targets' codes over the whole vocabulary."""
        device = self.codes.device
        memory = self.read(torch.from_numpy(batch.histories).to(device))
        wanted = self.codes[torch.from_numpy(batch.targets).to(device)] + self.offsets  # (batch, levels)
        logits = self.write(memory, f.pad(wanted[:, :-1], (1, 0)))
        return {"loss": f.cross_entropy(logits.flatten(0, 1), wanted.flatten())}

    def read(self, histories: Tensor) -> Memory:
        """Encode histories, item indices with `PADDING`, shape (users, items); `levels` tokens for every item."""
        real = histories != PADDING
        items = histories.clamp_min(0)
        tokens = self.table((self.codes[items] + self.offsets) * real[:, :, None])  # (users, items, levels, width)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + self.project(self.vectors[items])[:, :, None]
        hidden = self.dropout(tokens.flatten(1, 2))
        length = hidden.shape[1]
        padding = torch.zeros(real.shape, dtype=hidden.dtype, device=hidden.device).masked_fill_(~real, -torch.inf)
        padding = padding.repeat_interleave(len(self.sizes), dim=1)[:, None, None]
        padding = padding.masked_fill(~real.any(dim=1)[:, None, None, None], 0)  # an empty history reads padding
        place = torch.arange(length, device=hidden.device)
        bias = self.encoder_bias(_bucket(place[None] - place[:, None], both_ways=True)).permute(2, 0, 1) + padding
        for block in self.encoder:
            hidden = block(hidden, bias)
        hidden = self.dropout(self.encoder_norm(hidden))
        return Memory([(*block.cross.keys_values(hidden), padding) for block in self._decoder_blocks()])

    def write(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return the scores of all tokens after each of these, shape (users, length) to (users, length, vocabulary)."""
        place = torch.arange(tokens.shape[1], device=tokens.device)
        bias = self._own_bias(place, place).masked_fill(place[None] > place[:, None], -torch.inf)
        hidden = self.dropout(self.table(tokens))[:, None]  # one beam
        for block, seen in zip(self._decoder_blocks(), memory.layers, strict=True):
            past = block.attend.keys_values(block.attend_norm(hidden).flatten(0, 1))
            hidden = block.decode(hidden, past, bias, seen)
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
            tokens = torch.zeros(len(memory.layers[0][0]), 1, dtype=torch.long, device=self.codes.device)
        else:
            tokens = codes + self.offsets[level - 1]
        place = torch.arange(level + 1, device=tokens.device)
        bias = self._own_bias(place[-1:], place)
        hidden = self.table(tokens)[:, :, None]  # (users, beams, 1, width)
        past = []
        for number, (block, seen) in enumerate(zip(self._decoder_blocks(), memory.layers, strict=True)):
            pair = block.attend.keys_values(block.attend_norm(hidden).flatten(0, 1))
            keys, values = (part.view(*tokens.shape, *part.shape[1:]) for part in pair)
            if written is not None:
                before = written.past[number]
                keys, values = (torch.cat([b, now], dim=3) for b, now in zip(before, (keys, values), strict=True))
            past.append((keys, values))
            hidden = block.decode(hidden, (keys.flatten(0, 1), values.flatten(0, 1)), bias, seen)
        first = 1 + sum(self.sizes[:level])
        scores = self._scores(hidden[:, :, 0], self.table.weight).log_softmax(dim=2)  # as in training, over all tokens
        return scores[:, :, first : first + self.sizes[level]], Written(level, past)

    def keep(self, written: Written, parents: Tensor) -> Written:
        """Return what the beams that are kept have written; parents says which they were, shape (users, beams)."""
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return Written(written.level, [(keys[users, parents], values[users, parents]) for keys, values in written.past])

    def _decoder_blocks(self) -> Iterator[DecoderBlock]:
        return cast(Iterator[DecoderBlock], iter(self.decoder))

    def _own_bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """Return the decoder's bias of relative positions, shape (heads, queries, keys)."""
        bias: Tensor = self.decoder_bias(_bucket(keys[None] - queries[:, None], both_ways=False)).permute(2, 0, 1)
        return bias

    def _scores(self, hidden: Tensor, table: Tensor) -> Tensor:
        scores: Tensor = (self.dropout(self.decoder_norm(hidden)) * hidden.shape[-1] ** -0.5) @ table.T
        return scores


def _bucket(distance: Tensor, *, both_ways: bool) -> Tensor:
    """Return the bucket of relative positions, key minus query: exact for near ones, logarithmic for far ones."""
    buckets = _BUCKETS
    first = torch.zeros_like(distance)
    if both_ways:
        buckets //= 2
        first = (distance > 0) * buckets
        distance = distance.abs()
    else:
        distance = (-distance).clamp_min(0)
    exact = buckets // 2
    share = torch.log(distance.clamp_min(1) / exact) / math.log(_FARTHEST / exact)
    far = (exact + (share * (buckets - exact)).long()).clamp_max(buckets - 1)
    return first + torch.where(distance < exact, distance, far)


_LAYER_NAMES = {  # ours and those of `transformers`, within a layer; the number of the part depends on the stack
    "attend_norm.weight": "layer.0.layer_norm.weight",
    "attend.query.weight": "layer.0.SelfAttention.q.weight",
    "attend.key.weight": "layer.0.SelfAttention.k.weight",
    "attend.value.weight": "layer.0.SelfAttention.v.weight",
    "attend.out.weight": "layer.0.SelfAttention.o.weight",
    "cross_norm.weight": "layer.1.layer_norm.weight",
    "cross.query.weight": "layer.1.EncDecAttention.q.weight",
    "cross.key.weight": "layer.1.EncDecAttention.k.weight",
    "cross.value.weight": "layer.1.EncDecAttention.v.weight",
    "cross.out.weight": "layer.1.EncDecAttention.o.weight",
    "feed_norm.weight": "layer.{last}.layer_norm.weight",
    "feed.widen.weight": "layer.{last}.DenseReluDense.wi.weight",
    "feed.narrow.weight": "layer.{last}.DenseReluDense.wo.weight",
}


def transformers_names(model: T5Model) -> dict[str, str]:
    """Return the name that each of the model's weights has in `transformers`' `T5ForConditionalGeneration`."""
    names = {"table.weight": "shared.weight"}
    for stack, last in (("encoder", 1), ("decoder", 2)):
        names[f"{stack}_norm.weight"] = f"{stack}.final_layer_norm.weight"
        names[f"{stack}_bias.weight"] = f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"
        for number in range(len(getattr(model, stack))):
            for ours, theirs in _LAYER_NAMES.items():
                if stack == "decoder" or not ours.startswith("cross"):
                    names[f"{stack}.{number}.{ours}"] = f"{stack}.block.{number}.{theirs.format(last=last)}"
    return names


def to_transformers(model: T5Model) -> Any:
    """Return `transformers`' `T5ForConditionalGeneration` with the same weights.

    Raises
    ------
    InputError
        If the model reads item vectors, for which T5 has no place.
    """
    try:
        transformers: Any = importlib.import_module("transformers")
    except ImportError as error:
        raise InputError("transformers is not installed; run: pip install transformers") from error
    if model.vectors is not None:
        raise InputError("T5 of transformers reads tokens alone; export a generator with read_vectors off.")
    first = cast(Block, model.encoder[0])
    width, inner = model.table.weight.shape[1], first.attend.query.weight.shape[0]
    config = transformers.T5Config(
        vocab_size=len(model.table.weight),
        d_model=width,
        d_kv=inner // first.attend.heads,
        d_ff=first.feed.widen.weight.shape[0],
        num_layers=len(model.encoder),
        num_decoder_layers=len(model.decoder),
        num_heads=first.attend.heads,
        relative_attention_num_buckets=_BUCKETS,
        relative_attention_max_distance=_FARTHEST,
        dropout_rate=first.attend.dropout,
        feed_forward_proj="relu",
        tie_word_embeddings=True,
        pad_token_id=0,
        decoder_start_token_id=0,
        eos_token_id=None,
    )
    theirs = transformers.T5ForConditionalGeneration(config).eval()
    weights = {there: model.state_dict()[here] for here, there in transformers_names(model).items()}
    theirs.load_state_dict(weights, strict=False)  # the input tables and the output are the shared table
    theirs.tie_weights()
    return theirs


def from_transformers(model: T5Model, theirs: Any) -> None:
    """Give a model the weights of a `T5ForConditionalGeneration` of the same shape."""
    weights = theirs.state_dict()
    for here, there in transformers_names(model).items():
        if there not in weights or weights[there].shape != model.state_dict()[here].shape:
            raise InputError(
                f"the weight '{there}' of the other model is missing or of another shape; is it of the same size?"
            )
    model.load_state_dict({here: weights[there] for here, there in transformers_names(model).items()})
