"""Locks of folders, so that two processes never write the same one."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from resid.core.errors import InputError, explain_disk_errors
from resid.core.files import refuse_file

try:
    import fcntl
except ImportError:  # not on Windows
    fcntl = None  # type: ignore[assignment]


@contextmanager
def exclusive(
    folder: Path, on_wait: Callable[[], None] | None = None, *, file: Path | None = None, named: Path | None = None
) -> Iterator[None]:
    """Lock a folder while the block runs; the lock ends with its process.

    Parameters
    ----------
    folder
        It is created if it does not exist, unless the locked file is elsewhere.
    on_wait
        Called before waiting for another process that has the lock; without it, nothing waits.
    file
        The file that is locked; by default one in the folder. A folder that is replaced as a whole needs one beside it.
    named
        What errors name instead of the folder: the file for which the folder is made.

    Raises
    ------
    InputError
        If another process has the lock and nothing waits.
    """
    refuse_file(folder)
    with explain_disk_errors(named or folder):
        file = file or folder / ".lock"
        file.parent.mkdir(parents=True, exist_ok=True)
        lock = file.open("w")
    with lock:
        if fcntl is None:
            yield
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            if on_wait is None:
                what = "file" if named else "folder"
                raise InputError(
                    f"{named or folder}: another run is using this {what}; wait for it, or choose another {what}."
                ) from error
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield
