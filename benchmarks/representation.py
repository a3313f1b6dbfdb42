"""Raw or normalized concatenation of field embeddings as input of a quantizer, compared on validation.

A quantizer only uses Euclidean distances. The question is therefore how well distances predict the next item: whether the
target is among the nearest neighbors of the last item of the history, and whether it is in the same cluster after k-means.

    python benchmarks/representation.py data/scientific runs/scientific --out results/encode/parts-scientific.json

The second argument is the folder of a run with a fitted FAMAE (`resid encode`).
"""

import argparse
import json
from pathlib import Path

import numpy as np
from sklearn.cluster import KMeans

from resid import Dataset
from resid.encode import FAMAE
from resid.runs import load_stage

CLUSTERS = 64


def nearest_recall(vectors, last, targets, k=10):
    """Return the share of targets among the k nearest items to the last item, itself included, in expectation over ties."""
    squares = (vectors**2).sum(axis=1)
    found = 0
    for begin in range(0, len(last), 1_000):
        part = slice(begin, begin + 1_000)
        distances = squares - 2 * vectors[last[part]] @ vectors.T
        own = distances[np.arange(len(distances)), targets[part], None]
        before, level = (distances < own).sum(axis=1), (distances == own).sum(axis=1)
        found += np.clip((k - before) / level, 0, 1).sum()  # items at the same distance come in random order
    return float(found / len(last))


def cluster_share(vectors, last, targets):
    """Return the share of targets in the cluster of the last item, its ratio to chance, and the share of the largest cluster."""
    labels = KMeans(CLUSTERS, n_init=3, random_state=0).fit(vectors).labels_
    sizes = np.bincount(labels, minlength=CLUSTERS) / len(labels)
    together = (labels[last] == labels[targets]).mean()
    return float(together), float(together / sizes[labels[last]].mean()), float(sizes.max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("run", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    data = Dataset.load(arguments.data)
    encoder = load_stage(arguments.run, "encoder")
    if not isinstance(encoder, FAMAE):
        parser.error(f"{arguments.run} has no fitted FAMAE; run resid encode")
    raw, normal = encoder.embed(data, normalize=False), encoder.embed(data, normalize=True)
    fields = [name for name in raw.columns if name != "item"]
    ways = {
        "raw": raw.vectors,
        "each field of length 1": normal.vectors,
        "raw, the whole of length 1": raw.vectors / np.linalg.norm(raw.vectors, axis=1, keepdims=True),
        "item-ID alone, length 1": normal.part("item"),
        "without the item-ID, raw": np.concatenate([raw.part(name) for name in fields], axis=1),
        "without the item-ID, each field of length 1": np.concatenate([normal.part(name) for name in fields], axis=1),
    }
    validation = data.validation
    last, targets = np.asarray(validation.sequence[validation.end - 1]), validation.targets
    result = {}
    for way, vectors in ways.items():
        together, lift, largest = cluster_share(vectors, last, targets)
        result[way] = {
            "next item among the 10 nearest": nearest_recall(vectors, last, targets),
            f"next item in the same of {CLUSTERS} clusters": together,
            "over chance": lift,
            "largest cluster": largest,
        }
        print(f"{way}: {json.dumps(result[way])}")
    spread = {name: float(raw.part(name).var(axis=0).sum()) for name in raw.columns}
    shares = {name: value / sum(spread.values()) for name, value in spread.items()}
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps({"share of the raw variance": shares, "ways": result}, indent=1) + "\n")


if __name__ == "__main__":
    main()
