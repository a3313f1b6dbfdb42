"""Runs `resid` commands in forks of one process that has imported everything, and stops them at a chosen moment.

A command starts at once in a fork, so that a campaign of kills spends its time on the commands and not on imports. The moment
is a time, or a change to the file system, counted from the beginning of the command: killed just before it creates, renames or
removes a file, a command leaves what is hardest to continue from.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}
_PATIENCE = 900  # seconds after which a command counts as one that hangs


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes
    ----------
    code : int
        The exit code, or the negative number of the signal.
    seconds : float
    changes : int
        How often it changed the file system, as far as Python sees it.
    said : str
        Standard error.
    """

    code: int
    seconds: float
    changes: int
    said: str


class Server:
    """A process to which commands are sent; a context manager."""

    def __init__(self) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.server"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)  # closes the pipes, which ends the server, and waits for it

    def run(self, arguments: Sequence[object], folder: Path, stop: dict[str, Any] | None = None) -> Outcome:
        """Run a command in a folder.

        Parameters
        ----------
        arguments
            Those of `resid`.
        folder
            The working directory.
        stop
            When it is stopped, and how: ``{"signal": 9, "after": 0.5}`` in seconds, or ``{"signal": 15, "before": 7}``, the
            number of the change.
        """
        request = {"arguments": list(map(str, arguments)), "folder": str(folder), "stop": stop or {}}
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        try:
            return Outcome(**json.loads(self.process.stdout.readline()))
        except BaseException:  # such as a time limit of pytest: the next answer would be that of this command
            self.process.kill()
            raise


def _serve() -> None:
    import resid
    from resid.methods.recipe import recipe_names

    for module in pkgutil.walk_packages(resid.__path__, "resid."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    recipe_names()
    for line in sys.stdin:
        request = json.loads(line)
        said, changes = os.memfd_create("said"), os.memfd_create("changes")
        ready, begun = os.pipe()
        child = os.fork()
        if not child:
            _run(request, said, changes, begun)
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        start = time.monotonic()
        code = _wait(child, start, request["stop"])
        outcome = {
            "code": code,
            "seconds": time.monotonic() - start,
            "changes": os.fstat(changes).st_size,
            "said": _content(said),
        }
        os.close(said)
        os.close(changes)
        sys.stdout.write(json.dumps(outcome) + "\n")
        sys.stdout.flush()


def _wait(child: int, start: float, stop: dict[str, Any]) -> int:
    sent = False
    while True:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        passed = time.monotonic() - start
        if "after" in stop and passed >= stop["after"] and not sent:
            os.kill(child, stop["signal"])
            sent = True
        if passed > _PATIENCE:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return 999  # no exit code
        time.sleep(0.003)


def _content(file: int) -> str:
    os.lseek(file, 0, os.SEEK_SET)
    with open(file, "rb", closefd=False) as stream:
        return stream.read().decode(errors="replace")


def _run(request: dict[str, Any], said: int, changes: int, begun: int) -> None:
    """Run the command; this process ends here."""
    from resid.cli import main

    stop, number, root = request["stop"], 0, os.path.realpath(request["folder"])

    def note(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal number
        if event == "open":
            flags = arguments[2] if isinstance(arguments[2], int) else 0
            if not flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
                return
        elif event not in _CHANGES:
            return
        path = arguments[0]
        if not isinstance(path, str | os.PathLike) or not os.path.abspath(path).startswith(root):
            return
        if number == stop.get("before"):
            number += 1
            os.kill(os.getpid(), stop["signal"])
        number += 1
        os.write(changes, b".")

    code = 1
    try:
        os.chdir(request["folder"])
        null = os.open(os.devnull, os.O_RDWR)
        os.dup2(null, 0)
        os.dup2(null, 1)
        os.dup2(said, 2)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.addaudithook(note)
        os.write(begun, b".")
        code = main(request["arguments"])
    except KeyboardInterrupt:  # before the command began, or after it ended
        code = 130 if code else code
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve()
