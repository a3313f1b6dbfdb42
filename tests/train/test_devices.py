"""Several processes under torchrun, mixed precision, and what there is not."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from resid import InputError
from resid.data import Batches
from resid.train import open_fabric
from resid.train.checkpoint import load_checkpoint
from tests.train.toy import SETTINGS, data, run

ROOT = Path(__file__).resolve().parents[2]


def torchrun(folder, processes):
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    return subprocess.run(
        [*command, "-m", "tests.train.toy", str(folder), "plain"],
        cwd=ROOT,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=200,
    )


def test_two_processes_train_the_same_model_as_one(tmp_path):
    """Without dropout or noise, two halves of a batch give the gradient of the whole, sparse tables included."""
    finished = torchrun(tmp_path / "two", 2)
    assert finished.returncode == 0, finished.stderr
    alone, history = run(tmp_path / "one", plain=True, evaluate=lambda: {"score": 0.0})
    together, _ = load_checkpoint(tmp_path / "two" / "best.safetensors")
    for name, tensor in alone.state_dict().items():
        torch.testing.assert_close(together[name], tensor, atol=1e-4, rtol=1e-3)
    lines = (tmp_path / "two" / "metrics.jsonl").read_text().splitlines()
    assert len(lines) == len(history) == SETTINGS.epochs  # one process writes


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
    with pytest.raises(InputError, match="there is no precision '8'; there are 32-true"):
        open_fabric(precision="8")
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match="cannot train on 1 × 'cuda'"):
            open_fabric("cuda")
    with pytest.raises(InputError, match="cannot train on -1 × 'cpu'"):
        open_fabric(devices=-1)
