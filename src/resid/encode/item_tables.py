"""The item embedding tables of a sequential model as an encoder: ablations E2 and E3 of the ReSID paper."""

from dataclasses import replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.data.new_items import NewItems
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.sequential.base import SequentialRecommender
from resid.sequential.bert4rec import BERT4Rec
from resid.sequential.sasrec import SASRec
from resid.sequential.settings import BERT4RecSettings, SASRecSettings


class ItemTableEncoder(Encoder):
    """Trains a sequential model; the embedding of an item is the concatenation of its rows in the model's input tables.

    With tags, it is the mean of their rows.

    Parameters
    ----------
    settings
        The settings of the sequential model.

    Attributes
    ----------
    recommender_ : SequentialRecommender
        The fitted model.
    """

    distributed = True
    recommender_class: ClassVar[type[SequentialRecommender[Any, Any]]]
    recommender_: SequentialRecommender[Any, Any]

    def __init__(self, settings: Any = None) -> None:
        self.settings: Any = settings or self.settings_class()

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if the settings need fields and the Dataset has none."""
        self.recommender_class(self.settings).check(data)

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Train the sequential model."""
        self.recommender_ = self.recommender_class(self.settings).fit(data, runtime=runtime)
        self.catalogue_ = self.recommender_.catalogue_
        self.history_, self.best_epoch_ = self.recommender_.history_, self.recommender_.best_epoch_
        return self

    @torch.inference_mode()
    def embed(self, data: Dataset) -> ItemEmbeddings:
        """See `Encoder.embed`."""
        self._require_data(data)
        width = self.settings.width
        columns = {
            name: (field * width, (field + 1) * width) for field, name in enumerate(self.recommender_.field_sizes_)
        }
        return ItemEmbeddings(self.item_vectors()[: data.n_items], columns, data.fingerprint)

    @torch.inference_mode()
    def item_vectors(self) -> NDArray[np.float32]:
        """See `Encoder.item_vectors`."""
        tables = self.recommender_.model_.tables
        parts = [tables.part(field, tables.codes) for field in range(len(tables))]
        vectors: NDArray[np.float32] = torch.cat(parts, dim=1).cpu().numpy()
        return vectors

    def embed_listed(self, new: NewItems) -> NDArray[np.float32]:
        """See `Encoder.embed_listed`: the rows of the fields, and the mean row of the items that training saw."""
        return type(self)._unpack(self.grow(new)).item_vectors()[-len(new) :]

    def grow(self, new: NewItems, vectors: NDArray[np.float32] | None = None) -> Artifact:
        """See `Encoder.grow`; the embeddings are in the tables."""
        return replace(self.to_artifact(), parts={"recommender": self.recommender_.grow(new).artifact})

    def check_growth(self) -> None:
        """See `Part.check_growth`."""
        self.recommender_class(self.settings).check_growth()

    @property
    def ranks_items(self) -> bool:
        """A sequential model ranks items."""
        return True

    @torch.no_grad()
    def queries(self, histories: Tensor) -> Tensor:
        """See `Encoder.queries`."""
        model = self.recommender_.model_.eval()
        recent = histories[:, -self.catalogue_.max_history :].to(model.tables.codes.device)
        found: Tensor = model.scale_queries(model.query(recent))
        return found

    @torch.no_grad()
    def candidates(self) -> Tensor:
        """See `Encoder.candidates`."""
        found: Tensor = self.recommender_.model_.candidates()
        return found

    def initial_tables(self) -> dict[str, NDArray[np.float32]]:
        """See `Encoder.initial_tables`."""
        tables = self.recommender_.model_.tables.embeddings()
        names = self.recommender_.field_sizes_
        return {name: table.weight.detach().cpu().numpy() for name, table in zip(names, tables, strict=True)}

    def _pack(self) -> dict[str, Any]:
        return {"parts": {"recommender": self.recommender_.to_artifact()}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        recommender = cls.recommender_class.from_artifact(artifact.parts["recommender"])
        encoder = cls(recommender.settings)
        encoder.recommender_, encoder.catalogue_ = recommender, recommender.catalogue_
        encoder.history_, encoder.best_epoch_ = recommender.history_, recommender.best_epoch_
        return encoder


@register("encoder", "sasrec")
class SASRecEncoder(ItemTableEncoder):
    """The item embeddings of SASRec (ablation E2)."""

    settings_class = SASRecSettings
    recommender_class = SASRec


@register("encoder", "bert4rec")
class BERT4RecEncoder(ItemTableEncoder):
    """The item embeddings of BERT4Rec (ablation E3)."""

    settings_class = BERT4RecSettings
    recommender_class = BERT4Rec
