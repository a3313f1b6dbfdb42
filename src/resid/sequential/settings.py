"""The settings that the trained sequential recommenders share."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.settings import validated
from resid.nn import check_heads
from resid.recommend.trained import RecommenderSettings


@validated
class SequentialSettings(RecommenderSettings):
    """How items are represented and which loss is used.

    Parameters
    ----------
    width
        Embedding and hidden dimension.
    dropout
        Dropout probability.
    use_fields
        Represent an item by the sum of the embeddings of its item ID and its fields (the starred variants of the ReSID
        paper); otherwise by its item ID alone.
    target
        With fields: score against the sum (``"fused"``), or against the item-ID embedding alone (``"id"``).
    loss
        ``"softmax"`` over all items, ``"sampled"`` softmax over the target and `n_negatives`, or ``"binary"`` cross-entropy
        with one negative. ``"auto"`` is softmax for a catalogue of at most `full_softmax_limit` items, otherwise sampled.
    similarity
        ``"cosine"``, scaled by √width, or ``"dot"``.
    n_negatives
        Number of sampled negatives.
    negative_group_size
        Number of consecutive targets that share a set of negatives, so that a step touches few rows of a large table.
    full_softmax_limit
        See `loss`.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `RecommenderSettings`. Models that train all positions of a history in one pass take as many histories per step
        as have `batch_size` targets on average.
    """

    renamed: ClassVar[dict[str, str]] = {
        "fields": "use_fields",
        "negatives": "n_negatives",
        "share_negatives": "negative_group_size",
        "full_softmax_up_to": "full_softmax_limit",
    }
    width: Annotated[int, Field(ge=4)] = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    use_fields: bool = False
    target: Literal["fused", "id"] = "fused"
    loss: Literal["auto", "softmax", "sampled", "binary"] = "auto"
    similarity: Literal["cosine", "dot"] = "cosine"
    n_negatives: Annotated[int, Field(ge=1)] = 128
    negative_group_size: Annotated[int, Field(ge=1)] = 32
    full_softmax_limit: Annotated[int, Field(ge=1)] = 32_768
    epochs: Annotated[int, Field(ge=1)] = 30

    def loss_for(self, n_items: int) -> str:
        """Return the loss for a catalogue of this size."""
        if self.loss == "auto":
            return "softmax" if n_items <= self.full_softmax_limit else "sampled"
        return self.loss


@validated
class TransformerSettings(SequentialSettings):
    """Settings of the Transformer recommenders.

    Parameters
    ----------
    layers, heads, ffn_width
        Number of layers and attention heads, and hidden size of the feed-forward networks.
    width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size, full_softmax_limit
        See `SequentialSettings`.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `SequentialSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"hidden": "ffn_width"}
    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    ffn_width: Annotated[int, Field(ge=1)] = 512

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
