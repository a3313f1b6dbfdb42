"""Adding items to a large catalogue: IDs by the search in arrays and by the loop over leaves, and a whole model.

The fields of items are random, and so are the weights of FAMAE, which embeds them. The loop is the former implementation, which visits leaves one by one and counts
the codes of all items in dictionaries. Both give IDs to the same vectors in one process, in turn. The model has a FAMAE encoder, GAOQ
and the one-pass generator, all without training, as the time does not depend on the weights. Times are CPU seconds.

    python benchmarks/items.py --items 100000 --new 1000
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path

import numpy as np
import polars as pl
import torch

from resid import Dataset
from resid.encode import FAMAE, FamaeSettings
from resid.generate import OnePassGenerator, OnePassSettings
from resid.nn import item_and_fields
from resid.quantize import GAOQ


def loop_codes(quantizer, vectors):
    """Return the IDs of new vectors as the former loop did."""
    vectors, anchors = torch.from_numpy(vectors), torch.from_numpy(quantizer.anchors_[-1])
    used, prefixes = {}, {}
    for leaf, codes in zip(quantizer._leaves.tolist(), quantizer.codes_.tolist(), strict=True):
        used.setdefault(leaf, set()).add(codes[-1])
        prefixes[leaf] = codes[:-1]

    def by_distance(vector, mean, depth, node):
        if depth == len(quantizer._tree):
            yield node, mean
            return
        centers, counts = quantizer._tree[depth]
        order = (centers[node, : counts[node]] - vector).square().sum(dim=1).argsort(stable=True)
        for child in order.tolist():
            yield from by_distance(vector, centers[node, child], depth + 1, node * centers.shape[1] + child)

    found = []
    for vector in vectors:
        size = quantizer.level_sizes_[-1]
        leaf, mean = next(each for each in by_distance(vector, vector, 0, 0) if len(used[each[0]]) < size)
        order = (anchors @ (vector - mean)).argsort(descending=True, stable=True).tolist()
        code = next(code for code in order if code not in used[leaf])
        used[leaf].add(code)
        found.append([*prefixes[leaf], code])
    return np.array(found)


def timed(action):
    """Return what a function returns, and the CPU seconds that it took."""
    begin = time.process_time()
    result = action()
    return result, time.process_time() - begin


def catalogue(n_items, rng):
    """Return a Dataset of so many items with three fields, and a table of items from which new ones are drawn."""
    table = pl.DataFrame(
        {
            "item": [f"i{n}" for n in range(n_items)],
            "store": rng.integers(0, 2_000, n_items).astype(str),
            "kind": rng.integers(0, 300, n_items).astype(str),
            "color": rng.integers(0, 12, n_items).astype(str),
        }
    )
    users = n_items // 4
    order = rng.permutation(n_items)[: users * 4]
    log = pl.DataFrame({"user": np.repeat(np.arange(users), 4), "item": table["item"].gather(order), "timestamp": np.tile(np.arange(4), users)})  # fmt: skip
    return Dataset.from_tables(log, table, ["store", "kind", "color"], k_core=1), table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--items", type=int, default=100_000)
    parser.add_argument("--new", type=int, default=1_000)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    rng = np.random.default_rng(0)
    data, table = catalogue(arguments.items, rng)
    encoder = FAMAE(FamaeSettings(width=arguments.width))
    encoder._build(data.catalogue, *item_and_fields(data), data.train.occurring_items)
    embeddings = encoder.embed(data)
    result = {"items": data.n_items, "new": arguments.new, "dimensions": embeddings.vectors.shape[1]}
    for spare in (0.0, 0.2):
        quantizer, fit = timed(lambda spare=spare: GAOQ(spare=spare, random_state=0).fit(embeddings.vectors))
        near = rng.integers(0, data.n_items, min(arguments.new, quantizer.room().free))
        vectors = embeddings.vectors[near] + 0.01 * rng.normal(size=(len(near), embeddings.vectors.shape[1]))
        vectors = vectors.astype(np.float32)
        times = {"loop": [], "arrays": []}
        for _ in range(arguments.rounds):
            expected, seconds = timed(partial(loop_codes, quantizer, vectors))
            times["loop"].append(seconds)
            found, seconds = timed(partial(quantizer._transform, vectors, distinct=True))
            times["arrays"].append(seconds)
        best = {name: min(some) for name, some in times.items()}
        equal = float((found[0] == expected).all(axis=1).mean())
        result[f"spare={spare:g}"] = {
            "fit": fit,
            **best,
            "loop / arrays": best["loop"] / best["arrays"],
            "equal": equal,
        }
        print(json.dumps(result[f"spare={spare:g}"]))
    model = OnePassGenerator(OnePassSettings(width=arguments.width))
    ids = quantizer.semantic_ids_
    model._build(data.catalogue, ids, embeddings.vectors[:, : arguments.width].copy())
    model.parts_, model.fitted = {"encoder": encoder, "quantizer": quantizer}, True
    new = table.sample(arguments.new, seed=1).with_columns(item=pl.lit("new-") + pl.col("item"))
    _, result["add_items"] = timed(lambda: model.add_items(new))
    result["fit of the quantizer / add_items"] = fit / result["add_items"]
    print(json.dumps(result))
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    arguments.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
