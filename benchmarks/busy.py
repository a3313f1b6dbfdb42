"""A machine that does something else too: training alone, and beside a busy process, by how OpenMP's threads wait.

    python benchmarks/busy.py      # about fifteen minutes on two cores

Writes benchmarks/busy.json. `resid encode` trains a small FAMAE, as in `resid demo`, once for every way of waiting, alone and
beside one process that keeps a core busy; they take turns. The figure is training samples per second, the median over
repeats and epochs without the first. Ways of waiting:

- ``chosen``: what the command chooses by the load when it starts, ``spin`` or ``passive``;
- ``spin``: 300,000 turns of the loop in which a thread waits, which is OpenMP's (libgomp's) own choice;
- ``short``: 1,000 turns;
- ``passive``: none.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from pathlib import Path

from resid import Dataset
from resid.data import synthetic_shop

WAITING = {
    "chosen": {},
    "spin": {"GOMP_SPINCOUNT": "300000"},
    "short": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "passive"},
}
SMALL = ("width=64", "ffn_width=128", "learning_rate=3e-3", "patience=0", "evaluate_every=100")
VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")


@contextmanager
def busy_process(wanted: bool):
    """Keep one core busy while the block runs."""
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"]) if wanted else None
    try:
        yield
    finally:
        if child is not None:
            child.kill()
            child.wait()


def train(data: Path, run: Path, variables: dict[str, str], epochs: int) -> tuple[list[float], float]:
    """Return the samples per second of every epoch but the first, and the CPU seconds of the process."""
    environment = {name: value for name, value in os.environ.items() if name not in VARIABLES} | variables
    changes = [f"--set=encoder.{change}" for change in SMALL]
    command = [sys.executable, "-m", "resid", "encode", str(data), "--out", str(run), "--epochs", str(epochs), *changes]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(command, env=environment, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    (metrics,) = run.glob("encoder/*/training/metrics.jsonl")
    speeds = [json.loads(line)["samples_per_second"] for line in metrics.read_text().splitlines()]
    return speeds[1:], after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--users", type=int, default=6_000)
    options = parser.parse_args()
    speeds: dict[tuple[str, bool], list[float]] = {(name, busy): [] for name in WAITING for busy in (False, True)}
    seconds: dict[tuple[str, bool], list[float]] = {place: [] for place in speeds}
    with tempfile.TemporaryDirectory() as folder:
        shop = synthetic_shop(users=options.users, items=2_000, interactions=10 * options.users, seed=0)
        data = Path(folder) / "data"
        Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"]).save(data)
        for turn in range(options.repeats):
            for name, busy in speeds:
                with busy_process(busy):
                    found, used = train(data, Path(folder) / f"{name}-{busy}-{turn}", WAITING[name], options.epochs)
                speeds[name, busy] += found
                seconds[name, busy].append(used)
                print(
                    f"{name:8} {'busy' if busy else 'alone':6} {statistics.median(found):10,.0f} samples/s {used:6.1f} s CPU"
                )
    reference = statistics.median(speeds["spin", False])
    result = {
        name: {
            place: {
                "samples_per_second": round(statistics.median(speeds[name, busy])),
                "relative": round(statistics.median(speeds[name, busy]) / reference, 3),
                "cpu_seconds": round(statistics.median(seconds[name, busy]), 1),
            }
            for place, busy in (("alone", False), ("beside_a_busy_process", True))
        }
        for name in WAITING
    }
    print(json.dumps(result, indent=1))
    facts = {"cores": os.cpu_count(), "repeats": options.repeats, "epochs": options.epochs, "waiting": result}
    Path(__file__).with_suffix(".json").write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
