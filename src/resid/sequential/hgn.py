"""HGN: feature gating and instance gating of the most recent items, conditioned on the user.

Ma et al., "Hierarchical Gating Networks for Sequential Recommendation", KDD 2019. With S the embeddings of the last L items
and u the user embedding: feature gate S′ = S ⊙ σ(W₁S + W₂u + b), instance gate a_i = σ(w₃·s′_i + (W₄u)_i), and query
u + Σ a_i s′_i / Σ a_i + Σ s_i. Padding is excluded from all sums. Candidates have embedding tables of their own. Where users
have few interactions, user embeddings memorize these and little else; by default all users share one u.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.data.batches import PADDING, Batch, Batches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset
from resid.nn import Dropout, FieldTables
from resid.sequential.base import SequentialModel, SequentialRecommender, windows
from resid.sequential.settings import HGNSettings


class HGNModel(SequentialModel):
    """The network.

    Parameters
    ----------
    codes, field_sizes, settings
        See `SequentialModel`.
    n_users
        Number of user embeddings; 1 if all users share one.
    """

    settings: HGNSettings

    def __init__(
        self, codes: NDArray[np.integer], field_sizes: Sequence[int], settings: HGNSettings, n_users: int
    ) -> None:
        super().__init__(codes, field_sizes, settings)
        width = settings.width
        scored = 1 if settings.target == "id" else len(field_sizes)  # fields of the candidates
        self.own_outputs = FieldTables(
            codes[:, :scored], field_sizes[:scored], width, self.sparse[:scored], std=1 / width
        )
        self.users = nn.Embedding(n_users, width, sparse=n_users > settings.full_softmax_limit)
        self.feature_items = nn.Linear(width, width)  # W₁ and b
        self.feature_users = nn.Linear(width, width, bias=False)  # W₂
        self.instance_items = nn.Linear(width, 1, bias=False)  # w₃
        self.instance_users = nn.Linear(width, settings.n_recent, bias=False)  # W₄
        self.dropout = Dropout(settings.dropout)
        for table in (*self.tables.embeddings(), self.users):
            nn.init.normal_(table.weight, std=1 / width)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_normal_(module.weight)
        nn.init.zeros_(self.feature_items.bias)

    @property
    def outputs(self) -> FieldTables:
        """The tables of the candidates, separate from the input tables."""
        return self.own_outputs

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the mean loss over the windows."""
        device = self.users.weight.device
        histories, users, targets = (
            torch.from_numpy(part).to(device) for part in (batch.histories, batch.users, batch.targets)
        )
        return {"loss": self.loss(self.query(histories, users), targets, rng)}

    def query(self, histories: Tensor, users: Tensor | None = None) -> Tensor:
        """See `SequentialModel.query`; unknown users get the mean user embedding."""
        recent = histories[:, -self.settings.n_recent :]
        real = (recent != PADDING)[..., None]  # (users, L, 1)
        items = self.dropout(self.tables.vectors(recent.clamp_min(0))) * real
        user = self.dropout(self._user_embeddings(users, len(recent)))
        gate = torch.sigmoid(self.feature_items(items) + self.feature_users(user)[:, None])
        passed = items * gate  # S′
        slots = self.instance_users(user)[:, -recent.shape[1] :, None]  # the last slot is the most recent item
        weights = torch.sigmoid(self.instance_items(passed) + slots) * real  # a
        pooled = (passed * weights).sum(dim=1) / weights.sum(dim=1).clamp_min(1e-12)
        query: Tensor = user + pooled + items.sum(dim=1)
        return query

    def _user_embeddings(self, users: Tensor | None, count: int) -> Tensor:
        if users is not None and self.settings.user_embeddings and (self.training or (users >= 0).all()):
            known: Tensor = self.users(users)
            return known
        mean = self.users.weight.mean(dim=0)  # costs a pass over all users
        if users is None or not self.settings.user_embeddings:
            return mean.expand(count, -1)
        return torch.where((users >= 0)[:, None], self.users(users.clamp_min(0)), mean)


@register("recommender", "hgn")
class HGN(SequentialRecommender[HGNSettings, HGNModel]):
    """Hierarchical gating networks; with ``use_fields=True`` in the settings, HGN*.

    With ``user_embeddings=True``, pass the users to `recommend`.

    Parameters
    ----------
    settings
        See `HGNSettings`.
    """

    settings_class = HGNSettings

    def _read_users(self, data: Dataset) -> None:
        self.user_ids_ = data.user_ids if self.settings.user_embeddings else None
        self.__dict__.pop("_user_positions", None)  # cached by an earlier fit

    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> HGNModel:
        return HGNModel(codes, field_sizes, self.settings, len(self.user_ids_) if self.user_ids_ is not None else 1)

    def _batches(self, data: Dataset) -> Batches:
        return windows(data, self.settings)

    def _item_tables(self) -> list[nn.Embedding]:
        return [*super()._item_tables(), self.model_.outputs.embeddings()[0]]

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        users = {"users": self.user_ids_.to_frame("user")} if self.user_ids_ is not None else {}
        return {**content, "tables": {**content["tables"], **users}}

    def _restore(self, artifact: Artifact, catalogue: Catalogue) -> None:
        self.user_ids_ = artifact.tables["users"]["user"] if self.settings.user_embeddings else None
        super()._restore(artifact, catalogue)
