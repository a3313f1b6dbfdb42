"""Leave-one-out and windows, against a slow reference."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from resid import Dataset
from resid.data.splits import split_windows, unseen_targets

histories = st.lists(st.lists(st.integers(0, 9), min_size=3, max_size=12), min_size=1, max_size=8)


def flat(histories):
    offsets = np.concatenate([[0], np.cumsum([len(history) for history in histories])])
    return np.concatenate(histories).astype(np.int32), offsets


def windows_of(split):
    return [(int(split.users[w]), *(part if isinstance(part, int) else part.tolist() for part in split.window(w)))
            for w in range(len(split))]  # fmt: skip


@given(histories, st.integers(2, 6))
def test_windows_equal_a_slow_reference(histories, max_length):
    splits = split_windows(*flat(histories), n_items=10, max_length=max_length)

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


@given(histories)
def test_unseen_targets(histories):
    trained = {item for history in histories for item in history[:-2]}
    unseen = unseen_targets(*flat(histories), n_items=10)
    assert unseen["validation"].tolist() == [history[-2] not in trained for history in histories]
    assert unseen["test"].tolist() == [history[-1] not in trained for history in histories]

    plain = split_windows(*flat(histories), n_items=10, max_length=5)
    added = split_windows(*flat(histories), n_items=10, max_length=5, add_unseen_targets=True)
    held_out = [plain[name] for name in ("validation", "test")]
    extra = [window for split in held_out for window, new in
             zip(windows_of(split), unseen[split.name], strict=True) if new]  # fmt: skip
    assert windows_of(added["train"]) == windows_of(plain["train"]) + extra
    assert windows_of(added["test"]) == windows_of(plain["test"])


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
