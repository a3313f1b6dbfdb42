"""Progress on a terminal and in a log file."""

import io

from rich.console import Console

from resid.core.progress import ConsoleProgress, Silent


def shown(terminal, seconds=0.0):
    stream = io.StringIO()
    progress = ConsoleProgress(Console(file=stream, force_terminal=terminal, width=100), seconds)
    progress.step("Checking [tables]")
    with progress.bar("Reading [log]", 200, done=50, unit="bytes") as advance:
        advance(50, "loss 0.5")
        advance(100)
    progress.result("[log]: 3 rows")
    return stream.getvalue()


def test_terminal():
    text = shown(terminal=True)
    assert "Reading [log]" in text
    assert "200/200 bytes" in text


def test_log_file():
    assert shown(terminal=False).splitlines() == [
        "Checking [tables] …",
        "Reading [log]: 200 bytes",
        "Reading [log]: 50% of 200 bytes, loss 0.5",
        "Reading [log]: 100% of 200 bytes",
        "[log]: 3 rows",
    ]
    assert "50%" not in shown(terminal=False, seconds=60)


def test_silent(capsys):
    Silent().step("x")
    Silent().result("x")
    with Silent().bar("x", 3) as advance:
        advance(3)
    assert capsys.readouterr().out == ""
