"""Training of FAMAE: speed compared with a plain implementation, growth with the catalogue, and peak memory.

    python benchmarks/famae.py                     # a synthetic shop of the size of Amazon Beauty; ten minutes
    python benchmarks/famae.py --data data/beauty  # your own Dataset for the first part

Writes benchmarks/famae.json.

1. Training targets per second of the causal form (all targets of a history in one pass, in single precision and with
   bfloat16 products) and of the paper's bidirectional form (a window per target), compared with a plain implementation of the
   latter (`plain_famae.py`: windows padded to 32, PyTorch's encoder, all positions in both layers, dense AdamW, windows in
   random order). Same data and batch size; the sides take turns, step by step. The losses of the plain and the bidirectional
   form are equal, and so are those of one pass and of a window per target within a piece (tests/encode/test_famae.py).
2. Time of a step with 25 thousand and 500 thousand items, in turn, with sampled negatives.
3. Peak memory of a process that trains one epoch with 500 thousand items, evaluates it and writes its checkpoint.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from plain_famae import PlainFamae

from resid import Dataset, Runtime
from resid.data import Batches, synthetic_shop
from resid.encode import FAMAE, FamaeModel, FamaeSettings
from resid.nn import item_and_fields
from resid.train.optim import make_optimizers

FIELDS = ["store", "categories"]  # five fields with the item ID: a category path has three levels
HERE = Path(__file__).parent


def shop(users: int, items: int, interactions: int) -> Dataset:
    made = synthetic_shop(users, items, interactions, seed=0)
    return Dataset.from_tables(made.interaction_table, made.item_table, FIELDS, k_core=1)


def build_model(data: Dataset, settings: FamaeSettings) -> FamaeModel:
    """Return the network with the initial weights of the seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return FamaeModel(*item_and_fields(data), settings, data.settings.max_length)


class Side:
    """One of the implementations, trained step by step."""

    def __init__(self, model, optimizers, batches, half=False):
        self.model, self.optimizers, self.batches = model.train(), optimizers, self._forever(batches)
        self.half = half
        self.rng, self.seconds, self.windows = torch.Generator().manual_seed(0), [], 0

    @staticmethod
    def _forever(batches):
        while True:
            yield from batches

    def step(self) -> None:
        begin = time.perf_counter()
        batch = next(self.batches)  # building the batch is part of the step
        with torch.autocast("cpu", torch.bfloat16, enabled=self.half):
            loss = self.model(batch, self.rng)["loss"]
        loss.backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.seconds.append(time.perf_counter() - begin)
        self.windows += batch.weight


def ours(data: Dataset, settings: FamaeSettings, batch_size: int, *, half: bool = False) -> Side:
    model, encoder = build_model(data, settings), FAMAE(settings.replace(batch_size=batch_size))
    return Side(model, make_optimizers(model, settings), encoder.batches(data), half)


def plain(data: Dataset, settings: FamaeSettings, batch_size: int) -> Side:
    model = build_model(data, settings)
    for table in model.embeddings():
        table.sparse = False
    side = PlainFamae(model, settings.dropout)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-5)
    return Side(side, [optimizer], Batches(data.train, batch_size, seed=0, pool=1))


def against_the_plain_way(data: Dataset, steps: int) -> dict[str, Any]:
    causal, windows = FamaeSettings(), FamaeSettings(attention="bidirectional")
    batch_size = causal.batch_size_for(len(data.train))
    sides = {
        "one pass, bfloat16": ours(data, causal, batch_size, half=True),
        "one pass": ours(data, causal, batch_size),
        "windows": ours(data, windows, batch_size),
        "plain": plain(data, windows, batch_size),
    }
    for number in range(steps + 2):
        for side in sides.values():
            side.step()
            if number < 2:  # the first steps allocate
                side.seconds.clear()
                side.windows = 0
    speed = {name: side.windows / sum(side.seconds) for name, side in sides.items()}
    lengths = (data.train.end - data.train.begin).mean()
    print(
        "targets/s:", ", ".join(f"{name} {value:,.0f} ({value / speed['plain']:.2f}x)" for name, value in speed.items())
    )
    return {
        "items": data.n_items, "windows": len(data.train), "mean_history": float(lengths), "batch_size": batch_size,
        "steps": steps, "targets_per_second": speed,
        "ratio to plain": {name: value / speed["plain"] for name, value in speed.items()},
        "ratio to windows": {name: value / speed["windows"] for name, value in speed.items()},
    }  # fmt: skip


def as_the_catalogue_grows(shops: list[Dataset], steps: int) -> dict[str, Any]:
    settings = FamaeSettings(full_softmax_limit=4096)
    sides = {data.n_items: ours(data, settings, 1024) for data in shops}
    for _ in range(steps + 2):
        for side in sides.values():
            side.step()
    seconds = {items: statistics.median(side.seconds[2:]) for items, side in sides.items()}
    small, large = seconds.values()
    print(f"step: {', '.join(f'{value:.3f} s with {items:,} items' for items, value in seconds.items())}; "
          f"{large / small:.2f}x")  # fmt: skip
    return {"steps": steps, "seconds": {str(items): value for items, value in seconds.items()}, "ratio": large / small}


def memory(data: Dataset) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as folder:
        data.save(f"{folder}/data")
        command = [sys.executable, __file__, "--train", f"{folder}/data", "--out", f"{folder}/run"]
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"memory with {found['items']:,} items: {found['peak_gb']:.2f} GB")
    return found


def train_once(data: Path, out: Path) -> None:
    dataset = Dataset.load(data)
    FAMAE(FamaeSettings(epochs=1, validation_windows=1_000)).fit(dataset, runtime=Runtime(folder=out)).embed(dataset)
    # The peak of this program alone; getrusage would include the memory of the parent at the time of the fork.
    status = Path("/proc/self/status").read_text().splitlines()
    peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 2**20
    print(json.dumps({"items": dataset.n_items, "fields": 1 + len(dataset.field_names), "peak_gb": peak}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--parts", default="plain,growth,memory", help="which of the three parts to run")
    parser.add_argument("--train", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train_once(arguments.train, arguments.out)
        return
    path = HERE / "famae.json"
    result = json.loads(path.read_text()) if path.exists() else {}
    parts = arguments.parts.split(",")
    if "plain" in parts:
        data = Dataset.load(arguments.data) if arguments.data else shop(22_000, 12_000, 198_000)
        result["against the plain way"] = against_the_plain_way(data, arguments.steps)
    if {"growth", "memory"} & set(parts):
        # Most items of a shop have no interactions; 26 and 510 thousand have some.
        small, large = shop(20_000, 80_000, 100_000), shop(400_000, 1_600_000, 2_000_000)
        if "growth" in parts:
            result["as the catalogue grows"] = as_the_catalogue_grows([small, large], arguments.steps)
        if "memory" in parts:
            result["memory"] = memory(large)
    path.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
