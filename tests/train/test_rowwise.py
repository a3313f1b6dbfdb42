"""The row-wise optimizer equals dense AdamW where the two must agree."""

import torch
from torch import nn

from resid.train import RowwiseAdamW

OPTIONS = {"lr": 0.01, "weight_decay": 0.1}


def tables(rows=6):
    torch.manual_seed(0)
    sparse = nn.Embedding(rows, 4, sparse=True)
    dense = nn.Embedding(rows, 4)
    dense.load_state_dict(sparse.state_dict())
    return sparse, dense


def run(used_by_step):
    """Train both tables on the same steps, each using some rows, some of them twice; return both weights."""
    sparse, dense = tables()
    optimizers = RowwiseAdamW(sparse.parameters(), **OPTIONS), torch.optim.AdamW(dense.parameters(), **OPTIONS)
    for step, used in enumerate(used_by_step):
        weights = torch.randn(len(used), 4, generator=torch.Generator().manual_seed(step))
        for table, optimizer in zip((sparse, dense), optimizers, strict=True):
            optimizer.zero_grad()
            (table(torch.tensor(used)) * weights).square().sum().backward()
            optimizer.step()
    return sparse.weight.detach(), dense.weight.detach(), optimizers


def test_equal_when_every_row_is_used():
    rowwise, dense, _ = run([[0, 1, 2, 3, 4, 5, 2]] * 8)
    torch.testing.assert_close(rowwise, dense)


def test_equal_at_the_first_use_of_a_row():
    rowwise, dense, _ = run([[0, 1]] * 5 + [[0, 1, 4]])
    torch.testing.assert_close(rowwise[[0, 1, 4]], dense[[0, 1, 4]])


def test_moments_catch_up():
    """Between two uses of a row its moments shrink as dense AdamW's would, by β for every step."""
    sparse, _ = tables()
    optimizer = RowwiseAdamW(sparse.parameters(), **OPTIONS)
    gradients = [1.0, 0.0, 0.0, 0.5]
    for gradient in gradients:
        optimizer.zero_grad()
        used = torch.tensor([0, 3] if gradient else [0])
        (sparse(used) * torch.tensor([[1.0], [gradient]])[: len(used)]).sum().backward()
        optimizer.step()
    state = optimizer.state[sparse.weight]
    mean = square = 0.0
    for gradient in gradients:
        mean, square = 0.9 * mean + 0.1 * gradient, 0.999 * square + 0.001 * gradient**2
    torch.testing.assert_close(state["mean"][3], torch.full((4,), mean))
    torch.testing.assert_close(state["square"][3], torch.full((4,), square))
    assert state["last"].tolist() == [4, 0, 0, 4, 0, 0]


def test_the_state_survives_a_round_trip():
    _, _, (optimizer, _) = run([[0, 3], [0]])
    sparse, _ = tables()
    other = RowwiseAdamW(sparse.parameters(), **OPTIONS)
    other.load_state_dict(optimizer.state_dict())
    for name, tensor in optimizer.state[optimizer.param_groups[0]["params"][0]].items():
        loaded = other.state[sparse.weight][name]
        assert loaded.dtype == tensor.dtype
        assert torch.equal(loaded, tensor)


def test_decay_of_a_row_that_was_not_used_catches_up():
    sparse, _ = tables()
    before = sparse.weight.detach()[3].clone()
    optimizer = RowwiseAdamW(sparse.parameters(), **OPTIONS)
    for step in range(5):
        optimizer.zero_grad()
        used = torch.tensor([0] if step < 4 else [0, 3])
        (sparse(used) * torch.tensor([[1.0], [0.0]])[: len(used)]).sum().backward()
        optimizer.step()
    torch.testing.assert_close(sparse.weight.detach()[3], before * (1 - 0.01 * 0.1) ** 5)


def test_rows_that_are_not_used_are_not_touched():
    sparse, _ = tables()
    before = sparse.weight.detach().clone()
    optimizer = RowwiseAdamW(sparse.parameters(), **OPTIONS)
    sparse(torch.tensor([1])).sum().backward()
    optimizer.step()
    changed = (sparse.weight.detach() != before).any(dim=1)
    assert changed.tolist() == [False, True, False, False, False, False]
