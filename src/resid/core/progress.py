"""Progress of long jobs: live bars on a terminal and in a notebook, plain lines in a log file, or nothing."""

import contextlib
import os
import sys
import time
from collections.abc import Iterator
from datetime import timedelta
from html import escape as escape_html
from typing import Any, Protocol

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, ProgressColumn, Task, TextColumn
from rich.progress import Progress as RichProgress
from rich.table import Column
from rich.text import Text

from resid.core.errors import counted

_SECONDS_BETWEEN_UPDATES = 0.2  # of a bar in a notebook


class Advance(Protocol):
    """Advances a progress bar."""

    def __call__(self, amount: int, note: str = "") -> None:
        """Advance by `amount`; `note`, for example the loss and the time left, is shown next to the bar."""


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
    """Shows nothing."""

    def step(self, text: str) -> None:
        """Do nothing."""

    def result(self, text: str) -> None:
        """Do nothing."""

    @contextlib.contextmanager
    def bar(self, text: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
        """Yield a function that does nothing."""
        yield lambda amount, note="": None


class ConsoleProgress:
    """Writes to a rich console: live bars on a terminal and in a notebook, a line every few seconds in a log file.

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

    def bar(
        self, text: str, total: int, *, done: int = 0, unit: str = ""
    ) -> contextlib.AbstractContextManager[Advance]:
        """Show a live bar on a terminal and in a notebook, and lines with a percentage elsewhere."""
        if self.console.is_jupyter:
            return _notebook_bar(text, total, done, unit)
        return (self._live_bar if self.console.is_terminal else self._lines)(text, total, done, unit)

    @contextlib.contextmanager
    def _live_bar(self, text: str, total: int, done: int, unit: str) -> Iterator[Advance]:
        fixed = Column(no_wrap=True)
        columns = (  # in a narrow terminal, the note is cut off first, and the bar is shorter
            TextColumn("{task.description}", markup=False, table_column=fixed),
            BarColumn(bar_width=max(8, min(40, self.console.width // 4)), table_column=fixed),
            (DownloadColumn if unit == "bytes" else MofNCompleteColumn)(table_column=fixed),
            _Note(),
        )
        with RichProgress(*columns, console=self.console) as live:
            task = live.add_task(text, total=total, completed=done, note="")
            yield lambda amount, note="": live.update(task, advance=amount, note=note)

    @contextlib.contextmanager
    def _lines(self, text: str, total: int, done: int, unit: str) -> Iterator[Advance]:
        last_line = time.monotonic()
        position, size = done, _counted(total, unit)

        def advance(amount: int, note: str = "") -> None:
            nonlocal last_line, position
            position += amount
            if time.monotonic() - last_line >= self.seconds_between_lines:
                last_line = time.monotonic()
                self.result(f"{text}: {position / max(total, 1):.0%} of {size}{note and f', {note}'}")

        self.result(f"{text}: {size}")
        yield advance


def default_progress() -> Progress:
    """Return what shows progress if nothing else is said: a `ConsoleProgress` if a person is watching, otherwise `Silent`.

    Of several processes that train together, the first one shows it.
    """
    console = Console(stderr=True)
    watched = console.is_jupyter or (sys.stderr is not None and sys.stderr.isatty())
    first = all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK"))
    return ConsoleProgress(console) if watched and first else Silent()


class _Note(ProgressColumn):
    """The note, or the time that is left if there is none."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        note = task.fields["note"]
        if not note and task.time_remaining is not None and not task.finished:
            note = f"{timedelta(seconds=round(task.time_remaining))} left"
        return Text(note, no_wrap=True, overflow="ellipsis")


def _counted(total: int, unit: str) -> str:
    return counted(total, unit.removesuffix("s"), unit) if unit else f"{total:,}"


@contextlib.contextmanager
def _notebook_bar(text: str, total: int, done: int, unit: str) -> Iterator[Advance]:
    """Show an HTML bar that is updated in place."""
    from IPython.display import HTML, display  # there is one, as this is a notebook

    position, last_update, last_note = done, 0.0, ""

    def content() -> Any:
        bar = f'<progress value="{position}" max="{max(total, 1)}"></progress>'
        return HTML(f"{escape_html(text)} {bar} {position:,}/{_counted(total, unit)} {escape_html(last_note)}")

    shown = display(content(), display_id=True)

    def advance(amount: int, note: str = "") -> None:
        nonlocal position, last_update, last_note
        position, last_note = position + amount, note
        if time.monotonic() - last_update >= _SECONDS_BETWEEN_UPDATES:
            last_update = time.monotonic()
            shown.update(content())

    try:
        yield advance
    finally:
        shown.update(content())
