"""Preprocessing compared with plain pandas: the same steps on the same raw files, side by side in one run.

    python benchmarks/prepare.py                    # 1, 3 and 10 million interactions, about twelve minutes
    python benchmarks/prepare.py --millions 1       # one size

Each side runs in its own process, which gives its own peak memory; the clock starts after the imports. Prints a table and
writes benchmarks/prepare.json. Both sides must produce the same histories. Seconds are the median of five runs, for pandas
of five, three and one.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

NAME = "Synthetic_Shop"


def make_shop(millions: int, folder: Path) -> None:
    """Write a shop with 120 thousand users and 50 thousand items per million interactions."""
    from resid.data.synthetic import synthetic_shop

    shop = synthetic_shop(120_000 * millions, 50_000 * millions, 1_000_000 * millions, seed=0)
    shop.write_amazon_2023(folder, NAME)


def with_resid(raw: Path, out: Path) -> float:
    """Prepare with the library."""
    from resid.data.amazon import prepare_amazon

    begin = time.perf_counter()
    prepare_amazon("amazon-2023", NAME, raw).save(out)
    return time.perf_counter() - begin


def with_pandas(raw: Path, out: Path) -> float:
    """Prepare with pandas as in a notebook: read in chunks, group, filter, sort, factorize."""
    import numpy as np
    import pandas as pd

    begin = time.perf_counter()
    columns = ["user_id", "parent_asin", "timestamp"]
    chunks = pd.read_json(raw / f"{NAME}.jsonl.gz", lines=True, chunksize=200_000, dtype={"user_id": str})
    log = pd.concat([chunk[columns] for chunk in chunks], ignore_index=True)
    log.columns = pd.Index(["user", "item", "timestamp"])
    chunks = pd.read_json(raw / f"meta_{NAME}.jsonl.gz", lines=True, chunksize=200_000)
    items = pd.concat([chunk[["parent_asin", "store", "categories", "title"]] for chunk in chunks], ignore_index=True)
    items = items.rename(columns={"parent_asin": "item"}).drop_duplicates("item")
    while True:
        before = len(log)
        log = log[log.groupby("user")["item"].transform("size") >= 5]
        log = log[log.groupby("item")["user"].transform("size") >= 5]
        if len(log) == before:
            break
    for level in range(3):
        items[f"cat{level + 1}"] = [
            " > ".join(path[: level + 1]) if path is not None and len(path) > level else None
            for path in items["categories"]
        ]
    items = items.dropna(subset=["store", "cat1", "cat2", "cat3"])
    log = log[log["item"].isin(items["item"])]
    log = log[log.groupby("user")["item"].transform("size") >= 3]
    log = log.sort_values(["user", "timestamp"], kind="stable")
    user_codes, users = pd.factorize(log["user"], sort=True)
    item_codes, item_ids = pd.factorize(log["item"], sort=True)
    items = items.set_index("item").loc[item_ids].reset_index()
    fields = [pd.factorize(items[name], sort=True)[0] + 1 for name in ("store", "cat1", "cat2", "cat3")]
    out.mkdir()
    np.save(out / "sequence.npy", item_codes.astype(np.int32))
    np.save(out / "offsets.npy", np.concatenate([[0], np.cumsum(np.bincount(user_codes))]))
    np.save(out / "fields.npy", np.stack(fields, axis=1).astype(np.int32))
    pd.DataFrame({"user": users}).to_parquet(out / "users.parquet")
    items[["item", "store", "cat1", "cat2", "cat3", "title"]].to_parquet(out / "items.parquet")
    return time.perf_counter() - begin


def load_only(raw: Path, out: Path) -> float:
    """Open the prepared Dataset, read a history and count the windows."""
    import resid

    begin = time.perf_counter()
    data = resid.Dataset.load(out)
    data.history_at(data.n_users // 2)
    len(data.train)
    return time.perf_counter() - begin


SIDES = {"resid": with_resid, "pandas": with_pandas, "load": load_only}


def measured(side: str, raw: Path, out: Path, times: int) -> dict[str, float]:
    """Run one side several times, each in its own process; return the median seconds and the highest peak in GB."""
    runs = []
    for _ in range(times):
        if side != "load":
            shutil.rmtree(out, ignore_errors=True)
        command = [sys.executable, __file__, "--side", side, "--raw", raw, "--out", out]
        runs.append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1]))
    return {
        "seconds": statistics.median(run["seconds"] for run in runs),
        "peak_gb": max(run["peak_gb"] for run in runs),
    }


def compare(millions: int, folder: Path) -> dict[str, float]:
    """Measure both sides at one size, and check that they produce the same histories."""
    import numpy as np

    raw = folder / f"raw-{millions}"
    make_shop(millions, raw)
    os.sync()  # so that the first side does not wait for the disk
    ours = measured("resid", raw, folder / f"resid-{millions}", times=5)
    load = measured("load", raw, folder / f"resid-{millions}", times=5)
    theirs = measured("pandas", raw, folder / f"pandas-{millions}", times={1: 5, 3: 3}.get(millions, 1))
    for name in ("sequence", "offsets", "fields"):
        pair = [np.load(folder / f"{side}-{millions}" / f"{name}.npy") for side in ("resid", "pandas")]
        assert np.array_equal(*pair), f"{name} differs"
    return {
        "millions": millions,
        "raw_gb": (raw / f"{NAME}.jsonl.gz").stat().st_size / 1e9,
        "resid_seconds": ours["seconds"],
        "pandas_seconds": theirs["seconds"],
        "ratio": theirs["seconds"] / ours["seconds"],
        "resid_peak_gb": ours["peak_gb"],
        "pandas_peak_gb": theirs["peak_gb"],
        "load_seconds": load["seconds"],
    }


def main() -> None:
    """Run a side, or compare the sides at every size."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--millions", type=int, nargs="+", default=[1, 3, 10])
    parser.add_argument("--side", choices=SIDES)
    parser.add_argument("--raw", type=Path)
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.side:
        seconds = SIDES[arguments.side](arguments.raw, arguments.out)
        # The peak of this program alone; getrusage would include the memory of the parent at the time of the fork.
        status = Path("/proc/self/status").read_text().splitlines()
        peak = next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) * 1024 / 1e9
        print(json.dumps({"seconds": seconds, "peak_gb": peak}))
        return
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for millions in arguments.millions:
            rows.append(compare(millions, Path(folder)))
            row = rows[-1]
            growth = (row["resid_seconds"] / rows[0]["resid_seconds"]) / (row["millions"] / rows[0]["millions"])
            row["growth_over_data"] = growth
            print(
                f"{millions:>3} million: resid {row['resid_seconds']:6.1f} s, {row['resid_peak_gb']:.2f} GB | "
                f"pandas {row['pandas_seconds']:6.1f} s, {row['pandas_peak_gb']:.2f} GB | ratio {row['ratio']:.1f}x | "
                f"time grows {growth:.2f}x as fast as the data | load {row['load_seconds']:.3f} s",
                flush=True,
            )
    report = Path(__file__).with_suffix(".json")
    report.write_text(json.dumps({"cores": os.cpu_count(), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
