"""The settings of encoders."""

from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.checksums import sha256_of_file, sha256_of_folder
from resid.core.registry import settings_for
from resid.core.settings import Settings, check_heads, validated
from resid.sequential.settings import BERT4RecSettings, SASRecSettings
from resid.train.settings import TrainSettings

DEFAULT_MODEL = "all-MiniLM-L6-v2"  # of text embeddings; the extra `text` contains it

settings_for("encoder", "sasrec")(SASRecSettings)
settings_for("encoder", "bert4rec")(BERT4RecSettings)


@settings_for("encoder", "famae")
@validated
class FamaeSettings(TrainSettings):
    """Settings of FAMAE; the recipe ``resid-paper`` has the paper's.

    Parameters
    ----------
    width, layers, heads, ffn_width, dropout
        Of the Transformer.
    n_negatives
        Number of sampled negatives for a vocabulary above `full_softmax_limit`.
    negative_group_size
        Number of consecutive targets that share a set of negatives, so that a step touches few rows of a large table.
    full_softmax_limit
        The largest vocabulary with a full softmax. Larger tables get sparse gradients, so that the cost of a step does not
        grow with them.
    field_weights
        The weights α_k of the loss, the item ID first; all 1 by default.
    attention
        ``"causal"`` trains all targets of a history in one pass; ``"bidirectional"`` is the paper's, a window per target.
    masking
        ``"last"`` masks fields of the target, as in the paper; ``"random"`` those of random positions, as in BERT, which needs
        bidirectional attention.
    validation_windows
        Maximum number of windows that are evaluated after an epoch, always the same ones; fewer for a catalogue so large
        that it would take more than five billion scores, but at least a thousand.
    max_learning_rate_scale
        The learning rate is multiplied by the batch size divided by 256, at most by this: larger batches make fewer steps.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`; the automatic batch size is at most 1024, the warm-up at most a tenth of all steps.
    """

    renamed: ClassVar[dict[str, str]] = {
        "hidden": "ffn_width",
        "negatives": "n_negatives",
        "share_negatives": "negative_group_size",
        "full_softmax_up_to": "full_softmax_limit",
    }
    max_auto_batch_size: ClassVar[int] = 1024

    width: Annotated[int, Field(ge=4)] = 128
    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    ffn_width: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    n_negatives: Annotated[int, Field(ge=1)] = 128
    negative_group_size: Annotated[int, Field(ge=1)] = 32
    full_softmax_limit: Annotated[int, Field(ge=1)] = 32_768
    field_weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    attention: Literal["causal", "bidirectional"] = "causal"
    masking: Literal["last", "random"] = "last"
    validation_windows: Annotated[int, Field(ge=1)] = 50_000
    epochs: Annotated[int, Field(ge=1)] = 25
    warmup_steps: Annotated[int, Field(ge=0)] = 100
    max_learning_rate_scale: Annotated[float, Field(ge=1)] = 4.0
    evaluate_every: Annotated[int, Field(ge=1)] = 5

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
        if self.masking == "random" and self.attention == "causal":
            raise ValueError('masking="random" needs attention="bidirectional"')

    def learning_rate_for(self, batch_size: int) -> float:
        """Return the learning rate for a batch size."""
        return self.learning_rate * min(max(1.0, batch_size / 256), self.max_learning_rate_scale)


@settings_for("encoder", "din")
@validated
class DINSettings(TrainSettings):
    """Settings of DIN.

    Parameters
    ----------
    width
        Dimension of the item embeddings.
    windows
        Numbers of consecutive history items whose weighted sum is one input of the perceptron, oldest first; the last window
        ends with the most recent item. Items before the first window belong to it.
    attention_widths
        Hidden sizes of the attention unit.
    mlp_widths
        Hidden sizes of the perceptron.
    dropout
        Dropout probability in the perceptron.
    n_negatives
        Number of uniformly drawn negatives per target.
    validation_users
        Maximum number of validation users that are ranked after an epoch, always the same ones.
    validation_candidates
        Number of items, always the same ones, among which their target is ranked: a network that reads candidate and history
        together cannot score a whole catalogue after every epoch. A smaller catalogue is ranked as a whole.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`; the automatic batch size is at most 512, as every pair of candidate and history item takes memory.
    """

    max_auto_batch_size: ClassVar[int] = 512

    width: Annotated[int, Field(ge=1)] = 96
    windows: Annotated[tuple[Annotated[int, Field(ge=1)], ...], Field(min_length=1)] = (8, 7, 4, 4, 2, 2, 1, 1, 1, 1)
    attention_widths: tuple[Annotated[int, Field(ge=1)], ...] = (64, 16)
    mlp_widths: tuple[Annotated[int, Field(ge=1)], ...] = (200, 80)
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    n_negatives: Annotated[int, Field(ge=1)] = 60
    validation_users: Annotated[int, Field(ge=1)] = 2_000
    validation_candidates: Annotated[int, Field(ge=1)] = 250
    epochs: Annotated[int, Field(ge=1)] = 30


@settings_for("encoder", "text")
@validated
class TextSettings(Settings):
    """Settings of text embeddings.

    Parameters
    ----------
    model
        A model of sentence-transformers: its name on the Hugging Face hub, or a folder. The default model comes with the extra
        ``text`` and needs no network; the paper's is ``sentence-transformers/sentence-t5-xxl``.
    revision
        Of a model on the hub: a branch, a tag or a commit. By default the newest that was downloaded.
    columns
        The columns of the item table that make the text of an item, in this order. By default ``title``, the fields, and
        ``price``, ``features`` and ``description``, as far as the Dataset has them.
    vectors
        A file with the vectors of the items, instead of a model; see `resid.encode.vector_file.read_vectors`.
    batch_size
        Number of texts that are embedded at a time.
    """

    model: Annotated[str, Field(min_length=1)] = DEFAULT_MODEL
    revision: str | None = None
    columns: Annotated[tuple[str, ...], Field(min_length=1)] | None = None
    vectors: str | None = None
    batch_size: Annotated[int, Field(ge=1)] = 32

    def file_digests(self) -> list[str]:
        """See `Settings.file_digests`: that of the file of vectors, or of the model if it is a folder."""
        if self.vectors is not None:
            path = Path(self.vectors)
            return [sha256_of_file(path)] if path.is_file() else []
        return [sha256_of_folder(Path(self.model))] if Path(self.model).is_dir() else []
