"""The errors that a user can cause and mend: bad input, in one sentence that says what to do."""

import contextlib
import difflib
import errno
from collections.abc import Iterable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any


class InputError(ValueError):
    """Something the user gave cannot be used; the message names it and says what to do."""


class TrainingError(RuntimeError):
    """Training cannot go on: something is no longer a number."""


@contextlib.contextmanager
def explain_full_disk(folder: Path) -> Iterator[None]:
    """Turn a full disk met while writing below `folder` into an `InputError`; other errors pass."""
    try:
        yield
    except Exception as error:  # Polars reports the operating system's error as one of its own
        full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT)
        if not full and "No space left on device" not in str(error):
            raise
        raise InputError(
            f"{folder}: the disk is full; free some space or choose another folder, and run it again."
        ) from error


def as_path(path: Any) -> Path:
    """Return a path that was given as text or as a path, and refuse what is neither."""
    if not isinstance(path, (str, PathLike)):
        raise InputError(f"a path is needed, not {path!r}.")
    return Path(path)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return a hint at the known name that is spelled most like `name`, or nothing if none is."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return f" (did you mean '{found[0]}'?)" if found else ""


def first_line(error: Exception) -> str:
    """Return what an error of another library says, cut to a line."""
    java = getattr(error, "java_exception", None)  # what Spark has to say is in there
    text = str(java.getMessage() if java else error)
    return (text.strip().splitlines() or [type(error).__name__])[0].rstrip(":.")
