"""What all commands share: the application, its output streams, and the reading of lists."""

import json
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import App, Parameter
from rich.console import Console

from resid import InputError, __version__

# Each is a module of this folder and a function or application in it, imported when it is called.
_COMMANDS = "demo prepare download info fit evaluate compare recommend similar export inspect items update report serve encode quantize generate analyse recipes".split()

app = App(
    name="resid",
    version=__version__,
    help="Semantic-ID recommendation: tables in, recommended items out.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
for _name in _COMMANDS:
    app.command(f"resid.cli.{_name}:{_name}", name=_name)
output = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, Parameter(name="--json", negative="", show_default=False)]


@app.command(name="--install-completion")
def install_completion(
    *,
    shell: Literal["bash", "zsh", "fish"] | None = None,
    script: Annotated[Path | None, Parameter(name=["--output", "-o"])] = None,
) -> None:
    """Install completion for bash, zsh or fish; the start-up file of bash or zsh is changed to load it.

    Parameters
    ----------
    shell
        Default: the shell that is running.
    script
        Only write the script to this file, and change no start-up file.
    """
    from cyclopts.completion.detect import ShellDetectionError

    try:
        written = app.install_completion(shell=shell, output=script, add_to_startup=script is None)
    except ShellDetectionError as error:
        raise InputError("the running shell is not known; give it with --shell.") from error
    advice = "start a new shell to use it" if script is None else "load it in the start-up file of the shell"
    output.print(f"Wrote {written}; {advice}.", highlight=False, markup=False, soft_wrap=True)


def import_commands() -> None:
    """Import all commands, whose docstrings the list of commands shows."""
    for name in _COMMANDS:
        app[name]


def names(value: str) -> tuple[str, ...]:
    """Split a comma-separated list."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def print_json(value: dict[str, Any]) -> None:
    """Print a result as one line of JSON."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def column_names(columns: str | None) -> dict[str, str]:
    """Read user=reviewer,item=asin."""
    pairs = [pair.partition("=") for pair in names(columns or "")]
    if bad := [name for name, _, value in pairs if not value]:
        raise InputError(
            f"--columns: '{bad[0]}' does not have the form name=column, for example user=reviewer,item=asin."
        )
    return {name.strip(): value.strip() for name, _, value in pairs}
