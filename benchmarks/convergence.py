"""Convergence of two generators: validation metrics over training time.

    python benchmarks/convergence.py ONEPASS T5 --out results/generate/convergence

ONEPASS and T5 are folders with the `metrics.jsonl` of a finished generator, for example
runs/mine/generator/c44d97a5b10f/training; the faster generator comes first. Writes a table (.md), the figures (.json) and a
plot (.svg, extra `plots`). Time is that of the training steps only: epochs times the seconds per epoch in
benchmarks/generator.json, where both were measured in one run, so that other load on the machine does not matter.
"""

import argparse
import json
from pathlib import Path

HERE = Path(__file__).parent


def curve(folder: Path, seconds: float) -> dict:
    """Return the validation metrics of every evaluated epoch and the training time up to it."""
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if "recall@10" in record]
    return {
        "epoch_seconds": seconds,
        "seconds": [seconds * record["epoch"] for record in records],
        **{name: [record[name] for record in records] for name in ("recall@10", "ndcg@10")},
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("fast", type=Path)
    parser.add_argument("slow", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    seconds = json.loads((HERE / "generator.json").read_text())["epoch_seconds"]
    fast, slow = curve(arguments.fast, seconds["onepass"]), curve(arguments.slow, seconds["t5"])
    best = max(slow["recall@10"])
    spent = slow["seconds"][slow["recall@10"].index(best)]
    reached = next((s for s, value in zip(fast["seconds"], fast["recall@10"], strict=True) if value >= best), None)
    found = {
        "onepass": fast,
        "t5": slow,
        "epoch_ratio": slow["epoch_seconds"] / fast["epoch_seconds"],
        "t5_best_recall@10": best,
        "t5_seconds_to_its_best": spent,
        "onepass_seconds_to_that": reached,
        "share_of_time": reached / spent if reached else None,
    }
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.with_suffix(".json").write_text(json.dumps(found, indent=1) + "\n")
    lines = ["| one-pass: seconds | R@10 | N@10 | T5: seconds | R@10 | N@10 |", "|---|---|---|---|---|---|"]
    for row in range(max(len(fast["seconds"]), len(slow["seconds"]))):
        cells = [
            (f"{side['seconds'][row]:.0f}", f"{side['recall@10'][row]:.4f}", f"{side['ndcg@10'][row]:.4f}")
            if row < len(side["seconds"])
            else ("", "", "")
            for side in (fast, slow)
        ]
        lines.append(f"| {' | '.join(cells[0] + cells[1])} |")
    arguments.out.with_suffix(".md").write_text("\n".join(lines) + "\n")
    plot(fast, slow, arguments.out.with_suffix(".svg"))
    print(json.dumps({name: value for name, value in found.items() if not isinstance(value, dict)}, indent=1))


def plot(fast: dict, slow: dict, path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "resid"  # the same picture for the same figures
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(6, 3.5), layout="constrained")
    for name, side in (("one pass", fast), ("T5", slow)):
        axes.plot(side["seconds"], side["recall@10"], marker=".", label=name)
    axes.set(xlabel="seconds of training", ylabel="validation Recall@10", xscale="log")
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
