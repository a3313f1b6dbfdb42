"""A small model and a run of it, for the tests of the loop; started as a program, it trains and can be killed.

python -m tests.train.toy FOLDER [seconds that each step sleeps]
"""

import sys
import time
from pathlib import Path

import torch
from torch import nn

from resid import Dataset
from resid.data import Batches, synthetic_shop
from resid.train import TrainSettings, train

SETTINGS = TrainSettings(epochs=3, batch_size=64, learning_rate=0.01, warmup_steps=5, clip=1.0, seed=7)


class Toy(nn.Module):
    """Predicts the target from the mean of the history, with dropout, over sparse and dense tables."""

    def __init__(self, n_items, pause=0.0, poison=None):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.write = nn.Embedding(n_items, 8, sparse=True), nn.Embedding(n_items, 8)
        self.dropout, self.pause, self.poison, self.calls = nn.Dropout(0.5), pause, poison, 0

    def forward(self, batch, generator):
        time.sleep(self.pause)
        self.calls += 1
        histories = torch.from_numpy(batch.histories)
        real = (histories >= 0)[..., None]
        mean = (self.read(histories.clamp_min(0)) * real).sum(1) / real.sum(1)
        noise = torch.rand(mean.shape, generator=generator)
        logits = self.dropout(mean + 0.01 * noise) @ self.write.weight.T
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets))
        return {"loss": loss * (float("nan") if self.calls == self.poison else 1.0), "part": loss.detach()}


def data():
    shop = synthetic_shop(users=120, items=40, interactions=1_500, seed=1)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def run(folder, pause=0.0, poison=None, settings=SETTINGS, evaluate=None, monitor="", **options):
    dataset = data()
    model = Toy(dataset.n_items, pause, poison)
    batches = Batches(dataset.train, settings.batch_size, seed=settings.seed)
    history = train(model, batches, settings, Path(folder), evaluate=evaluate, monitor=monitor, **options)
    return model, history


if __name__ == "__main__":
    torch.set_num_threads(1)
    run(sys.argv[1], float(sys.argv[2]) if len(sys.argv) > 2 else 0.0)
