"""ETEGRec: tokenizer and generator are trained in turns, and aligned with each other.

Liu et al., "End-to-End Learnable Item Tokenization for Generative Recommendation", 2024. Item vectors of SASRec are tokenized
by an RQ-VAE with one more level that numbers items with the same codes; a T5 with a token table per level generates the IDs.
Training has two phases:

1. Alternation. Every `cycle` epochs, starting with the first, an epoch trains the tokenizer, and all items are tokenized again;
   the other epochs train the T5. What is not trained is frozen.
2. Fine-tuning. From the best epoch on, the tokenizer stays as it is, and the T5 is trained on the codes alone.

Beside their own loss, reconstruction and quantization (SQ) or the codes of the next item (REC), both have two alignment losses
in the first phase, from `alignment_start` on:

- SIA, sequence-item alignment: the history, as its mean encoder state, and the target item should be quantized alike. The loss is
  the symmetric Kullback-Leibler divergence of their code distributions at every level, where P(code) ∝ exp(−‖residual − code‖²).
- PSA, preference-semantic alignment: InfoNCE of the first decoder state and the RQ-VAE's reconstruction of the target's vector,
  in both directions, among the distinct targets of a batch.

IDs change during training. They are part of the checkpoints, so that an interrupted training continues exactly.
"""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.core.errors import InputError
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.core.settings import validated
from resid.data.batches import Batch, Batches
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.encode import ItemEmbeddings
from resid.generate.base import Generator
from resid.generate.settings import T5Settings
from resid.generate.t5 import T5Model
from resid.nn.losses import symmetric_contrastive_loss
from resid.nn.t5 import Memory
from resid.quantize import RQVAE, Quantizer, SemanticIds
from resid.quantize.rqvae import RQVAEModel
from resid.train import ParameterGroup, TrainableModule

DEDUPLICATION_CODES = 256  # of the last level, at least
FINE_TUNING_PATIENCE = 10  # evaluations
_INITIAL_STD = 0.02  # of token tables and alignment layers
_ROWS = 8_192  # vectors that are tokenized at a time


@validated
class ETEGRecSettings(T5Settings):
    """Settings of ETEGRec.

    The original trains for up to 400 epochs, then fine-tunes for up to 100; the defaults suit a CPU.

    Parameters
    ----------
    cycle
        An epoch of every so many trains the tokenizer, the others the T5; 2 or 4 in the original.
    sia_weight, psa_weight
        Weights of the two alignment losses, beside a weight of 1 for the codes, or for reconstruction and quantization.
    sia_sign
        Of the distances in the code distributions of SIA: ``"paper"`` is softmax(−distance), where near codes are probable;
        ``"released"`` is softmax(+distance), as the authors' code has it.
    psa_temperature
        Of PSA's cosine similarities.
    alignment_start
        The number of epochs before the alignment losses are used.
    tokenizer_learning_rate
        Of AdamW for the RQ-VAE; its cosine decay is that of the T5, over the steps of all epochs.
    finetune_epochs, finetune_learning_rate
        Of the second phase, with cosine decay and without warm-up; it stops after 10 evaluations without improvement.
    width, head_width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `T5Settings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`; `epochs` counts those of the tokenizer, too, `warmup_steps` those of the T5 alone. The tokenizer
        warms up in `warmup_steps` divided by `cycle` of its own steps, as in the original.
    """

    cycle: Annotated[int, Field(ge=2)] = 2
    sia_weight: Annotated[float, Field(ge=0)] = 1e-4
    psa_weight: Annotated[float, Field(ge=0)] = 3e-4
    sia_sign: Literal["paper", "released"] = "paper"
    psa_temperature: Annotated[float, Field(gt=0)] = 0.07
    alignment_start: Annotated[int, Field(ge=0)] = 10
    tokenizer_learning_rate: Annotated[float, Field(gt=0)] = 1e-4
    finetune_epochs: Annotated[int, Field(ge=1)] = 20
    finetune_learning_rate: Annotated[float, Field(gt=0)] = 5e-4
    epochs: Annotated[int, Field(ge=1)] = 100
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = "auto"
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    warmup_steps: Annotated[int, Field(ge=0)] = 2_000
    evaluate_every: Annotated[int, Field(ge=1)] = 2
    patience: Annotated[int, Field(ge=0)] = 15

    @property
    def uses_embeddings(self) -> bool:
        """The tokenizer reads item embeddings in training."""
        return True

    @property
    def uses_quantizer(self) -> bool:
        """The tokenizer starts from the fitted quantizer."""
        return True


class ETEGRecModel(T5Model):
    """T5 with a token table, and a softmax, per level.

    The tables are parts of one; parameters as in `T5Model`.
    """

    settings: ETEGRecSettings

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: ETEGRecSettings,
        max_length: int = 31,
        vectors: Tensor | None = None,
    ) -> None:
        super().__init__(codes, level_sizes, settings, max_length, vectors)
        nn.init.normal_(self.table.weight, std=_INITIAL_STD)

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return REC, the mean cross-entropy of the targets' codes."""
        histories, targets = (torch.from_numpy(part).to(self.codes.device) for part in (batch.histories, batch.targets))
        return {"loss": self.code_loss(self.states(self.encode(histories), targets), targets)}

    def states(self, memory: Memory, targets: Tensor) -> Tensor:
        """Return the decoder states that generate the codes of targets, shape (users, levels, width)."""
        tokens = (self.codes[targets] + self.offsets)[:, :-1]
        states: Tensor = self.decoder(self.table(f.pad(tokens, (1, 0))), memory)
        return states

    def first_state(self, memory: Memory) -> Tensor:
        """Return the decoder state after the start token, shape (users, width); the first of `states`."""
        start = torch.zeros(len(memory.tokens), 1, dtype=torch.long, device=self.codes.device)
        state: Tensor = self.decoder(self.table(start), memory)[:, 0]
        return state

    def code_loss(self, states: Tensor, targets: Tensor) -> Tensor:
        """Return the mean cross-entropy over users and levels; parameters as in `states`."""
        codes = self.codes[targets]
        levels = range(len(self.level_sizes))
        logits = [self.level_logits(states[:, level], level) / self.temperature for level in levels]
        losses = [f.cross_entropy(logits[level], codes[:, level]) for level in levels]
        return torch.stack(losses).mean()

    def level_log_probs(self, states: Tensor, level: int) -> Tensor:
        """Return the log-probabilities of the codes of a level; the softmax is over this level alone."""
        return self.level_logits(states, level).log_softmax(dim=-1)

    def level_logits(self, states: Tensor, level: int) -> Tensor:
        """Return the logits of the codes of a level."""
        return unscaled(states) @ self.table.weight[self.tokens_of(level)].T

    def set_codes(self, codes: Tensor) -> None:
        """Replace the IDs, shape (items, levels); the table of the last level grows if it has too few codes."""
        self.codes = codes.to(self.codes.device)
        self.resize_last_level(max(self.level_sizes[-1], int(codes[:, -1].max()) + 1))

    def resize_last_level(self, size: int) -> None:
        """Change the number of codes of the last level; new rows depend on the size alone, so that a resumed run has the same."""
        added = size - self.level_sizes[-1]
        if added:
            self.level_sizes = (*self.level_sizes[:-1], size)
            rows = torch.randn(max(added, 0), self.table.embedding_dim, generator=torch.Generator().manual_seed(size))
            kept = self.table.weight.data[: sum(self.level_sizes) + 1]  # the last level is at the end
            self.table.weight.data = torch.cat([kept, _INITIAL_STD * rows.to(kept)])
            self.table.num_embeddings = len(self.table.weight)


class Alternation(TrainableModule):
    """The first phase: tokenizer and T5 in turns, with the alignment losses.

    Parameters
    ----------
    generator
        The T5.
    tokenizer
        The RQ-VAE.
    embeddings
        The item vectors that it reads, shape (items, d).
    settings
        See `ETEGRecSettings`.
    """

    embeddings: Tensor

    def __init__(
        self, generator: ETEGRecModel, tokenizer: RQVAEModel, embeddings: Tensor, settings: ETEGRecSettings
    ) -> None:
        super().__init__()
        self.generator, self.tokenizer, self.settings = generator, tokenizer, settings
        latent, width = tokenizer.codebooks.shape[2], embeddings.shape[1]
        self.register_buffer("embeddings", embeddings * tokenizer.input_scale, persistent=False)
        self.history_layer = nn.Linear(settings.width, latent)  # of SIA
        self.preference_layer = nn.Linear(settings.width, width)  # of PSA
        for layer in (self.history_layer, self.preference_layer):
            nn.init.normal_(layer.weight, std=_INITIAL_STD)
            nn.init.zeros_(layer.bias)
        self.epoch = 0

    @property
    def trains_tokenizer(self) -> bool:
        """Whether the epoch trains the tokenizer; otherwise it trains the T5."""
        return self.epoch % self.settings.cycle == 0

    @property
    def aligns(self) -> bool:
        """Whether the epoch has the alignment losses."""
        return self.epoch >= self.settings.alignment_start

    def begin_epoch(self, epoch: int) -> None:
        """Freeze what is not trained; after the tokenizer was trained, tokenize all items again.

        In an epoch of the T5 the tokenizer does not change, so that a run that is resumed within it gets the same IDs.
        """
        self.epoch = epoch
        self.generator.requires_grad_(not self.trains_tokenizer)
        self.tokenizer.requires_grad_(self.trains_tokenizer)
        for layer in (self.history_layer, self.preference_layer):
            layer.requires_grad_(not self.trains_tokenizer and self.aligns)
        if not self.trains_tokenizer:
            self.tokenize()

    def train(self, mode: bool = True) -> Self:
        """Set the mode; a frozen T5 has no dropout."""
        super().train(mode)
        self.generator.train(mode and not self.trains_tokenizer)
        return self

    def parameter_groups(self) -> list[ParameterGroup]:
        """Return those of the T5 with the alignment layers, and those of the tokenizer with a learning rate of its own.

        Schedules count the steps of all epochs, of which the T5 has all but one in `cycle`.
        """
        s = self.settings
        warmup_steps = round(s.warmup_steps * s.cycle / (s.cycle - 1))
        layers = [*self.history_layer.parameters(), *self.preference_layer.parameters()]
        return [
            ParameterGroup([*self.generator.parameters(), *layers], warmup_steps=warmup_steps),
            ParameterGroup([*self.tokenizer.parameters()], learning_rate=s.tokenizer_learning_rate),
        ]

    def extra_state(self) -> dict[str, Tensor]:
        """Return the IDs, and the number of codes of their last level."""
        return {"codes": self.generator.codes, "last_level_size": torch.tensor(self.generator.level_sizes[-1])}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """Restore the IDs and the size of the last token table."""
        self.generator.resize_last_level(int(state["last_level_size"]))
        self.generator.set_codes(state["codes"])

    @torch.no_grad()
    def tokenize(self) -> None:
        """Give all items the IDs of the tokenizer."""
        parts = [self.tokenizer.quantize(self.tokenizer.encoder(part)) for part in torch.split(self.embeddings, _ROWS)]
        ids = SemanticIds(torch.cat(parts).cpu().numpy()).deduplicated()
        self.generator.set_codes(torch.from_numpy(ids.codes).long())

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the part that the epoch trains, and with alignment SIA and PSA."""
        device = self.embeddings.device
        histories, targets = (torch.from_numpy(part).to(device) for part in (batch.histories, batch.targets))
        items, instances = (  # the distinct targets, and where each of them occurs first
            torch.from_numpy(part).to(device) for part in np.unique(batch.targets, return_index=True)
        )
        terms, reconstructed, memory, first = dict[str, Tensor](), None, None, None
        if self.trains_tokenizer:
            reconstructed, terms["sq"] = self.tokenizer_loss(self.embeddings[items])
        else:
            memory = self.generator.encode(histories)
            states = self.generator.states(memory, targets)
            terms["rec"], first = self.generator.code_loss(states, targets), states[:, 0]
        loss = torch.stack(list(terms.values())).sum()
        if self.aligns:
            if reconstructed is None:
                reconstructed, _ = self.tokenizer.reconstruct(self.tokenizer.encoder(self.embeddings[items]))
            if memory is None or first is None:
                memory = self.generator.encode(histories)
                first = self.generator.first_state(memory)
            latent = self.tokenizer.encoder(self.embeddings[targets])
            terms["sia"] = self.sequence_item_alignment(pooled(memory), latent)
            terms["psa"] = self.preference_semantic_alignment(first[instances], reconstructed)
            loss = loss + self.settings.sia_weight * terms["sia"] + self.settings.psa_weight * terms["psa"]
        return {"loss": loss, **{f"loss.{name}": term for name, term in terms.items()}}

    def tokenizer_loss(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return the reconstruction of vectors, shape (n, d), and SQ: mean squared errors, averaged over levels."""
        reconstructed, quantization = self.tokenizer.reconstruct(self.tokenizer.encoder(vectors))
        levels, _, latent = self.tokenizer.codebooks.shape
        return reconstructed, f.mse_loss(reconstructed, vectors) + quantization / (levels * latent)

    def sequence_item_alignment(self, histories: Tensor, latent: Tensor) -> Tensor:
        """Return SIA: the symmetric divergence of code distributions, averaged over users and levels.

        Parameters
        ----------
        histories
            The mean encoder states of histories, shape (users, width).
        latent
            The latent vectors of their targets, shape (users, latent).
        """
        sign = -1.0 if self.settings.sia_sign == "paper" else 1.0
        ours = code_log_distributions(self.history_layer(histories), self.tokenizer.codebooks, sign)
        theirs = code_log_distributions(latent, self.tokenizer.codebooks, sign)
        return symmetric_divergence(ours, theirs)

    def preference_semantic_alignment(self, states: Tensor, reconstructed: Tensor) -> Tensor:
        """Return PSA, the sum of both directions.

        Parameters
        ----------
        states
            First decoder states, shape (n, width).
        reconstructed
            The reconstructions of their targets, which are different items, shape (n, d).
        """
        preferences = self.preference_layer(unscaled(states))
        return 2 * symmetric_contrastive_loss(preferences, reconstructed, self.settings.psa_temperature)


def unscaled(states: Tensor) -> Tensor:
    """Return decoder states, shape (..., width), without the scale of T5's output layer, which ETEGRec does not have."""
    return states * math.sqrt(states.shape[-1])


def pooled(memory: Memory) -> Tensor:
    """Return the mean encoder state of the tokens that are not padding, shape (users, width)."""
    real = (memory.bias == 0).view(len(memory.tokens), -1, 1)  # (users, length, 1)
    return (memory.tokens * real).sum(dim=1) / real.sum(dim=1)


def code_log_distributions(latent: Tensor, codebooks: Tensor, sign: float) -> Tensor:
    """Return the logarithm of softmax(sign · squared distance to the codes) at every level of residual quantization.

    As in the quantizer, the residual of a level is what the nearest code of the level before left; codes get gradients from the
    distributions of their own level.

    Parameters
    ----------
    latent
        Shape (n, d).
    codebooks
        Shape (levels, codes, d).
    sign
        -1 makes near codes probable.

    Returns
    -------
    Tensor
        Shape (n, levels, codes).
    """
    logs = []
    for book in codebooks:
        squares = latent.square().sum(dim=1, keepdim=True) + book.square().sum(dim=1)
        distances = squares - 2 * latent @ book.T
        logs.append((sign * distances).log_softmax(dim=1))
        latent = latent - book[distances.argmin(dim=1)].detach()
    return torch.stack(logs, dim=1)


def symmetric_divergence(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return KL(p‖q) + KL(q‖p) of log-probabilities in the last dimension, averaged over the others."""
    return ((ours.exp() - theirs.exp()) * (ours - theirs)).sum(dim=-1).mean()


@register("generator", "etegrec")
class ETEGRec(Generator[ETEGRecSettings, ETEGRecModel]):
    """Trains the RQ-VAE of its IDs together with a T5; see the module.

    The further trained RQ-VAE is the model's part ``"quantizer"``.

    Parameters
    ----------
    settings
        See `ETEGRecSettings`.
    """

    settings_class = ETEGRecSettings
    needs_inputs = True
    _alternation: Alternation | None = None  # during the first phase

    def fit(
        self,
        data: Dataset,
        ids: SemanticIds,
        embeddings: ItemEmbeddings | NDArray[np.float32] | None = None,
        quantizer: Quantizer | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Self:
        """Train tokenizer and T5 in turns, then the T5 alone; early stopping on the NDCG@10 of validation users.

        Parameters
        ----------
        data, runtime
            See `Generator.fit`.
        ids
            The IDs of the quantizer.
        embeddings
            The item embeddings that the quantizer was fitted to, shape (items, d).
        quantizer
            A fitted RQ-VAE; it is copied.
        """
        if embeddings is None or type(quantizer) is not RQVAE:  # a subclass may give codes in another way
            raise InputError(
                "ETEGRec trains an RQ-VAE further and needs the item embeddings and the quantizer itself; fit a recipe whose "
                'quantizer.kind is "rq-vae".'
            )
        vectors = np.asarray(embeddings)
        if (
            vectors.shape != (len(quantizer.codes_), quantizer.n_features_in_)
            or ids.levels != quantizer.n_levels + 1
            or not np.array_equal(ids.codes[:, :-1], quantizer.codes_)
            or not ids.unique
        ):
            raise InputError(
                "IDs, embeddings and quantizer do not match; ETEGRec needs the embeddings that the RQ-VAE was fitted to, and its "
                'IDs with collisions="deduplicate".'
            )
        self._tokenizer, self._embeddings = copy.deepcopy(quantizer), vectors  # read by `_train`
        sizes = (*ids.level_sizes[:-1], max(DEDUPLICATION_CODES, ids.level_sizes[-1]))
        return super().fit(data, SemanticIds(ids.codes, sizes, ids.item_ids, ids.facts), embeddings, runtime=runtime)

    def _configuration(self) -> dict[str, Any]:
        return {"quantizer": self._tokenizer.digest}

    def _network(
        self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int
    ) -> ETEGRecModel:
        read = vectors if self.settings.input_embeddings else None
        return ETEGRecModel(codes, level_sizes, self.settings, max_length, read)

    def _batches(self, data: Dataset) -> Batches:
        return Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed)

    def _train(self, data: Dataset, configuration: Mapping[str, Any], runtime: Runtime | None) -> None:
        runtime, tokenizer = runtime or Runtime(), self._tokenizer
        vectors = torch.tensor(self._embeddings, dtype=torch.float32)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            module = self._alternation = Alternation(self.model_, tokenizer.model_, vectors, self.settings)
        runtime.progress.step("Training tokenizer and T5 in turns")
        self._train_module(module, self.settings, data, configuration, runtime.within("alternation"))
        alternation, self._alternation = self.history_, None
        self.model_.requires_grad_(True)
        tokenizer.model_.requires_grad_(True).eval()
        self._take_ids()
        tokenizer.codes_ = self.ids_.codes[:, :-1].copy()
        self.parts_ = {"quantizer": tokenizer}
        runtime.progress.step("Fine-tuning T5")
        settings = self.settings.replace(
            epochs=self.settings.finetune_epochs,
            learning_rate=self.settings.finetune_learning_rate,
            warmup_steps=0,
            patience=FINE_TUNING_PATIENCE,
        )
        tuning = {**configuration, "ids": self.ids_.digest}
        self._train_module(self.model_, settings, data, tuning, runtime.within("fine-tuning"))
        before = len(alternation)
        self.history_ = [*alternation, *({**record, "epoch": record["epoch"] + before} for record in self.history_)]
        self.best_epoch_ += before

    def _validate(self, users: Split) -> dict[str, float]:
        """Return the metrics of the current weights and, after an epoch of the tokenizer, of its new IDs."""
        if self._alternation is not None and self._alternation.trains_tokenizer:
            self._alternation.tokenize()
        self._take_ids()
        return super()._validate(users)

    def _take_ids(self) -> None:
        """Take over the IDs of the network, which change in training."""
        codes = self.model_.codes.cpu().numpy()
        if np.array_equal(codes, self.ids_.codes) and self.model_.level_sizes == self.ids_.level_sizes:
            return
        facts = {**self.ids_.facts, "trained_with": self.kind}
        self.ids_ = SemanticIds(codes, self.model_.level_sizes, self.catalogue_.item_ids, facts)
        self._forget_trees()
