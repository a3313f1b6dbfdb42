"""An update of a model with 5% new interactions compared with a full fit to the grown log: CPU time, and accuracy on the same targets.

The last interactions of randomly drawn users are held back, a model is fitted to the rest, and updated with what was held back. The grown
Dataset is then the whole one, with the same validation and test targets. The full fit is that of `--full`, or made here. Times are CPU
seconds of whole commands. Without a Dataset, a small synthetic shop and a short training show that it runs.

    python benchmarks/update.py data/scientific --runs runs/update --full runs/scientific
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import polars as pl

import resid
from resid import Dataset
from resid.data import synthetic_shop
from resid.data.prepare import build_dataset
from resid.data.splits import Histories
from resid.evaluate import evaluate
from resid.evaluate.metrics import ranking_metrics
from resid.runs import read_evaluation

SHORT = ["--set", "encoder.epochs=2", "--set", "generator.epochs=3", "--set", "quantizer.branching=4,4"]


def hold_back(data: Dataset, share: float, folder: Path) -> None:
    """Write the Dataset without the last interactions of some users, and these interactions."""
    lengths = np.diff(data.offsets)
    enough = np.flatnonzero(lengths >= 4)  # so that three are left
    users = np.sort(np.random.default_rng(0).choice(enough, round(share * data.n_interactions), replace=False))
    kept = np.ones(data.n_interactions, dtype=bool)
    kept[data.offsets[users + 1] - 1] = False
    lengths[users] -= 1
    offsets, sequence = np.concatenate([[0], np.cumsum(lengths)]), np.asarray(data.sequence)
    old = Histories(sequence[kept], offsets, data.n_items)
    notes = {name: value for name, value in data.notes.items() if name != "latest_interaction"}
    table = data.user_ids.to_frame("user")
    build_dataset(table, data.item_table, data.field_names, old, data.settings, data.steps, notes).save(folder / "old")
    columns = {"user": data.user_ids.gather(users), "item": data.item_ids.gather(sequence[~kept])}
    pl.DataFrame(columns).with_columns(timestamp=pl.lit(2_000_000_000)).write_parquet(folder / "new.parquet")


def command(folder: Path, name: str, *arguments: str) -> float:
    """Run a command unless it was run before; return its CPU seconds, of all sessions if it was interrupted."""
    place = folder / f"{name}-cpu.json"
    if not place.exists():
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "resid", *map(str, arguments)], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        place.write_text(json.dumps(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime))
    return json.loads(place.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path, nargs="?")
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--full", type=Path, nargs="*", help="evaluated runs on the Dataset")
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--recipe", default="resid")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    place, recipe = arguments.runs or Path(tempfile.mkdtemp()), ["--recipe", arguments.recipe]
    place.mkdir(parents=True, exist_ok=True)
    if arguments.data is None:
        shop = synthetic_shop(users=300, items=80, interactions=3_000, seed=3)
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
        data.save(place / "data")
        recipe = [*recipe, *SHORT]
    else:
        data = Dataset.load(arguments.data)
    if not (place / "new.parquet").exists():
        hold_back(data, arguments.share, place)
    seconds = {"fit": command(place, "before", "fit", place / "old", "--out", place / "before", *recipe)}
    grown, updated = place / "grown", place / "updated"
    seconds["update"] = command(
        place, "updated", "update", place / "before", place / "new.parquet", "--out", updated, "--save-data", grown
    )
    runs = arguments.full or [place / "full"]
    if not arguments.full:
        command(place, "full", "fit", data.folder, "--out", runs[0], *recipe)
        command(place, "evaluation", "evaluate", runs[0])
    same = Dataset.load(grown).fingerprint == data.fingerprint
    old, new = resid.load(place / "before"), resid.load(updated)
    earlier = {name: ranking_metrics(ranks, (10,)) for name, ranks in zip(("seen_kept", "seen_dropped"), old.ranks(data.test), strict=True)}  # fmt: skip
    found = evaluate(new, Dataset.load(grown))
    measured = found.metrics((10,))
    result = {
        "interactions": data.n_interactions,
        "held_back": len(pl.read_parquet(place / "new.parquet")),
        "grown_is_the_whole_dataset": same,
        "cpu_seconds": seconds,
        "update / fit": seconds["update"] / seconds["fit"],
        "training": {k: new.lineage_[-1][k] for k in ("new_targets", "replayed_targets", "epochs", "share", "before", "after")},
        "before": earlier,
        "updated": {name: measured[name] for name in earlier},
        "difference_to_full": {
            str(run.name): found.against(read_evaluation(run, "test", "test", 10), (10,)) for run in runs
        },
    }  # fmt: skip
    print(json.dumps(result, indent=1))
    (arguments.out or (Path(__file__).with_suffix(".json") if arguments.data else place / "update.json")).write_text(
        json.dumps(result, indent=1) + "\n"
    )


if __name__ == "__main__":
    main()
