"""The protocol cold-items: what is hidden, what is left, and the windows that are evaluated."""

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.data import hide_newest
from resid.data.cold_items import BY_POSITION, BY_TIME, newest_items


@pytest.fixture(scope="module")
def data(shop):
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


@pytest.fixture(scope="module")
def cold(data):
    return hide_newest(data, 0.1)


def test_the_items_that_appeared_last_are_hidden_with_all_interactions(shop, data, cold):
    log = shop.interaction_table
    first = log.group_by("item").agg(pl.col("timestamp").min()).sort("timestamp")["item"].to_list()
    first = [item for item in first if item in set(data.item_ids)]
    new = set(data.item_ids.filter(pl.Series(cold.is_new)))
    assert cold.order == BY_TIME
    assert new == set(first[-round(0.1 * data.n_items) :])
    assert new.isdisjoint(cold.known.item_ids)
    for user in cold.known.user_ids.head(50):
        assert cold.known.history(user).to_list() == [item for item in data.history(user) if item not in new]


def test_windows_are_those_of_the_whole_dataset(data, cold):
    names = [*cold.known.item_ids, *data.item_ids.filter(pl.Series(cold.is_new))]
    assert names[cold.known.n_items :] == cold.new_items(cold.known.catalogue).items["item"].to_list()
    whole, here = data.test, cold.windows
    for index in range(0, len(whole), 7):
        (history, target), (own, own_target) = whole.window(index), here.window(index)
        assert [names[item] for item in own] == data.item_ids.gather(history.astype(np.int64)).to_list()
        assert names[own_target] == data.item_ids[target]
    assert cold.targets_are_new.tolist() == cold.is_new[whole.targets].tolist()
    without, rows = cold.windows_without()
    assert (without.targets == here.targets[rows]).all()
    assert not cold.targets_are_new[rows].any()
    for index in range(0, len(without), 7):
        history = here.unbounded.window(rows[index])[0]
        assert without.window(index)[0].tolist() == history[history < cold.known.n_items][-31:].tolist()


def test_no_target_is_trained_on(data, cold):
    """Old test targets are held out of the training and of the validation of what is left."""
    known = cold.known
    users = known.user_indices(data.user_ids)[data.test.users]
    ends = dict(zip(known.test.users, known.test.end, strict=True))
    for window in np.flatnonzero(~cold.targets_are_new & (users >= 0)):
        assert known.sequence[ends[users[window]]] == cold.windows.targets[window]


def test_without_times_the_position_in_histories_counts(tmp_path, shop):
    log = shop.interaction_table.sort("timestamp").with_columns(timestamp=pl.int_range(pl.len()).over("user"))
    data = Dataset.from_tables(log, shop.item_table, ["store"])
    assert data.first_seen is None
    cold = hide_newest(data, 0.1)
    assert cold.order == BY_POSITION
    earliest = [1.0] * data.n_items
    for user in range(data.n_users):
        history = data.history_at(user)
        for place, item in enumerate(history):
            earliest[item] = min(earliest[item], place / (len(history) - 1))
    assert min(np.array(earliest)[cold.is_new]) >= max(np.array(earliest)[~cold.is_new])


def test_newest_items_of_training_do_not_depend_on_what_is_held_out(data):
    """With other validation and test items, the same items of training are the newest."""
    rng, sequence = np.random.default_rng(0), np.array(data.sequence)
    held_out = ~data.in_training
    sequence[held_out] = rng.integers(data.n_items, size=held_out.sum())
    arrays = {"fields": data.fields, "offsets": data.offsets}
    tables = {"users": data.user_ids.to_frame(), "items": data.item_table}
    facts = {"settings": data.settings, "field_names": data.field_names, "steps": [], "notes": {}}
    found = [
        newest_items(Dataset(arrays={**arrays, "sequence": each}, tables=tables, **facts), 0.2, in_training=True)
        for each in (data.sequence, sequence)
    ]
    assert np.array_equal(*found)
    assert found[0].sum() == round(0.2 * (data.training_counts > 0).sum())
    assert (data.training_counts[found[0]] > 0).all()


def test_the_time_of_appearance_is_saved_but_no_part_of_the_fingerprint(tmp_path, data):
    data.save(tmp_path / "data")
    read = Dataset.load(tmp_path / "data")
    assert read.first_seen.tolist() == data.first_seen.tolist()
    assert read._compute_fingerprint() == data.fingerprint
    (tmp_path / "data" / "first_seen.npy").write_bytes(b"")
    with pytest.raises(InputError, match=r"first_seen\.npy: missing or damaged"):
        Dataset.load(tmp_path / "data")


def test_a_time_split_keeps_its_boundaries(shop):
    data = Dataset.from_tables(
        shop.interaction_table, shop.item_table, ["store"], split="time", validate_from=0.7, test_from=0.85
    )
    cold = hide_newest(data, 0.2)
    known, users = cold.known, cold.known.user_indices(data.user_ids)
    for user in np.flatnonzero(users >= 0)[:50]:
        parts, own = data.boundaries[user], known.boundaries[users[user]]
        kept = ~cold.is_new[data.sequence]
        assert own[0] - known.offsets[users[user]] == kept[data.offsets[user] : parts[0]].sum()
        assert own[1] - own[0] == kept[parts[0] : parts[1]].sum()


@pytest.mark.parametrize("share", [0, 1, -0.1, 1.5, "0.1", True, float("nan")])
def test_invalid_shares(data, share):
    with pytest.raises(InputError, match="the share of new items must be more than 0 and less than 1"):
        hide_newest(data, share)


def test_too_little_data(log, items):
    data = Dataset.from_tables(log, items, ["store"], missing="keep")
    with pytest.raises(InputError, match=r"a share of 0\.01 of 6 items is 0"):
        hide_newest(data, 0.01)
    with pytest.raises(InputError, match=r"no user has 3 interactions left|is 6;|nothing to compare|no window"):
        hide_newest(data, 0.8)
