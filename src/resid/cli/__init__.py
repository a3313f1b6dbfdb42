"""The `resid` command: one file per subcommand, each a thin layer over a function of the library.

Invalid input ends with one sentence on standard error and exit code 2. Results go to standard output, progress to standard
error; `--json` prints results for programs.

This file and `resid/__init__.py` import next to nothing, so that an interrupt is handled from the first moment on. `resid.cli.app` lists the commands;
each is imported when it is called, and imports the libraries that it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys

TYPE_CHECKING = False  # as in resid/__init__.py
if TYPE_CHECKING:
    from types import FrameType
    from typing import NoReturn

_TERMINATED = 128 + signal.SIGTERM
_INTERRUPTED = 128 + signal.SIGINT
_NUMPY_VERSION = os.path.join("numpy", "lib", "_version.py")
_MESSAGE = "Interrupted; run the same command again to continue.\n"


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 2 for invalid input, 3 for training that diverged, 130 if interrupted."""
    previous = {number: signal.signal(number, _stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        from resid.cli.waiting import choose_waiting

        choose_waiting()
        from resid.cli.command import run

        return run(arguments)
    except KeyboardInterrupt:
        return _say_interrupted(_INTERRUPTED)
    except SystemExit as stopped:
        if stopped.code != _TERMINATED:
            raise
        return _say_interrupted(_TERMINATED)
    finally:
        for number, handler in previous.items():
            # At the end of the process the default action: it ends without a traceback from the interpreter's own clean-up.
            signal.signal(number, signal.SIG_DFL if arguments is None else handler)


def _say_interrupted(code: int) -> int:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)  # it is being obeyed
    sys.stderr.write(_MESSAGE)
    return code


def _stop(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once while it imports modules; otherwise raise an exception, so that temporary files are removed.

    The code of other libraries may show or swallow an exception that comes in the middle of its import. Polars aborts with a
    traceback if one comes while it asks NumPy for its version, which it does once.
    """
    place: FrameType | None = frame
    while place is not None:
        if place.f_code.co_filename.startswith("<frozen importlib") or place.f_code.co_filename.endswith(
            _NUMPY_VERSION
        ):
            os.write(2, _MESSAGE.encode())
            os._exit(128 + number)
        place = place.f_back
    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(_TERMINATED)
