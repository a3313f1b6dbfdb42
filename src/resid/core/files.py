"""Atomic writes: files and folders that are written completely or not at all, and checks before anything is replaced."""

import contextlib
import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from resid.core.errors import InputError, counted, explain_disk_errors

RUN, MANIFEST = "run.json", "manifest.json"  # what marks a folder as a run, and as a model
METRICS = "metrics.jsonl"  # of the epochs of a training
_CONTENT = {
    RUN: "a run",
    "dataset.json": "a Dataset",
    MANIFEST: "a model",
}  # by the file that every such folder has
_OF_FILES = (  # endings of tables, pictures and pages
    *(".parquet", ".csv", ".tsv", ".jsonl", ".ndjson", ".json"),
    *(".png", ".svg", ".pdf", ".jpg", ".jpeg", ".html"),
)


def refuse_foreign_folder(folder: Path, manifest: str) -> None:
    """Raise an `InputError` unless `folder` is absent, empty, or contains only the files that its `manifest` lists."""
    refuse_file(folder)
    if not (folder / manifest).exists():
        refuse_ours(folder)
    present = {path.name for path in folder.iterdir()} if folder.exists() else set()
    _refuse_foreign(folder, present - _listed_files(folder / manifest))


def content_of(folder: Path) -> str | None:
    """Return what a folder of ours is: ``a run``, ``a Dataset`` or ``a model``; None if it is not ours."""
    return next((content for name, content in _CONTENT.items() if (folder / name).is_file()), None)


def refuse_ours(folder: Path, *allowed: str) -> None:
    """Raise an `InputError` if a folder is a run, a Dataset or a model, and not one of what is allowed."""
    content = content_of(folder)
    if content is not None and content not in allowed:
        raise InputError(f"{folder} is {content}; choose another folder.")


def is_in_run(folder: Path) -> bool:
    """Return whether a folder is inside the folder of a run."""
    return any((parent / RUN).is_file() for parent in folder.absolute().parents)


def refuse_file(folder: Path) -> None:
    """Raise an `InputError` if a new folder cannot have this path, which names a file, or is below an existing file."""
    if folder.suffix.lower() in _OF_FILES and not folder.exists():
        raise InputError(f"{folder} ends like a file, but it would be a folder; choose a name without {folder.suffix}.")
    for place in (folder, *folder.parents):
        if place.exists():
            if not place.is_dir():
                raise InputError(f"{place} is a file, so the folder {folder} cannot be created; choose another folder.")
            return


def _refuse_foreign(folder: Path, foreign: set[str]) -> None:
    if foreign:
        visible = [name for name in foreign if not name.startswith(".")]
        content = min(visible) if visible else counted(len(foreign), "hidden file")
        raise InputError(
            f"{folder}: the folder exists and was not written by resid (it contains {content}); "
            "choose another folder or remove it."
        )


def _listed_files(manifest: Path) -> set[str]:
    """Return the names that a manifest lists, its own included; an empty set if it is not one of ours."""
    try:
        content = json.loads(manifest.read_text(encoding="utf-8"))
        return {manifest.name, *content["files"], *content.get("parts", ())} if "format" in content else set()
    except (OSError, ValueError, KeyError, TypeError):
        return set()


@contextlib.contextmanager
def atomic_file(path: Path, named: Path | None = None) -> Iterator[Path]:
    """Yield a temporary path; the file written there replaces `path` if the block succeeds and is removed otherwise.

    Errors name `named`, by default the path.
    """
    partial = path.with_name(f".{path.name}.partial")
    with explain_disk_errors(named or path):
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield partial
            readable_as_others(partial)
            _write_out(partial)
            os.replace(partial, path)
        finally:
            partial.unlink(missing_ok=True)


def _write_out(path: Path) -> None:
    """Wait until a file is on the disk: renamed before that, it could replace a good file and be lost in a crash."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def write_text(path: Path, text: str) -> None:
    """Write a text file atomically, in UTF-8."""
    with atomic_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield an empty folder that replaces `folder` if the block succeeds and is removed otherwise.

    The two are exchanged in one step, so that `folder` is complete at any time. Where the system cannot do that, there is a moment between
    two renames; if the process is killed then, the old content is left under a temporary name, from which the next call restores it.
    """
    with explain_disk_errors(folder):
        folder = folder.resolve()
        folder.parent.mkdir(parents=True, exist_ok=True)
        parked = folder.parent / f".{folder.name}.replaced"
        if parked.exists() and not folder.exists():
            os.rename(parked, folder)
        with temporary_folder(folder.parent, folder.name) as partial:
            yield partial
            for path in partial.rglob("*"):
                if path.is_file():
                    _write_out(path)
            if not folder.exists():
                os.rename(partial, folder)
                return
            if _exchange(partial, folder):
                return
            shutil.rmtree(parked, ignore_errors=True)
            os.rename(folder, parked)
            try:
                os.rename(partial, folder)
            except BaseException:
                os.rename(parked, folder)
                raise
            shutil.rmtree(parked)


def _exchange(first: Path, second: Path) -> bool:
    """Exchange two folders in one step; return whether the system can do that: Linux, on most file systems."""
    import ctypes  # here, as it takes a while to import

    rename = getattr(ctypes.CDLL(None), "renameat2", None) if sys.platform == "linux" else None
    here, exchange = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of the C headers
    return rename is not None and rename(here, os.fsencode(first), here, os.fsencode(second), exchange) == 0


@contextlib.contextmanager
def temporary_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a new folder in `parent` that is removed afterwards, or by the next call if the process is killed."""
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
    """Return whether the process that owns a temporary folder may still be running."""
    owner = re.search(r"\.partial-(.*)-(\d+)$", name)
    if owner is None or owner[1] != platform.node():
        return True  # on another machine, or not ours
    try:
        os.kill(int(owner[2]), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return int(owner[2]) != os.getpid()


def readable_as_others(path: Path) -> None:
    """Give a file the default permissions of new files; safetensors makes its files readable by the owner only."""
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
