"""Progress on a terminal, in a notebook and in a log file."""

import io
import re

import pytest
from rich.console import Console

from resid import ConsoleProgress, Runtime
from resid.core import progress as module
from resid.core.progress import Silent, default_progress


def shown(terminal, seconds=0.0, width=100, note="loss 0.5", unit="bytes"):
    stream = io.StringIO()
    progress = ConsoleProgress(Console(file=stream, force_terminal=terminal, width=width), seconds)
    progress.step("Checking [tables]")
    with progress.bar("Reading [log]", 200, done=50, unit=unit) as advance:
        advance(50, note)
        advance(100)
    progress.result("[log]: 3 rows")
    return stream.getvalue()


def test_terminal():
    text = shown(terminal=True)
    assert "Reading [log]" in text
    assert "200/200 bytes" in text


@pytest.mark.parametrize("width", [40, 60, 100])
def test_narrow_terminals_keep_the_bar(width):
    note = "loss 0.5123, 12,345 samples/s, 0:00:33 left"
    stream = io.StringIO()
    progress = ConsoleProgress(Console(file=stream, force_terminal=True, width=width))
    with progress.bar("Epoch 12 of 20", 200, unit="steps") as advance:
        advance(100, note)
    lines = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", stream.getvalue()).replace("\r", "\n").splitlines()
    last = [line.strip() for line in lines if "Epoch" in line][-1]
    assert re.match(r"Epoch 12 of 20 ━+[╸╺]?━* +100/200", last), last
    assert len(last) <= width
    assert (note in last) == (width == 100)


def test_time_left(monkeypatch):
    """Without a note, the time that is left is shown in the same words."""
    stream, now = io.StringIO(), [0.0]
    console = Console(file=stream, force_terminal=True, width=100, get_time=lambda: now[0])
    with ConsoleProgress(console).bar("Reading", 200, unit="users") as advance:
        for _ in range(10):
            now[0] += 3
            advance(10)
    assert "0:00:30 left" in stream.getvalue()


def test_log_file():
    assert shown(terminal=False).splitlines() == [
        "Checking [tables] …",
        "Reading [log]: 200 bytes",
        "Reading [log]: 50% of 200 bytes, loss 0.5",
        "Reading [log]: 100% of 200 bytes",
        "[log]: 3 rows",
    ]
    assert "50%" not in shown(terminal=False, seconds=60)


def test_plurals():
    stream = io.StringIO()
    for total in (1, 2):
        with ConsoleProgress(Console(file=stream)).bar("Ranking", total, unit="users"):
            pass
    assert stream.getvalue().splitlines() == ["Ranking: 1 user", "Ranking: 2 users"]


def test_silent(capsys):
    Silent().step("x")
    Silent().result("x")
    with Silent().bar("x", 3) as advance:
        advance(3)
    assert capsys.readouterr().out == ""


class TestDefault:
    def test_nobody_is_watching(self):
        assert isinstance(default_progress(), Silent)
        assert isinstance(Runtime().progress, Silent)

    def test_terminal(self, monkeypatch):
        monkeypatch.setattr(module.sys.stderr, "isatty", lambda: True, raising=False)
        assert isinstance(default_progress(), ConsoleProgress)
        assert isinstance(Runtime().progress, ConsoleProgress)
        monkeypatch.setenv("RANK", "1")  # of torchrun: the first process shows progress
        assert isinstance(default_progress(), Silent)
