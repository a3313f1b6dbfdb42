"""A small model and a run of it, for the tests of the loop; started as a program, it can die at a given moment.

python -m tests.train.toy FOLDER [plain] [die=SIGNAL,WHERE,N]

"plain" leaves everything random out of the model. "die" sends the process a signal in its N-th training step ("step"), in
its N-th evaluation ("evaluation") or at its N-th file that replaces another ("replace").
"""

import os
import sys

import torch
from torch import nn

from resid import Dataset
from resid.data import Batches, synthetic_shop
from resid.train import TrainSettings, open_fabric, train

SETTINGS = TrainSettings(epochs=3, batch_size=64, learning_rate=0.01, warmup_steps=5, clip=1.0, seed=7)
STEPS_PER_EPOCH = 18


class Toy(nn.Module):
    """Predicts the target from the mean of the history, with dropout, over sparse and dense tables."""

    def __init__(self, n_items, plain=False, at_step=None):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.write = nn.Embedding(n_items, 8, sparse=True), nn.Embedding(n_items, 8)
        self.dropout, self.noise = nn.Dropout(0.0 if plain else 0.5), 0.0 if plain else 0.01
        self.calls, self.at_step = 0, at_step or (lambda call, loss: loss)

    def forward(self, batch, generator):
        self.calls += 1
        histories = torch.from_numpy(batch.histories)
        real = (histories >= 0)[..., None]
        mean = (self.read(histories.clamp_min(0)) * real).sum(1) / real.sum(1)
        noise = torch.rand(mean.shape, generator=generator)
        logits = self.dropout(mean + self.noise * noise) @ self.write.weight.T
        loss = self.at_step(self.calls, nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets)))
        return {"loss": loss, "part": loss.detach()}


def data():
    shop = synthetic_shop(users=120, items=40, interactions=1_500, seed=1)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def run(folder, plain=False, at_step=None, settings=SETTINGS, **options):
    """Train the toy; `at_step` is called with the number of the step and its loss, which it may change."""
    dataset = data()
    model = Toy(dataset.n_items, plain, at_step)
    batches = Batches(dataset.train, settings.batch_size_for(len(dataset.train)), seed=settings.seed)
    assert len(batches) == STEPS_PER_EPOCH or settings.batch_size != SETTINGS.batch_size
    return model, train(model, batches, settings, folder, **options)


class Death:
    """Sends a signal to its own process at the n-th call."""

    def __init__(self, number, call):
        self.number, self.call, self.calls = number, call, 0

    def __call__(self):
        self.calls += 1
        if self.calls == self.call:
            os.kill(os.getpid(), self.number)


def main(folder, *words):
    torch.set_num_threads(1)
    deaths = {}
    for word in words:
        if word.startswith("die="):
            number, where, call = word.removeprefix("die=").split(",")
            deaths[where] = Death(int(number), int(call))

    def at_step(call, loss):
        deaths.get("step", int)()
        return loss

    def evaluate():
        deaths.get("evaluation", int)()
        return {"score": 0.0}

    if "replace" in deaths:
        replace = os.replace

        def replace_or_die(*paths):
            deaths["replace"]()
            replace(*paths)

        os.replace = replace_or_die
    run(folder, plain="plain" in words, at_step=at_step, evaluate=evaluate, fabric=open_fabric())


if __name__ == "__main__":
    main(*sys.argv[1:])
