"""The settings of encoders."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.registry import settings_for
from resid.core.settings import check_heads, validated
from resid.sequential.settings import BERT4RecSettings, SASRecSettings
from resid.train.settings import TrainSettings

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

    def batch_size_for(self, windows: int) -> int:
        """Return the batch size for a number of training windows."""
        size = super().batch_size_for(windows)
        return min(size, 1024) if self.batch_size == "auto" else size

    def learning_rate_for(self, batch_size: int) -> float:
        """Return the learning rate for a batch size."""
        return self.learning_rate * min(max(1.0, batch_size / 256), self.max_learning_rate_scale)
