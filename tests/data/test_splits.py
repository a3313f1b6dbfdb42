"""Leave-one-out, time split and windows, against a slow reference."""

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resid import Dataset, InputError
from resid.data import PrepareSettings
from resid.data.splits import Histories

histories = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=12), min_size=1, max_size=8)


def flat(histories, **options):
    offsets = np.concatenate([[0], np.cumsum([len(history) for history in histories])])
    return Histories(np.concatenate(histories).astype(np.int32), offsets, 10, **options)


def windows_of(split):
    return [(int(split.users[w]), *(part if isinstance(part, int) else part.tolist() for part in split.window(w)))
            for w in range(len(split))]  # fmt: skip


@given(histories, st.integers(2, 6))
def test_windows_equal_a_slow_reference(histories, max_length):
    splits = flat(histories).windows(max_length=max_length)

    def window(user, target):
        history = histories[user]
        return (user, history[max(0, target - max_length + 1) : target], history[target])

    expected = {
        "train": [window(user, t) for user, history in enumerate(histories) for t in range(1, len(history) - 2)],
        "validation": [window(user, len(history) - 2) for user, history in enumerate(histories)],
        "test": [window(user, len(history) - 1) for user, history in enumerate(histories)],
    }
    assert {name: windows_of(split) for name, split in splits.items()} == expected
    assert len(splits["train"]) == sum(map(len, histories)) - 3 * len(histories)
    for split in splits.values():
        assert split.targets.tolist() == [target for _, _, target in windows_of(split)]


class TestUnseenTargets:
    @given(histories)
    def test_targets_that_no_training_history_contains(self, histories):
        trained = {item for history in histories for item in history[:-2]}
        unseen = flat(histories).unseen
        assert unseen["validation"].tolist() == [history[-2] not in trained for history in histories]
        assert unseen["test"].tolist() == [history[-1] not in trained for history in histories]

    @given(histories)
    def test_train_adds_their_windows_and_still_evaluates_them(self, histories):
        unseen = flat(histories).unseen
        keep = flat(histories).windows(max_length=5)
        train = flat(histories).windows(max_length=5, unseen_targets="train")
        added = [window for name in ("validation", "test")
                 for window, new in zip(windows_of(keep[name]), unseen[name], strict=True) if new]  # fmt: skip
        assert windows_of(train["train"]) == windows_of(keep["train"]) + added
        for name in ("validation", "test"):
            assert windows_of(train[name]) == windows_of(keep[name])

    @given(histories, st.integers(2, 6))
    def test_drop_moves_their_windows(self, histories, max_length):
        unseen = flat(histories).unseen
        keep = flat(histories).windows(max_length=max_length)
        drop = flat(histories).windows(max_length=max_length, unseen_targets="drop")
        moved = {name: np.flatnonzero(flags).tolist() for name, flags in unseen.items()}
        for name in ("validation", "test"):
            left = [window for window in windows_of(keep[name]) if window[0] not in moved[name]]
            assert windows_of(drop[name]) == left
        expected = [windows_of(keep["validation"])[user] for user in moved["validation"]]
        for user in moved["test"]:
            history = histories[user][:-1]
            if user not in moved["validation"]:
                history = history[:-1]  # the validation target is still to be predicted
            expected.append((user, history[max(0, len(history) - max_length + 1) :], histories[user][-1]))
        assert windows_of(drop["train"]) == windows_of(keep["train"]) + expected

    def test_a_moved_test_target_does_not_reveal_the_validation_target(self):
        histories = [[0, 1, 2, 0, 1], [0, 1, 2, 1, 9], [0, 2, 1, 8, 9]]
        drop = flat(histories).windows(max_length=9, unseen_targets="drop")
        assert windows_of(drop["validation"])[1] == (1, [0, 1, 2], 1)  # still to be predicted
        assert windows_of(drop["train"])[-3:] == [(2, [0, 2, 1], 8), (1, [0, 1, 2], 9), (2, [0, 2, 1, 8], 9)]
        assert flat(histories).sequence.tolist() == drop["test"].sequence.tolist()  # the histories are not changed

    def test_counts_and_notes(self):
        """Users a and b share all training items; the targets x (validation) and y, z (test) are new."""
        rows = [("a", "pqrpq"), ("b", "pqrxp"), ("c", "pqrqy"), ("d", "pqrxz")]
        log = pl.DataFrame(
            [(user, item, step) for user, items in rows for step, item in enumerate(items)],
            schema=["user", "item", "timestamp"],
            orient="row",
        )
        data = {name: Dataset.from_tables(log, k_core=1, unseen_targets=name) for name in ("keep", "drop", "train")}
        sizes = {
            name: [len(some.windows(split)) for split in ("train", "validation", "test")] for name, some in data.items()
        }
        assert sizes == {"keep": [8, 4, 4], "drop": [12, 2, 2], "train": [12, 4, 4]}
        assert len({some.fingerprint for some in data.values()}) == 3
        for some in data.values():
            assert (some.notes["unseen_validation_targets"], some.notes["unseen_test_targets"]) == (2, 2)
        assert data["drop"].test.users.tolist() == [0, 1]
        assert data["drop"].validation.users.tolist() == [0, 2]
        x, y, z = data["keep"].item_indices(list("xyz"))
        assert data["keep"].training_counts[[x, y, z]].tolist() == [0, 0, 0]
        for name in ("drop", "train"):
            assert data[name].training_counts[[x, y, z]].tolist() == [2, 1, 1]
            assert data[name].train.occurring_items[[x, y, z]].all()

    def test_nothing_left_to_evaluate(self):
        rows = [(user, f"{user}{step}", step) for user in "ab" for step in range(4)]
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        assert len(Dataset.from_tables(log, k_core=1, unseen_targets="train").test) == 2
        with pytest.raises(InputError, match=r"contains any of the validation targets, .*--unseen-targets keep"):
            Dataset.from_tables(log, k_core=1, unseen_targets="drop")

    def test_the_old_name(self):
        with pytest.raises(InputError, match="the setting 'add_unseen_targets' is now called 'unseen_targets'"):
            PrepareSettings(add_unseen_targets=True)


def test_occurring_items_and_a_sample(shop):
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
    for split in (data.train, data.validation, data.test.sample(20)):
        items = set()
        for index in range(len(split)):
            history, target = split.window(index)
            items |= {*history.tolist(), target}
        assert set(np.flatnonzero(split.occurring_items).tolist()) == items
    some = data.test.sample(20, seed=1)
    assert len(some) == 20
    assert np.isin(some.end, data.test.end).all()
    assert np.array_equal(some.end, data.test.sample(20, seed=1).end)
    assert data.test.sample(10**9) is data.test
