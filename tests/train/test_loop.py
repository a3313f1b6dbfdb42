"""The training loop: exact resume after every kind of interruption, early stopping, errors."""

import dataclasses
import json
import signal

import numpy as np
import pytest
import torch
from torch import nn

from resid import InputError
from resid.core.runtime import Runtime
from resid.data import Batches
from resid.train import TrainableModule, TrainingError, best_epoch, train
from resid.train.checkpoint import load_checkpoint
from resid.train.optim import clip_gradients
from tests.train.toy import SETTINGS, STEPS_PER_EPOCH, data, die, run, weights_in


def same_weights(first, second):
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run(tmp_path_factory.mktemp("whole"), evaluate=lambda: {"score": 0.0})
    torch.set_num_threads(threads)


def finish_and_compare(folder, uninterrupted):
    model, history = run(folder, evaluate=lambda: {"score": 0.0})
    assert same_weights(model, uninterrupted[0])
    for ours, theirs in zip(history, uninterrupted[1], strict=True):
        speeds = ours.pop("samples_per_second"), theirs.get("samples_per_second")
        assert min(speeds) >= 0
        assert ours == pytest.approx({k: v for k, v in theirs.items() if k != "samples_per_second"}, rel=1e-12)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, None)], ids=lambda value: str(value)
)
def test_a_stopped_run_ends_with_the_same_weights(uninterrupted, forks, tmp_path, number, code):
    """Stop a real process in the middle of an epoch, then in an epoch's last step, and in an evaluation."""
    for where, call, step, next_batch in (("step", 7, 7, 7), ("step", 11, 18, 18), ("evaluation", 2, 36, 0)):
        returned = die(forks, tmp_path, number, where, call)
        assert returned == code if code else returned not in (0, -9)
        facts = load_checkpoint(tmp_path / "checkpoint.safetensors")[1]
        assert (facts["state"]["step"], facts["batches"]["next_batch"]) == (step, next_batch)
    finish_and_compare(tmp_path, uninterrupted)


@pytest.mark.parametrize(
    ("where", "call"),
    [("step", 5), ("step", STEPS_PER_EPOCH + 9), ("evaluation", 2), ("replace", 1), ("replace", 2), ("replace", 4)],
)
def test_a_killed_run_ends_with_the_same_weights(uninterrupted, forks, tmp_path, where, call):
    """Kill a real process without warning: in a step, an evaluation, before the best weights or a checkpoint are there."""
    assert die(forks, tmp_path, signal.SIGKILL, where, call) == -signal.SIGKILL
    finish_and_compare(tmp_path, uninterrupted)


def test_a_truncated_line_of_metrics_is_dropped(uninterrupted, forks, tmp_path):
    assert die(forks, tmp_path, signal.SIGKILL, "evaluation", 3) == -signal.SIGKILL
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"epoch": 3, "lo')
    finish_and_compare(tmp_path, uninterrupted)


def test_two_runs_in_one_folder(tmp_path):
    def second(call, loss):
        with pytest.raises(InputError, match="another run is using this folder"):
            run(tmp_path)
        return loss

    run(tmp_path, at_step=second, settings=SETTINGS.replace(epochs=1))


def test_a_damaged_checkpoint_is_refused(tmp_path):
    run(tmp_path)
    path = tmp_path / "checkpoint.safetensors"
    content = bytearray(path.read_bytes())
    content[-100] ^= 255
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"incomplete or damaged checkpoint .*checksum does not match"):
        run(tmp_path)


def test_a_finished_run_is_not_trained_again(uninterrupted, tmp_path):
    run(tmp_path)
    model, history = run(tmp_path, at_step=lambda call, loss: pytest.fail("it trains"))
    assert same_weights(model, uninterrupted[0])
    assert len(history) == SETTINGS.epochs
    assert not model.training


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    dataset = data()
    model = Bias(dataset.n_items)
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    train(model, Batches(dataset.train, 64), SETTINGS.replace(epochs=1), Runtime(tmp_path))
    assert torch.equal(torch.rand(2), expected)


class Bias(TrainableModule):
    """The popularity of items: nothing random, and two names for one parameter."""

    def __init__(self, n_items):
        super().__init__()
        self.first = nn.Linear(1, n_items)
        self.second = self.first

    def forward(self, batch, rng):
        logits = self.first(torch.ones(len(batch), 1)) + self.second(torch.ones(len(batch), 1))
        return {"loss": nn.functional.cross_entropy(logits, torch.from_numpy(batch.targets))}


def test_tied_weights_are_saved_and_resumed(tmp_path):
    dataset = data()
    for epochs in (1, 2):
        settings = SETTINGS.replace(epochs=2)
        model = Bias(dataset.n_items)
        evaluations = iter(range(epochs))

        def evaluate(evaluations=evaluations):
            if next(evaluations, None) is None:
                raise KeyboardInterrupt
            return {}

        if epochs == 1:
            with pytest.raises(KeyboardInterrupt):
                train(model, Batches(dataset.train, 64, seed=1), settings, Runtime(tmp_path), evaluate=evaluate)
        else:
            train(model, Batches(dataset.train, 64, seed=1), settings, Runtime(tmp_path), evaluate=evaluate)
    whole = Bias(dataset.n_items)
    whole.load_state_dict(weights_in(tmp_path / "best.safetensors"))
    assert torch.equal(whole.first.weight, model.first.weight)
    assert whole.second.weight is whole.first.weight


def test_early_stopping_keeps_the_best_weights(tmp_path):
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    settings = SETTINGS.replace(epochs=9, patience=2)
    model, history = run(tmp_path / "a", settings=settings, evaluate=lambda: {"score": next(scores)}, monitor="score")
    assert [record["score"] for record in history] == [0.1, 0.5, 0.4, 0.3]
    tensors, facts = load_checkpoint(tmp_path / "a" / "best.safetensors")
    assert facts["epoch"] == 2
    assert torch.equal(tensors["model.read.weight"], model.read.weight)


def test_evaluation_every_few_epochs(tmp_path):
    scores = iter([0.1, 0.5, 0.4, 0.3])
    settings = SETTINGS.replace(epochs=20, patience=2, evaluate_every=3)
    _, history = run(tmp_path / "a", settings=settings, evaluate=lambda: {"score": next(scores)}, monitor="score")
    assert {record["epoch"]: record["score"] for record in history if "score" in record} == {
        3: 0.1,
        6: 0.5,
        9: 0.4,
        12: 0.3,
    }
    assert len(history) == 12
    assert best_epoch(history, "score") == 6
    scores = iter([0.1, 0.2])
    settings = SETTINGS.replace(epochs=4, patience=0, evaluate_every=3)
    _, history = run(tmp_path / "b", settings=settings, evaluate=lambda: {"score": next(scores)}, monitor="score")
    assert [record["epoch"] for record in history if "score" in record] == [3, 4]  # the last one in any case


def poison(step, factor):
    return lambda call, loss: loss * factor if call == step else loss


class TestNotFinite:
    def test_the_loss(self, tmp_path):
        with pytest.raises(TrainingError, match=r"step 3, epoch 1: 'part' is nan; there is no checkpoint yet"):
            run(tmp_path / "a", at_step=poison(3, float("nan")))
        with pytest.raises(TrainingError, match=r"the last good checkpoint is .*checkpoint\.safetensors; lower"):
            run(tmp_path / "b", at_step=poison(30, float("inf")))

    def test_the_gradient(self, tmp_path):
        """A loss that is finite with a gradient that is not, in the last step of an epoch: no weight is touched."""

        class Steep(torch.autograd.Function):
            @staticmethod
            def forward(ctx, value):
                return value * 1.0

            @staticmethod
            def backward(ctx, gradient):
                return gradient * float("inf")

        with pytest.raises(TrainingError, match=r"step 18, epoch 1: the gradient norm is (nan|inf)"):
            run(tmp_path, at_step=lambda call, loss: Steep.apply(loss) if call == STEPS_PER_EPOCH else loss)
        assert not (tmp_path / "checkpoint.safetensors").exists()


def test_no_training_windows(tmp_path):
    empty = data().train.sample(1)
    empty = dataclasses.replace(empty, begin=empty.begin[:0], end=empty.end[:0], users=empty.users[:0])
    with pytest.raises(InputError, match="there are no training windows"):
        train(Bias(3), Batches(empty, 4), SETTINGS, Runtime(tmp_path))


def test_the_learning_rate(tmp_path):
    """Linear warm-up to the full rate, then half a cosine to zero."""
    rates = []

    class Recording(torch.optim.AdamW):
        def step(self, closure=None):
            rates.append(self.param_groups[0]["lr"])
            return super().step(closure)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("resid.train.optim.torch.optim.AdamW", Recording)
        run(tmp_path)
    steps = 3 * STEPS_PER_EPOCH
    expected = [0.01 * (step + 1) / 5 for step in range(5)]
    expected += [0.005 * (1 + np.cos(np.pi * (step - 5) / (steps - 5))) for step in range(5, steps)]
    assert rates == pytest.approx(expected)


def test_gradients_are_clipped_together():
    sparse, dense = nn.Embedding(4, 2, sparse=True), nn.Linear(2, 1, bias=False)
    (dense(sparse(torch.tensor([1, 1, 2]))).sum() * 100).backward()
    parameters = [sparse.weight, dense.weight]
    before = [p.grad.to_dense().clone() for p in parameters]
    norm = float(torch.cat([g.flatten() for g in before]).norm())
    assert clip_gradients(parameters, 0.5) == pytest.approx(norm, rel=1e-5)
    for parameter, gradient in zip(parameters, before, strict=True):
        torch.testing.assert_close(parameter.grad.to_dense(), gradient * (0.5 / norm))
    assert clip_gradients(parameters, 10.0) == pytest.approx(0.5, rel=1e-5)


class TestCheckpoints:
    def test_another_configuration_is_refused(self, tmp_path):
        run(tmp_path)
        with pytest.raises(InputError, match="this run has another configuration"):
            run(tmp_path, settings=SETTINGS.replace(learning_rate=0.5))
        with pytest.raises(InputError, match="this run has another configuration"):
            run(tmp_path, configuration={"model": "other"})

    def test_a_truncated_one_is_refused(self, tmp_path):
        run(tmp_path)
        path = tmp_path / "checkpoint.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(InputError, match="incomplete or damaged checkpoint"):
            run(tmp_path)

    def test_a_full_disk_leaves_the_old_checkpoint(self, on_a_small_disk):
        script = """
import os, torch
from pathlib import Path
from resid import InputError
from resid.core.runtime import Runtime
from resid.train.checkpoint import load_checkpoint, save_checkpoint
path = Path("small/x.safetensors")
save_checkpoint(path, {"a": torch.ones(2)}, {"n": 1})
try:
    save_checkpoint(path, {"a": torch.zeros(100_000)}, {"n": 2})
except InputError as error:
    print(error)
print(load_checkpoint(path), os.listdir("small"))
"""
        answer = on_a_small_disk(script, "64k")
        assert "small/x.safetensors: the disk is full; free some space" in answer
        assert "({'a': tensor([1., 1.])}, {'n': 1}) ['x.safetensors']" in answer

    def test_it_contains_plain_data_only(self, tmp_path):
        run(tmp_path)
        header = (tmp_path / "checkpoint.safetensors").read_bytes()
        length = int.from_bytes(header[:8], "little")
        facts = json.loads(json.loads(header[8 : 8 + length])["__metadata__"]["facts"])
        assert facts["state"]["epoch"] == SETTINGS.epochs
