"""A small model and a run of it, for the tests of the loop; started as a program, it trains and can be killed.

python -m tests.train.toy FOLDER [seconds that each step sleeps] ["plain": nothing random in the model]
"""

import sys
import time

import torch
from torch import nn

from resid import Dataset
from resid.data import Batches, synthetic_shop
from resid.train import TrainSettings, open_fabric, train

SETTINGS = TrainSettings(epochs=3, batch_size=64, learning_rate=0.01, warmup_steps=5, clip=1.0, seed=7)


class Toy(nn.Module):
    """Predicts the target from the mean of the history, with dropout, over sparse and dense tables."""

    def __init__(self, n_items, pause=0.0, poison=None, plain=False):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.write = nn.Embedding(n_items, 8, sparse=True), nn.Embedding(n_items, 8)
        self.dropout, self.noise = nn.Dropout(0.0 if plain else 0.5), 0.0 if plain else 0.01
        self.pause, self.poison, self.calls = pause, poison, 0

    def forward(self, batch, generator):
        time.sleep(self.pause)
        self.calls += 1
        histories = torch.from_numpy(batch.histories)
        real = (histories >= 0)[..., None]
        mean = (self.read(histories.clamp_min(0)) * real).sum(1) / real.sum(1)
        noise = torch.rand(mean.shape, generator=generator)
        logits = self.dropout(mean + self.noise * noise) @ self.write.weight.T
        loss = nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets))
        loss = loss * (float("nan") if self.calls == self.poison else 1.0)
        return {"loss": loss, "part": loss.detach()}


def data():
    shop = synthetic_shop(users=120, items=40, interactions=1_500, seed=1)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def run(folder, pause=0.0, poison=None, plain=False, settings=SETTINGS, evaluate=None, monitor="", **options):
    dataset = data()
    model = Toy(dataset.n_items, pause, poison, plain)
    batches = Batches(dataset.train, settings.batch_size_for(len(dataset.train)), seed=settings.seed)
    history = train(model, batches, settings, folder, evaluate=evaluate, monitor=monitor, **options)
    return model, history


if __name__ == "__main__":
    torch.set_num_threads(1)
    pause = float(sys.argv[2]) if len(sys.argv) > 2 else 0.0
    run(sys.argv[1], pause, plain="plain" in sys.argv, fabric=open_fabric())
