"""What every encoder of the E-stage can do."""

from typing import Protocol, Self, runtime_checkable

from resid.data.dataset import Dataset
from resid.encode.embeddings import ItemEmbeddings


@runtime_checkable
class Encoder(Protocol):
    """Learns a vector for every item of a Dataset; ReSID's is `FAMAE`."""

    def fit(self, data: Dataset) -> Self:
        """Learn from the training histories and the fields; return itself."""
        ...

    def embed(self, data: Dataset) -> ItemEmbeddings:
        """Return a vector for every item, and which columns belong to which field."""
        ...
