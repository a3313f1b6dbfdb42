"""Runs a command, and turns its errors into one sentence and an exit code."""

import io
import os
import sys
from inspect import Parameter

from cyclopts import CycloptsError, MissingArgumentError
from rich.text import Text

from resid.cli.app import app, errors, import_commands
from resid.core.errors import InputError, TrainingError, first_line


def _fail(sentence: str) -> int:
    errors.print(Text.assemble(("Error: ", "red"), sentence), soft_wrap=True)
    return 2


def run(arguments: list[str] | None) -> int:
    """Run a command and return its exit code."""
    for stream in (sys.stdout, sys.stderr):  # characters that a terminal cannot show become question marks
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    given = sys.argv[1:] if arguments is None else arguments
    try:
        if not given or given[0].startswith("-"):
            import_commands()
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # here, where a closed pipe or a full disk can still be reported
    except BrokenPipeError:  # the reader of the output has exited
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'resid'}: {first_line(error).lower()}.")
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
    return 0
