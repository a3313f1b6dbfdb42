"""The `resid` command: one file per subcommand, each a thin layer over a function of the library.

Invalid input ends with one sentence on standard error and exit code 2. Results go to standard output, progress to standard
error; `--json` prints results for programs.
"""

import io
import os
import signal
import sys
from inspect import Parameter

from cyclopts import CycloptsError, MissingArgumentError
from rich.text import Text

from resid import InputError
from resid.cli import (  # noqa: F401 - each adds its command to the application
    demo,
    download,
    encode,
    evaluate,
    fit,
    generate,
    info,
    inspect,
    prepare,
    quantize,
    recommend,
)
from resid.cli.app import app, errors
from resid.core.errors import TrainingError

_TERMINATED = 128 + signal.SIGTERM
_STOPPED = "Interrupted; run the same command again to continue."


def _fail(sentence: str) -> int:
    errors.print(Text.assemble(("Error: ", "red"), sentence), soft_wrap=True)
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, 2 for invalid input, 3 for training that diverged."""
    # SIGTERM raises an exception like an interrupt, so that temporary files are removed.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(_TERMINATED))
    for stream in (sys.stdout, sys.stderr):  # characters that a terminal cannot show become question marks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # here, where a closed pipe or a full disk can still be reported
    except BrokenPipeError:  # the reader of the output has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'resid'}: {error.strerror or error}.")
    except MissingArgumentError as error:
        missing = "an argument"
        if error.argument:
            named = error.argument.field_info.kind is Parameter.KEYWORD_ONLY
            missing = error.argument.name if named else error.argument.name.lstrip("-").upper()
        command = " ".join(["resid", *(error.command_chain or ())])
        return _fail(f"{missing} is missing; see {command} --help.")
    except (InputError, CycloptsError) as error:
        return _fail(str(error))
    except TrainingError as error:
        _fail(str(error))
        return 3
    except KeyboardInterrupt:
        errors.print(_STOPPED)
        return 130
    except SystemExit as stopped:
        if stopped.code != _TERMINATED:
            raise
        errors.print(_STOPPED)
        return _TERMINATED
    return 0
