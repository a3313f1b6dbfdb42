"""Checksums of everything that is read back: of files, of manifests, and of single files that carry their own."""

import hashlib
import json
import mmap
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

_SETTLED = 2 * 10**9  # nanoseconds after which another write surely changes the times of a file
_KNOWN: dict[tuple[int, ...], str] = {}
_CHECKSUM = "sha256"
_MARK = b"resid-sha256:"
_ZEROS = b"0" * 64
_TAIL = 2**20  # bytes at the end of a file where it may be
SEAL = (_MARK + _ZEROS).decode()


def sha256_of_file(path: Path) -> str:
    """Return the SHA-256 checksum of a file; one that has not changed is read once per process."""
    stat = path.stat()
    state = (stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns)
    if state in _KNOWN:
        return _KNOWN[state]
    with path.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time_ns() - max(stat.st_mtime_ns, stat.st_ctime_ns) > _SETTLED:
        _KNOWN[state] = checksum
    return checksum


def sha256_of_folder(folder: Path) -> str:
    """Return a SHA-256 checksum of the names and contents of all files in a folder and its subfolders."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    content = json.dumps([[str(path.relative_to(folder)), sha256_of_file(path)] for path in files])
    return hashlib.sha256(content.encode()).hexdigest()


def manifest_text(content: Mapping[str, Any]) -> str:
    """Return a manifest as JSON, with a checksum of its own content."""
    written = json.loads(json.dumps(content))  # as it will be read
    return json.dumps(written | {_CHECKSUM: _digest(written)}, indent=1) + "\n"


def pop_checksum(manifest: dict[str, Any]) -> bool | None:
    """Remove the checksum of a manifest; return whether it matches the rest, or None if there is none."""
    checksum = manifest.pop(_CHECKSUM, None)
    return None if checksum is None else bool(checksum == _digest(manifest))


def _digest(manifest: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def seal_file(path: Path) -> None:
    """Replace the `SEAL` that a new file contains with the checksum of the file, in which it counts as zeros."""
    place, _, checksum = _read_seal(path)
    with path.open("r+b") as file:
        file.seek(place)
        file.write(checksum)


def is_sealed(path: Path) -> bool:
    """Return whether a file contains the checksum that `seal_file` wrote.

    Raises
    ------
    ValueError
        If it contains another checksum: the file is damaged.
    """
    place, written, checksum = _read_seal(path)
    if place and written != checksum:
        raise ValueError("its checksum does not match")
    return bool(place)


def _read_seal(path: Path) -> tuple[int, bytes, bytes]:
    """Return the place of a file's checksum, 0 if there is none, what is written there, and what should be."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # The last one at the end of a table, as its values precede its metadata; otherwise in the header.
        found = content.rfind(_MARK, max(len(content) - _TAIL, 0))
        found = content.find(_MARK) if found < 0 else found
        if found < 0:
            return 0, b"", b""
        place = found + len(_MARK)
        end = place + len(_ZEROS)
        with memoryview(content) as view:
            digest = hashlib.sha256(view[:place])
            digest.update(_ZEROS)
            digest.update(view[end:])
        return place, content[place:end], digest.hexdigest().encode()
