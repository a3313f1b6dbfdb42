"""T5, the paper's G-stage: an encoder-decoder that reads the codes of a history and generates the next item's ID.

One token table: 0 is padding and the start token, then the codes of the levels, one level after the other; the output layer
is tied to it. `resid.nn.t5` has the two stacks.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.core.registry import register
from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset
from resid.generate.base import Generator, GeneratorModel
from resid.generate.exchange import from_transformers, to_transformers
from resid.generate.settings import T5Settings
from resid.nn.t5 import Memory, T5Decoder, T5Encoder, initialize_t5
from resid.train import ParameterGroup


@dataclass
class DecoderState:
    """The state of the beams.

    Attributes
    ----------
    level : int
        The level of the last scores.
    cache : Tensor
        Keys and values of every decoder layer, shape (layers, 2, users, beams, heads, tokens, head width).
    """

    level: int
    cache: Tensor


class T5Model(GeneratorModel):
    """The network.

    Parameters
    ----------
    codes
        The IDs of all items, shape (items, levels).
    level_sizes
        Number of codes of every level.
    settings
        See `T5Settings`.
    max_length
        Maximum length of a history.
    vectors
        Item vectors, shape (items, d), that are projected and added to the tokens of the history; None reads codes alone.
    decoder_length
        Maximum number of decoder tokens; by default one per level.
    encoder
        An encoder that is shared with another network; by default one of its own.
    """

    offsets: Tensor

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: T5Settings,
        max_length: int = 31,
        vectors: Tensor | None = None,
        *,
        decoder_length: int | None = None,
        encoder: T5Encoder | None = None,
    ) -> None:
        super().__init__()
        s, self.level_sizes, self.temperature = settings, tuple(level_sizes), settings.temperature
        first = [1 + sum(self.level_sizes[:level]) for level in range(len(self.level_sizes))]
        self.register_buffer("codes", codes.long(), persistent=False)
        self.register_buffer("offsets", torch.tensor(first), persistent=False)
        self.register_buffer("vectors", vectors, persistent=False)
        self.table = nn.Embedding(1 + sum(self.level_sizes), s.width)
        shape = (s.width, s.heads, s.head_width, s.ffn_width, s.layers, s.dropout)
        self.encoder = encoder or T5Encoder(*shape, max_length=max_length * len(self.level_sizes))
        self.decoder = T5Decoder(*shape, max_length=decoder_length or len(self.level_sizes))
        self.project = nn.Linear(vectors.shape[1], s.width, bias=False) if vectors is not None else None
        nn.init.normal_(self.table.weight)
        initialize_t5(self)

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return one group; the order of its parameters is that of the sum in gradient clipping, which results depend on."""
        named = dict(self.named_parameters())
        last = [
            named.pop(f"{stack}.{name}.weight")
            for name in ("norm", "position_bias")
            for stack in ("encoder", "decoder")
        ]
        return [ParameterGroup([*named.values(), *last])]

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the mean cross-entropy of the targets' codes over the whole vocabulary."""
        device = self.codes.device
        memory = self.encode(torch.from_numpy(batch.histories).to(device))
        labels = self.codes[torch.from_numpy(batch.targets).to(device)] + self.offsets  # (batch, levels)
        logits = self.logits(memory, f.pad(labels[:, :-1], (1, 0)))
        return {"loss": self.code_loss_of(logits, labels)}

    def code_loss_of(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Return the mean cross-entropy of labels, shape (users, levels), under logits over the vocabulary."""
        return f.cross_entropy(logits.flatten(0, 1) / self.temperature, labels.flatten())

    def encode(self, histories: Tensor) -> Memory:
        """Encode histories, item indices with `PADDING`, shape (users, items); one token per item and level."""
        real = histories != PADDING
        items = histories.clamp_min(0)
        tokens = self.table((self.codes[items] + self.offsets) * real[:, :, None])  # (users, items, levels, width)
        if self.vectors is not None and self.project is not None:
            tokens = tokens + (self.project(self.vectors[items]) * real[:, :, None])[:, :, None]
        bias = torch.zeros(real.shape, dtype=tokens.dtype, device=tokens.device).masked_fill_(~real, -torch.inf)
        bias = bias.repeat_interleave(len(self.level_sizes), dim=1)[:, None, None]
        bias = bias.masked_fill(~real.any(dim=1)[:, None, None, None], 0)  # an empty history attends to padding
        memory: Memory = self.encoder(tokens.flatten(1, 2), bias)
        return memory

    def logits(self, memory: Memory, tokens: Tensor) -> Tensor:
        """Return the logits of teacher-forced tokens, shape (users, length) to (users, length, vocabulary)."""
        states: Tensor = self.decoder(self.table(tokens), memory)
        return states @ self.table.weight.T

    def encode_histories(self, histories: Tensor) -> Memory:
        """See `Decodable.encode_histories`."""
        return self.decoder.prepare(self.encode(histories))

    def next_level(
        self, memory: Memory, state: DecoderState | None, codes: Tensor | None
    ) -> tuple[Tensor, DecoderState]:
        """See `Decodable.next_level`."""
        level = 0 if state is None else state.level + 1
        if codes is None:
            tokens = torch.zeros(len(memory.bias), 1, dtype=torch.long, device=self.codes.device)
        else:
            tokens = codes + self.offsets[level - 1]
        hidden, cache = self.decoder.step(self.table(tokens), memory, state.cache if state else None, level)
        return self.level_log_probs(hidden, level), DecoderState(level, cache)

    def level_log_probs(self, states: Tensor, level: int) -> Tensor:
        """Return the log-probabilities of the codes of a level; the softmax is over the whole vocabulary, as in training."""
        return (states @ self.table.weight.T).log_softmax(dim=-1)[..., self.tokens_of(level)]

    def tokens_of(self, level: int) -> slice:
        """Return the rows of the token table that are the codes of a level."""
        first = 1 + sum(self.level_sizes[:level])
        return slice(first, first + self.level_sizes[level])

    def reorder(self, state: DecoderState, parents: Tensor) -> DecoderState:
        """See `Decodable.reorder`."""
        if state.cache.shape[3] == 1:  # all come from the root
            return DecoderState(state.level, state.cache.expand(-1, -1, -1, parents.shape[1], -1, -1, -1))
        users = torch.arange(len(parents), device=parents.device)[:, None]
        return DecoderState(state.level, state.cache[:, :, users, parents])


@register("generator", "t5")
class T5Generator(Generator[T5Settings, T5Model]):
    """The paper's generator; see `T5Model`.

    Parameters
    ----------
    settings
        See `T5Settings`.
    """

    settings_class = T5Settings

    def _network(self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int) -> T5Model:
        return T5Model(codes, level_sizes, self.settings, max_length, vectors)

    def to_transformers(self) -> Any:
        """Return `transformers`' `T5ForConditionalGeneration` with the same weights."""
        self._require_fit()
        return to_transformers(self.model_)

    def from_transformers(self, model: Any) -> Self:
        """Load the weights of a `T5ForConditionalGeneration` of the same shape."""
        self._require_fit()
        from_transformers(self.model_, model)
        return self

    def _batches(self, data: Dataset) -> Batches:
        return Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed)
