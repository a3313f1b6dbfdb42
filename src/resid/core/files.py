"""Folders that are written whole or not at all."""

import contextlib
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from resid.core.errors import InputError, explain_full_disk


def refuse_foreign_folder(folder: Path, manifest: str) -> None:
    """Raise an `InputError` if `folder` cannot be written because something else is there.

    An empty folder will do, and one that has the file `manifest`, which lists its files, and no others.
    """
    refuse_file(folder)
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    _refuse_foreign(folder, present - _listed_files(folder / manifest))


def refuse_foreign_training(folder: Path) -> None:
    """Raise an `InputError` unless `folder` can be that of a stage alone: empty, or with a run of the loop in ``training``."""
    refuse_file(folder)
    begun = any((folder / "training" / name).exists() for name in (".lock", "metrics.jsonl"))
    if folder.exists() and not begun:
        _refuse_foreign(folder, {path.name for path in folder.iterdir()} - {"training"})
        refuse_foreign_folder(folder / "training", "")


def refuse_file(folder: Path) -> None:
    """Raise an `InputError` if a file stands where a folder is to be."""
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise InputError(f"{place}: this is a file, so {folder} cannot be a folder; choose another folder.")
            return


def _refuse_foreign(folder: Path, foreign: set[str]) -> None:
    if foreign:
        first = min(foreign, key=lambda name: (name.startswith("."), name))  # hidden files are not what one sees
        raise InputError(
            f"{folder}: this exists and is not a folder that resid wrote (it has {first}); "
            "choose another folder, or remove it yourself."
        )


def _listed_files(manifest: Path) -> set[str]:
    """Return the files that a folder with this manifest has, itself included; none if it is not one of ours."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return {manifest.name, *content["files"]} if "format" in content else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that takes the place of `folder` when all went well and vanishes otherwise.

    Whenever the process is killed, either the old content or the new is whole. At worst the old one is parked under
    another name, from which the next call brings it back.
    """
    folder = folder.resolve()
    folder.parent.mkdir(parents=True, exist_ok=True)
    parked = folder.parent / f".{folder.name}.replaced"
    if parked.exists() and not folder.exists():
        os.rename(parked, folder)
    with explain_full_disk(folder), temporary_folder(folder.parent, folder.name) as partial:
        yield partial
        if not folder.exists():
            os.rename(partial, folder)
            return
        shutil.rmtree(parked, ignore_errors=True)
        os.rename(folder, parked)
        try:
            os.rename(partial, folder)
        except BaseException:
            os.rename(parked, folder)
            raise
        shutil.rmtree(parked)


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder in `parent` that is removed afterwards, and by the next call if the process is killed."""
    owner = f"{platform.node()}-{os.getpid()}"
    for abandoned in parent.iterdir():
        if abandoned.name.startswith(f".{name}.partial-") and not _running(abandoned.name):
            shutil.rmtree(abandoned)
    folder = parent / f".{name}.partial-{owner}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _running(name: str) -> bool:
    """Tell whether the process that owns a temporary folder may still be running."""
    owner = re.search(r"\.partial-(.*)-(\d+)$", name)
    if owner is None or owner[1] != platform.node():
        return True  # of another machine, or not ours
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(owner[2]) != os.getpid()


def readable_as_others(path: Path) -> None:
    """Give a file the rights that new files have; what safetensors writes only its owner could read."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)


def sha256_of_file(path: Path) -> str:
    """Return the checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
