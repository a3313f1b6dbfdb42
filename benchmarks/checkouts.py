"""Two versions of the library: the CPU time of short fits, in turn.

    git worktree add ../before b6ce4d5
    python benchmarks/checkouts.py ../before --data before/scientific data/scientific      # a quarter of an hour

Writes benchmarks/checkouts.json. The Datasets are the same data, prepared by the version that reads them, as the format may differ.
Every fit is a new process with one thread; start-up is part of its time. Recipes that were renamed or whose defaults changed
are listed with the settings that make both versions compute the same.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
SHORT = ("recommender.epochs=2",)
STAGES = ("encoder.epochs=1", "generator.epochs=2")
SAME_ENCODER = (*STAGES, "encoder.attention=bidirectional")
FITS = {  # recipe and settings of the version before b6ce4d5's successor, and of this one
    "sasrec-fields": (("sasrec*", SHORT), ("sasrec-fields", SHORT)),
    "hgn": (("hgn", SHORT), ("hgn", SHORT)),
    "bert4rec": (("bert4rec", SHORT), ("bert4rec", SHORT)),
    "resid-codes": (("resid", STAGES), ("resid-codes", SAME_ENCODER)),
    "resid-t5": (("resid-t5", STAGES), ("resid-t5", SAME_ENCODER)),
}
RUN = "import sys; from resid.cli import main; sys.exit(main(sys.argv[1:]))"


def cpu_seconds(checkout: Path, data: Path, recipe: str, settings: tuple[str, ...]) -> float:
    """Return the CPU time of one fit in a new folder."""
    changes = [part for setting in settings for part in ("--set", setting)]
    variables = {"PYTHONPATH": str(checkout.resolve() / "src"), "OMP_NUM_THREADS": "1"}
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-c", RUN, "fit", str(data), "--recipe", recipe, "--out", f"{folder}/run", *changes]
        before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
        subprocess.run(
            command, env=os.environ | variables, check=True, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL
        )
        return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="a checkout of the other version")
    parser.add_argument(
        "--data", type=Path, nargs=2, required=True, help="the Datasets of the other and of this version"
    )
    parser.add_argument("--fits", nargs="+", choices=FITS, default=tuple(FITS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    options = parser.parse_args()
    checkouts = (options.before, HERE.parent)
    found = {}
    for name in options.fits:
        times: tuple[list[float], list[float]] = ([], [])
        for _ in range(options.turns):
            for side, checkout, data, fit in zip(times, checkouts, options.data, FITS[name], strict=True):
                side.append(cpu_seconds(checkout, data, *fit))
        ratio = statistics.median(times[1]) / statistics.median(times[0])
        found[name] = {"before": times[0], "now": times[1], "ratio": ratio}
        print(f"{name}: {ratio:.2f} of the time before")
    options.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
