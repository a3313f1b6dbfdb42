"""Start-up: the time until a command has printed something, and the memory that it takes.

    python benchmarks/startup.py      # a minute

Writes benchmarks/startup.json. Every command is a new process; they take turns, and the median counts. A small Dataset, a
popularity model and a ReSID model are made first, and one uncounted turn fills the file caches.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

TINY = {"encoder.width": 16, "generator.width": 16, "encoder.epochs": 1, "generator.epochs": 1}


def prepare(folder: Path) -> None:
    """Make a Dataset and two models; in a process of its own, as a child's peak memory includes what its parent had."""
    from resid import Dataset, fit
    from resid.data import synthetic_shop

    shop = synthetic_shop(users=500, items=120, interactions=6_000, seed=0)
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
    data.save(folder / "data")
    fit(data, "popularity", folder / "popularity")
    fit(data, "resid", folder / "resid", changes=TINY)
    (folder / "item").write_text(str(data.item_ids[0]))


def commands(folder: Path) -> dict[str, list[str]]:
    """Return the commands by the name under which they are reported."""
    history = f"--history={(folder / 'item').read_text()}"
    return {
        "--help": ["--help"],
        "fit --help": ["fit", "--help"],
        "recipes": ["recipes"],
        "recipes show resid": ["recipes", "show", "resid"],
        "info": ["info", str(folder / "data")],
        "recommend, popularity": ["recommend", str(folder / "popularity"), history],
        "recommend, ReSID": ["recommend", str(folder / "resid"), history],
    }


def run(arguments: list[str]) -> tuple[float, float, float]:
    """Return wall-clock seconds, CPU seconds and peak memory in MB of a command."""
    started = time.perf_counter()
    child = subprocess.Popen([sys.executable, "-m", "resid", *arguments], stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(child.pid, 0)
    seconds = time.perf_counter() - started
    assert os.waitstatus_to_exitcode(status) == 0, arguments
    return seconds, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--prepare", type=Path, help=argparse.SUPPRESS)  # what the process that makes the models gets
    options = parser.parse_args()
    if options.prepare:
        prepare(options.prepare)
        return
    repeats = options.repeats
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, __file__, "--prepare", folder], check=True)
        wanted = commands(Path(folder))
        figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in wanted}
        for turn in range(repeats + 1):
            for name, arguments in wanted.items():
                measured = run(arguments)
                if turn:
                    figures[name].append(measured)
    result = {
        name: dict(
            zip(("seconds", "cpu_seconds", "peak_mb"), map(statistics.median, zip(*values, strict=True)), strict=True)
        )
        for name, values in figures.items()
    }
    for name, values in result.items():
        print(f"{name:24} {values['seconds']:6.2f} s  {values['cpu_seconds']:6.2f} s CPU  {values['peak_mb']:6.0f} MB")
    Path(__file__).with_suffix(".json").write_text(
        json.dumps({"repeats": repeats, "commands": result}, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
