"""Runs programs and `resid` commands in forks of one process that has done their imports, and can stop them at a chosen moment.

A fork is a process of its own that starts at once, so that tests of processes spend their time on what the processes do and
not on seconds of imports. The moment is a time, or a change to the file system, counted from the beginning of the command:
killed just before it creates, renames or removes a file, a command leaves what is hardest to continue from.
"""

import contextlib
import importlib
import json
import os
import pkgutil
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
LIBRARIES = (  # those that take long to import
    *("cyclopts", "lightning_fabric.strategies", "narwhals", "numba", "numpy", "polars", "pydantic", "rich.console"),
    *(
        "safetensors.torch",
        "scipy.optimize",
        "scipy.sparse",
        "sklearn.cluster",
        "torch.distributed",
        "torch.nn.parallel",
    ),
)
_CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod"}
_PATIENCE = 900  # seconds after which a command counts as one that hangs


@dataclass(frozen=True)
class Outcome:
    """How a command or a program ended.

    Attributes
    ----------
    code : int
        The exit code, or the negative number of the signal; of several processes, the first that is not 0.
    seconds : float
    changes : int
        How often it changed the file system, as far as Python sees it.
    said : str
        Standard error.
    printed : str
        Standard output.
    """

    code: int
    seconds: float
    changes: int
    said: str
    printed: str


class Server:
    """A process to which commands are sent; a context manager.

    Parameters
    ----------
    everything
        Whether the modules of `resid` are imported as well; otherwise every fork imports those that it uses, as any new process.
    """

    def __init__(self, everything: bool = False) -> None:
        environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.forks", *(["everything"] if everything else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
            cwd=ROOT,
        )

    def __enter__(self) -> "Server":
        return self

    def __exit__(self, *_: object) -> None:
        self.process.__exit__(None, None, None)  # closes the pipes, which ends the server, and waits for it

    def run(
        self,
        arguments: Sequence[object],
        folder: Path = ROOT,
        stop: dict[str, Any] | None = None,
        *,
        program: str | None = None,
        processes: int = 1,
    ) -> Outcome:
        """Run a command in a folder.

        Parameters
        ----------
        arguments
            Those of `resid`, or of the program.
        folder
            The working directory.
        stop
            When it is stopped, and how: ``{"signal": 9, "after": 0.5}`` in seconds, or ``{"signal": 15, "before": 7}``, the
            number of the change.
        program
            Python code to run instead of `resid`; it reads its arguments from ``sys.argv``.
        processes
            How many run it together, in the environment that ``torchrun`` gives to its processes.
        """
        request = {
            "arguments": list(map(str, arguments)),
            "folder": str(folder),
            "stop": stop or {},
            "program": program,
            "environments": _torchrun(processes) if processes > 1 else [{}],
        }
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        try:
            return Outcome(**json.loads(self.process.stdout.readline()))
        except BaseException:  # such as a time limit of pytest: the next answer would be that of this command
            self.process.kill()
            raise

    def output(self, program: str, *arguments: object) -> str:
        """Run a Python program in a process of its own that must succeed, and return what it prints."""
        outcome = self.run(arguments, program=program)
        assert outcome.code == 0, outcome.said
        return outcome.printed


def _torchrun(processes: int) -> list[dict[str, str]]:
    """Return the variables of every process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    size = {"WORLD_SIZE": processes, "LOCAL_WORLD_SIZE": processes, "GROUP_WORLD_SIZE": 1, "GROUP_RANK": 0}
    shared = {**size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "TORCHELASTIC_RUN_ID": "forks"}
    ranks = [{"RANK": rank, "LOCAL_RANK": rank} for rank in range(processes)]
    return [{name: str(value) for name, value in (shared | rank).items()} for rank in ranks]


def _serve(everything: bool) -> None:
    for name in LIBRARIES:
        importlib.import_module(name)
    if everything:
        import resid
        from resid.methods.recipe import recipe_names

        for module in pkgutil.walk_packages(resid.__path__, "resid."):
            if not module.name.endswith("__main__"):
                importlib.import_module(module.name)
        recipe_names()
    for line in sys.stdin:
        request = json.loads(line)
        files = {name: os.memfd_create(name) for name in ("printed", "said", "changes")}
        ready, begun = os.pipe()
        children = []
        for environment in request["environments"]:
            child = os.fork()
            if not child:
                _run(request, environment, **files, begun=begun)
            children.append(child)
        os.close(begun)
        os.read(ready, 1)
        os.close(ready)
        start = time.monotonic()
        codes = [_wait(child, start, request["stop"]) for child in children]
        outcome = {
            "code": next((code for code in codes if code), 0),
            "seconds": time.monotonic() - start,
            "changes": os.fstat(files["changes"]).st_size,
            "said": _content(files["said"]),
            "printed": _content(files["printed"]),
        }
        for file in files.values():
            os.close(file)
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


def _run(
    request: dict[str, Any], environment: Mapping[str, str], *, printed: int, said: int, changes: int, begun: int
) -> None:
    """Run the command or the program; this process ends here."""
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
        os.dup2(printed, 1)
        os.dup2(said, 2)
        os.environ.update(environment)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.addaudithook(note)
        os.write(begun, b".")
        if request["program"] is None:
            from resid.cli import main

            code = main(request["arguments"])
        else:
            sys.argv = ["-c", *request["arguments"]]
            exec(compile(request["program"], "program", "exec"), {"__name__": "__main__"})
            code = 0
    except KeyboardInterrupt:  # before the command began, or after it ended
        code = 130 if code else code
    except SystemExit as stopped:
        code = int(stopped.code or 0)
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(Exception):
                stream.flush()
        os._exit(code)


if __name__ == "__main__":
    _serve("everything" in sys.argv)
