"""Random numbers of a training step."""

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


def test_steps_do_not_collect_tracebacks():
    before = len(torch.cuda._queued_calls)
    with torch.random.fork_rng(devices=[]):
        for seed in range(10):
            seed_generators(seed, torch.device("cpu"))
    assert len(torch.cuda._queued_calls) == before
