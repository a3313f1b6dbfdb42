"""What the E-stage hands to the Q-stage: a vector per item, and which columns belong to which field."""

import hashlib
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resid.core.files import atomic_folder, refuse_foreign_folder, sha256_of_file
from resid.core.errors import InputError

MANIFEST = "embeddings.json"


@dataclass(frozen=True, eq=False)
class ItemEmbeddings:
    """A vector for every item of a Dataset.

    Attributes
    ----------
    vectors : ndarray of float32, shape (items, width)
        In the order of the Dataset's items.
    columns : dict
        The first and the last column, exclusive, of every field's part.
    fingerprint : str
        That of the Dataset.
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

    def part(self, field: str) -> NDArray[np.float32]:
        """Return the columns of one field, shape (items, width of the field)."""
        if field not in self.columns:
            raise InputError(f"there is no field '{field}'; there are {', '.join(self.columns)}.")
        first, last = self.columns[field]
        return self.vectors[:, first:last]

    def save(self, folder: str | Path) -> None:
        """Write the embeddings to a folder, whole or not at all."""
        folder = Path(folder)
        refuse_foreign_folder(folder, MANIFEST)
        with atomic_folder(folder) as partial:
            np.save(partial / "vectors.npy", self.vectors, allow_pickle=False)
            manifest = {
                "format": 1,
                "columns": self.columns,
                "fingerprint": self.fingerprint,
                "files": {"vectors.npy": {"sha256": sha256_of_file(partial / "vectors.npy")}},
            }
            (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, folder: str | Path, *, check: bool = False) -> "ItemEmbeddings":
        """Read what `save` wrote; the vectors are memory-mapped.

        Parameters
        ----------
        folder
            Where they are, or the folder of the run that made them.
        check
            Compare the vectors with their checksum, which reads them once.
        """
        folder = Path(folder)
        if not (folder / MANIFEST).exists() and (folder / "embeddings" / MANIFEST).exists():
            folder = folder / "embeddings"
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            vectors = np.load(folder / "vectors.npy", mmap_mode="r", allow_pickle=False)
            if check and sha256_of_file(folder / "vectors.npy") != manifest["files"]["vectors.npy"]["sha256"]:
                raise ValueError("vectors.npy is not what its checksum says")
            columns = {name: (first, last) for name, (first, last) in manifest["columns"].items()}
            return cls(vectors, columns, manifest["fingerprint"])
        except (OSError, ValueError, KeyError) as error:
            raise InputError(f"{folder}: no whole embeddings are here ({error}); encode again.") from error
