"""What a comparison shows while it runs: a live table on a terminal, lines elsewhere."""

import time
from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from types import TracebackType
from typing import Any, Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from resid.comparison.results import Task
from resid.core.errors import one_line


def estimate_left(
    waiting: Iterable[str], running: Mapping[str, Sequence[float]], known: Mapping[str, Sequence[float]], places: int
) -> float | None:
    """Return the seconds that a comparison still takes, about.

    Parameters
    ----------
    waiting
        The row of every task that is not started.
    running
        The seconds for which the tasks of a row have been running.
    known
        The seconds that tasks of a row took; a row of which none has ended is expected to take the mean of all, or what it
        has taken already.
    places
        Number of tasks that run at a time.

    Returns
    -------
    float or None
        None as long as no task has ended.
    """
    times = [seconds for each in known.values() for seconds in each]
    if not times:
        return None

    def expected(row: str) -> float:
        if own := known.get(row):
            return sum(own) / len(own)
        return max([sum(times) / len(times), *running.get(row, ())])  # no less than it has been running already

    left = sum(map(expected, waiting))
    left += sum(max(0.0, expected(row) - seconds) for row, each in running.items() for seconds in each)
    return left / places


class Display:
    """Shows which tasks are done, running and left, and how long it may still take.

    Parameters
    ----------
    console
        Where to show it; None shows nothing.
    title
        Of the table.
    there
        The results that are there already: what to show of each task.
    waiting
        The tasks that are to be run, as far as they are known.
    known
        The seconds that earlier tasks of a row took.
    places
        Number of tasks that run at a time.
    """

    def __init__(
        self,
        console: Console | None,
        title: str,
        there: Mapping[tuple[str, str], str],
        waiting: Sequence[Task],
        known: Mapping[str, Sequence[float]],
        places: int,
    ) -> None:
        self.console, self.title, self.places = console, title, places
        self.states = dict(there)
        self.waiting = [(task.row, task.label) for task in waiting]
        self.total = len(self.waiting)
        self.known = {row: list(each) for row, each in known.items()}
        self.running = dict[tuple[str, str], tuple[float, str]]()  # since when, and what it does
        self.ended = 0
        self.stage = dict[tuple[str, str], str]()
        live = console is not None and console.is_terminal and not console.is_jupyter
        self.live = (
            Live(get_renderable=self.table, console=console, refresh_per_second=2, transient=True) if live else None
        )

    def __enter__(self) -> Self:
        if self.live is not None:
            self.live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.live is not None:
            self.live.stop()

    def started(self, task: Task) -> None:
        """Show that a task runs."""
        key = (task.row, task.label)
        if key in self.waiting:
            self.waiting.remove(key)
        self.running[key] = (time.monotonic(), "starting")
        self._line(f"{task}: started")

    def reported(self, task: Task, message: Mapping[str, Any]) -> None:
        """Show what a task is doing: a message of its process."""
        key = (task.row, task.label)
        began, text = self.running[key]
        if "step" in message:
            self.stage[key] = text = message["step"].partition(" in ")[0]
            self._line(f"{task}: {text}")
        elif "bar" in message:
            text = f"{self.stage.get(key, '')}, {message['bar']}, {message['share']:.0%}"
            text += f", {message['note']}" if message["note"] else ""
        self.running[key] = (began, text.removeprefix(", "))

    def finished(self, task: Task, error: str | None) -> None:
        """Show that a task has ended, and why it failed if it did."""
        key = (task.row, task.label)
        seconds = time.monotonic() - self.running.pop(key)[0]
        self.ended += 1
        if error is None:
            self.known.setdefault(task.row, []).append(seconds)
        self.states[key] = f"{_clock(seconds)}" if error is None else "failed"
        how = f"done in {_clock(seconds)}" if error is None else f"failed: {error}"
        self._line(f"{task}: {how} ({self.summary()})", lasting=error is not None)

    def summary(self) -> str:
        """Return how many tasks have ended, and about how long the rest takes."""
        now = time.monotonic()
        running = dict[str, list[float]]()
        for (row, _), (began, _) in self.running.items():
            running.setdefault(row, []).append(now - began)
        left = estimate_left((row for row, _ in self.waiting), running, self.known, self.places)
        text = f"{self.ended} of {max(self.total, self.ended + len(self.running))} done"
        return text if left is None else f"{text}, about {_clock(left)} left"

    def table(self) -> RenderableType:
        """Return the live table: a row for every recipe, a column for every seed, and what runs below."""
        cells: dict[tuple[str, str], str] = {
            **self.states,
            **dict.fromkeys(self.waiting, "[dim]waiting[/dim]"),
            **{
                key: f"[cyan]running {_clock(time.monotonic() - began)}[/cyan]"
                for key, (began, _) in self.running.items()
            },
        }
        columns = list(dict.fromkeys(label for _, label in sorted(cells, key=lambda key: (len(key[1]), key[1]))))
        table = Table("", *columns)
        for row in dict.fromkeys(row for row, _ in cells):
            table.add_row(escape(row), *(cells.get((row, column), "") for column in columns))
        lines = [
            Text(one_line(f"{row}, {label}: {text}", 160), overflow="ellipsis", no_wrap=True)
            for (row, label), (_, text) in self.running.items()
        ]
        return Group(Text(f"{self.title}: {self.summary()}"), table, *lines)

    def _line(self, text: str, lasting: bool = False) -> None:
        """Print a line where there is no live table; a `lasting` one above the table as well."""
        if self.console is not None and (self.live is None or lasting):
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)


def _clock(seconds: float) -> str:
    return str(timedelta(seconds=round(seconds)))
