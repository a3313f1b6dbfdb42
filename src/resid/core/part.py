"""Parts: what encoders, quantizers and recommenders have in common. Settings in, fitted, saved and loaded."""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol, Self

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.artifact import Artifact, read_artifact, write_artifact
from resid.core.errors import InputError, first_line
from resid.core.registry import find_part, is_known
from resid.core.runtime import Runtime
from resid.core.settings import Settings


class Input(Protocol):
    """What a part reads: a Dataset, item embeddings, semantic IDs."""

    @property
    def digest(self) -> str:
        """A checksum of the content."""


@dataclass(frozen=True)
class PartSpec:
    """A part that is yet to be fitted: its stage, its kind and its settings."""

    stage: str
    kind: str
    settings: Settings

    def create(self) -> "Part":
        """Return the part, not fitted."""
        return find_part(self.stage, self.kind).from_settings(self.settings)


class Part(ABC):
    """Base class of encoders, quantizers and recommenders; `resid.core.registry.register` names it.

    A subclass fits itself and says what it consists of (`_pack`, `_unpack`); saving and loading are done here.

    Attributes
    ----------
    history_ : list of dict
        The training metrics of every epoch; empty if nothing was trained.
    best_epoch_ : int
        The epoch with the best weights; 0 if nothing was trained, or it is not known.
    """

    stage: ClassVar[str]
    kind: ClassVar[str]
    settings_class: ClassVar[type[Settings]]
    format_version: ClassVar[int] = 1  # of what `_pack` returns
    distributed: ClassVar[bool] = False  # `fit` runs in all processes; otherwise the first one fits and the rest load
    # Inputs of `fit` from other parts that most parts of its stage do not read.
    further_inputs: ClassVar[tuple[str, ...]] = ()
    history_: Sequence[dict[str, Any]] = ()
    best_epoch_: int = 0

    @classmethod
    def from_settings(cls, settings: Any) -> Self:
        """Return a part that is not fitted."""
        return cls(settings)  # type: ignore[call-arg]

    def check(self, data: Any) -> None:  # noqa: B027 - most parts fit any Dataset
        """Raise an `InputError` if the part cannot be fitted to this Dataset.

        Called for all parts of a method before the first of them is fitted.
        """

    def check_growth(self) -> None:  # noqa: B027 - quantizers follow the encoder
        """Raise an `InputError` if a part with these settings cannot take new items once it is fitted."""

    @abstractmethod
    def fit(self, *inputs: Any, **options: Any) -> Self:
        """Fit the part; a subclass names its inputs. All take ``runtime``, see `resid.core.runtime.Runtime`."""

    def fit_part(self, *inputs: Any, runtime: Runtime | None = None) -> Self:
        """Fit the part as a stage of a run; a part may translate the errors of its `fit`."""
        return self.fit(*inputs, runtime=runtime)

    @abstractmethod
    def _pack(self) -> dict[str, Any]:
        """Return the fields of an `Artifact` from which `_unpack` restores the part: facts, arrays, tables, parts."""

    @classmethod
    @abstractmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        """Restore the part that an artifact describes."""

    def to_artifact(self) -> Artifact:
        """Return the fitted part as plain data."""
        return Artifact(self.stage, self.kind, self.format_version, **self._pack())

    @classmethod
    def from_artifact(cls, artifact: Artifact) -> Self:
        """Restore a part of this class from plain data."""
        if not is_known(artifact.stage, artifact.kind):
            raise InputError(
                f"the {artifact.stage} '{artifact.kind}' is not known to this version of resid; update it."
            )
        found = find_part(artifact.stage, artifact.kind)
        if not issubclass(found, cls):
            raise InputError(f"this is a {found.__name__}, not a {cls.__name__}.")
        if artifact.version > found.format_version:
            raise InputError(
                f"version {artifact.version} of a {found.__name__} is not supported, this version of resid reads up to "
                f"{found.format_version}; update resid."
            )
        return found._from_artifact(artifact)

    @classmethod
    def _from_artifact(cls, artifact: Artifact) -> Self:
        return cls._unpack(artifact)

    @property
    def digest(self) -> str:
        """A checksum of the arrays of the fitted part, by which it is identified as an input of another."""
        digest = hashlib.sha256()
        arrays = _all_arrays(self.to_artifact())
        for name in sorted(arrays):
            digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
            digest.update(np.ascontiguousarray(arrays[name]).data)
        return digest.hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write the fitted part to a folder atomically."""
        write_artifact(folder, self.to_artifact())

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a part of this class that `save` wrote.

        Raises
        ------
        InputError
            If the folder has no complete part, or a part of another class or a newer version.
        """
        artifact = read_artifact(folder)
        try:
            return cls.from_artifact(artifact)
        except InputError as error:
            raise InputError(f"{folder}: {error}") from error
        except (KeyError, TypeError, ValueError, IndexError, RuntimeError, pl.exceptions.PolarsError) as error:
            raise InputError(
                f"{folder}: the files of the model do not match ({first_line(error)}); fit it again."
            ) from error


class SavedParts(Mapping[str, Part]):
    """The parts of an artifact. Each is restored when it is first used, as that imports its module.

    Parameters
    ----------
    artifacts
        The parts by name, as plain data.
    """

    def __init__(self, artifacts: Mapping[str, Artifact]) -> None:
        self._artifacts, self._restored = artifacts, dict[str, Part]()

    def __getitem__(self, name: str) -> Part:
        if name not in self._restored:
            self._restored[name] = Part.from_artifact(self._artifacts[name])
        return self._restored[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._artifacts)

    def __len__(self) -> int:
        return len(self._artifacts)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({', '.join(self)})"


def _all_arrays(artifact: Artifact) -> dict[str, NDArray[Any]]:
    """Return the arrays of an artifact and of its parts by name."""
    arrays = dict(artifact.arrays)
    for name, part in artifact.parts.items():
        arrays |= {f"{name}/{key}": array for key, array in _all_arrays(part).items()}
    return arrays
