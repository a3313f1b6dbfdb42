"""The loop: exact resume after every kind of death, early stopping, and refusals."""

import dataclasses
import json
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from resid import InputError
from resid.train import TrainingError
from resid.train.checkpoint import load_checkpoint
from tests.train.toy import SETTINGS, run

ROOT = Path(__file__).resolve().parents[2]


def same_weights(first, second):
    pairs = zip(first.state_dict().items(), second.state_dict().items(), strict=True)
    return all(torch.equal(a, b) for (_, a), (_, b) in pairs)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield run(tmp_path_factory.mktemp("whole"))
    torch.set_num_threads(threads)


@pytest.mark.parametrize("sign", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_a_killed_run_ends_with_the_same_weights(uninterrupted, tmp_path, sign):
    """Kill a real process again and again, at random moments, and let it continue."""
    command = [sys.executable, "-m", "tests.train.toy", str(tmp_path), "0.02"]
    chance, deaths = random.Random(sign), 0
    for _ in range(3):
        process = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.DEVNULL)
        begun = time.monotonic()
        while process.poll() is None and not any(tmp_path.iterdir()) and time.monotonic() - begun < 60:
            time.sleep(0.05)
        time.sleep(3 + chance.random())
        if process.poll() is None:
            deaths += 1
            process.send_signal(sign)
        process.wait()
    assert deaths
    model, history = run(tmp_path)
    assert same_weights(model, uninterrupted[0])
    for ours, theirs in zip(history, uninterrupted[1], strict=True):
        assert {k: v for k, v in ours.items() if k != "samples_per_second"} == pytest.approx(
            {k: v for k, v in theirs.items() if k != "samples_per_second"}, rel=1e-12
        )


def test_a_finished_run_is_not_trained_again(uninterrupted, tmp_path):
    run(tmp_path)
    model, history = run(tmp_path, poison=1)  # a single step would fail
    assert same_weights(model, uninterrupted[0])
    assert len(history) == SETTINGS.epochs


def test_early_stopping_keeps_the_best_weights(tmp_path):
    scores = iter([0.1, 0.5, 0.4, 0.3, 0.9])
    settings = dataclasses.replace(SETTINGS, epochs=9, patience=2)
    model, history = run(tmp_path / "a", settings=settings, evaluate=lambda: {"score": next(scores)}, monitor="score")
    assert [record["score"] for record in history] == [0.1, 0.5, 0.4, 0.3]
    tensors, facts = load_checkpoint(tmp_path / "a" / "best.safetensors")
    assert facts["epoch"] == 2
    assert torch.equal(tensors["read.weight"], model.read.weight)


def test_a_loss_that_is_not_a_number_stops_the_run(tmp_path):
    with pytest.raises(TrainingError, match=r"step 3, epoch 1: 'part' is nan; there is no checkpoint yet"):
        run(tmp_path / "a", poison=3)
    with pytest.raises(TrainingError, match=r"the last good checkpoint is .*checkpoint\.safetensors; lower"):
        run(tmp_path / "b", poison=30)


class TestCheckpoints:
    def test_another_configuration_is_refused(self, tmp_path):
        run(tmp_path)
        with pytest.raises(InputError, match="a run of another configuration"):
            run(tmp_path, settings=dataclasses.replace(SETTINGS, learning_rate=0.5))
        with pytest.raises(InputError, match="a run of another configuration"):
            run(tmp_path, configuration={"model": "other"})

    def test_a_truncated_one_is_refused(self, tmp_path):
        run(tmp_path)
        path = tmp_path / "checkpoint.safetensors"
        path.write_bytes(path.read_bytes()[:-10])
        with pytest.raises(InputError, match="not a whole checkpoint"):
            run(tmp_path)

    def test_a_full_disk_leaves_the_old_one(self, on_a_small_disk):
        script = """
import os, torch
from pathlib import Path
from resid import InputError
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
        assert "small: the disk is full; free some space" in answer
        assert "({'a': tensor([1., 1.])}, {'n': 1}) ['x.safetensors']" in answer

    def test_it_holds_no_code(self, tmp_path):
        run(tmp_path)
        header = (tmp_path / "checkpoint.safetensors").read_bytes()
        length = int.from_bytes(header[:8], "little")
        facts = json.loads(json.loads(header[8 : 8 + length])["__metadata__"]["facts"])
        assert facts["state"]["epoch"] == SETTINGS.epochs
