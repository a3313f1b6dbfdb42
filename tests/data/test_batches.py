"""Batches: every window once, similar lengths together, exact resumption."""

import itertools

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.data import PADDING, Batches, SequenceBatches, VectorBatches


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])


def same(first, second):
    return all(np.array_equal(getattr(first, name), getattr(second, name)) for name in vars(first))


def test_every_window_once_and_complete(data):
    for options in ({"seed": 1}, {"shuffle": False}):
        seen = []
        for batch in Batches(data.train, 64, **options):
            for row, window in enumerate(batch.index):
                history, target = data.train.window(window)
                padded = batch.histories[row]
                assert padded[len(padded) - len(history) :].tolist() == history.tolist()
                assert (padded[: len(padded) - len(history)] == PADDING).all()
                assert batch.targets[row] == target
                assert batch.users[row] == data.train.users[window]
            seen.append(batch.index)
        assert np.array_equal(np.sort(np.concatenate(seen)), np.arange(len(data.train)))


def test_batches_hold_similar_lengths_and_no_needless_padding(data):
    lengths = data.train.end - data.train.begin
    padding = real = 0
    for batch in Batches(data.train, 64):
        assert batch.histories.shape[1] == lengths[batch.index].max()
        padding += (batch.histories == PADDING).sum()
        real += (batch.histories != PADDING).sum()
    assert padding < 0.1 * real


def test_order_follows_seed_and_epoch(data):
    one, two, other = Batches(data.train, 64, seed=1), Batches(data.train, 64, seed=1), Batches(data.train, 64, seed=2)
    first = [batch.index for batch in one]
    assert all(np.array_equal(a, b.index) for a, b in zip(first, two, strict=True))
    assert not all(np.array_equal(a, b.index) for a, b in zip(first, other, strict=True))
    assert not all(np.array_equal(a, b.index) for a, b in zip(first, list(one), strict=True))  # the second epoch
    assert one.epoch == 2


@pytest.mark.parametrize("stop", [0, 1, 7, 10_000])
def test_resumes_exactly(data, stop):
    options = {"batch_size": 32, "seed": 5}
    uninterrupted = Batches(data.train, **options)
    expected = [batch for _ in range(2) for batch in uninterrupted]
    begun, taken = Batches(data.train, **options), []
    for batch in itertools.islice(begun, stop):
        taken.append(batch)
    continued = Batches(data.train, **options)
    continued.load_state_dict(begun.state_dict())
    while continued.epoch < 2:
        taken += list(continued)
    assert len(taken) == len(expected)
    assert all(same(a, b) for a, b in zip(taken, expected, strict=True))


def test_refuses_to_resume_with_other_settings(data, shop):
    state = Batches(data.train, 32).state_dict()
    with pytest.raises(InputError, match="'batch_size' was 32 and is now 64"):
        Batches(data.train, 64).load_state_dict(state)
    with pytest.raises(InputError, match="'split' was train and is now test"):
        Batches(data.test, 32).load_state_dict(state)
    other = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"], max_length=9)
    with pytest.raises(InputError, match="'data' was"):
        Batches(other.train, 32).load_state_dict(state)


@pytest.mark.parametrize(("name", "value"), [("batch_size", 0), ("pool", 0)])
def test_refuses_bad_settings(data, name, value):
    with pytest.raises(InputError, match=f"invalid value 0 for '{name}': it must be at least 1"):
        Batches(data.train, **{"batch_size": 8} | {name: value})


def test_weight_is_the_number_of_targets(data):
    assert sum(batch.weight for batch in Batches(data.train, 64)) == len(data.train)
    sequences = SequenceBatches(data.train, 7, 5, stride=2)
    for batch in sequences:
        assert batch.weight == batch.are_targets.sum() > len(batch) - 1
        assert sum(batch.share(rank, 2).weight for rank in (0, 1)) == batch.weight * (1 if len(batch) > 1 else 2)
    assert sum(batch.weight for batch in sequences) == len(data.train)
    assert [batch.weight for batch in VectorBatches(np.zeros((10, 2), dtype=np.float32), 4)] == [4, 4, 2]


class TestSequences:
    def test_every_training_target_is_one_once(self, data):
        for longest in (32, 5, 2):
            batches = SequenceBatches(data.train, 7, longest, seed=1)
            found = []
            for batch in batches:
                assert batch.items.shape[1] <= longest
                for items, piece in zip(batch.items, batch.index, strict=True):
                    begin, end = batches.begin[piece], batches.end[piece]
                    assert np.array_equal(items[items != PADDING], data.train.sequence[begin:end])
                    assert (items[end - begin :] == PADDING).all()  # on the right
                    found += range(begin + 1, end)
            assert sorted(found) == sorted(data.train.end)
            assert (batches.first_target == batches.begin + 1).all()
        whole = SequenceBatches(data.train, 7, 10_000)
        assert len(whole.begin) == len(np.unique(data.train.users))

    @pytest.mark.parametrize("stride", [1, 2, 3])
    def test_targets_have_the_history_of_their_window(self, data, stride):
        windows = {
            int(end): int(max(begin, end - 4)) for begin, end in zip(data.train.begin, data.train.end, strict=True)
        }
        batches = SequenceBatches(data.train, 7, 5, stride=stride)
        found = []
        for batch in batches:
            for piece, first in zip(batch.index, batch.first_target, strict=True):
                begin, end = batches.begin[piece], batches.end[piece]
                found += range(begin + first, end)
                for target in range(begin + first, end):  # the first targets may miss up to stride - 1 items
                    assert windows[target] <= begin < windows[target] + stride
        assert sorted(found) == sorted(data.train.end)

    @pytest.mark.parametrize("unseen_targets", ["train", "drop"])
    def test_a_target_that_was_added_keeps_its_history(self, unseen_targets):
        rows = [
            ("a", "pqrsuv"),
            ("b", "pqrsuw"),
            ("c", "pqrsxy"),
            ("d", "p" * 40 + "z"),
            ("e", "p" * 40 + "01"),
            ("f", "pqrsq"),
        ]
        log = pl.DataFrame(
            [(user, item, step) for user, items in rows for step, item in enumerate(items)],
            schema=["user", "item", "timestamp"],
            orient="row",
        )
        data = Dataset.from_tables(log, k_core=1, unseen_targets=unseen_targets)
        assert len(data.train) > len(Dataset.from_tables(log, k_core=1).train)
        windows = dict(zip(data.train.end.tolist(), data.train.begin.tolist(), strict=True))
        for stride in (1, None):
            batches = SequenceBatches(data.train, 7, data.settings.max_length, stride=stride)
            found = []
            for begin, end, first in zip(batches.begin, batches.end, batches.first_target, strict=True):
                found += range(first, end)
                if stride == 1 or end - first == 1:
                    assert all(windows[target] == begin for target in range(first, end))
            assert sorted(found) == sorted(windows)

    def test_batches_of_so_many_targets(self, data):
        batches = SequenceBatches(data.train, 100, 5, stride=1, count_targets=True)
        counts = [int(((batch.items != PADDING).sum(axis=1) - batch.first_target).sum()) for batch in batches]
        assert sum(counts) == len(data.train)
        assert len(counts) == len(batches) == -(-len(data.train) // 100)
        assert max(counts) - min(counts) <= 8
        assert SequenceBatches(data.train, 1, 5, count_targets=True).batch_size == 10  # so that no batch is empty

    @pytest.mark.parametrize("stride", [0, -1, 5])
    def test_strides_that_cannot_be(self, data, stride):
        with pytest.raises(InputError, match=f"invalid value {stride} for 'stride': it must be between 1 and 4"):
            SequenceBatches(data.train, 7, 5, stride=stride)

    def test_the_seed_and_the_position_decide(self, data):
        batches = SequenceBatches(data.train, 16, 32, seed=1)
        first = [batch.index.tolist() for batch in batches]
        second = [batch.index.tolist() for batch in batches]
        assert first != second
        again = SequenceBatches(data.train, 16, 32, seed=1)
        state = batches.state_dict() | {"epoch": 0, "next_batch": 2}
        again.load_state_dict(state)
        assert [batch.index.tolist() for batch in again] == first[2:]
        with pytest.raises(InputError, match="'max_length' was 32 and is now 9"):
            SequenceBatches(data.train, 16, 9, seed=1).load_state_dict(state)


def test_vectors():
    vectors = np.arange(20, dtype=np.float32).reshape(10, 2)
    batches = VectorBatches(vectors, 4, seed=3, passes=2)
    assert len(batches) == 5
    rows = np.concatenate([batch.index for batch in batches])
    assert sorted(rows[:10]) == sorted(rows[10:]) == list(range(10))
    assert all(np.array_equal(batch.vectors, vectors[batch.index]) for batch in batches)
    with pytest.raises(InputError, match="cannot resume: 'data' was"):
        VectorBatches(vectors + 1, 4, seed=3, passes=2).load_state_dict(batches.state_dict())
