"""The settings of generators."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.registry import settings_for
from resid.core.settings import Settings, check_heads, validated
from resid.recommend.settings import RecommenderSettings
from resid.sequential.settings import TransformerSettings

Score = Literal["item", "encoder", "cooccurrence"]
Weight = Annotated[float, Field(ge=0)]


@validated
class GeneratorSettings(RecommenderSettings):
    """The settings that all generators share.

    Parameters
    ----------
    width
        Embedding and hidden dimension.
    beam_size
        Number of prefixes that are kept at each level of decoding.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `RecommenderSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"beam": "beam_size"}
    ids_per_item: ClassVar[int] = 1

    width: Annotated[int, Field(ge=4)] = 128
    beam_size: Annotated[int, Field(ge=1)] = 50
    validation_users: Annotated[int, Field(ge=1)] = 5_000

    @property
    def uses_embeddings(self) -> bool:
        """Whether the generator reads item embeddings."""
        return False

    @property
    def uses_encoder(self) -> bool:
        """Whether the generator reads the encoder itself."""
        return False

    @property
    def uses_quantizer(self) -> bool:
        """Whether the generator reads the quantizer itself."""
        return False


@validated
class CodeGeneratorSettings(GeneratorSettings):
    """The settings of generators that score items by their codes alone.

    Parameters
    ----------
    layers, heads, ffn_width, dropout
        Of the Transformer.
    input_embeddings
        Add the item embeddings, their principal components projected, to the tokens of the history.
    temperature
        Divides the logits in the loss (LETTER's ranking-guided loss): below 1, codes with high scores weigh more among the
        negatives. Decoding takes the logits as they are.
    width, beam_size, validation_users
        See `GeneratorSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"hidden": "ffn_width", "read_vectors": "input_embeddings"}

    layers: Annotated[int, Field(ge=1)] = 4
    heads: Annotated[int, Field(ge=1)] = 4
    ffn_width: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    input_embeddings: bool = True
    temperature: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0

    @property
    def uses_embeddings(self) -> bool:
        """Whether the generator reads item embeddings."""
        return self.input_embeddings

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)


@settings_for("generator", "t5")
@validated
class T5Settings(CodeGeneratorSettings):
    """Settings of the T5 generator; the defaults are the paper's.

    Parameters
    ----------
    head_width
        Dimension of an attention head.
    width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `CodeGeneratorSettings`; `layers` in the encoder and as many in the decoder.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`. The paper does not specify warm-up and gradient clipping; here 1,000 steps and a norm of 1.
    """

    head_width: Annotated[int, Field(ge=1)] = 32
    input_embeddings: bool = False
    epochs: Annotated[int, Field(ge=1)] = 500
    batch_size: Annotated[int, Field(ge=1)] | Literal["auto"] = 2048
    learning_rate: Annotated[float, Field(gt=0)] = 5e-3
    warmup_steps: Annotated[int, Field(ge=0)] = 1_000
    max_grad_norm: Annotated[float, Field(ge=0)] = 1.0
    evaluate_every: Annotated[int, Field(ge=1)] = 5
    patience: Annotated[int, Field(ge=0)] = 10


@settings_for("generator", "onepass")
@validated
class OnePassSettings(CodeGeneratorSettings):
    """Settings of the one-pass generator.

    Parameters
    ----------
    label_smoothing
        Of the cross-entropy of the codes.
    item_dropout
        Probability of an item of the history to be dropped from the input in a training step.
    output_embeddings
        Score a code also by the mean embedding of the items that it leads to.
    learned_item_embeddings
        Add a learned embedding of the item to its token.
    width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `CodeGeneratorSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`; a step reads histories with about `batch_size` targets in total.
    """

    renamed: ClassVar[dict[str, str]] = {
        "smoothing": "label_smoothing",
        "forget": "item_dropout",
        "write_vectors": "output_embeddings",
        "read_items": "learned_item_embeddings",
    }

    layers: Annotated[int, Field(ge=1)] = 2
    epochs: Annotated[int, Field(ge=1)] = 20
    batch_size: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.2
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    item_dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    output_embeddings: bool = True
    learned_item_embeddings: bool = True
    patience: Annotated[int, Field(ge=0)] = 5

    @property
    def uses_embeddings(self) -> bool:
        """Whether the generator reads item embeddings."""
        return self.input_embeddings or self.output_embeddings


@settings_for("generator", "joint")
@validated
class JointSettings(TransformerSettings, GeneratorSettings):
    """Settings of the joint generator.

    Parameters
    ----------
    scores
        The scores that are blended with the codes' log-probabilities; the encoder's is left out if it does not rank items.
    code_loss_weight
        Weight of the losses of the codes beside that of the item.
    label_smoothing
        Of the cross-entropy of the codes.
    separate_code_layer
        Give the codes a last layer of their own on detached inputs, so that no gradient of theirs reaches the trunk.
    start_from_encoder
        Initialize the field tables with those of the encoder, if it has any.
    output_embeddings
        Score a code also by the mean embedding of the items that it leads to.
    beam_size
        Number of prefixes that are kept at each level of decoding, and of items that are re-ranked.
    width, layers, heads, ffn_width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size
        See `TransformerSettings`.
    full_softmax_limit, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    scores: tuple[Score, ...] = ("item", "encoder", "cooccurrence")
    code_loss_weight: Annotated[float, Field(gt=0)] = 1.0
    label_smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    separate_code_layer: bool = True
    start_from_encoder: bool = True
    output_embeddings: bool = True
    use_fields: bool = True
    epochs: Annotated[int, Field(ge=1)] = 10
    patience: Annotated[int, Field(ge=0)] = 0
    beam_size: Annotated[int, Field(ge=1)] = 100
    validation_users: Annotated[int, Field(ge=1)] = 5_000

    @property
    def uses_embeddings(self) -> bool:
        """Whether the generator reads item embeddings."""
        return self.output_embeddings

    @property
    def uses_encoder(self) -> bool:
        """Whether the generator reads the encoder itself."""
        return self.start_from_encoder or "encoder" in self.scores


@validated
class SummarySettings(T5Settings):
    """Settings of a T5 with a summary token.

    Parameters
    ----------
    n_negatives
        Number of random items with which the vector of the target competes; all items if the catalogue has no more.
    contrastive_temperature
        By which the cosines are divided.
    width, head_width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `T5Settings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `T5Settings`.
    """

    n_negatives: Annotated[int, Field(ge=1)] = 2_048
    contrastive_temperature: Annotated[float, Field(gt=0)] = 0.3


@settings_for("generator", "two-streams")
@validated
class TwoStreamSettings(SummarySettings):
    """Settings of the two-stream generator.

    Parameters
    ----------
    behavior_contrastive_weight, semantic_contrastive_weight
        Weights of the contrastive losses of the summary tokens beside the losses of the codes.
    reconstruction_weight, recognition_weight
        Weights of the two losses of the semantic-guided transfer.
    prefix_specific_vocab
        Give the same code under different prefixes different token embeddings, as EAGER's code does. The vocabulary then grows
        with the catalogue.
    n_negatives, contrastive_temperature
        See `SummarySettings`.
    width, head_width, layers, heads, ffn_width, dropout, input_embeddings, temperature, beam_size, validation_users
        See `T5Settings`; `layers` in the encoder and in each decoder, `beam_size` for each stream.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `T5Settings`.
    """

    behavior_contrastive_weight: Weight = 1.0
    semantic_contrastive_weight: Weight = 10.0
    reconstruction_weight: Weight = 1.0
    recognition_weight: Weight = 1.0
    prefix_specific_vocab: bool = False
    ids_per_item: ClassVar[int] = 2

    @property
    def uses_embeddings(self) -> bool:
        """The summaries are compared with the embeddings."""
        return True


@settings_for("generator", "paired")
@validated
class PairedSettings(Settings):
    """A pair of generators has no settings of its own."""

    ids_per_item: ClassVar[int] = 2
