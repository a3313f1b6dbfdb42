"""Random numbers of a training step."""

import traceback

import pytest
import torch

from resid.train.process import seed_generators


@pytest.mark.parametrize("seed", [0, 12, 2**63 - 1])
def test_numbers_are_those_of_manual_seed(seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        wanted = torch.randn(5)
        seed_generators(seed, torch.device("cpu"))
        torch.testing.assert_close(torch.randn(5), wanted, rtol=0, atol=0)


def test_no_tracebacks_are_formatted(monkeypatch):
    """`torch.manual_seed` formats them, which costs more than the seeding."""
    calls = []
    monkeypatch.setattr(traceback, "format_stack", lambda: calls.append(0) or [])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        assert calls or torch.cuda.is_initialized()
        calls.clear()
        seed_generators(0, torch.device("cpu"))
    assert not calls
