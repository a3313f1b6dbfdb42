"""A trained recommender as a folder that can be copied anywhere: tensors, tables, and a manifest with checksums, no code.

::

    manifest.json         format, kind, settings, the Dataset's fingerprint, checksums; written last
    weights.safetensors   every array
    items.parquet         the catalogue, row = item index
    ids.parquet           the semantic IDs, of a generator alone
    users.parquet         the users that the model knows, of HGN with `user_vectors` alone
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from resid.core.files import atomic_folder, readable_as_others, refuse_foreign_folder, sha256_of_file
from resid.core.errors import InputError

FORMAT = 1
MANIFEST = "manifest.json"
WEIGHTS = "weights.safetensors"
_SAFE = {".json", ".safetensors", ".parquet"}  # what cannot carry code


@dataclass(frozen=True)
class Bundle:
    """What a recommender is made of, as plain data.

    Attributes
    ----------
    kind : str
        Which recommender it is, one of `resid.recommend.base.KINDS`.
    facts : dict
        Settings and whatever else JSON can hold.
    arrays : dict of ndarray
    tables : dict of polars.DataFrame
    """

    kind: str
    facts: Mapping[str, Any]
    arrays: Mapping[str, NDArray[Any]]
    tables: Mapping[str, pl.DataFrame]


def write_bundle(folder: str | Path, bundle: Bundle) -> None:
    """Write a bundle to a folder, whole or not at all; a bundle that is there already is replaced."""
    folder = Path(folder)
    refuse_foreign_folder(folder, MANIFEST)
    with atomic_folder(folder) as partial:
        save_file({name: np.ascontiguousarray(array) for name, array in bundle.arrays.items()}, partial / WEIGHTS)
        readable_as_others(partial / WEIGHTS)
        for name, table in bundle.tables.items():
            table.rechunk().write_parquet(partial / f"{name}.parquet", statistics=False)
        manifest = {
            "format": FORMAT,
            "kind": bundle.kind,
            **bundle.facts,
            "files": {
                file.name: {"bytes": file.stat().st_size, "sha256": sha256_of_file(file)}
                for file in sorted(partial.iterdir())
            },
        }
        manifest["sha256"] = _digest(manifest)
        (partial / MANIFEST).write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")


def read_bundle(folder: str | Path) -> Bundle:
    """Read what `write_bundle` wrote, after comparing every file with its checksum.

    Raises
    ------
    InputError
        If the folder is no bundle, is of a newer format, lacks a file or has one that was altered, or holds a file of a
        kind that could carry code.
    """
    folder = Path(folder)
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        digest, own = manifest.pop("sha256", None), _digest(manifest)
        version, kind, files = manifest.pop("format"), manifest.pop("kind"), manifest.pop("files")
        sums = {name: entry["sha256"] for name, entry in files.items()}
    except (FileNotFoundError, NotADirectoryError) as error:
        raise InputError(f"{folder}: no model is here, there is no {MANIFEST}; make one with 'resid fit'.") from error
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{folder / MANIFEST}: damaged ({error!r}); copy or save the model again.") from error
    if version != FORMAT:
        raise InputError(f"{folder}: format {version!r} is not known here, {FORMAT} is; update resid or fit again.")
    if digest != own or WEIGHTS not in sums:
        raise InputError(f"{folder / MANIFEST}: altered; copy or save the model again.")
    present = {path.name for path in folder.iterdir() if not path.name.startswith(".")}  # hidden files are never read
    for name in sorted({*present, *sums}):
        if Path(name).name != name or Path(name).suffix not in _SAFE:
            raise InputError(
                f"{folder / name}: a model consists of .safetensors, .parquet and .json files, which cannot carry code; "
                "this one does not belong to it, so remove it, or get the model from its source again."
            )
    for name, expected in sums.items():
        if not (folder / name).is_file() or sha256_of_file(folder / name) != expected:
            raise InputError(f"{folder / name}: missing or altered; copy or save the model again.")
    try:
        paths = [folder / name for name in sums if name.endswith(".parquet")]
        tables = {path.stem: pl.read_parquet(path, glob=False) for path in paths}
        return Bundle(kind, manifest, load_file(folder / WEIGHTS), tables)
    except (OSError, SafetensorError, pl.exceptions.PolarsError) as error:
        raise InputError(f"{folder}: a file of the model cannot be read ({error}); save it again.") from error


def _digest(manifest: Mapping[str, Any]) -> str:
    """Return a checksum of what a manifest says besides."""
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()
