"""Artifacts: the one file format of fitted parts, as folders of tensors, tables and a manifest. Loading never runs code.

::

    manifest.json         format, stage, kind, version, facts, checksums of all files and parts; written last
    weights.safetensors   arrays
    NAME.parquet          tables
    NAME/                 another artifact: the encoder and the quantizer of a generator
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from resid.core.checksums import manifest_text, pop_checksum, sha256_of_file
from resid.core.errors import InputError, as_path, first_line
from resid.core.files import MANIFEST, atomic_folder, content_of, is_in_run, readable_as_others, refuse_foreign_folder

FORMAT = 2
WEIGHTS = "weights.safetensors"
_SAFE = {".json", ".safetensors", ".parquet"}  # file types that cannot contain code

_COPY = "copy or save the model again"
_AGAIN = "run the same 'resid fit' again, which writes it anew from the finished stages"


@dataclass(frozen=True)
class Artifact:
    """A fitted part as plain data.

    Attributes
    ----------
    stage, kind : str
        Which part it is, as registered.
    version : int
        The version of the part's own content, `Part.format_version`.
    facts : dict
        Settings and other JSON values.
    arrays : dict of ndarray
    tables : dict of polars.DataFrame
    parts : dict of Artifact
        Other parts that belong to it.
    """

    stage: str
    kind: str
    version: int
    facts: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    parts: "Mapping[str, Artifact]" = field(default_factory=dict)


def write_artifact(folder: str | Path, artifact: Artifact) -> None:
    """Write an artifact to a folder atomically; an existing artifact is replaced."""
    folder = Path(folder)
    refuse_foreign_folder(folder, MANIFEST)
    with atomic_folder(folder) as partial:
        _write(partial, artifact)


def _write(folder: Path, artifact: Artifact) -> None:
    save_file({name: np.ascontiguousarray(array) for name, array in artifact.arrays.items()}, folder / WEIGHTS)
    readable_as_others(folder / WEIGHTS)
    for name, table in artifact.tables.items():
        table.rechunk().write_parquet(folder / f"{name}.parquet", statistics=False)
    files = {
        file.name: {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)} for file in sorted(folder.iterdir())
    }
    for name, part in artifact.parts.items():
        (folder / name).mkdir()
        _write(folder / name, part)
    manifest = {
        "format": FORMAT,
        "stage": artifact.stage,
        "kind": artifact.kind,
        "version": artifact.version,
        "facts": artifact.facts,
        "files": files,
        "parts": {name: sha256_of_file(folder / name / MANIFEST) for name in artifact.parts},
    }
    (folder / MANIFEST).write_text(manifest_text(manifest), encoding="utf-8")


def read_artifact(folder: str | Path) -> Artifact:
    """Read what `write_artifact` wrote, after verifying the checksum of every file.

    Raises
    ------
    InputError
        If the folder is not an artifact, has a newer format, lacks a file or has an altered one, or contains a file of a
        type that could carry code.
    """
    folder = as_path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        unaltered = pop_checksum(manifest)
        version, files = manifest["format"], manifest["files"]
        sums = {name: entry["sha256"] for name, entry in files.items()}
    except (FileNotFoundError, NotADirectoryError) as error:
        if content := content_of(folder):
            raise InputError(f"{folder} is {content}, not a model; create one with 'resid fit'.") from error
        raise InputError(
            f"{folder}: there is no model here, {MANIFEST} is missing; create one with 'resid fit'."
        ) from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        remedy = f"remove {folder} and {_AGAIN}" if is_in_run(folder) else _COPY
        raise InputError(f"{folder / MANIFEST}: damaged; {remedy}.") from error
    remedy = _AGAIN if is_in_run(folder) else _COPY
    if version != FORMAT:
        raise InputError(
            f"{folder}: format {version!r} is not supported, this version reads {FORMAT}; update resid or fit again."
        )
    parts = manifest.get("parts")
    outside = isinstance(parts, dict) and any(Path(name).name != name or name in (".", "..") for name in parts)
    if not unaltered or WEIGHTS not in sums or not isinstance(parts, dict) or outside:
        raise InputError(f"{folder / MANIFEST}: altered; {remedy}.")
    present = {path.name for path in folder.iterdir() if not path.name.startswith(".")}  # hidden files are never read
    for name in sorted({*present, *sums} - set(parts)):
        if Path(name).name != name or Path(name).suffix not in _SAFE:
            raise InputError(
                f"{folder / name}: a model consists of .safetensors, .parquet and .json files, which cannot contain code; "
                "remove this file, or get the model from its source again."
            )
    sums |= {f"{name}/{MANIFEST}": checksum for name, checksum in parts.items()}
    for name, expected in sums.items():
        if not (folder / name).is_file() or sha256_of_file(folder / name) != expected:
            raise InputError(f"{folder / name}: missing or altered; {remedy}.")
    try:
        tables = {
            Path(name).stem: pl.read_parquet(folder / name, glob=False) for name in files if name.endswith(".parquet")
        }
        return Artifact(
            stage=manifest["stage"],
            kind=manifest["kind"],
            version=manifest["version"],
            facts=manifest["facts"],
            arrays=load_file(folder / WEIGHTS),
            tables=tables,
            parts={name: read_artifact(folder / name) for name in parts},
        )
    except (OSError, KeyError, SafetensorError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{folder}: a file of the model cannot be read ({first_line(error)}); {remedy}.") from error
