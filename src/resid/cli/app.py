"""What all commands share: the application, where they write, and how they read lists."""

import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from resid import InputError, __version__

app = App(
    name="resid",
    version=__version__,
    help="Semantic-ID recommendation: tables in, recommended items out.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
output = Console()
errors = Console(stderr=True)

AsJson = Annotated[bool, Parameter(name="--json", negative="")]


def names(value: str) -> tuple[str, ...]:
    """Split a list that is written with commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


def print_json(value: dict[str, Any]) -> None:
    """Write a result for programs, on a line of its own."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, allow_nan=False) + "\n")


def read_changes(pairs: tuple[str, ...]) -> dict[str, str | tuple[str, ...]]:
    """Read the name=value pairs of --set."""
    if bad := [pair for pair in pairs if not pair.partition("=")[0].strip() or "=" not in pair]:
        raise InputError(f"--set: '{bad[0]}' is not of the form name=value, for example learning_rate=3e-4.")
    changes = {name.strip(): value.strip() for name, _, value in (pair.partition("=") for pair in pairs)}
    return {name: tuple(value.split(",")) if "," in value else value for name, value in changes.items()}


def column_names(columns: str | None) -> dict[str, str]:
    """Read user=reviewer,item=asin."""
    pairs = [pair.partition("=") for pair in names(columns or "")]
    if bad := [name for name, _, value in pairs if not value]:
        raise InputError(f"--columns: '{bad[0]}' is not of the form name=column, for example user=reviewer,item=asin.")
    return {name.strip(): value.strip() for name, _, value in pairs}
