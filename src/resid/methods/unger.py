"""UNGER: one ID per item, made of behavior and text together.

Xiao et al., "UNGER: Generative Recommendation with A Unified Code via Semantic and Collaborative Integration", 2025. There is no
public code of the authors, and not all of their settings are known.

1. The encoder learns a collaborative embedding of every item, E_C, and adapts its text vector to the same space, E_T (adaptive
   layer normalization). [E_C; E_T] is the item vector of a sequential model (DIN, or SASRec) that predicts the next item, while a
   contrastive loss aligns E_C and E_T of the same item.
2. Hierarchical k-means turns [E_C; E_T], each half of length 1, into IDs.
3. A T5 generates them. A summary token after the codes is trained to be closest to the item's vector, to make up for what
   quantization loses (`resid.generate.summary`).

This project's own choices are the concatenation of E_C and E_T and their lengths, alignment among the distinct targets of a batch,
the temperature of the alignment (0.07) and its weight (1), the weight of the distillation (1), its temperature (0.3) and number of
negatives (2,048), as in EAGER, and the tree: 256 children per node and as many levels as the catalogue needs.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Self, cast

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.part import PartSpec
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.core.settings import validated
from resid.data.batches import Batch, Batches, SequenceBatch
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.encode import DINModel, DINSettings, Encoder, ItemEmbeddings
from resid.encode.din import MONITOR, train_din
from resid.generate import Generator
from resid.generate.base import check_vectors, digest
from resid.generate.settings import SummarySettings
from resid.generate.summary import SummaryT5Model
from resid.methods.method import method
from resid.methods.semantic_ids import fit_encoder, fit_generator, fit_quantizer, require_matching
from resid.nn import FieldTables
from resid.nn.losses import symmetric_contrastive_loss
from resid.quantize import SemanticIds
from resid.recommend import Recommender
from resid.runs import Run
from resid.sequential.sasrec import SASRec, SASRecModel
from resid.sequential.settings import SASRecSettings
from resid.train import TrainSettings, best_epoch

BEHAVIOR, TEXT = "behavior", "text"  # the halves of an item vector


@method("unger", "text_encoder", "encoder", "quantizer", "generator")
def fit_unger(run: Run, parts: Mapping[str, PartSpec], data: Dataset) -> Recommender:
    """Embed the texts, then fit the encoder that reads them, quantizer and generator."""
    if not isinstance(parts["encoder"].create(), UnifiedEncoder):
        raise InputError("the method 'unger' needs an encoder that reads text: set encoder.kind to \"unger\".")
    require_matching(parts["generator"], parts["quantizer"])
    text_encoder, text = fit_encoder(run, parts["text_encoder"], data, "text_encoder")
    encoder = cast(UnifiedEncoder, run.stage("encoder", parts["encoder"], data, text))
    embeddings = encoder.embed(data)
    quantizer, ids = fit_quantizer(run, parts["quantizer"], data, embeddings)
    model = fit_generator(run, parts["generator"], data, ids, embeddings, encoder, quantizer=quantizer)
    model.parts_ = {"text_encoder": text_encoder, "encoder": encoder, "quantizer": quantizer, **model.parts_}
    return model


@validated
class AlignmentSettings(TrainSettings):
    """How collaborative embeddings and adapted text vectors are aligned.

    Parameters
    ----------
    alignment_weight
        Weight of the contrastive loss beside that of the next item.
    alignment_temperature
        By which its cosines are divided.
    """

    alignment_weight: Annotated[float, Field(ge=0)] = 1.0
    alignment_temperature: Annotated[float, Field(gt=0)] = 0.07


class ModalityAdaptation(nn.Module):
    """Text vectors in the space of collaborative embeddings: ((1 + γ(x)) ⊙ LN(W x + b) + δ(x)) / √width.

    γ and δ are linear and start at zero, so that the layer starts as a projection with vectors of length 1, as collaborative
    embeddings have at the start.

    Parameters
    ----------
    text
        The text vectors of all items, shape (items, d); their lengths are not used.
    width
        Of the adapted vectors.
    """

    text: Tensor

    def __init__(self, text: Tensor, width: int) -> None:
        super().__init__()
        self.register_buffer("text", f.normalize(text, dim=1), persistent=False)
        self.project = nn.Linear(text.shape[1], width)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.scale, self.shift = nn.Linear(text.shape[1], width), nn.Linear(text.shape[1], width)
        for layer in (self.scale, self.shift):
            nn.init.zeros_(layer.weight)
            nn.init.zeros_(layer.bias)

    def forward(self, items: Tensor) -> Tensor:
        """Return the adapted text vectors of items; any shape to (..., width)."""
        text = self.text[items]
        adapted: Tensor = (1 + self.scale(text)) * self.norm(self.project(text)) + self.shift(text)
        return adapted / math.sqrt(adapted.shape[-1])


def aligned_losses(
    sequence: Tensor, table: nn.Embedding, adaptation: ModalityAdaptation, items: Tensor, settings: AlignmentSettings
) -> dict[str, Tensor]:
    """Return the loss of the next item, the alignment of different items, shape (items,), and their weighted sum."""
    alignment = symmetric_contrastive_loss(table(items), adaptation(items), settings.alignment_temperature)
    loss = sequence + settings.alignment_weight * alignment
    return {"loss": loss, "loss.sequence": sequence, "loss.alignment": alignment}


class UnifiedEncoder(Encoder):
    """Base class of UNGER's encoders: a subclass trains a sequential model whose item vectors have two halves.

    Attributes
    ----------
    vectors_ : ndarray of float32, shape (items, 2 · width of a half)
        Each half has length 1.
    """

    distributed = True
    further_inputs = (TEXT,)
    vectors_: NDArray[np.float32]

    def __init__(self, settings: Any = None) -> None:
        self.settings: Any = settings or self.settings_class()

    def fit(
        self, data: Dataset, text: ItemEmbeddings | NDArray[np.float32] | None = None, *, runtime: Runtime | None = None
    ) -> Self:
        """Train on the training windows; early stopping on the NDCG@10 of validation users.

        Parameters
        ----------
        data
            The Dataset.
        text
            The text vectors of its items, shape (items, d).
        runtime
            Folder, devices, trackers and progress.
        """
        require_dataset(data)
        if text is None:
            raise InputError("the encoder of UNGER reads text vectors of the items; fit the recipe 'unger'.")
        if isinstance(text, ItemEmbeddings):
            text.require_data(data, name="text vectors")
        vectors = torch.tensor(check_vectors(np.asarray(text), data.n_items), dtype=torch.float32)
        table, adaptation = self._train(data, vectors, runtime)
        with torch.no_grad():
            items = torch.arange(data.n_items, device=table.weight.device)
            halves = [f.normalize(half, dim=1) for half in (table.weight, adaptation.eval()(items))]
        self.vectors_, self.catalogue_ = torch.cat(halves, dim=1).cpu().numpy(), data.catalogue
        self.best_epoch_ = best_epoch(list(self.history_), MONITOR)
        return self

    @abstractmethod
    def _train(self, data: Dataset, text: Tensor, runtime: Runtime | None) -> tuple[nn.Embedding, ModalityAdaptation]:
        """Train, set `history_`, and return what makes the halves of the item vectors."""

    def embed(self, data: Dataset) -> ItemEmbeddings:
        """See `Encoder.embed`: the columns `behavior` and `text`."""
        self._require_data(data)
        width = self.vectors_.shape[1]
        columns = {BEHAVIOR: (0, width // 2), TEXT: (width // 2, width)}
        return ItemEmbeddings(self.vectors_, columns, data.fingerprint)

    def item_vectors(self) -> NDArray[np.float32]:
        """See `Encoder.item_vectors`."""
        return self.vectors_

    def _pack(self) -> dict[str, Any]:
        return self._packed(arrays={"vectors": self.vectors_})

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        encoder = cls._unpacked(artifact)
        encoder.vectors_ = artifact.arrays["vectors"]
        return encoder


@validated
class UNGERSettings(AlignmentSettings, DINSettings):
    """Settings of UNGER's encoder with DIN.

    Parameters
    ----------
    width
        Dimension of each half of an item vector.
    alignment_weight, alignment_temperature
        See `AlignmentSettings`.
    windows, attention_widths, mlp_widths, dropout, n_negatives, validation_users, validation_candidates
        See `DINSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    width: Annotated[int, Field(ge=1)] = 128


class UnifiedDIN(DINModel):
    """DIN whose item vectors are [E_C; E_T]; parameters as in `DINModel`, and the text vectors, shape (items, d)."""

    settings: UNGERSettings

    def __init__(self, n_items: int, settings: UNGERSettings, max_history: int, text: Tensor) -> None:
        super().__init__(n_items, settings, max_history, 2 * settings.width)
        self.adaptation = ModalityAdaptation(text, settings.width)

    def item_vectors(self, items: Tensor) -> Tensor:
        """See `DINModel.item_vectors`."""
        return torch.cat([self.table(items), self.adaptation(items)], dim=1)

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the next item and of the alignment of the batch's targets."""
        sequence = super().forward(batch, rng)["loss"]
        items = torch.from_numpy(np.unique(batch.targets)).to(sequence.device)
        return aligned_losses(sequence, self.table, self.adaptation, items, self.settings)


@register("encoder", "unger")
class UNGEREncoder(UnifiedEncoder):
    """UNGER's item vectors, learned with DIN.

    Parameters
    ----------
    settings
        See `UNGERSettings`.
    """

    settings_class = UNGERSettings

    def _train(self, data: Dataset, text: Tensor, runtime: Runtime | None) -> tuple[nn.Embedding, ModalityAdaptation]:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            model = UnifiedDIN(data.n_items, self.settings, data.catalogue.max_history, text)
        configuration = {"model": self.kind, "text": digest(text.numpy())}
        self.history_ = train_din(model, data, self.settings, runtime, configuration)
        return model.table, model.adaptation


@validated
class UNGERSASRecSettings(AlignmentSettings, SASRecSettings):
    """Settings of UNGER's encoder with SASRec.

    Parameters
    ----------
    width
        Dimension of the item vectors, both halves together, and of the Transformer.
    alignment_weight, alignment_temperature
        See `AlignmentSettings`.
    layers, heads, ffn_width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size
        See `TransformerSettings`; fields are not read.
    full_softmax_limit, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    width: Annotated[int, Field(ge=4)] = 256

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.width % 2:
            raise InputError(f"width={self.width} must be even: it is divided into two halves.")
        if self.use_fields or self.target == "id":
            raise InputError("the item vectors of UNGER have no fields; leave use_fields=false and target=fused.")


class UnifiedTables(FieldTables):
    """An item table and the adapted text vectors, concatenated; `FieldTables` for the item ID alone.

    Parameters
    ----------
    text
        The text vectors of all items, shape (items, d).
    width
        Of both halves together.
    sparse
        Whether the item table has sparse gradients.
    """

    def __init__(self, text: Tensor, width: int, sparse: bool) -> None:
        half = width // 2
        super().__init__(np.arange(len(text))[:, None], (len(text),), half, (sparse,), std=half**-0.5)
        self.append(ModalityAdaptation(text, half))

    @property
    def adaptation(self) -> ModalityAdaptation:
        """The layer that makes the second half."""
        return cast(ModalityAdaptation, self[1])

    def vectors(self, items: Tensor) -> Tensor:
        """See `FieldTables.vectors`."""
        return torch.cat([self.embeddings()[0](items), self.adaptation(items)], dim=-1)

    def all_vectors(self) -> Tensor:
        """See `FieldTables.all_vectors`."""
        return self.vectors(torch.arange(len(self.codes), device=self.codes.device))


class UnifiedSASRecModel(SASRecModel):
    """SASRec whose item vectors are [E_C; E_T]; parameters as in `SASRecModel`, and the text vectors, shape (items, d)."""

    settings: UNGERSASRecSettings
    tables: UnifiedTables

    def __init__(self, settings: UNGERSASRecSettings, max_length: int, text: Tensor) -> None:
        super().__init__(np.arange(len(text))[:, None], (len(text),), settings, max_length)
        self.tables = UnifiedTables(text, settings.width, self.sparse[0])

    def forward(self, batch: SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the next item and of the alignment of the batch's targets."""
        sequence = super().forward(batch, rng)["loss"]
        items = torch.from_numpy(np.unique(batch.items[:, 1:][batch.are_targets])).to(sequence.device)
        table, adaptation = self.tables.embeddings()[0], self.tables.adaptation
        return aligned_losses(sequence, table, adaptation, items, self.settings)


class _UnifiedSASRec(SASRec):
    """Trains and validates `UnifiedSASRecModel`."""

    settings_class = UNGERSASRecSettings

    def __init__(self, settings: Any, text: Tensor) -> None:
        super().__init__(settings)
        self._text = text

    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> SASRecModel:
        return UnifiedSASRecModel(cast(Any, self.settings), self.catalogue_.max_history, self._text)

    def _train(self, data: Dataset, configuration: Mapping[str, Any], runtime: Runtime | None) -> None:
        super()._train(data, {**configuration, "text": digest(self._text.numpy())}, runtime)


@register("encoder", "unger-sasrec")
class UNGERSASRecEncoder(UnifiedEncoder):
    """UNGER's item vectors, learned with SASRec instead of DIN.

    Parameters
    ----------
    settings
        See `UNGERSASRecSettings`.
    """

    settings_class = UNGERSASRecSettings

    def _train(self, data: Dataset, text: Tensor, runtime: Runtime | None) -> tuple[nn.Embedding, ModalityAdaptation]:
        model = _UnifiedSASRec(self.settings, text).fit(data, runtime=runtime)
        self.history_, tables = model.history_, cast(UnifiedSASRecModel, model.model_).tables
        return tables.embeddings()[0], tables.adaptation


@validated
class UNGERGeneratorSettings(SummarySettings):
    """Settings of UNGER's generator.

    Parameters
    ----------
    distillation_weight
        Weight of the loss of the summary token beside that of the codes.
    n_negatives, contrastive_temperature
        Of the summary token, see `SummarySettings`.
    width, head_width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `T5Settings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `T5Settings`.
    """

    distillation_weight: Annotated[float, Field(ge=0)] = 1.0

    @property
    def uses_embeddings(self) -> bool:
        """The summary token is compared with item embeddings."""
        return True


class UNGERModel(SummaryT5Model):
    """T5 with a summary token whose loss has a weight; parameters as in `SummaryT5Model`."""

    settings: UNGERGeneratorSettings

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the codes and of the summary, and their weighted sum."""
        terms = super().forward(batch, rng)
        return {**terms, "loss": terms["generation"] + self.settings.distillation_weight * terms["contrastive"]}


@register("generator", "unger")
class UNGERGenerator(Generator[UNGERGeneratorSettings, UNGERModel]):
    """Generates IDs, with a summary token that is distilled from the item vectors in training.

    Parameters
    ----------
    settings
        See `UNGERGeneratorSettings`.
    """

    settings_class = UNGERGeneratorSettings
    needs_inputs = True
    _targets: Tensor | None = None  # during training
    _target_width: int

    def fit(
        self,
        data: Dataset,
        ids: SemanticIds,
        embeddings: ItemEmbeddings | NDArray[np.float32] | None = None,
        *,
        runtime: Runtime | None = None,
    ) -> Self:
        """Train as `Generator.fit` says; the embeddings, shape (items, d), are required."""
        require_dataset(data)
        if embeddings is None:
            raise InputError(
                "the generator of UNGER needs item embeddings; encode the items, or fit the recipe 'unger'."
            )
        self._targets = torch.tensor(check_vectors(np.asarray(embeddings), data.n_items), dtype=torch.float32)
        self._target_width = self._targets.shape[1]
        super().fit(data, ids, embeddings, runtime=runtime)
        self._targets = self.model_.targets = None
        return self

    def _network(
        self, codes: Tensor, level_sizes: Sequence[int], vectors: Tensor | None, max_length: int
    ) -> UNGERModel:
        read = vectors if self.settings.input_embeddings else None
        return UNGERModel(
            codes, level_sizes, self.settings, max_length, self._target_width, self._targets, vectors=read
        )

    def _batches(self, data: Dataset) -> Batches:
        return Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed)

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        return {**content, "facts": {**content["facts"], "target_width": self._target_width}}

    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        self._target_width = artifact.facts["target_width"]
        super()._restore(artifact, catalogue)
