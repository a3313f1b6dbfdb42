"""Progress of long jobs: progress bars on a terminal, plain lines elsewhere, or nothing."""

import contextlib
import time
from collections.abc import Iterator
from typing import Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, amount: int, note: str = "") -> None:
        """Advance by `amount`; `note`, for example the last loss, is shown next to the bar."""


class Progress(Protocol):
    """Receives the messages and the progress of long jobs."""

    def step(self, text: str) -> None:
        """Announce a step of unknown length."""

    def result(self, text: str) -> None:
        """Report the result of something that has finished."""

    def bar(
        self, text: str, total: int, *, done: int = 0, unit: str = ""
    ) -> "contextlib.AbstractContextManager[Advance]":
        """Open a progress bar of `total` units, of which `done` are finished; yields the function that advances it.

        The unit ``"bytes"`` is shown as a file size, any other unit as a count.
        """


class Silent:
    """Shows nothing; the default of the library."""

    def step(self, text: str) -> None:
        """Do nothing."""

    def result(self, text: str) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def bar(self, text: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda amount, note="": None


class ConsoleProgress:
    """Writes to a rich console: live progress bars on a terminal, a line every few seconds in a log file.

    Parameters
    ----------
    console
        The console; standard error by default.
    seconds_between_lines
        Minimum time between two lines of a bar in a log file.
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
        """Show a progress bar on a terminal, and lines with a percentage elsewhere."""
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
