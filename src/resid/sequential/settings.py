"""The settings of sequential recommenders."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from resid.core.registry import settings_for
from resid.core.settings import Settings, check_heads, validated
from resid.recommend.settings import RecommenderSettings


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


@settings_for("recommender", "sasrec")
@validated
class SASRecSettings(TransformerSettings):
    """Settings of SASRec; see `TransformerSettings`."""


@settings_for("recommender", "bert4rec")
@validated
class BERT4RecSettings(TransformerSettings):
    """Settings of BERT4Rec.

    Parameters
    ----------
    mask_prob
        Probability of an item to be masked, in windows where not only the last item is masked.
    last_only_prob
        Probability of a window in which only the last item is masked.
    width, layers, heads, ffn_width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size
        See `TransformerSettings`.
    full_softmax_limit, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"mask_share": "mask_prob", "last_share": "last_only_prob"}

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    mask_prob: Annotated[float, Field(gt=0, lt=1)] = 0.2
    last_only_prob: Annotated[float, Field(ge=0, le=1)] = 0.5


@settings_for("recommender", "hgn")
@validated
class HGNSettings(SequentialSettings):
    """Settings of HGN.

    Parameters
    ----------
    n_recent
        L, the number of most recent items that are read.
    user_embeddings
        Learn an embedding for every user, as the authors do, instead of one for all users.
    width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size, full_softmax_limit
        See `SequentialSettings`; dropout applies to item and user embeddings.
    validation_users, epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `RecommenderSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"last": "n_recent", "user_vectors": "user_embeddings"}

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    n_recent: Annotated[int, Field(ge=1)] = 5
    user_embeddings: bool = False


@settings_for("recommender", "s3rec")
@validated
class S3RecSettings(TransformerSettings):
    """Settings of S3-Rec.

    Parameters
    ----------
    pretrain_epochs
        Number of pre-training epochs.
    nested_sigmoids
        Compare the sigmoids of two scores, as the authors' code does, instead of the scores; the gradient then vanishes
        where both scores are large.
    mask_prob
        Probability of an item to be masked in pre-training; the last item is always masked.
    n_sampled_attributes
        Number of attributes that a step samples as negatives if there are more.
    width, layers, heads, ffn_width, dropout, use_fields, target, loss, similarity, n_negatives, negative_group_size
        See `TransformerSettings`.
    full_softmax_limit, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {"mask_share": "mask_prob", "sampled_attributes": "n_sampled_attributes"}

    pretrain_epochs: Annotated[int, Field(ge=1)] = 20
    nested_sigmoids: bool = False
    mask_prob: Annotated[float, Field(gt=0, lt=1)] = 0.2
    n_sampled_attributes: Annotated[int, Field(ge=1)] = 4_096


@settings_for("recommender", "cooccurrence")
@validated
class CoOccurrenceSettings(Settings):
    """Settings of CoOccurrence.

    Parameters
    ----------
    n_recent
        Number of most recent items of the history that are used.
    decay
        Weight of an item relative to the next one.
    """

    renamed: ClassVar[dict[str, str]] = {"last": "n_recent"}

    n_recent: Annotated[int, Field(ge=1)] = 5
    decay: Annotated[float, Field(gt=0, le=1)] = 0.7


@settings_for("recommender", "popularity")
@validated
class PopularitySettings(Settings):
    """Popularity has no settings."""


@settings_for("recommender", "popularity-new")
@validated
class PopularityNewSettings(Settings):
    """Popularity of the new has no settings."""
