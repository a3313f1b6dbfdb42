"""Several processes under torchrun, mixed precision, and devices that do not exist."""

import json
import os
import signal
import subprocess
import sys

import pytest
import torch

from resid import InputError
from resid.data import Batches
from resid.train import open_fabric
from resid.train.checkpoint import load_checkpoint
from tests.train.toy import PROGRAM, ROOT, SETTINGS, data, run, run_phases, run_sequences, sequence_batches, weights_in


def torchrun(folder, *words):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return subprocess.run(
        [*command, "-m", "tests.train.toy", str(folder), "plain", *words],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def train_together(forks, folder, *words):
    """Train with two processes, started without torchrun, in the same environment."""
    finished = forks.run([folder, "plain", *words], program=PROGRAM, processes=2)
    assert finished.code == 0, finished.said


def test_two_processes_train_the_same_model_as_one(forks, tmp_path):
    """Without dropout or noise, two halves of a batch give the gradient of the whole, sparse tables included."""
    train_together(forks, tmp_path / "two")
    alone, history = run(tmp_path / "one", plain=True, evaluate=lambda: {"score": 0.0})
    same_weights(tmp_path / "two", alone)
    assert len(losses(tmp_path / "two")) == len(history) == SETTINGS.epochs  # one process writes
    assert losses(tmp_path / "two") == pytest.approx([record["loss"] for record in history], rel=1e-5)


def same_weights(folder, model):
    together = weights_in(folder / "best.safetensors")
    for name, tensor in model.state_dict().items():
        torch.testing.assert_close(together[name], tensor, atol=1e-4, rtol=1e-3)


def losses(folder):
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_two_processes_weigh_their_shares_by_targets(forks, tmp_path):
    """The loss is the mean over targets, and the two shares of a batch have different numbers of them."""
    weights = [[batch.share(rank, 2).weight for rank in range(2)] for batch in sequence_batches(data())]
    assert sum(first != second for first, second in weights) > len(weights) / 2
    train_together(forks, tmp_path / "two", "sequences")
    alone, history = run_sequences(tmp_path / "one")
    same_weights(tmp_path / "two", alone)
    assert losses(tmp_path / "two") == pytest.approx([record["loss"] for record in history], rel=1e-5)


def test_two_processes_freeze_parameters_and_change_phases(forks, tmp_path):
    """Parameter groups, the epoch hook, extra state and two phases give the same with two processes as with one.

    The run is stopped while parameters are frozen, where torchrun has its own part, and resumed.
    """
    stopped = torchrun(tmp_path / "two", "phases", "slow", f"die={int(signal.SIGTERM)},step,22")
    assert stopped.returncode
    facts = load_checkpoint(tmp_path / "two" / "first" / "checkpoint.safetensors")[1]
    assert facts["state"]["step"] == 22
    train_together(forks, tmp_path / "two", "phases")
    alone, histories = run_phases(tmp_path / "one", plain=True)
    same_weights(tmp_path / "two" / "second", alone)
    for phase, history in zip(("first", "second"), histories, strict=True):
        assert losses(tmp_path / "two" / phase) == pytest.approx([record["loss"] for record in history], rel=1e-5)


def test_shares_of_a_batch():
    batch = next(iter(Batches(data().train, 7)))
    shares = [batch.share(rank, 3) for rank in range(3)]
    assert [len(share) for share in shares] == [3, 2, 2]
    assert sorted(index for share in shares for index in share.index) == sorted(batch.index)
    assert shares[1].histories.shape == (2, batch.histories.shape[1])
    assert batch.share(4, 9) is batch  # each gets it whole


def test_mixed_precision_learns(tmp_path):
    _, plain = run(tmp_path / "plain")
    _, mixed = run(tmp_path / "mixed", fabric=open_fabric(precision="bf16-mixed"))
    assert mixed[-1]["loss"] == pytest.approx(plain[-1]["loss"], rel=0.02)
    assert mixed[-1]["loss"] != plain[-1]["loss"]


def test_refusals():
    with pytest.raises(InputError, match="there is no precision '8'; available precisions: 32-true, bf16-mixed"):
        open_fabric(precision="8")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="no CUDA device found; use --accelerator cpu"):
            open_fabric("cuda")
    with pytest.raises(InputError, match="cannot start -1 devices of the kind 'cpu'"):
        open_fabric(devices=-1)
