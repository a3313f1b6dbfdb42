"""HGN: gates that let features and items of the history pass, depending on the user.

Ma et al., "Hierarchical Gating Networks for Sequential Recommendation", KDD 2019. With S the vectors of the last L items and
u the user's: the feature gate S′ = S ⊙ σ(W₁S + W₂u + b), the instance gate a_i = σ(w₃·s′_i + (W₄u)_i), and the query
u + Σ a_i s′_i / Σ a_i + Σ s_i. Padding takes part in none of the sums. What queries are compared with has tables of its own.
Where every user has few interactions, vectors of users remember these and little else; by default all users share one u.
"""

from collections.abc import Sequence
from typing import Annotated, Any

import numpy as np
import polars as pl
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.core.artifact import Bundle
from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset
from resid.nn import Dropout, FieldTables
from resid.recommend.base import Catalogue
from resid.sequential.base import SequentialModel, VectorRecommender, windows
from resid.sequential.settings import SequentialSettings
from resid.core.settings import checked


@checked
class HGNSettings(SequentialSettings):
    """Settings of HGN.

    Parameters
    ----------
    last
        L, how many items of the history are read, its last ones.
    user_vectors
        Learn a u for every user, as the authors do, instead of one for all.
    width, dropout, fields, target, loss, similarity, negatives, share_negatives, full_softmax_up_to, validation_users
        See `SequentialSettings`; dropout is on the vectors of items and users.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.5
    last: Annotated[int, Field(ge=1)] = 5
    user_vectors: bool = False


class HGNModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, sizes, settings
        See `SequentialModel`.
    users
        How many users have a vector of their own; 1 if all share it.
    """

    settings: HGNSettings

    def __init__(self, codes: NDArray[np.integer], sizes: Sequence[int], settings: HGNSettings, users: int) -> None:
        super().__init__(codes, sizes, settings)
        width = settings.width
        shown = 1 if settings.target == "id" else len(sizes)  # fields that queries are compared with
        self.own_outputs = FieldTables(codes[:, :shown], sizes[:shown], width, self.sparse[:shown], std=1 / width)
        self.users = nn.Embedding(users, width, sparse=users > settings.full_softmax_up_to)
        self.feature_items = nn.Linear(width, width)  # W₁ and b
        self.feature_users = nn.Linear(width, width, bias=False)  # W₂
        self.instance_items = nn.Linear(width, 1, bias=False)  # w₃
        self.instance_users = nn.Linear(width, settings.last, bias=False)  # W₄
        self.dropout = Dropout(settings.dropout)
        for table in (*self.tables.embeddings(), self.users):
            nn.init.normal_(table.weight, std=1 / width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(self.feature_items.bias)

    @property
    def outputs(self) -> FieldTables:
        """The tables of what queries are compared with, which are not those that are read."""
        return self.own_outputs

    def forward(self, batch: Batch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of the windows' targets, the mean over them."""
        device = self.users.weight.device
        histories, users, targets = (
            torch.from_numpy(part).to(device) for part in (batch.histories, batch.users, batch.targets)
        )
        return {"loss": self.loss(self.query(histories, users), targets, generator)}

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """See `SequentialModel.query`; a user who is not known is the mean of all."""
        recent = histories[:, -self.settings.last :]
        real = (recent != PADDING)[..., None]  # (users, L, 1)
        items = self.dropout(self.tables.vectors(recent.clamp_min(0))) * real
        user = self.dropout(self._user_vectors(users, len(recent)))
        gate = torch.sigmoid(self.feature_items(items) + self.feature_users(user)[:, None])
        passed = items * gate  # S′
        slots = self.instance_users(user)[:, -recent.shape[1] :, None]  # the last slot is the most recent item's
        weights = torch.sigmoid(self.instance_items(passed) + slots) * real  # a
        pooled = (passed * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1e-12)
        query: Tensor = user + pooled + items.sum(dim=1)
        return query

    def _user_vectors(self, users: Tensor | None, count: int) -> Tensor:
        if users is not None and self.settings.user_vectors and (self.training or (users >= 0).all()):
            known: Tensor = self.users(users)
            return known
        mean = self.users.weight.mean(dim=0)  # which takes longer with every user
        if users is None or not self.settings.user_vectors:
            return mean.expand(count, -1)
        return torch.where((users >= 0)[:, None], self.users(users.clamp_min(0)), mean)


class HGN(VectorRecommender[HGNSettings, HGNModel]):
    """Hierarchical gating networks; with ``fields=True`` in the settings, HGN*.

    With ``user_vectors=True`` it knows the users that it was fitted to: give them to `recommend`.

    Parameters
    ----------
    settings
        See `HGNSettings`.
    """

    name = "hgn"
    settings_class = HGNSettings

    def _know(self, data: Dataset) -> None:
        self.user_ids_ = data.user_ids if self.settings.user_vectors else None
        self.__dict__.pop("_user_positions", None)  # of a fit before

    def _network(self, codes: NDArray[np.integer], sizes: Sequence[int]) -> HGNModel:
        return HGNModel(codes, sizes, self.settings, len(self.user_ids_) if self.user_ids_ is not None else 1)

    def _batches(self, data: Dataset) -> Batches:
        return windows(data, self.settings)

    def _bundle(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]], dict[str, pl.DataFrame]]:
        facts, arrays, tables = super()._bundle()
        users = {"users": self.user_ids_.to_frame("user")} if self.user_ids_ is not None else {}
        return facts, arrays, tables | users

    def _rebuild(self, bundle: Bundle, catalogue: Catalogue) -> None:
        self.user_ids_ = bundle.tables["users"]["user"] if self.settings.user_vectors else None
        super()._rebuild(bundle, catalogue)
