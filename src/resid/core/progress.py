"""Progress of long jobs: a bar that knows its total on a terminal, plain lines elsewhere, or nothing."""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Advance(Protocol):
    """Moves a bar on."""

    def __call__(self, amount: int, note: str = "") -> None:
        """Move by `amount`; `note` is shown beside the bar, the last loss for example."""


class Progress(Protocol):
    """What a long job tells about itself."""

    def step(self, text: str) -> None:
        """Say that a step without a measurable length begins."""

    def result(self, text: str) -> None:
        """Say what came out of something that has ended."""

    def bar(
        self, text: str, total: int, *, done: int = 0, unit: str = ""
    ) -> "contextlib.AbstractContextManager[Advance]":
        """Open a bar of `total` units of which `done` are there; it yields the function that advances it.

        The unit ``"bytes"`` is shown in megabytes, any other is counted.
        """


class Silent:
    """Says nothing: what library calls use unless told otherwise."""

    def step(self, text: str) -> None:
        """Do nothing."""

    def result(self, text: str) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def bar(self, text: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda amount, note="": None


class ConsoleProgress:
    """Writes to a rich console: live bars on a terminal, a line every few seconds in a log file.

    Parameters
    ----------
    console
        Where to; by default to standard error.
    seconds_between_lines
        In a log file.
    """

    def __init__(self, console: Console | None = None, seconds_between_lines: float = 5.0) -> None:
        self.console = console or Console(stderr=True)
        self.seconds_between_lines = seconds_between_lines

    def step(self, text: str) -> None:
        """Print the step as a line of its own."""
        self.console.print(f"[dim]{escape(text)} …[/dim]", highlight=False)

    def result(self, text: str) -> None:
        """Print the result as a line of its own."""
        self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    @contextlib.contextmanager
    def bar(self, text: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
        """Show a bar on a terminal, or lines with a percentage where there is none."""
        if self.console.is_terminal:
            count = DownloadColumn() if unit == "bytes" else MofNCompleteColumn()
            columns = (
                TextColumn("{task.description}", markup=False),
                BarColumn(),
                count,
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}", markup=False),
            )
            with RichProgress(*columns, console=self.console) as live:
                task = live.add_task(text, total=total, completed=done, note="")
                yield lambda amount, note="": live.update(task, advance=amount, note=note)
            return
        last_line = time.monotonic()
        position = done

        def advance(amount: int, note: str = "") -> None:
            nonlocal last_line, position
            position += amount
            if time.monotonic() - last_line >= self.seconds_between_lines:
                last_line = time.monotonic()
                self.console.print(
                    f"{text}: {position / max(total, 1):.0%} of {total:,} {unit}{note and f', {note}'}",
                    highlight=False,
                    markup=False,
                    soft_wrap=True,
                )

        self.console.print(f"{text}: {total:,} {unit}", highlight=False, markup=False)
        yield advance
