"""Time of the Q-stage: GAOQ against the tokenizers of TIGER (RQ-VAE) and LETTER, on the same vectors in one run.

    python benchmarks/tokenizers.py                          # up to the size of Arts, about an hour on two cores
    python benchmarks/tokenizers.py --items 4344 --epochs 1  # a trial in a minute
    python benchmarks/tokenizers.py --embeddings embeddings/scientific

Writes benchmarks/tokenizers.json. As in the paper's table of running times, embeddings are given and not part of the time. GAOQ
runs to its end, before and after the others. The other two are trained for `--epochs` passes over the vectors; the median time of
a pass is multiplied by the number of passes that is stated for each of them, and the time of the rest, initialization and counts of
collisions, is added.

The paper gives minutes on its own hardware and does not state the number of passes: its figures are beside ours for the ratios.
"""

import argparse
import json
from pathlib import Path

import numpy as np
from quantize import clustered  # of this folder

from resid.analyse.timing import PAPER_MINUTES, compare_tokenizers, compile_gaoq, in_words
from resid.encode import ItemEmbeddings

HERE = Path(__file__).parent
SIZES = {
    4_344: "auto",
    23_742: (32, 40),
    87_449: (64, 96),
}  # Scientific; Musical Instruments and Arts, with the paper's trees


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, action="append", help="sizes of synthetic catalogues")
    parser.add_argument("--epochs", type=int, default=5, help="measured passes of RQ-VAE and LETTER")
    parser.add_argument(
        "--embeddings", type=Path, action="append", default=[], help="folders written by `resid encode --embeddings`"
    )
    parser.add_argument("--out", type=Path, default=HERE / "tokenizers.json")
    arguments = parser.parse_args()
    compile_gaoq()
    given = [(folder.name, np.array(ItemEmbeddings.load(folder).vectors), "auto") for folder in arguments.embeddings]
    given += [
        ("clustered", clustered(size), SIZES.get(size, "auto")) for size in arguments.items or ([] if given else SIZES)
    ]
    rows = []
    for name, vectors, branching in given:
        rows.append(compare_tokenizers(name, vectors, branching, arguments.epochs))
        print(f"  {name}, {len(vectors):,} items: {in_words(rows[-1])}", flush=True)
    paper = [
        {"data": name, "gaoq": ours, "rq-vae": {"minutes": tiger, "ratio": tiger / ours}, "letter": {"minutes": letter, "ratio": letter / ours}}
        for name, (ours, tiger, letter) in PAPER_MINUTES.items()
    ]  # fmt: skip
    for row in paper:
        print(f"  paper, {row['data']}: RQ-VAE {row['rq-vae']['ratio']:.1f}x, LETTER {row['letter']['ratio']:.0f}x")
    arguments.out.write_text(json.dumps({"rows": rows, "paper_minutes": paper}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
