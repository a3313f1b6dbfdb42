"""Sequential recommenders compared with RecBole, and growth with the catalogue.

    pip install -c constraints.txt -e '.[compare]'
    python benchmarks/sequential.py --data data/beauty     # a synthetic shop without --data
    python benchmarks/sequential.py --data data/beauty --parts evaluation --models SASRec

Writes benchmarks/sequential.json; parts and models that do not run keep their last figures.

1. Training windows per second of SASRec and BERT4Rec, compared with RecBole: the same data, size, loss (softmax over all
   items) and windows per step. The two sides take turns of a few steps, from reading the batch to the optimizer step.
   SASRec is the same network: with RecBole's weights it gives RecBole's scores, which is checked first.
2. Time of evaluation: the ranks of all test targets in the whole catalogue, after a few epochs of training. Our time depends
   on the model, because users whose target ranks low are ruled out early. Also the share of matrix products in our time.
3. Time of a step of SASRec with the sampled loss with 25 thousand and 500 thousand items, in turn.
"""

import argparse
import contextlib
import json
import logging
import tempfile
import time
import warnings
from pathlib import Path

import numpy as np
import polars as pl
import torch
from products import share_of_products

from resid import Dataset
from resid.data import synthetic_shop
from resid.evaluate import ranking_metrics
from resid.nn import item_and_fields
from resid.sequential import BERT4Rec, BERT4RecSettings, SASRec, SASRecSettings
from resid.train.optim import make_optimizers

SIZES = {"width": 128, "layers": 2, "heads": 4, "ffn_width": 512, "dropout": 0.1}
BATCH, LONGEST, TURN, EPOCHS = 2048, 31, 4, 4
MODELS = {"SASRec": (SASRec, SASRecSettings), "BERT4Rec": (BERT4Rec, BERT4RecSettings)}


def endless(batches):
    """Yield the batches of one epoch after the other."""
    while True:
        yield from batches


def targets(batch) -> int:
    """Return the number of targets in a batch of whole histories."""
    return int(((batch.items >= 0).sum(axis=1) - batch.first_target).sum())


class Side:
    """One of the implementations, trained in turns of a few steps; records its windows per second."""

    def __init__(self, batches, loss, optimizers, windows):
        self.batches, self.loss, self.optimizers, self.windows = endless(batches), loss, optimizers, windows
        self.rates: list[float] = []

    def turn(self) -> None:
        begin, count = time.perf_counter(), 0
        for _ in range(TURN):
            batch = next(self.batches)
            self.loss(batch).backward()
            for optimizer in self.optimizers:
                optimizer.step()
                optimizer.zero_grad()
            count += self.windows(batch)
        self.rates.append(count / (time.perf_counter() - begin))


def ours(model, data: Dataset, settings) -> Side:
    network, rng = model.model_.train(), torch.Generator().manual_seed(0)
    return Side(
        model._batches(data),
        lambda batch: network(batch, rng)["loss"],
        make_optimizers(network, settings),
        targets if isinstance(model, SASRec) else len,
    )


def build(kind, settings, data: Dataset):
    """Return a recommender with its initial weights."""
    model = kind(settings)
    model._build(data.catalogue, *item_and_fields(data, fields=settings.use_fields))
    return model


class RecBole:
    """RecBole: its data, a model and its trainer."""

    def __init__(self, name: str, data: Dataset, folder: Path):
        for gone, still in (("float_", np.float64), ("complex_", np.complex128), ("unicode_", np.str_)):
            setattr(np, gone, still)  # RecBole uses names that NumPy 2 has removed
        from recbole.config import Config
        from recbole.data import create_dataset, data_preparation
        from recbole.model import sequential_recommender
        from recbole.utils import get_trainer, init_seed

        rows = np.repeat(np.arange(data.n_users), np.diff(data.offsets))
        log = pl.DataFrame(
            {
                "user_id:token": rows,
                "item_id:token": np.asarray(data.sequence),
                "timestamp:float": np.arange(len(rows)),  # the order of the histories
            }
        )
        (folder / "log").mkdir(exist_ok=True)
        log.write_csv(folder / "log" / "log.inter", separator="\t")
        options = {
            "data_path": str(folder),
            "checkpoint_dir": str(folder / "saved"),
            "load_col": {"inter": ["user_id", "item_id", "timestamp"]},
            "MAX_ITEM_LIST_LENGTH": LONGEST,
            "eval_args": {"split": {"LS": "valid_and_test"}, "order": "TO", "mode": "full", "group_by": "user"},
            "train_neg_sample_args": None,
            "loss_type": "CE",
            "train_batch_size": BATCH,
            "eval_batch_size": BATCH,
            "hidden_size": SIZES["width"],
            "inner_size": SIZES["ffn_width"],
            "n_layers": SIZES["layers"],
            "n_heads": SIZES["heads"],
            "hidden_dropout_prob": SIZES["dropout"],
            "attn_dropout_prob": SIZES["dropout"],
            "hidden_act": "relu",
            "metrics": ["Recall", "NDCG"],
            "topk": [5, 10],
            "valid_metric": "NDCG@10",
            "use_gpu": False,
            "show_progress": False,
            "state": "ERROR",
        }
        kind = getattr(sequential_recommender, name)
        config = Config(model=kind, dataset="log", config_dict=options)
        init_seed(0, True)
        dataset = create_dataset(config)
        self.train, _, self.test = data_preparation(config, dataset)
        self.model = kind(config, self.train._dataset).to(config["device"])
        self.trainer = get_trainer(config["MODEL_TYPE"], name)(config, self.model)
        self.trainer.eval_collector.data_collect(self.train)
        ids = dataset.field2id_token["item_id"][1:].astype(np.int64)
        self.item_numbers = np.argsort(ids) + 1  # RecBole's index of each of our items

    def side(self) -> Side:
        self.model.train()
        return Side(self.train, self.model.calculate_loss, [self.trainer.optimizer], len)

    def evaluate(self) -> float:
        result = self.trainer.evaluate(self.test, load_best_model=False, show_progress=False)
        return float(result["recall@10"])


def copy_sasrec(theirs, numbers, model) -> None:
    """Copy the weights of RecBole's SASRec to ours."""
    source, network = theirs.state_dict(), model.model_
    with torch.no_grad():
        network.tables.embeddings()[0].weight.copy_(source["item_embedding.weight"][torch.from_numpy(numbers)])
        network.positions.copy_(source["position_embedding.weight"][:LONGEST])
        for name in ("weight", "bias"):
            getattr(network.norm, name).copy_(source[f"LayerNorm.{name}"])
            for number, layer in enumerate(network.layers):
                of = f"trm_encoder.layer.{number}"
                attention = [source[f"{of}.multi_head_attention.{part}.{name}"] for part in ("query", "key", "value")]
                getattr(layer.qkv, name).copy_(torch.cat(attention))
                for ours_, part in (
                    (layer.out, "multi_head_attention.dense"),
                    (layer.attention_norm, "multi_head_attention.LayerNorm"),
                    (layer.ffn_in, "feed_forward.dense_1"),
                    (layer.ffn_out, "feed_forward.dense_2"),
                    (layer.ffn_norm, "feed_forward.LayerNorm"),
                ):
                    getattr(ours_, name).copy_(source[f"{of}.{part}.{name}"])


def same_scores(theirs: RecBole, model, data: Dataset) -> float:
    """Return the largest difference of scores with equal weights for some test users."""
    copy_sasrec(theirs.model, theirs.item_numbers, model)
    theirs.model.eval()
    items = [data.test.window(user)[0].astype(np.int64) for user in range(64)]
    padded = torch.zeros(64, LONGEST, dtype=torch.int64)
    histories = np.full((64, LONGEST), -1, dtype=np.int64)
    for row, history in enumerate(items):
        padded[row, : len(history)] = torch.from_numpy(theirs.item_numbers[history])
        histories[row, LONGEST - len(history) :] = history
    lengths = torch.tensor([len(history) for history in items])
    with torch.no_grad():
        wanted = theirs.model.forward(padded, lengths) @ theirs.model.item_embedding.weight[theirs.item_numbers].T
        model.model_.eval()
        found = model.model_.query(torch.from_numpy(histories)) @ model.model_.candidates().T
    return float((found - wanted).abs().max())


def timed(function) -> float:
    """Return the seconds of a call."""
    begin = time.perf_counter()
    function()
    return time.perf_counter() - begin


def pairs(data: Dataset, models: list[str]):
    """Yield the name of a model, ours with its initial weights, and RecBole's."""
    options = SIZES | {"batch_size": BATCH, "loss": "softmax", "similarity": "dot", "epochs": EPOCHS}
    for name in models:
        kind, settings = MODELS[name]
        with (
            tempfile.TemporaryDirectory() as folder,
            contextlib.chdir(folder),
        ):  # RecBole writes logs to the working directory
            yield name, build(kind, settings(**options), data), RecBole(name, data, Path(folder))


def training(data: Dataset, turns: int, models: list[str]) -> dict:
    found = {}
    for name, model, peer in pairs(data, models):
        difference = same_scores(peer, model, data) if name == "SASRec" else None
        assert difference is None or difference < 1e-4, difference
        sides = {"ours": ours(model, data, model.settings), "recbole": peer.side()}
        for turn in range(turns + 1):
            for side in sides.values():
                side.turn()
                if turn == 0:
                    side.rates.clear()  # the first steps are warm-up
        rates = {side: float(np.median(values.rates)) for side, values in sides.items()}
        found[name] = {
            "windows_per_second": rates,
            "over_recbole": rates["ours"] / rates["recbole"],
            "largest_difference_of_scores": difference,
        }
    return found


def evaluation(data: Dataset, turns: int, models: list[str]) -> dict:
    found = {}
    for name, model, peer in pairs(data, models):
        model.fit(data)
        metrics = ranking_metrics(model.ranks(data.test)[0])
        peer.evaluate()  # both sides have run once now
        seconds = {"ours": [], "recbole": []}
        for _ in range(turns):
            seconds["ours"].append(timed(lambda model=model: model.ranks(data.test)))
            seconds["recbole"].append(timed(peer.evaluate))
        medians = {side: float(np.median(values)) for side, values in seconds.items()}
        found[name] = {
            "seconds": medians,
            "over_recbole": medians["recbole"] / medians["ours"],
            "products_share": share_of_products(lambda model=model: model.ranks(data.test)),
            "recall@10": metrics["recall@10"],
        }
    return found


def random_data(items: int) -> Dataset:
    """Return a million interactions, twelve per user, in which every item of the catalogue occurs."""
    length = 12
    users = 1_000_008 // length
    shuffled = np.random.default_rng(0).permutation(users * length)
    log = pl.DataFrame(
        {
            "user": np.repeat(np.arange(users), length),
            "item": shuffled % items,
            "timestamp": np.tile(np.arange(length), users),
        }
    )
    return Dataset.from_tables(log, k_core=1)


def growth(_: Dataset, turns: int, __: list[str]) -> dict:
    settings = SASRecSettings(**SIZES, batch_size=BATCH, loss="sampled")
    sides = {}
    for items in (25_000, 500_000):
        data = random_data(items)
        model = build(SASRec, settings, data)
        sides[items] = ours(model, data, settings)
    for turn in range(turns + 1):
        for side in sides.values():
            side.turn()
            if turn == 0:
                side.rates.clear()
    rates = {items: float(np.median(side.rates)) for items, side in sides.items()}
    return {"windows_per_second": rates, "step_time_500k_over_25k": rates[25_000] / rates[500_000]}


PARTS = {"training": training, "evaluation": evaluation, "growth": growth}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", type=Path)
    parser.add_argument("--parts", default=",".join(PARTS))
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".json"))
    arguments = parser.parse_args()
    if unknown := set(arguments.parts.split(",")) - set(PARTS):
        parser.error(f"--parts: there is no {min(unknown)}, there are {', '.join(PARTS)}")
    arguments.out = arguments.out.resolve()
    warnings.filterwarnings("ignore", category=FutureWarning)  # RecBole's use of pandas
    logging.disable(logging.WARNING)
    if arguments.data:
        data = Dataset.load(arguments.data)
    else:
        shop = synthetic_shop(users=8_000, items=4_000, interactions=60_000, seed=0)
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
    found = json.loads(arguments.out.read_text()) if arguments.out.exists() else {}
    for part in arguments.parts.split(","):
        about = {"users": data.n_users, "items": data.n_items, "windows": len(data.train)} if part != "growth" else {}
        common = {"threads": torch.get_num_threads(), "batch_size": BATCH} | about
        found[part] = found.get(part, {}) | common | PARTS[part](data, arguments.turns, arguments.models.split(","))
        print(part, json.dumps(found[part], indent=1), flush=True)
        arguments.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
