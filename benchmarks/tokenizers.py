"""Time of the Q-stage: GAOQ against the tokenizers of TIGER (RQ-VAE) and LETTER, on the same vectors in one run.

    python benchmarks/tokenizers.py                          # up to the size of Arts, about an hour on two cores
    python benchmarks/tokenizers.py --items 4344 --epochs 1  # a trial in a minute
    python benchmarks/tokenizers.py --embeddings embeddings/scientific

Writes benchmarks/tokenizers.json. As in the paper's table of running times, embeddings are given and not part of the time. GAOQ
runs to its end, before and after the others. The other two are trained for `--epochs` passes over the vectors; the median time of
a pass is multiplied by the number of passes that is stated for each of them, and the time of the rest, initialization and counts of
collisions, is added. A tokenizer that this version of resid does not have is skipped.

The paper gives minutes on its own hardware and does not state the number of passes: its figures are beside ours for the ratios.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from quantize import clustered  # of this folder

from resid.core.part import PartSpec
from resid.core.registry import find_part, kinds
from resid.encode import ItemEmbeddings
from resid.quantize import GAOQ, SemanticIds, id_quality

HERE = Path(__file__).parent
SIZES = {
    4_344: "auto",
    23_742: (32, 40),
    87_449: (64, 96),
}  # Scientific; Musical Instruments and Arts, with the paper's trees
PASSES = {
    "rq-vae": (300, 20_000),
    "letter": (200, 20_000),
}  # of resid where it converges or by default, and as published
PAPER_MINUTES = {  # GAOQ (ReSID), RQ-VAE (TIGER), LETTER
    "Arts Crafts & Sewing": (27.38, 224.29, 3356.64),
    "Health & Household": (71.89, 371.71, 6537.30),
    "Beauty & Personal Care": (95.96, 423.89, 7379.83),
}


def timed(work: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def seconds_per_pass(kind: str, vectors: np.ndarray, passes: int) -> dict[str, Any]:
    """Train a tokenizer for a number of passes; return the time of a pass by its training log, and that of the rest."""
    settings = find_part("quantizer", kind).settings_class(epochs=passes, evaluate_every=1, seed=0)
    seconds, model = timed(lambda: PartSpec("quantizer", kind, settings).create().fit(vectors))
    each = len(vectors) / float(np.median([record["samples_per_second"] for record in model.history_]))
    quality = id_quality(SemanticIds(model.codes_, model.level_sizes_))
    usage = [{name: level[name] for name in ("perplexity", "dead")} for level in quality["levels"]]
    rest = max(0.0, seconds - each * len(model.history_))
    return {"per_pass": each, "once": rest, "measured_passes": len(model.history_), "levels": usage}


def compare(name: str, vectors: np.ndarray, branching: Any, passes: int) -> dict[str, Any]:
    row: dict[str, Any] = {"vectors": name, "items": len(vectors), "dimensions": vectors.shape[1]}
    before, tree = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    row["gaoq"] = {"level_sizes": tree.level_sizes_}
    for kind, (converged, published) in PASSES.items():
        if kind not in kinds("quantizer"):
            print(f"  {kind}: not in this version of resid, skipped")
            continue
        row[kind] = seconds_per_pass(kind, vectors, passes)
        for wanted, count in (("default", converged), ("published", published)):
            row[kind][wanted] = {"passes": count, "seconds": row[kind]["once"] + count * row[kind]["per_pass"]}
    after, _ = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    row["gaoq"] |= {"seconds": (before + after) / 2, "runs": [before, after]}  # before and after the others
    for kind in PASSES:
        if kind in row:
            for wanted in ("default", "published"):
                row[kind][wanted]["ratio"] = row[kind][wanted]["seconds"] / row["gaoq"]["seconds"]
    print(f"  {name}, {len(vectors):,} items: {summary(row)}", flush=True)
    return row


def summary(row: dict[str, Any]) -> str:
    parts = [f"GAOQ {row['gaoq']['seconds']:.1f} s"]
    for kind in PASSES:
        if kind in row:
            times = (
                f"{row[kind][w]['passes']:,} passes {row[kind][w]['ratio']:.0f}x" for w in ("default", "published")
            )
            parts.append(f"{kind} {row[kind]['per_pass']:.2f} s per pass, {', '.join(times)}")
    return "; ".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, action="append", help="sizes of synthetic catalogues")
    parser.add_argument("--epochs", type=int, default=5, help="measured passes of RQ-VAE and LETTER")
    parser.add_argument(
        "--embeddings", type=Path, action="append", default=[], help="folders written by `resid encode --embeddings`"
    )
    parser.add_argument("--out", type=Path, default=HERE / "tokenizers.json")
    arguments = parser.parse_args()
    GAOQ((4, 4), random_state=0).fit(np.random.default_rng(0).standard_normal((9_000, 8)))  # compile first
    given = [(folder.name, np.array(ItemEmbeddings.load(folder).vectors), "auto") for folder in arguments.embeddings]
    rows = [compare(name, vectors, branching, arguments.epochs) for name, vectors, branching in given]
    for size in arguments.items or ([] if given else SIZES):
        rows.append(compare("clustered", clustered(size), SIZES.get(size, "auto"), arguments.epochs))
    paper = [
        {"data": name, "gaoq": ours, "rq-vae": {"minutes": tiger, "ratio": tiger / ours}, "letter": {"minutes": letter, "ratio": letter / ours}}
        for name, (ours, tiger, letter) in PAPER_MINUTES.items()
    ]  # fmt: skip
    for row in paper:
        print(f"  paper, {row['data']}: RQ-VAE {row['rq-vae']['ratio']:.1f}x, LETTER {row['letter']['ratio']:.0f}x")
    arguments.out.write_text(json.dumps({"rows": rows, "paper_minutes": paper}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
