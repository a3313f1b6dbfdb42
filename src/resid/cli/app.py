"""What all commands share: the application, where they write, and how they read lists."""

import json
import sys
from typing import Annotated, Any

from cyclopts import App, Parameter
from rich.console import Console

from resid import __version__

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
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")
