"""Errors that users can fix: one sentence that names the problem and says what to do."""

import contextlib
import difflib
import errno
import os
import re
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """Invalid input; the message names it and says what to do."""


class DiskError(InputError):
    """A path cannot be written; `problem` says why and what to do."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path, self.problem = path, problem


class TrainingError(RuntimeError):
    """Training diverged: the loss or the gradient is not finite."""


_FULL = (errno.ENOSPC, errno.EDQUOT)
_REFUSED = {  # errors of files, not of networks
    *(errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENAMETOOLONG, errno.ENOENT, errno.ENOTDIR, errno.EISDIR),
    *(errno.EEXIST, errno.ENOTEMPTY, errno.EBUSY, errno.ELOOP, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ESTALE),
}


@contextlib.contextmanager
def explain_disk_errors(path: Path, work: Path | None = None) -> Iterator[None]:
    """Turn a full disk, a missing permission and other errors of files into an `InputError` that names `path`.

    The name in the original error may be that of a temporary file. Errors that were explained already keep the path that they
    name, except for those inside `work`, a hidden folder that `path` is made in.
    """
    try:
        yield
    except DiskError as error:
        if work is None or not error.path.is_relative_to(work):
            raise
        raise DiskError(path, error.problem) from error
    except InputError:
        raise
    except Exception as error:
        number = _error_number(error)
        if number in _FULL:
            raise DiskError(
                path, "the disk is full; free some space or choose another folder, and run it again."
            ) from error
        if number in _REFUSED:
            reason = os.strerror(number).lower()
            raise DiskError(path, f"cannot be written ({reason}); choose another folder.") from error
        raise


def is_disk_full(error: BaseException) -> bool:
    """Return whether an error, also of another library, is that of a full disk."""
    return _error_number(error) in _FULL


def _error_number(error: BaseException) -> int | None:
    number: int | None = getattr(error, "errno", None)
    if number is None and (told := re.search(r"\(os error (\d+)\)", str(error))):  # from Polars and safetensors
        number = int(told[1])
    return number


def as_path(path: Any) -> Path:
    """Return a string or path as a `Path`; raise an `InputError` for anything else."""
    if not isinstance(path, (str, PathLike)):
        raise InputError(f"expected a path, got {shown(path)}.")
    return Path(path)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name most similar to `name`, or an empty string."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{found[0]}'?)" if found else ""


def counted(count: int, singular: str, plural: str | None = None) -> str:
    """Return a count with its noun, for messages."""
    return f"{count:,} {singular if count == 1 else plural or singular + 's'}"


def shown(value: Any) -> str:
    """Return a value as it is shown in a message: in one line, and cut if it is long."""
    try:
        return one_line(repr(value), 60)
    except (ValueError, RecursionError):  # an integer of thousands of digits, or lists in lists without end
        return f"a value of type {type(value).__name__}"


def one_line(text: str, length: int = 200) -> str:
    """Return text in one line of at most `length` characters."""
    text = " ".join(text.split())
    return text if len(text) <= length else text[: length - 1] + "…"


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message."""
    java = getattr(error, "java_exception", None)  # Spark's own message
    text = str(java.getMessage() if java else getattr(error, "strerror", None) or error)  # without [Errno 2]
    return one_line((text.strip().splitlines() or [type(error).__name__])[0].rstrip(":."))
