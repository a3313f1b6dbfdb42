"""The settings that the trained recommenders of this folder have in common."""

from typing import Annotated, Literal

from pydantic import Field

from resid.core.settings import checked
from resid.train import RecommenderSettings, check_heads


@checked
class SequentialSettings(RecommenderSettings):
    """How a recommender reads items, what it compares with them, and what it loses.

    Parameters
    ----------
    width
        Size of an item's vector, and of everything else.
    dropout
        Share of what is set to zero in training.
    fields
        Read an item as the sum of the vectors of its item-ID and its fields, the starred variants of the paper; otherwise
        as that of its item-ID alone.
    target
        With fields: compare with the sum (``"fused"``), or with the vector of the item-ID alone (``"id"``).
    loss
        ``"softmax"`` over all items, ``"sampled"`` over the target and `negatives` that are drawn, or ``"binary"``, each of
        these alone. ``"auto"`` is softmax for a catalogue of at most `full_softmax_up_to` items, and sampled otherwise.
    similarity
        ``"cosine"``, times the root of the width, or ``"dot"``, the product.
    negatives
        Items drawn for a loss that does not take all.
    share_negatives
        So many targets share what is drawn, so that a step touches few rows of a large table.
    full_softmax_up_to
        See `loss`.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `RecommenderSettings`. A model that trains every position of a history in one pass takes as many histories as have
        `batch_size` windows on average.
    """

    width: Annotated[int, Field(ge=4)] = 128
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.3
    fields: bool = False
    target: Literal["fused", "id"] = "fused"
    loss: Literal["auto", "softmax", "sampled", "binary"] = "auto"
    similarity: Literal["cosine", "dot"] = "cosine"
    negatives: Annotated[int, Field(ge=1)] = 128
    share_negatives: Annotated[int, Field(ge=1)] = 32
    full_softmax_up_to: Annotated[int, Field(ge=1)] = 32_768
    epochs: Annotated[int, Field(ge=1)] = 30

    def loss_for(self, items: int) -> str:
        """Return the loss for a catalogue of so many items."""
        if self.loss == "auto":
            return "softmax" if items <= self.full_softmax_up_to else "sampled"
        return self.loss


@checked
class TransformerSettings(SequentialSettings):
    """Of the recommenders that are Transformers.

    Parameters
    ----------
    layers, heads, hidden
        Of the Transformer.
    width, dropout, fields, target, loss, similarity, negatives, share_negatives, full_softmax_up_to, validation_users
        See `SequentialSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `SequentialSettings`.
    """

    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    hidden: Annotated[int, Field(ge=1)] = 512

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)
