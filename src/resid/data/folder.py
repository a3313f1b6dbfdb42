"""Folders that are written whole or not at all."""

import contextlib
import glob
import hashlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from resid.errors import InputError, explain_full_disk


def refuse_foreign_folder(folder: Path, manifest: str) -> None:
    """Raise an `InputError` if `folder` exists and is neither empty nor one that has the file `manifest`."""
    if not folder.exists() or (folder / manifest).is_file():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise InputError(
            f"{folder}: this exists and is not a folder that resid wrote (it has no {manifest}); "
            "choose another folder, or remove it yourself."
        )


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder beside `folder` that takes its place when all went well and vanishes otherwise.

    What a killed process left behind is removed by the next one that writes the same folder.
    """
    with explain_full_disk(folder):
        folder.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(folder)
        partial = folder.parent / f".{folder.name}.partial-{os.getpid()}"
        partial.mkdir()
        try:
            yield partial
            if folder.exists():
                replaced = partial.with_name(f"{partial.name}-replaced")
                os.rename(folder, replaced)
                os.rename(partial, folder)
                shutil.rmtree(replaced)
            else:
                os.rename(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)


def _remove_abandoned(folder: Path) -> None:
    """Remove what processes that no longer run had begun to write."""
    for partial in folder.parent.glob(f".{glob.escape(folder.name)}.partial-*"):
        owner = int(partial.name.rpartition(".partial-")[2].split("-")[0])
        try:
            os.kill(owner, 0)
            running = owner != os.getpid()
        except ProcessLookupError:
            running = False
        except PermissionError:
            running = True
        if not running:
            shutil.rmtree(partial)


def sha256_of_file(path: Path) -> str:
    """Return the checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
