"""LETTER's tokenizer compared with a plain implementation that loops over items and calls `k-means-constrained`.

    python benchmarks/letter.py               # a few minutes
    python benchmarks/letter.py --items 4344 --epochs 3

Writes benchmarks/letter.json. Both sides have the same weights and batches and take turns, epoch by epoch; an epoch is the
clustering of the codebooks, and for every batch of 1,024 items the losses, the gradient and a step of AdamW. Times are CPU
times of the process. The losses of the first batch, with the same clusters and draws, must be equal.

1. network: the original's encoder and decoder, whose matrix products are the same on both sides.
2. layer: one linear layer instead, so that what remains is the tokenizer's own work.
"""

import argparse
import copy
import json
import time
from pathlib import Path

import numpy as np
import torch
from plain_letter import plain_groups, plain_losses

from resid.data import VectorBatch
from resid.quantize.letter_model import LETTERModel

HERE = Path(__file__).parent
D, LATENT, BATCH = 384, 32, 1024
HIDDEN = {"network": (2048, 1024, 512, 256, 128, 64), "layer": ()}


def make(hidden, collaborative, sample, steps_per_pass):
    torch.manual_seed(0)
    model = LETTERModel(
        (D, *hidden, LATENT), 4, 256, 0.25, 0.02, 1e-4, 10, collaborative=collaborative, steps_per_pass=steps_per_pass
    )
    model.initialize_codebooks(sample, seed=0)
    return model


def step(model, optimizer, terms):
    terms["loss"].backward()
    optimizer.step()
    optimizer.zero_grad()


def epoch_of_ours(model, optimizer, batches, rng):
    for batch in batches:
        step(model, optimizer, model(batch, rng))


def epoch_of_plain(model, optimizer, batches, rng):
    labels = plain_groups(model.codebooks)
    for batch in batches:
        vectors, draws = torch.from_numpy(batch.vectors), torch.rand(len(batch.index), 4, generator=rng)
        collaborative = model.collaborative[torch.from_numpy(batch.index)]
        step(model, optimizer, plain_losses(model, vectors, collaborative, labels, draws))


def difference_of_losses(model, batch):
    """Return the largest relative difference of a term between both sides, with the same clusters and draws."""
    ours = copy.deepcopy(model)
    terms = ours(batch, torch.Generator().manual_seed(1))
    rng = torch.Generator().manual_seed(1)
    torch.randint(2**31, (), generator=rng)  # the seed of the clustering
    draws = torch.rand(len(batch.index), 4, generator=rng)
    collaborative = model.collaborative[torch.from_numpy(batch.index)]
    plain = plain_losses(model, torch.from_numpy(batch.vectors), collaborative, ours.groups.labels.tolist(), draws)
    return max(abs(terms[name].item() / plain[name].item() - 1) for name in plain)


def measure(hidden, items, epochs):
    random = np.random.default_rng(0)
    vectors = (random.normal(size=(300, D))[random.integers(300, size=items)] + random.normal(size=(items, D))).astype(
        np.float32
    )
    collaborative = torch.from_numpy(random.normal(size=(items, LATENT)).astype(np.float32))
    order = random.permutation(items)
    batches = [VectorBatch(part, vectors[part]) for part in np.split(order, range(BATCH, items, BATCH))]
    ours = make(hidden, collaborative, torch.from_numpy(vectors), len(batches))
    difference = difference_of_losses(ours, batches[0])
    assert difference < 1e-4, difference
    plain = copy.deepcopy(ours)
    sides = [(epoch_of_ours, ours), (epoch_of_plain, plain)]
    optimizers = [torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4) for _, model in sides]
    rng, seconds = torch.Generator().manual_seed(0), []
    for _ in range(epochs + 1):
        row = []
        for (epoch, model), optimizer in zip(sides, optimizers, strict=True):
            begin = time.process_time()
            epoch(model, optimizer, batches, rng)
            row.append(time.process_time() - begin)
        print(f"  {row[0]:.2f} s and {row[1]:.1f} s", flush=True)
        seconds.append(row)
    ours_seconds, plain_seconds = np.median(seconds[1:], axis=0)  # the first epoch compiles
    return {
        "items": items,
        "epochs": epochs,
        "seconds": ours_seconds,
        "plain_seconds": plain_seconds,
        "faster": plain_seconds / ours_seconds,
        "largest_difference_of_losses": difference,
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--items", type=int, default=4_344)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--out", type=Path, default=HERE / "letter.json")
    options = parser.parse_args()
    found = {}
    for name, hidden in HIDDEN.items():
        print(f"{name}, {options.items:,} items")
        found[name] = measure(hidden, options.items, options.epochs)
        print(
            f"  {found[name]['faster']:.1f} times as fast, losses equal up to {found[name]['largest_difference_of_losses']:.1e}"
        )
    found["threads"] = torch.get_num_threads()
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
