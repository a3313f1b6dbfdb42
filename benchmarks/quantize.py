"""The Q-stage: balanced k-means compared with `k-means-constrained`, cost and memory of GAOQ, RQ-VAE, and alignment.

    python benchmarks/quantize.py                                # about twenty minutes
    python benchmarks/quantize.py --embeddings embeddings/beauty # your embeddings besides synthetic vectors
    python benchmarks/quantize.py --parts gaoq,cosine

Writes benchmarks/quantize.json; parts that do not run keep their last figures.

1. kmeans: `BalancedKMeans` and `k-means-constrained` (n_init 1, cluster sizes that differ by at most one, to convergence) on
   the same points, in turn. Inertia is computed from the labels for both.
2. gaoq: the time of GAOQ over that of its distance products alone, as plain float32 products of the same shapes on the same
   cores, at the sizes of four of the paper's data sets. Each size runs in its own process, whose peak memory is measured.
3. rqvae: RQ-VAE until its collisions stop decreasing or for 300 passes, and GAOQ, on the same vectors.
4. cosine: mean cosine of the steps of the second level, aligned and with local codes on the same tree. For embeddings, also
   with 64 nodes on the first level: pairs under the same parent are a floor for both, which falls with the number of parents.
5. cost: operations that `resid.evaluate.cost` predicts for a stage, and operations counted by PyTorch.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from resid.evaluate.cost import famae_flops, gaoq_flops, t5_flops
from resid.quantize import GAOQ, RQVAE, BalancedKMeans, HierarchicalKMeans, SemanticIds, id_quality

HERE = Path(__file__).parent
D = 640
SIZES = {  # of the paper's table of branching factors
    "Musical Instruments": (23_742, (32, 40)),
    "Arts": (87_449, (64, 96)),
    "Beauty & Personal Care": (193_383, (96, 192)),
    "Books": (485_218, (256, 256)),
}


def clustered(n: int, seed: int = 0, out: Any = None) -> np.ndarray:
    """Return vectors in groups of unequal size; within every group, the same directions lead to its parts.

    Two thirds of the variance within a group are noise, so that the clusters are not obvious.
    """
    random = np.random.default_rng(seed)
    groups, directions = random.standard_normal((2, 300, D), dtype=np.float32)
    share = 1 / np.arange(1, 301) ** 0.7
    vectors = np.empty((n, D), dtype=np.float32) if out is None else out
    for first in range(0, n, 20_000):
        part = vectors[first : first + 20_000]
        part[:] = groups[random.choice(300, len(part), p=share / share.sum())]
        part += 0.7 * directions[random.integers(300, size=len(part))]
        part += random.standard_normal(part.shape, dtype=np.float32)
    return vectors


def unequal_groups(n: int) -> np.ndarray:
    """Return Gaussian groups that are far apart and of very unequal size: the start decides which of them share a cluster."""
    random = np.random.default_rng(0)
    groups = 2 * random.standard_normal((300, D), dtype=np.float32)
    share = random.dirichlet(np.full(300, 0.5))
    return groups[random.choice(300, n, p=share)] + random.standard_normal((n, D), dtype=np.float32)


def shared_directions(n: int) -> np.ndarray:
    """Return groups whose parts lie in the same 40 directions from the center of each group, with noise."""
    random = np.random.default_rng(0)
    groups, directions = random.standard_normal((32, D)), random.standard_normal((40, D))
    vectors = 2 * groups[random.integers(32, size=n)] + directions[random.integers(40, size=n)]
    return (vectors + 0.5 * random.standard_normal((n, D))).astype(np.float32)


def inertia(vectors: np.ndarray, labels: np.ndarray) -> float:
    total = 0.0
    for cluster in range(labels.max() + 1):
        own = vectors[labels == cluster].astype(np.float64)
        total += float(np.square(own - own.mean(axis=0)).sum())
    return total


def timed(work: Any) -> tuple[float, Any]:
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def against_the_peer(name: str, vectors: np.ndarray, k: int, seeds: int) -> dict[str, Any]:
    from k_means_constrained import KMeansConstrained

    n = len(vectors)
    rows = []
    for seed in range(seeds):
        seconds, ours = timed(lambda seed=seed: BalancedKMeans(k, random_state=seed).fit(vectors))
        peer = KMeansConstrained(k, size_min=n // k, size_max=-(-n // k), n_init=1, random_state=seed)
        peer_seconds, theirs = timed(lambda peer=peer: peer.fit(vectors))
        sizes = np.bincount(ours.labels_, minlength=k)
        rows.append((seconds, peer_seconds, inertia(vectors, ours.labels_), inertia(vectors, theirs.labels_)))
        print(f"  {name}, seed {seed}: {seconds:.2f} s and {peer_seconds:.1f} s, sizes {sizes.min()} to {sizes.max()}")
    seconds, peer_seconds, ours_inertia, peer_inertia = np.mean(rows, axis=0)
    return {
        "vectors": name,
        "points": n,
        "clusters": k,
        "seeds": seeds,
        "seconds": seconds,
        "peer_seconds": peer_seconds,
        "faster": peer_seconds / seconds,
        "inertia_ratio": ours_inertia / peer_inertia,
    }


def product_seconds(vectors: torch.Tensor, branching: tuple[int, ...], flops: tuple[int, ...]) -> float:
    """Return the time of this many operations as plain products of the same shapes: all nodes of a level that fit in 128 MB."""
    total, parents = 0.0, 1
    for width, operations in zip(branching, flops, strict=True):
        each = len(vectors) // parents
        nodes = max(1, min(parents, 2**27 // (4 * each * D)))
        points = vectors[: nodes * each].view(nodes, each, D)
        centers = points[:, :width].transpose(1, 2).contiguous()
        result = torch.empty(nodes, each, width)
        seconds = [timed(lambda p=points, c=centers, r=result: torch.bmm(p, c, out=r))[0] for _ in range(6)]
        total += operations / (2 * nodes * each * width * D) * float(np.median(seconds[1:]))
        parents *= width
    return total


def peak_gigabytes() -> float:
    status = Path("/proc/self/status").read_text(encoding="utf-8")
    return next(int(line.split()[1]) * 1024 / 1e9 for line in status.splitlines() if line.startswith("VmHWM"))


def one_gaoq(path: str, branching: tuple[int, ...]) -> None:
    """Run GAOQ on the vectors of a file and print the figures; called in its own process, whose peak memory is measured."""
    GAOQ((4, 4), random_state=0).fit(np.random.default_rng(0).standard_normal((9_000, 8)))  # compile first
    vectors = np.load(path)
    seconds, model = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    peak = peak_gigabytes()
    products = product_seconds(torch.from_numpy(vectors), branching, model.product_flops_)
    paper = gaoq_flops(len(vectors), D, model.branching_, [model.n_iter_] * len(branching))
    figures = {
        "seconds": seconds,
        "product_seconds": products,
        "ratio": seconds / products,
        "operations": sum(model.product_flops_),
        "operations_on_paper": sum(paper.values()),
        "steps_at_most": model.n_iter_,
        "peak_gb": peak,
        "vectors_gb": vectors.nbytes / 1e9,
        "level_sizes": model.level_sizes_,
        "unique": len(np.unique(model.codes_, axis=0)) == len(vectors),
    }
    print(json.dumps(figures))


def against_the_arithmetic(repeats: int) -> list[dict[str, Any]]:
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (n, branching) in SIZES.items():
            path = Path(folder) / "vectors.npy"
            stored = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(n, D))
            clustered(n, out=stored)
            del stored
            arguments = [
                sys.executable,
                __file__,
                "--one-gaoq",
                str(path),
                "--branching",
                ",".join(map(str, branching)),
            ]
            runs = [
                json.loads(subprocess.run(arguments, check=True, capture_output=True, text=True).stdout)
                for _ in range(repeats if n < 300_000 else 1)
            ]
            row = sorted(runs, key=lambda run: run["ratio"])[len(runs) // 2]
            rows.append({"size of": name, "items": n, "branching": branching, **row})
            print(f"  {name}: {row['seconds']:.2f} s, products {row['product_seconds']:.2f} s, {row['ratio']:.2f}x, "
                  f"peak {row['peak_gb']:.2f} GB")  # fmt: skip
    return rows


def against_rqvae(name: str, vectors: np.ndarray, branching: Any) -> dict[str, Any]:
    seconds, ours = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    rq_seconds, rqvae = timed(lambda: RQVAE(epochs=300, random_state=0).fit(vectors))
    return {
        "vectors": name,
        "items": len(vectors),
        "gaoq_seconds": seconds,
        "rqvae_seconds": rq_seconds,
        "faster": rq_seconds / seconds,
        "rqvae_passes": rqvae.n_iter_,
        "rqvae_unique": id_quality(SemanticIds(rqvae.codes_, rqvae.level_sizes_))["unique"],  # before deduplication
        "gaoq_unique": id_quality(ours.semantic_ids_)["unique"],
    }


def cosines(name: str, vectors: np.ndarray, branching: Any) -> dict[str, Any]:
    found = {}
    for kind, quantizer in (("gaoq", GAOQ), ("local", HierarchicalKMeans)):
        level = id_quality(quantizer(branching, random_state=0).fit(vectors).semantic_ids_, vectors)["levels"][1]
        found |= {f"{kind}_{key}": level[key] for key in ("cosine", "cosine_between", "step_explained_code")}
    return {
        "vectors": name,
        "items": len(vectors),
        "branching": branching,
        **found,
        "ratio": found["gaoq_cosine"] / found["local_cosine"],
    }


def costs() -> dict[str, Any]:
    """Return the operations of FAMAE and T5 for a window of the longest history: predicted, and counted by PyTorch."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    from resid import Dataset
    from resid.data import Batches, synthetic_shop
    from resid.encode import FamaeModel, FamaeSettings
    from resid.generate import T5Model, T5Settings
    from resid.nn import item_and_fields

    made = synthetic_shop(200, 300, 9_000, seed=0)
    data = Dataset.from_tables(made.interaction_table, made.item_table, ["store", "categories"], k_core=1)
    model = FamaeModel(
        *item_and_fields(data), FamaeSettings(attention="bidirectional"), data.settings.max_length
    ).eval()
    windows = np.flatnonzero(data.train.end - data.train.begin == 31)[:64]
    batch = Batches(data.train, 64).batch(windows)
    histories, targets = model.windows(batch)
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        model.hidden(histories, targets, torch.ones_like(targets, dtype=torch.bool))
    fields, sizes = model.n_fields, (32, 40, 19)
    codes = torch.from_numpy(np.random.default_rng(0).integers(0, sizes, size=(data.n_items, 3)))
    generator = T5Model(codes, sizes, T5Settings()).eval()
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as t5_counter, torch.no_grad():
        generator(batch, torch.Generator())
    return {
        "t5_window_counted": t5_counter.get_total_flops() / len(windows),
        "t5_window_on_paper": t5_flops(3 * 31, 3, vocabulary=1 + sum(sizes)),
        "famae_window_counted": counter.get_total_flops() / len(windows),
        "famae_window_on_paper": famae_flops(32, fields) - 32 * fields * 128,  # sums of fields are not products
        "famae_window_on_paper_all_positions": famae_flops(32, fields, last_only=False),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", default="kmeans,gaoq,rqvae,cosine,cost")
    parser.add_argument(
        "--embeddings", type=Path, action="append", default=[], help="folders written by `resid encode --embeddings`"
    )
    parser.add_argument("--one-gaoq")
    parser.add_argument("--branching")
    arguments = parser.parse_args()
    if arguments.one_gaoq:
        one_gaoq(arguments.one_gaoq, tuple(int(width) for width in arguments.branching.split(",")))
        return
    path = HERE / "quantize.json"
    figures = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    from resid.encode import ItemEmbeddings  # imported here, so that it does not count in the memory of GAOQ

    given = [
        (f"FAMAE, {folder.name}", np.array(ItemEmbeddings.load(folder).vectors)) for folder in arguments.embeddings
    ]
    small = clustered(23_742)
    BalancedKMeans(2).fit(np.random.default_rng(0).standard_normal((9_000, 8)))  # compile first
    for part in arguments.parts.split(","):
        print(part, flush=True)
        if part == "kmeans":
            figures[part] = [against_the_peer("clustered", small, 32, 5)]
            figures[part].append(against_the_peer("unequal groups", unequal_groups(23_742), 32, 5))
            figures[part] += [against_the_peer(name, vectors, 32, 5) for name, vectors in given]
            figures[part].append(against_the_peer("clustered", clustered(87_449), 64, 1))
        elif part == "gaoq":
            figures[part] = against_the_arithmetic(repeats=3)
        elif part == "rqvae":
            figures[part] = [against_rqvae("clustered", small, (32, 40))]
            figures[part] += [against_rqvae(name, vectors, "auto") for name, vectors in given]
        elif part == "cosine":
            figures[part] = [cosines("shared directions", shared_directions(23_742), (32, 40))]
            for name, vectors in given:
                figures[part] += [
                    cosines(name, vectors, branching) for branching in ("auto", (64, len(vectors) // 800))
                ]
        elif part == "cost":
            figures[part] = costs()
        else:
            parser.error(f"there is no part '{part}'")
        path.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


if __name__ == "__main__":
    main()
