"""Beam search: compared with `generate` of `transformers` with equal weights, and growth with the catalogue.

    python benchmarks/decode.py      # seven minutes

Writes benchmarks/decode.json.

1. Users per second of the T5 generator with beam size 50, compared with `generate` of `transformers` with the same weights
   and `prefix_allowed_tokens_fn`, which restricts it to IDs that items have. Both must return the same 50 items in the same
   order for every user. Also `generate` without that restriction, which is cheaper but generates IDs that no item has, and
   the share of matrix products in our time, with the ratio that matrix products alone would reach.
2. Time per user as the catalogue grows from 25 thousand to 500 thousand items, for both generators, in turn.
3. Re-ranking: the joint generator with its blend of scores, compared with the same search ranked by codes alone. The model is
   trained for one epoch on a synthetic shop; more training does not change the operations.
"""

import argparse
import json
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from products import share_of_products

import resid
from resid.data import synthetic_shop
from resid.generate import OnePassModel, OnePassSettings, T5Model, T5Settings
from resid.generate.base import Generator
from resid.generate.decode import beam_items, beam_search
from resid.generate.exchange import to_transformers
from resid.generate.prefix_tree import PrefixTree
from resid.quantize import SemanticIds
from resid.quantize.cluster_tree import check_branching

BEAM = 50
RERANKED = 100  # beams of the joint generator, whose items are re-ranked
PARTS = ("transformers", "growth", "reranking")
WIDTH = 128


def balanced_ids(items: int) -> SemanticIds:
    """Return IDs with the level sizes that GAOQ has by default."""
    first, second = check_branching("auto", items)[:2]
    leaf, last = np.arange(items) % (first * second), np.arange(items) // (first * second)
    return SemanticIds(np.column_stack([leaf // second, leaf % second, last]))


def histories(users: int, items: int, seed: int) -> torch.Tensor:
    """Return histories of 1 to 31 items, 9 on average, padded on the left."""
    random = np.random.default_rng(seed)
    lengths = np.clip(random.geometric(1 / 9, users), 1, 31)
    found = random.integers(0, items, (users, lengths.max()))
    found[np.arange(found.shape[1]) < found.shape[1] - lengths[:, None]] = -1
    return torch.from_numpy(found)


def t5(ids: SemanticIds) -> T5Model:
    torch.manual_seed(0)
    return T5Model(torch.from_numpy(ids.codes), ids.level_sizes, T5Settings()).eval()


def one_pass(ids: SemanticIds) -> OnePassModel:
    torch.manual_seed(0)
    vectors = torch.randn(len(ids), WIDTH)
    return OnePassModel(torch.from_numpy(ids.codes), ids.level_sizes, OnePassSettings(), vectors=vectors).eval()


def ours(model, tree: PrefixTree, batch: torch.Tensor) -> np.ndarray:
    return beam_items(beam_search(model, batch, tree, BEAM), tree, BEAM)[0]


class Theirs:
    """`generate` of `transformers` with the same weights."""

    def __init__(self, model: T5Model, ids: SemanticIds):
        self.model, self.ids, self.offsets = to_transformers(model), ids, model.offsets
        self.codes = torch.from_numpy(ids.codes).long() + model.offsets
        self.follow: dict[tuple[int, ...], list[int]] = {}
        for row in self.codes.tolist():
            for level, token in enumerate(row):
                self.follow.setdefault(tuple(row[:level]), {})[token] = True
        self.follow = {prefix: list(tokens) for prefix, tokens in self.follow.items()}

    @torch.no_grad()
    def __call__(self, batch: torch.Tensor, restricted: bool) -> np.ndarray:
        real = batch >= 0
        tokens = (self.codes[batch.clamp_min(0)] * real[..., None]).flatten(1)
        generated = self.model.generate(
            input_ids=tokens,
            attention_mask=real.repeat_interleave(self.codes.shape[1], dim=1).long(),
            num_beams=BEAM,
            num_return_sequences=BEAM,
            max_new_tokens=self.codes.shape[1],
            do_sample=False,
            prefix_allowed_tokens_fn=(lambda user, prefix: self.follow[tuple(prefix[1:].tolist())])
            if restricted
            else None,
        )
        if not restricted:
            return generated.numpy()
        found = self.ids.find((generated[:, 1:] - self.offsets).numpy())
        return np.array([items[0] for items in found]).reshape(len(batch), BEAM)


def seconds(run) -> float:
    begin = time.perf_counter()
    run()
    return time.perf_counter() - begin


def against_transformers(items: int, batch: int, users: int, rounds: int) -> dict:
    """Time both sides in turn, after comparing their results."""
    ids = balanced_ids(items)
    model, tree = t5(ids), PrefixTree(ids)
    theirs = Theirs(model, ids)
    everyone = histories(users, items, seed=1)
    batches = [everyone[first : first + batch] for first in range(0, users, batch)]
    batches = [
        some[:, (some >= 0).any(dim=0).long().argmax() :] for some in batches
    ]  # drop columns that are only padding
    same = np.mean([(ours(model, tree, some) == theirs(some, True)).all(axis=1).mean() for some in batches])
    times: dict[str, list[float]] = {"ours": [], "theirs": [], "theirs_free": []}
    for _ in range(rounds):
        for some in batches:
            times["ours"].append(seconds(lambda some=some: ours(model, tree, some)))
            times["theirs"].append(seconds(lambda some=some: theirs(some, True)))
            times["theirs_free"].append(seconds(lambda some=some: theirs(some, False)))
    rates = {name: batch / statistics.median(values) for name, values in times.items()}
    share = share_of_products(lambda: [ours(model, tree, some) for some in batches])
    return {
        "items": items,
        "batch": batch,
        "users_with_the_same_50_items": float(same),
        "users_per_second": rates,
        "ratio": rates["ours"] / rates["theirs"],
        "ratio_free": rates["ours"] / rates["theirs_free"],
        "products_share": share,
        "ratio_with_products_alone": rates["ours"] / rates["theirs"] / share,
    }


def as_the_catalogue_grows(kind: str, batch: int, rounds: int) -> dict:
    """Time both catalogue sizes in turn."""
    sizes = (25_000, 500_000)
    make = {"onepass": one_pass, "t5": t5}[kind]
    sides = []
    for items in sizes:
        ids = balanced_ids(items)
        sides.append((make(ids), PrefixTree(ids), histories(batch * rounds, items, seed=2).split(batch)))
    times: list[list[float]] = [[], []]
    for turn in range(-2, rounds):  # the first two are warm-up
        for side, (model, tree, batches) in enumerate(sides):
            took = seconds(lambda m=model, t=tree, b=batches[turn]: ours(m, t, b))
            if turn >= 0:
                times[side].append(took)
    medians = [statistics.median(values) for values in times]
    return {
        "model": kind,
        "batch": batch,
        "levels": {str(items): list(balanced_ids(items).level_sizes) for items in sizes},
        "milliseconds": {str(items): 1000 * median for items, median in zip(sizes, medians, strict=True)},
        "growth": medians[1] / medians[0],
    }


def reranking(batch: int, rounds: int) -> dict:
    """Time the joint generator with and without re-ranking, in turn."""
    shop = synthetic_shop(users=4_000, items=25_000, interactions=80_000, seed=0)
    data = resid.Dataset.from_tables(shop.interaction_table, shop.item_table, fields=["store", "categories"], k_core=1)
    model = resid.fit(data, changes={"encoder.epochs": 1, "generator.epochs": 1})
    tree, numbers = model._full_tree
    batches = [some.numpy() for some in histories(batch * rounds, data.n_items, seed=3).split(batch)]
    sides = {"blend": type(model)._best, "codes": Generator._best}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for turn in range(-2, rounds):  # the first two are warm-up
        for name, best in sides.items():
            took = seconds(lambda best=best, b=batches[turn]: best(model, b, 10, tree, numbers, RERANKED, True))
            if turn >= 0:
                times[name].append(took)
    medians = {name: statistics.median(values) for name, values in times.items()}
    return {
        "items": data.n_items,
        "batch": batch,
        "beam": RERANKED,
        "milliseconds": {name: 1000 * median for name, median in medians.items()},
        "ratio": medians["blend"] / medians["codes"],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    arguments = parser.parse_args()
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}  # parts that do not run now stay
    found |= {"threads": torch.get_num_threads(), "beam": BEAM}
    if "transformers" in arguments.parts:
        sizes = ((1, 12, 2), (256, 256, 2))
        found["transformers"] = [against_transformers(25_000, *size) for size in sizes]
    if "growth" in arguments.parts:
        kinds = [(kind, *size) for kind in ("onepass", "t5") for size in ((1, 100), (256, 6))]
        found["growth"] = [as_the_catalogue_grows(*kind) for kind in kinds]
    if "reranking" in arguments.parts:
        found["reranking"] = [reranking(batch, rounds) for batch, rounds in ((1, 100), (256, 10))]
    for part in arguments.parts:
        for row in found[part]:
            print(json.dumps(row))
    arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
