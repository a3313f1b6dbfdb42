"""Training of the generators: T5 compared with `transformers`, and the one-pass generator compared with T5.

    python benchmarks/generator.py                        # a synthetic shop; a few minutes
    python benchmarks/generator.py --data data/scientific # your own Dataset

Writes benchmarks/generator.json.

1. Training samples per second of T5, compared with `T5ForConditionalGeneration` of `transformers` in a plain loop: the same
   batches and the same size; the two sides take turns, each with forward, backward and AdamW. The losses with equal weights
   are equal (tests/generate/test_models.py). Also the share of matrix products in a step, and the ratio that a step of
   matrix products alone would reach.
2. Seconds per epoch, T5 over the one-pass generator, with the same targets and IDs.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
from products import share_of_products

from resid import Dataset
from resid.data import Batches, SequenceBatches, synthetic_shop
from resid.generate import OnePassGenerator, OnePassSettings, T5Generator, T5Settings
from resid.generate.exchange import to_transformers
from resid.generate.t5 import T5Model
from resid.quantize import SemanticIds
from resid.quantize.cluster_tree import check_branching
from resid.train.optim import make_optimizers

BATCH = 256


class Side:
    """One of the implementations, trained step by step."""

    def __init__(self, loss, optimizers):
        self.loss, self.optimizers, self.seconds, self.samples = loss, optimizers, 0.0, 0

    def step(self, batch) -> None:
        begin = time.perf_counter()
        self.loss(batch).backward()
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        self.seconds += time.perf_counter() - begin
        self.samples += len(batch)


def ours(model, settings) -> Side:
    model.train()
    rng = torch.Generator().manual_seed(0)
    return Side(lambda batch: model(batch, rng)["loss"], make_optimizers(model, settings))


def theirs(model: T5Model, settings) -> Side:
    other = to_transformers(model).train()

    def loss(batch):
        histories = torch.from_numpy(batch.histories)
        real = histories >= 0
        tokens = ((model.codes[histories.clamp_min(0)] + model.offsets) * real[:, :, None]).flatten(1)
        labels = model.codes[torch.from_numpy(batch.targets)] + model.offsets
        mask = real.repeat_interleave(labels.shape[1], dim=1).long()
        return other(input_ids=tokens, attention_mask=mask, labels=labels).loss

    optimizer = torch.optim.AdamW(other.parameters(), lr=settings.learning_rate, weight_decay=settings.weight_decay)
    return Side(loss, [optimizer])


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    if arguments.data:
        data = Dataset.load(arguments.data)
    else:
        shop = synthetic_shop(users=8_000, items=4_000, interactions=60_000, seed=0)
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
    first, second = check_branching("auto", data.n_items)[:2]
    leaf, last = np.arange(data.n_items) % (first * second), np.arange(data.n_items) // (first * second)
    ids = SemanticIds(np.column_stack([leaf // second, leaf % second, last]))
    codes = torch.from_numpy(ids.codes)
    settings = T5Settings()
    model = T5Generator(settings)._network(codes, ids.level_sizes, None, data.settings.max_length - 1)
    sides = {"ours": ours(model, settings), "transformers": theirs(model, settings)}
    batches = Batches(data.train, BATCH, seed=0)
    for number, batch in enumerate(batches):
        for side in sides.values():
            side.step(batch)
        if number == 2:  # the first steps are warm-up
            for side in sides.values():
                side.seconds, side.samples = 0.0, 0
        if number >= arguments.steps:
            break
    rates = {name: side.samples / side.seconds for name, side in sides.items()}
    share = share_of_products(lambda: [sides["ours"].step(batches.batch(np.arange(BATCH))) for _ in range(5)])
    vectors = torch.from_numpy(np.random.default_rng(0).normal(size=(data.n_items, 128)).astype(np.float32))
    light = OnePassSettings()
    one = OnePassGenerator(light)._network(codes, ids.level_sizes, vectors, data.settings.max_length - 1)
    side = ours(one, light)
    for batch in SequenceBatches(data.train, light.batch_size, data.settings.max_length, count_targets=True, seed=0):
        side.step(batch)
    found = {
        "threads": torch.get_num_threads(),
        "windows": len(data.train),
        "batch_size": BATCH,
        "t5_samples_per_second": rates,
        "t5_over_transformers": rates["ours"] / rates["transformers"],
        "products_share_of_a_step": share,
        "t5_over_transformers_with_products_alone": rates["ours"] / rates["transformers"] / share,
        "epoch_seconds": {"t5": len(data.train) / rates["ours"], "onepass": side.seconds},
        "one_pass_batch_size": light.batch_size,
        "t5_epoch_over_one_pass": len(data.train) / rates["ours"] / side.seconds,
    }
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
