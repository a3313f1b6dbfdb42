"""The item embedding tables of a sequential model as an encoder: ablations E2 and E3 of the ReSID paper."""

from typing import Any, ClassVar, Self

import torch

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.sequential.base import SequentialRecommender
from resid.sequential.bert4rec import BERT4Rec, BERT4RecSettings
from resid.sequential.sasrec import SASRec, SASRecSettings


class ItemTableEncoder(Encoder):
    """Trains a sequential model; the embedding of an item is the concatenation of its rows in the model's input tables.

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
        return self

    @torch.inference_mode()
    def embed(self, data: Dataset) -> ItemEmbeddings:
        """See `Encoder.embed`."""
        self._require_data(data)
        tables, width = self.recommender_.model_.tables, self.settings.width
        parts = [table(tables.codes[:, field]) for field, table in enumerate(tables.embeddings())]
        vectors = torch.cat(parts, dim=1).cpu().numpy()
        columns = {
            name: (field * width, (field + 1) * width) for field, name in enumerate(self.recommender_.field_sizes_)
        }
        return ItemEmbeddings(vectors, columns, data.fingerprint)

    def _pack(self) -> dict[str, Any]:
        self._require_fit()
        return {"parts": {"recommender": self.recommender_.to_artifact()}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        recommender = cls.recommender_class.from_artifact(artifact.parts["recommender"])
        encoder = cls(recommender.settings)
        encoder.recommender_, encoder.catalogue_ = recommender, recommender.catalogue_
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
