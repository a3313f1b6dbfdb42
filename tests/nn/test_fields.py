"""Item embeddings from fields with one or several values, against slow references."""

import numpy as np
import pytest
import torch

from resid.nn import FieldTables, mean_rows, value_weights, with_item_ids
from resid.nn.losses import full_softmax_loss, sampled_softmax_loss

# The item ID, a category, and tags; item 1 has no tags, item 3 has no category.
CODES = np.array([[0, 2, 3], [1, 1, 0], [2, 2, 1], [3, 0, 2]])[..., None].repeat(3, axis=2)
CODES[..., 1:] = 0
CODES[0, 2], CODES[2, 2] = [1, 3, 4], [1, 4, 0]
SIZES = (4, 3, 5)


@pytest.fixture
def tables():
    torch.manual_seed(0)
    return FieldTables(CODES, SIZES, 6, [False] * 3)


def slow_part(tables, field, item):
    """Return the mean embedding of an item's values, one at a time."""
    codes = [code for place, code in enumerate(CODES[item, field]) if code or not place]
    return sum(tables.embeddings()[field].weight[code] for code in codes) / len(codes)


def test_the_embedding_of_tags_is_their_mean(tables):
    assert tables.has_tags == [False, False, True]
    items = torch.tensor([[0, 1], [2, 3], [0, 2]])
    parts = torch.stack([torch.stack([slow_part(tables, field, item) for field in range(3)]) for item in range(4)])
    for field in range(3):
        torch.testing.assert_close(tables.part(field, tables.codes[items]), parts[items, field])
    torch.testing.assert_close(tables.vectors(items), parts.sum(dim=1)[items])
    torch.testing.assert_close(tables.all_vectors(), parts.sum(dim=1))


@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_tags(sparse):
    torch.manual_seed(0)
    tables = FieldTables(CODES, SIZES, 6, [sparse] * 3)
    other = FieldTables(CODES, SIZES, 6, [False] * 3)
    other.load_state_dict(tables.state_dict())
    weights = torch.randn(4, 6)
    (tables.part(2, tables.codes) * weights).sum().backward()
    (torch.stack([slow_part(other, 2, item) for item in range(4)]) * weights).sum().backward()
    found = tables.embeddings()[2].weight.grad
    torch.testing.assert_close(found.to_dense() if sparse else found, other.embeddings()[2].weight.grad)


def test_weights_of_values():
    codes = torch.tensor([[3, 0, 0], [1, 2, 0], [0, 0, 0], [0, 5, 0], [1, 2, 3]])
    wanted = [[1, 0, 0], [1 / 2, 1 / 2, 0], [1, 0, 0], [0, 1, 0], [1 / 3] * 3]
    torch.testing.assert_close(value_weights(codes), torch.tensor(wanted))
    rows = torch.randn(6, 4)
    torch.testing.assert_close(
        mean_rows(rows, codes[None]), (torch.tensor(wanted) @ rows[codes])[None].diagonal(dim1=1, dim2=2).mT
    )


def test_item_ids_come_first():
    fields = CODES[:, 1:]
    assert np.array_equal(with_item_ids(np.arange(4), fields), CODES)
    assert np.array_equal(with_item_ids(np.arange(4), fields[..., 0]), CODES[..., 0])


class TestLosses:
    @pytest.fixture
    def problem(self):
        torch.manual_seed(1)
        queries = torch.randn(5, 6, dtype=torch.float64, requires_grad=True)
        candidates = torch.randn(9, 6, dtype=torch.float64, requires_grad=True)
        targets = torch.tensor([[1, 2, 0], [3, 0, 0], [0, 0, 0], [4, 5, 8], [7, 8, 0]])
        return queries, candidates, targets

    @staticmethod
    def tags(row):
        return [tag for tag in row.tolist() if tag] or [0]

    def test_full_softmax_is_the_mean_over_tags(self, problem):
        queries, candidates, targets = problem
        loss = full_softmax_loss(queries, candidates, targets, value_weights(targets))
        log_q = (queries @ candidates.T).log_softmax(dim=1)
        slow = -sum(log_q[row, self.tags(targets[row])].mean() for row in range(5)) / 5
        assert loss.item() == pytest.approx(slow.item())
        for found, wanted in zip(
            torch.autograd.grad(loss, problem[:2]), torch.autograd.grad(slow, problem[:2]), strict=True
        ):
            torch.testing.assert_close(found, wanted)

    def test_one_tag_is_a_category(self, problem):
        queries, candidates, targets = problem
        single = full_softmax_loss(queries, candidates, targets[:, 0])
        weights = torch.tensor([[1.0, 0, 0]]).expand(5, -1)
        assert torch.equal(full_softmax_loss(queries, candidates, targets, weights), single)

    @pytest.mark.parametrize("n_negatives", [1, 4])
    def test_sampled_softmax_of_every_tag(self, problem, n_negatives):
        queries, candidates, targets = problem
        negatives = torch.tensor([[1, 2, 5, 6], [4, 8, 8, 2]])[:, :n_negatives]
        losses = sampled_softmax_loss(queries, targets, candidates[targets], candidates[negatives], negatives)
        assert losses.shape == (5, 3)
        for row in range(5):
            drawn = [tag for tag in negatives[row // 3].tolist() if tag not in targets[row]]
            for place, tag in enumerate(targets[row].tolist()):
                scores = queries[row] @ candidates[[tag, *drawn]].T
                assert losses[row, place].item() == pytest.approx((scores.logsumexp(0) - scores[0]).item())
        for gradient in torch.autograd.grad(losses.sum(), problem[:2]):
            assert torch.isfinite(gradient).all()
