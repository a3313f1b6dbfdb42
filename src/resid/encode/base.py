"""The base class of encoders, the E-stage."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.display import ShownModel
from resid.core.errors import InputError
from resid.core.part import Part
from resid.core.settings import Settings
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.encode.embeddings import ItemEmbeddings


class Encoder(ShownModel, Part):
    """Learns an embedding of every item of a Dataset; a subclass implements `fit(data, *, runtime)` and `embed`.

    Attributes
    ----------
    settings : Settings
    catalogue_ : Catalogue
        The items that it was fitted to.
    """

    # Whether `metrics`, and those of every epoch, tell the quality of the embeddings.
    has_metrics: ClassVar[bool] = False
    settings: Settings
    catalogue_: Catalogue

    @abstractmethod
    def embed(self, data: Dataset) -> ItemEmbeddings:
        """Return the embeddings of all items of the Dataset that it was fitted to."""

    def embed_new(self, items: Any, *, item_column: str = "item") -> tuple[pl.Series, NDArray[np.float32]]:
        """Return embeddings of items that are not in the Dataset.

        Parameters
        ----------
        items
            A path or a frame with the id column and the columns that were given as fields.
        item_column
            The name of the id column.

        Returns
        -------
        ids, vectors
            The item ids, and their embeddings with the columns of `embed`, shape (items, d).
        """
        raise self._cannot_embed()

    def embed_listed(self, new: NewItems) -> NDArray[np.float32]:
        """Return embeddings of new items that were read for a model, shape (items, d); see `embed_new`."""
        raise self._cannot_embed()

    def item_vectors(self) -> NDArray[np.float32]:
        """Return the embeddings of all items of `catalogue_`, as `embed` does with the Dataset; shape (items, d)."""
        raise self._cannot_embed()

    def grow(self, new: NewItems, vectors: NDArray[np.float32]) -> Artifact:
        """Return the encoder as plain data with new items, whose embeddings are `vectors`, at the end of its catalogue."""
        raise self._cannot_embed()

    def check_growth(self) -> None:
        """See `Part.check_growth`."""
        if type(self).embed_listed is Encoder.embed_listed:
            raise self._cannot_embed()

    def _cannot_embed(self) -> InputError:
        return InputError(f"a {type(self).__name__} cannot embed new items; use FAMAE, which reads their fields.")

    def metrics(self, data: Dataset, split: Literal["validation", "test"] = "test") -> dict[str, Any]:
        """Return the quality of the embeddings on a split; empty for an encoder without such metrics."""
        return {}

    @property
    def ranks_items(self) -> bool:
        """Whether `queries` and `candidates` rank items."""
        return False

    def queries(self, histories: Tensor) -> Tensor:
        """Return query vectors whose dot products with `candidates` score the next item.

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (users, length).

        Returns
        -------
        Tensor
            Shape (users, d).
        """
        raise NotImplementedError

    def candidates(self) -> Tensor:
        """Return the vectors of all items that `queries` are compared with, shape (items, d)."""
        raise NotImplementedError

    def initial_tables(self) -> Mapping[str, NDArray[np.float32]]:
        """Return embedding tables by field, the item ID as ``"item"``, from which another network can start."""
        return {}

    def to_artifact(self) -> Artifact:
        """Return the fitted encoder as plain data."""
        self._require_fit()
        return super().to_artifact()

    def _packed(
        self, facts: Mapping[str, Any] | None = None, arrays: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return what `_pack` has to: settings, catalogue and training metrics, and the facts and arrays of a subclass."""
        known: dict[str, Any] = {
            "settings": self.settings.to_dict(),
            "catalogue": self.catalogue_.facts(),
            **(facts or {}),
        }
        if self.history_:
            known |= {"history": self.history_, "best_epoch": self.best_epoch_}
        return {
            "facts": known,
            "arrays": {"counts": self.catalogue_.counts, **(arrays or {})},
            "tables": {"items": self.catalogue_.items},
        }

    @classmethod
    def _unpacked(cls, artifact: Artifact) -> Self:
        """Return an encoder with what `_packed` keeps of every encoder; `_unpack` adds what a subclass has."""
        facts = artifact.facts
        encoder = cls.from_settings(cls.settings_class(**facts["settings"]))
        encoder.catalogue_ = Catalogue.from_facts(
            facts["catalogue"], artifact.tables["items"], artifact.arrays["counts"]
        )
        encoder.history_, encoder.best_epoch_ = facts.get("history", ()), facts.get("best_epoch", 0)
        return encoder

    def _require_data(self, data: Dataset) -> None:
        """Raise an `InputError` unless the encoder was fitted to this Dataset."""
        self._require_fit()
        require_dataset(data)
        if self.catalogue_.fingerprint != data.fingerprint:
            raise InputError("the encoder was fitted to another Dataset; fit it again.")

    def _require_fit(self) -> None:
        if not hasattr(self, "catalogue_"):
            raise InputError("the encoder is not fitted yet; call fit first.")
