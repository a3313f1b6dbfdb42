"""Download public files atomically, with a progress bar, resuming interrupted downloads."""

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from resid.core.errors import InputError, explain_disk_errors
from resid.core.files import refuse_file
from resid.core.progress import Progress, Silent

_BLOCK = 2**20
_SECONDS_WITHOUT_DATA = 30


def download(address: str, folder: str | Path, *, attempts: int = 4, progress: Progress | None = None) -> Path:
    """Download a file into a folder under its own name; an existing file is not downloaded again.

    Parameters
    ----------
    address
        An http or https URL.
    folder
        The target folder. An incomplete download is called ``.<name>.partial``; the next call resumes it unless the file
        on the server has changed.
    attempts
        Number of attempts if the connection breaks; every attempt resumes the previous one.
    progress
        Receives the number of bytes.

    Raises
    ------
    InputError
        If the network is down, the file does not exist, or the disk is full; a partial download is kept.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise InputError(f"{address}: only http and https URLs are supported.")
    folder = Path(folder)
    target = folder / address.rsplit("/", 1)[-1]
    if target.exists():
        return target
    refuse_file(folder)
    for attempt in range(attempts):
        try:
            with explain_disk_errors(folder):
                _resume(address, target, progress or Silent())
            return target
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise InputError(
                    f"{address}: the server returned {error.code} {error.reason}; check the name, for example "
                    "Musical_Instruments."
                ) from error
            if attempt == attempts - 1:
                raise InputError(
                    f"{address}: {urlsplit(address).hostname} cannot be reached or stopped responding "
                    f"({getattr(error, 'reason', error)}); "
                    f"check the network and run the command again to resume, or copy the file to {folder} yourself."
                ) from error
            time.sleep(2**attempt / 2)
    raise AssertionError("unreachable")


def _resume(address: str, target: Path, progress: Progress) -> None:
    """Download the missing bytes of the partial file, then rename it."""
    partial = target.with_name(f".{target.name}.partial")
    version_file = target.with_name(f".{target.name}.version")
    have = partial.stat().st_size if partial.exists() and version_file.exists() else 0
    request = urllib.request.Request(address)  # noqa: S310 - the scheme was checked
    if have:  # the server sends the rest if the version is unchanged, otherwise the whole file
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", version_file.read_text())
    try:
        response = urllib.request.urlopen(request, timeout=_SECONDS_WITHOUT_DATA)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "range not satisfiable": the partial file is complete or too long
            raise
        error.close()
        partial.unlink()
        return _resume(address, target, progress)
    with response:
        have = have if response.status == 206 else 0
        length = response.headers.get("Content-Length")
        total = have + int(length) if length else 0
        target.parent.mkdir(parents=True, exist_ok=True)
        version = response.headers.get("ETag") or response.headers.get("Last-Modified")
        if version and not version.startswith("W/"):
            version_file.write_text(version)
        else:
            version_file.unlink(missing_ok=True)  # cannot be resumed without a version
        with (
            partial.open("ab" if have else "wb") as file,
            progress.bar(target.name, total, done=have, unit="bytes") as advance,
        ):
            while block := response.read(_BLOCK):
                file.write(block)
                advance(len(block))
    if length and partial.stat().st_size != total:
        raise ConnectionError(f"{partial.stat().st_size:,} of {total:,} bytes received")
    os.replace(partial, target)
    version_file.unlink(missing_ok=True)
    return None
