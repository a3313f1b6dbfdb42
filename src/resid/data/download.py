"""Fetch public files: with a progress bar, continued where an earlier attempt stopped, whole or not at all."""

import http.client
import os
import time
import urllib.error
import urllib.request
from pathlib import Path
from urllib.parse import urlsplit

from resid.core.errors import InputError, explain_full_disk
from resid.core.progress import Progress, Silent

_BLOCK = 2**20
_SECONDS_WITHOUT_DATA = 30


def download(address: str, folder: str | Path, *, attempts: int = 4, progress: Progress | None = None) -> Path:
    """Fetch a file into a folder, under its own name; a file that is there already is left as it is.

    Parameters
    ----------
    address
        Where it is, http or https.
    folder
        Where it goes. While it is under way it is called ``.<name>.partial``; a second call continues it, unless the
        server's file has changed since.
    attempts
        How often to try again, continuing, when the connection breaks.
    progress
        Is told of the bytes.

    Raises
    ------
    InputError
        If there is no network, no such file, or no room; what had arrived stays for the next call.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise InputError(f"{address}: only http and https addresses can be fetched.")
    folder = Path(folder)
    target = folder / address.rsplit("/", 1)[-1]
    if target.exists():
        return target
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder}: this is a file; give a folder for the downloads.")
    for attempt in range(attempts):
        try:
            with explain_full_disk(folder):
                _continue(address, target, progress or Silent())
            return target
        except (OSError, http.client.HTTPException) as error:
            if isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429:
                raise InputError(
                    f"{address}: the server answers {error.code} {error.reason}; check the name, which is written like "
                    "Musical_Instruments."
                ) from error
            if attempt == attempts - 1:
                raise InputError(
                    f"{address}: {urlsplit(address).hostname} cannot be reached or stopped answering "
                    f"({getattr(error, 'reason', error)}); "
                    f"check the network and run it again, which continues, or put the file into {folder} by hand."
                ) from error
            time.sleep(2**attempt / 2)
    raise AssertionError("unreachable")


def _continue(address: str, target: Path, progress: Progress) -> None:
    """Fetch what is missing of the partial file, then give it its name."""
    partial = target.with_name(f".{target.name}.partial")
    version_file = target.with_name(f".{target.name}.version")
    have = partial.stat().st_size if partial.exists() and version_file.exists() else 0
    request = urllib.request.Request(address)  # noqa: S310 - the scheme was checked
    if have:  # the server sends the rest if the version is still the same, and everything if it is not
        request.add_header("Range", f"bytes={have}-")
        request.add_header("If-Range", version_file.read_text())
    try:
        answer = urllib.request.urlopen(request, timeout=_SECONDS_WITHOUT_DATA)  # noqa: S310
    except urllib.error.HTTPError as error:
        if error.code != 416:  # "range not satisfiable": nothing is missing, or the partial file is of no use
            raise
        error.close()
        partial.unlink()
        return _continue(address, target, progress)
    with answer:
        have = have if answer.status == 206 else 0
        length = answer.headers.get("Content-Length")
        total = have + int(length) if length else 0
        target.parent.mkdir(parents=True, exist_ok=True)
        version = answer.headers.get("ETag") or answer.headers.get("Last-Modified")
        if version and not version.startswith("W/"):
            version_file.write_text(version)
        else:
            version_file.unlink(missing_ok=True)  # without a version, nobody can tell whether the rest fits
        with (
            partial.open("ab" if have else "wb") as file,
            progress.bar(target.name, total, done=have, unit="bytes") as advance,
        ):
            while block := answer.read(_BLOCK):
                file.write(block)
                advance(len(block))
    if length and partial.stat().st_size != total:
        raise ConnectionError(f"{partial.stat().st_size:,} of {total:,} bytes arrived")
    os.replace(partial, target)
    version_file.unlink(missing_ok=True)
    return None
