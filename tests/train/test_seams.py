"""What a model may ask of the loop: parameter groups, the epoch hook, extra state and several phases, with exact resume."""

import itertools
import math
import shutil
import signal

import pytest
import torch
from torch import nn

from resid.core.runtime import Runtime
from resid.data import Batches
from resid.train import ParameterGroup, TrainableModule, train
from resid.train.checkpoint import load_checkpoint
from tests.recommend.contract import interrupt_after
from tests.train.toy import SECOND_PHASE, SETTINGS, STEPS_PER_EPOCH, Changing, data, die, run_phases

FIRST_PHASE_STEPS = SETTINGS.epochs * STEPS_PER_EPOCH
RATES = {  # learning rate, weight decay, warm-up steps and schedule of every parameter; None takes that of the settings
    "sparse.weight": (0.03, 0.1, 0, "constant"),
    "first.weight": (0.002, 0.0, 10, "cosine"),
    "first.bias": (0.005, 0.5, 0, "cosine"),
    "second.weight": (0.02, None, 30, "constant"),
    "second.bias": (None, None, None, "cosine"),
}


class Grouped(TrainableModule):
    """Every parameter is a group of its own, and every step uses all rows of the sparse table."""

    def __init__(self, n_items):
        super().__init__()
        torch.manual_seed(0)
        self.sparse, self.first, self.second = nn.Embedding(4, 8, sparse=True), nn.Linear(8, 8), nn.Linear(8, n_items)
        self.double()

    def forward(self, batch, rng):
        last = self.sparse(torch.from_numpy(batch.histories[:, -1]) % 4)
        state = self.first(last + self.sparse(torch.arange(4)).mean(dim=0)).tanh()
        return {"loss": nn.functional.cross_entropy(self.second(state), torch.from_numpy(batch.targets))}

    def parameter_groups(self):
        return [ParameterGroup([self.get_parameter(name)], *options) for name, options in RATES.items()]


def learning_rate(base, warmup_steps, schedule, step, total_steps):
    if step < warmup_steps:
        return base * (step + 1) / warmup_steps
    if schedule == "constant":
        return base
    return base * (1 + math.cos(math.pi * (step - warmup_steps) / (total_steps - warmup_steps))) / 2


def adamw_by_hand(model, batches):
    """Train with AdamW and gradient clipping, written out."""
    defaults = (SETTINGS.learning_rate, SETTINGS.weight_decay, SETTINGS.warmup_steps, None)
    moments = {name: [0.0, 0.0] for name in RATES}
    total_steps = SETTINGS.epochs * len(batches)
    every_batch = [batch for _ in range(SETTINGS.epochs) for batch in batches]
    for step, batch in enumerate(every_batch):
        model.zero_grad()
        model(batch, None)["loss"].backward()
        gradients = {name: model.get_parameter(name).grad.to_dense() for name in RATES}
        norm = torch.cat([gradient.flatten() for gradient in gradients.values()]).norm()
        for name, gradient in gradients.items():
            base, decay, warmup_steps, schedule = (
                default if own is None else own for own, default in zip(RATES[name], defaults, strict=True)
            )
            rate = learning_rate(base, warmup_steps, schedule, step, total_steps)
            gradient = gradient * min(1.0, SETTINGS.max_grad_norm / norm)
            mean, square = moments[name]
            moments[name] = [0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2]
            mean, square = moments[name][0] / (1 - 0.9 ** (step + 1)), moments[name][1] / (1 - 0.999 ** (step + 1))
            with torch.no_grad():
                weight = model.get_parameter(name)
                weight *= 1 - rate * decay
                weight -= rate * mean / (square.sqrt() + 1e-8)


def test_every_parameter_group_has_its_own_rate_decay_and_schedule(tmp_path):
    dataset = data()
    trained, by_hand = Grouped(dataset.n_items), Grouped(dataset.n_items)
    initial = {name: tensor.clone() for name, tensor in by_hand.state_dict().items()}
    train(trained, Batches(dataset.train, 64, seed=1), SETTINGS, Runtime(tmp_path))
    adamw_by_hand(by_hand, Batches(dataset.train, 64, seed=1))
    for name, weight in trained.state_dict().items():
        torch.testing.assert_close(weight, by_hand.get_parameter(name).detach(), rtol=1e-7, atol=1e-9)
        assert not torch.allclose(weight, initial[name], atol=0.01)


def test_a_parameter_in_no_group_is_not_trained(tmp_path):
    dataset = data()
    model = Grouped(dataset.n_items)
    model.parameter_groups = lambda: [ParameterGroup([model.second.weight])]
    initial = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    train(model, Batches(dataset.train, 64, seed=1), SETTINGS.replace(epochs=1), Runtime(tmp_path))
    changed = [name for name, tensor in model.state_dict().items() if not torch.equal(tensor, initial[name])]
    assert changed == ["second.weight"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("whole")
    yield *run_phases(folder), folder
    torch.set_num_threads(threads)


def test_the_epoch_hook_is_called_before_every_epoch(uninterrupted):
    assert uninterrupted[0].begun == [0, 1, 2, 0, 1]  # three epochs of the first phase, two of the second


def test_parameters_are_frozen_in_alternate_epochs(tmp_path):
    dataset = data()
    model = Changing(dataset.n_items)
    weights = [model.output.weight.detach().clone()]
    others = [model.write.weight.detach().clone()]

    def evaluate():
        weights.append(model.output.weight.detach().clone())
        others.append(model.write.weight.detach().clone())
        return {}

    train(model, Batches(dataset.train, 64), SETTINGS.replace(epochs=4), Runtime(tmp_path), evaluate=evaluate)
    changed = [not torch.equal(before, after) for before, after in itertools.pairwise(weights)]
    assert changed == [True, False, True, False]
    assert not any(torch.equal(before, after) for before, after in itertools.pairwise(others))


class Growing(TrainableModule):
    """A table that has more rows in every epoch, or all of them from the start; every step uses the rows of its epoch."""

    ROWS = (5, 8, 12)  # of the epochs

    def __init__(self, n_items, grows):
        super().__init__()
        torch.manual_seed(0)
        self.rows, self.output = torch.randn(max(self.ROWS), 8), nn.Linear(8, n_items)
        self.table = nn.Embedding.from_pretrained(
            self.rows[: self.ROWS[0]] if grows else self.rows.clone(), freeze=False
        )
        self.grows, self.used = grows, 0

    def forward(self, batch, rng):
        states = self.table(torch.from_numpy(batch.histories[:, -1]) % self.used)
        return {"loss": nn.functional.cross_entropy(self.output(states), torch.from_numpy(batch.targets))}

    def begin_epoch(self, epoch):
        self.used = self.ROWS[epoch]
        self.resize(self.used)

    def resize(self, rows):
        missing = rows - len(self.table.weight)
        if self.grows and missing > 0:
            self.table.weight.data = torch.cat([self.table.weight.data, self.rows[rows - missing : rows]])

    def extra_state(self):
        return {"rows": torch.tensor(len(self.table.weight))}

    def load_extra_state(self, state):
        self.resize(int(state["rows"]))


def test_rows_that_are_added_to_a_table_train_as_if_they_had_always_been_there(tmp_path, monkeypatch):
    """An unused row has a gradient of zero, and without weight decay it does not change; the same after an interruption."""
    dataset, settings = data(), SETTINGS.replace(weight_decay=0.0)

    def fit(folder, grows):
        model = Growing(dataset.n_items, grows)
        train(model, Batches(dataset.train, 64, seed=1), settings, Runtime(folder))
        return model

    whole, growing = fit(tmp_path / "whole", False), fit(tmp_path / "growing", True)
    steps = interrupt_after(2 * STEPS_PER_EPOCH + 3, monkeypatch)
    with pytest.raises(KeyboardInterrupt):
        fit(tmp_path / "interrupted", True)
    assert len(steps) == 2 * STEPS_PER_EPOCH + 3
    monkeypatch.undo()
    for model in (growing, fit(tmp_path / "interrupted", True)):
        assert torch.equal(model.table.weight, whole.table.weight)
        assert torch.equal(model.output.weight, whole.output.weight)
    assert not torch.allclose(whole.table.weight, whole.rows)


def extra_state(path):
    tensors, _ = load_checkpoint(path)
    return {name.removeprefix("extra."): value for name, value in tensors.items() if name.startswith("extra.")}


def test_the_extra_state_is_in_the_checkpoint_and_in_the_best_weights(uninterrupted):
    """The shape of the IDs changes with every epoch, and that of the losses with every step."""
    model, _, folder = uninterrupted
    n_items = data().n_items
    last, best = (extra_state(folder / "first" / f"{name}.safetensors") for name in ("checkpoint", "best"))
    assert set(last) == set(best) == {"ids", "ids_epoch", "losses"}
    assert (last["ids"].shape, int(last["ids_epoch"]), len(last["losses"])) == ((n_items, 3), 2, 3 * STEPS_PER_EPOCH)
    assert (best["ids"].shape, int(best["ids_epoch"]), len(best["losses"])) == ((n_items, 2), 1, 2 * STEPS_PER_EPOCH)
    assert last["ids"].dtype == torch.int64
    # The second phase continues from the best weights and extra state of the first.
    final = extra_state(folder / "second" / "best.safetensors")
    assert torch.equal(final["losses"][: 2 * STEPS_PER_EPOCH], best["losses"])
    assert len(final["losses"]) == (2 + SECOND_PHASE.epochs) * STEPS_PER_EPOCH
    for name, value in model.extra_state().items():
        assert torch.equal(value, final[name])


def finish_and_compare(folder, uninterrupted):
    """Resume a run; its weights, extra state and metrics must equal those of the uninterrupted run."""
    model, histories = run_phases(folder)
    expected, expected_histories, _ = uninterrupted
    for states in zip(model.state_dict().items(), expected.state_dict().items(), strict=True):
        (name, ours), (same_name, theirs) = states
        assert name == same_name
        assert torch.equal(ours, theirs)
    for name, value in expected.extra_state().items():
        assert torch.equal(model.extra_state()[name], value)
    for ours, theirs in zip(histories, expected_histories, strict=True):
        assert [record["loss"] for record in ours] == [record["loss"] for record in theirs]
        assert [record["score"] for record in ours] == [record["score"] for record in theirs]
    return model


@pytest.mark.parametrize(
    ("where", "call"),
    [
        ("step", 5),
        ("step", STEPS_PER_EPOCH + 9),
        ("step", FIRST_PHASE_STEPS + STEPS_PER_EPOCH + 4),
        ("evaluation", 2),
        ("replace", 3),  # the best weights of the first phase
        ("replace", 5),  # the last checkpoint of the first phase
        ("replace", 6),  # the first file of the second phase
    ],
)
def test_a_killed_run_ends_with_the_same_weights_and_extra_state(uninterrupted, forks, tmp_path, where, call):
    assert die(forks, tmp_path, signal.SIGKILL, where, call, "phases") == -signal.SIGKILL
    finish_and_compare(tmp_path, uninterrupted)


def test_a_stopped_run_ends_with_the_same_weights_and_extra_state(uninterrupted, forks, tmp_path):
    """Stop in the middle of an epoch, in its last step, with frozen parameters, and in the second phase."""
    n_items = data().n_items
    for phase, call, step, epoch, begun in (
        ("first", 7, 7, 0, [0, 1, 2, 0, 1]),
        ("first", 11, 18, 0, [0, 1, 2, 0, 1]),
        ("first", 4, 22, 1, [1, 2, 0, 1]),
        ("second", 32 + 21, 21, 1, [1]),
    ):
        assert die(forks, tmp_path, signal.SIGTERM, "step", call, "phases") == 143
        tensors, facts = load_checkpoint(tmp_path / phase / "checkpoint.safetensors")
        assert (facts["state"]["step"], facts["state"]["epoch"]) == (step, epoch)
        steps_before = 0 if phase == "first" else 2 * STEPS_PER_EPOCH
        assert tensors["extra.losses"].shape == (steps_before + step,)
        assert tensors["extra.ids"].shape == (n_items, epoch + 1)
        copy = tmp_path.parent / f"{tmp_path.name}-{step}-{phase}"
        shutil.copytree(tmp_path, copy)
        assert finish_and_compare(copy, uninterrupted).begun == begun
