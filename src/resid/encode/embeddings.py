"""Item embeddings, the output of the E-stage: one vector per item, and the columns of every field."""

import hashlib
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resid.core.artifact import Artifact, read_artifact, write_artifact
from resid.core.errors import InputError
from resid.data.dataset import Dataset

_STAGE, _KIND, _VERSION = "embeddings", "item", 1


@dataclass(frozen=True, eq=False)
class ItemEmbeddings:
    """A vector for every item of a Dataset.

    Attributes
    ----------
    vectors : ndarray of float32, shape (items, d)
        In the order of the Dataset's items.
    columns : dict
        The first and the last column, exclusive, of every field.
    fingerprint : str
        The fingerprint of the Dataset.
    """

    vectors: NDArray[np.float32]
    columns: dict[str, tuple[int, int]]
    fingerprint: str

    @cached_property
    def digest(self) -> str:
        """A checksum of the vectors."""
        return hashlib.sha256(np.ascontiguousarray(self.vectors).data).hexdigest()

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.array(self.vectors, dtype=dtype, copy=copy)

    def __len__(self) -> int:
        return len(self.vectors)

    def part(self, field: str) -> NDArray[np.float32]:
        """Return the columns of one field, shape (items, columns of the field)."""
        if field not in self.columns:
            raise InputError(f"there is no field '{field}'; available fields: {', '.join(self.columns)}.")
        first, last = self.columns[field]
        return self.vectors[:, first:last]

    def require_data(self, data: Dataset, file: Path | None = None, *, name: str = "embeddings") -> None:
        """Raise an `InputError`, which names the file or what the embeddings are for, unless they are of this Dataset."""
        if self.fingerprint != data.fingerprint:
            where = f"{file}: " if file else ""
            raise InputError(
                f"{where}these are the {name} of another Dataset, or it was prepared again; encode this one."
            )

    def save(self, folder: str | Path) -> None:
        """Write the embeddings to a folder atomically."""
        facts = {"columns": self.columns, "fingerprint": self.fingerprint}
        write_artifact(folder, Artifact(_STAGE, _KIND, _VERSION, facts=facts, arrays={"vectors": self.vectors}))

    @classmethod
    def load(cls, folder: str | Path) -> "ItemEmbeddings":
        """Read what `save` wrote, after verifying the checksums."""
        try:
            artifact = read_artifact(folder)
            if artifact.stage != _STAGE or artifact.version > _VERSION:
                raise InputError(f"this is a {artifact.stage} of version {artifact.version}")
            columns = {name: (first, last) for name, (first, last) in artifact.facts["columns"].items()}
            return cls(artifact.arrays["vectors"], columns, artifact.facts["fingerprint"])
        except (InputError, KeyError, ValueError) as error:
            reason = str(error).removeprefix(f"{folder}: ").rstrip(".")
            raise InputError(f"{folder}: there are no valid item embeddings here ({reason}).") from error
