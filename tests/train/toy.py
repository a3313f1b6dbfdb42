"""Small models and runs of them for the tests of the training loop; as a program, a run can be killed at a given moment.

python -m tests.train.toy FOLDER [plain] [slow] [sequences | phases] [die=SIGNAL,WHERE,N]

"plain" removes everything random from the model. "sequences" trains on pieces of histories instead of windows, "phases" trains
`Changing` in two phases. "die" sends the process a signal in its N-th training step ("step"), in its N-th evaluation
("evaluation") or at its N-th replacement of a file ("replace"); "slow" makes it write files slowly from then on.
"""

import os
import sys
import time
from pathlib import Path

import torch
from torch import nn

from resid import Dataset
from resid.core.runtime import Runtime
from resid.data import Batches, SequenceBatches, synthetic_shop
from resid.train import ParameterGroup, TrainableModule, TrainSettings, open_fabric, train
from resid.train.checkpoint import load_checkpoint

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = TrainSettings(epochs=3, batch_size=64, learning_rate=0.01, warmup_steps=5, max_grad_norm=1.0, seed=7)
STEPS_PER_EPOCH = 18
SECOND_PHASE = SETTINGS.replace(epochs=2, learning_rate=0.02, seed=8)
_SCORES = (0.1, 0.5, 0.3)  # of the epochs of `run_phases`: the best one is the second


class Toy(TrainableModule):
    """Predicts the target from the mean of the history, with dropout, over sparse and dense tables."""

    def __init__(self, n_items, plain=False, at_step=None):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.write = nn.Embedding(n_items, 8, sparse=True), nn.Embedding(n_items, 8)
        self.dropout, self.noise = nn.Dropout(0.0 if plain else 0.5), 0.0 if plain else 0.01
        self.calls, self.at_step = 0, at_step or (lambda call, loss: loss)

    def forward(self, batch, rng):
        self.calls += 1
        state = self.state(torch.from_numpy(batch.histories))
        noise = torch.rand(state.shape, generator=rng)
        logits = self.dropout(state + self.noise * noise) @ self.write.weight.T
        loss = self.at_step(self.calls, nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets)))
        return {"loss": loss, "part": loss.detach()}

    def state(self, histories):
        """Return the mean of the vectors of every history, shape (histories, 8)."""
        real = (histories >= 0)[..., None]
        return (self.read(histories.clamp_min(0)) * real).sum(1) / real.sum(1)


class SequenceToy(Toy):
    """Predicts every target of a piece of a history from the mean of the items before it."""

    def forward(self, batch, rng):
        self.calls += 1
        items, targets = torch.from_numpy(batch.items), torch.from_numpy(batch.are_targets)
        real = (items[:, :-1] >= 0)[..., None]
        counts = real.cumsum(1).clamp_min(1)
        states = (self.read(items[:, :-1].clamp_min(0)) * real).cumsum(1) / counts
        loss = nn.functional.cross_entropy(states[targets] @ self.write.weight.T, items[:, 1:][targets])
        return {"loss": self.at_step(self.calls, loss), "part": loss.detach()}


class Changing(Toy):
    """Uses everything that the loop offers: parameter groups, the epoch hook, and extra state whose shape changes.

    Every item has IDs, computed from the weights at the beginning of an epoch, one level more in every epoch. The output layer
    is frozen in odd epochs. The losses of all steps are part of the extra state as well.
    """

    def __init__(self, n_items, plain=False, at_step=None):
        super().__init__(n_items, plain, at_step)
        self.codes, self.output = nn.Embedding(8, 8), nn.Linear(8, 8)
        self.ids, self.ids_epoch = torch.zeros(n_items, 0, dtype=torch.int64), torch.tensor(-1)
        self.losses = torch.zeros(0)
        self.begun = []

    def forward(self, batch, rng):
        self.calls += 1
        state = self.output(self.dropout(self.state(torch.from_numpy(batch.histories))))
        state = state + self.noise * torch.rand(state.shape, generator=rng)
        candidates = self.write.weight + self.codes(self.ids).sum(dim=1)
        loss = nn.functional.cross_entropy(state @ candidates.T, torch.from_numpy(batch.targets))
        self.losses = torch.cat([self.losses, loss.detach()[None]])
        return {"loss": self.at_step(self.calls, loss), "part": loss.detach()}

    def parameter_groups(self):
        return [
            ParameterGroup([self.read.weight], learning_rate=0.03, weight_decay=0.1, schedule="constant"),
            ParameterGroup([*self.output.parameters()], learning_rate=0.002, weight_decay=0.0, warmup_steps=0),
            ParameterGroup([self.write.weight, self.codes.weight], warmup_steps=12, schedule="constant"),
        ]

    def begin_epoch(self, epoch):
        self.begun.append(epoch)
        self.output.requires_grad_(epoch % 2 == 0)
        if int(self.ids_epoch) != epoch:  # not again when training resumes within an epoch
            self.ids, self.ids_epoch = self.write.weight.detach().topk(epoch + 1).indices, torch.tensor(epoch)

    def extra_state(self):
        return {"ids": self.ids, "ids_epoch": self.ids_epoch, "losses": self.losses}

    def load_extra_state(self, state):
        self.ids, self.ids_epoch, self.losses = state["ids"], state["ids_epoch"], state["losses"]


def data():
    shop = synthetic_shop(users=120, items=40, interactions=1_500, seed=1)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def run(folder, plain=False, at_step=None, settings=SETTINGS, fabric=None, trackers=(), **options):
    """Train `Toy`; `at_step` is called with the number of the step and its loss, which it may change."""
    dataset = data()
    model = Toy(dataset.n_items, plain, at_step)
    batches = Batches(dataset.train, settings.batch_size_for(len(dataset.train)), seed=settings.seed)
    assert len(batches) == STEPS_PER_EPOCH or settings.batch_size != SETTINGS.batch_size
    return model, train(model, batches, settings, Runtime(Path(folder), fabric, tuple(trackers)), **options)


def sequence_batches(dataset):
    """Return pieces of up to seven items with one to six targets."""
    return SequenceBatches(dataset.train, 15, 7, seed=SETTINGS.seed)


def run_sequences(folder, plain=True, at_step=None, fabric=None, evaluate=None):
    """Train `SequenceToy`; no randomness."""
    dataset = data()
    model = SequenceToy(dataset.n_items, True, at_step)
    return model, train(
        model, sequence_batches(dataset), SETTINGS, Runtime(Path(folder), fabric), evaluate=evaluate, monitor=""
    )


def run_phases(folder, plain=False, at_step=None, fabric=None, evaluate=None):
    """Train `Changing` in two phases, each of which keeps the weights of its second epoch; return both histories."""
    dataset = data()
    model = Changing(dataset.n_items, plain, at_step)
    runtime = Runtime(Path(folder), fabric)

    def score():
        if evaluate:
            evaluate()
        return {"score": _SCORES[int(model.ids_epoch)]}

    histories = []
    for phase, settings in (("first", SETTINGS), ("second", SECOND_PHASE)):
        batches = Batches(dataset.train, settings.batch_size, seed=settings.seed)
        histories.append(train(model, batches, settings, runtime.within(phase), evaluate=score, monitor="score"))
    return model, histories


PROGRAM = "import sys\nfrom tests.train.toy import main\nmain(*sys.argv[1:])"


def die(forks, folder, number, where, call, *words):
    """Start a process that receives a signal at a given moment; return its exit code."""
    return forks.run([folder, *words, f"die={int(number)},{where},{call}"], program=PROGRAM).code


def weights_in(path):
    """Return the weights in a checkpoint by name."""
    tensors, _ = load_checkpoint(path)
    return {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}


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

    replace = os.replace

    def replace_or_die(*paths):
        deaths.get("replace", int)()
        if "slow" in words and any(death.calls >= death.call for death in deaths.values()):
            time.sleep(5)
        replace(*paths)

    os.replace = replace_or_die
    chosen = run_sequences if "sequences" in words else run_phases if "phases" in words else run
    chosen(folder, plain="plain" in words, at_step=at_step, evaluate=evaluate, fabric=open_fabric())


if __name__ == "__main__":
    main(*sys.argv[1:])
