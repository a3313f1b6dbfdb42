"""Recommendations for a file of histories: users per second against the model alone, and memory by the number of users.

Run: python benchmarks/recommend.py --model runs/mine --users 10000 100000 (and 1000000, if there is time)

Each size runs in a process of its own, which first ranks the prepared histories with the model alone, and then recommends from
Parquet to Parquet; only the ratio of the two, and the peak memory before and after, are meant to be compared. With --log, the file is a log of
interactions, in which the rows of a user are far apart. Adds to benchmarks/recommend.json.
"""

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import polars as pl

import resid
from resid.recommend import recommend_file

MEAN_LENGTH = 16  # of a history, in items
PEAK = 2**10  # ru_maxrss is in KiB
ALONE_USERS = 5_000  # that the model ranks alone, at most


def measure(model_folder: str, users: int, k: int, *, log: bool) -> dict[str, float]:
    model = resid.load(model_folder)
    catalogue, rng = model.catalogue_, np.random.default_rng(0)
    shares = (catalogue.counts + 1) / (catalogue.counts + 1).sum()
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "histories.parquet"
        write_histories(path, users, catalogue.item_ids, shares, rng)
        some = pl.scan_parquet(path).head(ALONE_USERS).collect()["items"].to_list()
        known = [catalogue.find(row) for row in some]
        if log:
            path = Path(name) / "log.parquet"
            write_log(path, users, catalogue.item_ids, shares, rng)
        model.top_of_each(known[:500], k)  # warm up
        start = time.perf_counter()
        model.top_of_each(known, k)
        alone = len(known) / (time.perf_counter() - start)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PEAK
        start = time.perf_counter()
        found = recommend_file(model, path, Path(name) / "out.parquet", k)
        streamed = found.users / (time.perf_counter() - start)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / PEAK
    return {
        "users": users,
        "alone_users_per_second": alone,
        "file_users_per_second": streamed,
        "ratio": alone / streamed,
        "peak_before_MB": before,
        "peak_after_MB": after,
    }


def write_histories(path: Path, users: int, items: pl.Series, shares: np.ndarray, rng: np.random.Generator) -> None:
    """Write histories of 3 to 30 items, popular items more often, in pieces, so that memory does not grow with them."""
    pieces = []
    for first in range(0, users, 50_000):
        count = min(50_000, users - first)
        lengths = rng.integers(3, 31, count)
        drawn = rng.choice(len(items), int(lengths.sum()), p=shares)
        owner = np.repeat(np.arange(first, first + count), lengths)
        frame = pl.DataFrame({"user": owner, "items": items.gather(drawn)}).group_by("user", maintain_order=True)
        pieces.append(path.with_name(f"piece{first}.parquet"))
        frame.agg("items").write_parquet(pieces[-1])
    pl.scan_parquet(pieces).sink_parquet(path)


def write_log(path: Path, users: int, items: pl.Series, shares: np.ndarray, rng: np.random.Generator) -> None:
    """Write a log of as many interactions as the histories have, in order of time, every one of any user."""
    pieces, rows = [], users * MEAN_LENGTH
    for first in range(0, rows, 800_000):
        count = min(800_000, rows - first)
        drawn = rng.choice(len(items), count, p=shares)
        frame = pl.DataFrame({"user": rng.integers(users, size=count), "item": items.gather(drawn)})
        pieces.append(path.with_name(f"log{first}.parquet"))
        frame.with_columns(timestamp=np.arange(first, first + count)).write_parquet(pieces[-1])
    pl.scan_parquet(pieces).sink_parquet(path)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="a run's folder, or a saved model")
    parser.add_argument("--users", type=int, nargs="+", default=[10_000, 100_000])
    parser.add_argument("-k", type=int, default=10)
    parser.add_argument("--name", help="of the model in the JSON file; by default its kind")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--log", action="store_true", help="read a log instead of histories")
    parser.add_argument("--one", action="store_true", help="measure one size in this process")
    given = parser.parse_args()
    if given.one:
        print(json.dumps(measure(given.model, given.users[0], given.k, log=given.log)))
        return
    results = json.loads(given.out.read_text()) if given.out.exists() else {}
    name = given.name or resid.load(given.model).kind + ("-log" if given.log else "")
    for users in given.users:
        command = [sys.executable, __file__, "--one", "--model", given.model, "--users", str(users), "-k", str(given.k)]
        command += ["--log"] if given.log else []
        found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[-1])
        print("  ".join(f"{what} {value:,.2f}" for what, value in found.items()), flush=True)
        results.setdefault(name, {})[str(users)] = {what: round(value, 2) for what, value in found.items()}
        given.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
