"""The synthetic shop: exact counts, deterministic, and with the documented signal."""

import gzip
import json
from collections import Counter, defaultdict

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.data import synthetic_shop
from resid.data.synthetic import SyntheticShop


@pytest.fixture(scope="module")
def data():
    shop = synthetic_shop(users=4_000, items=1_000, interactions=40_000, seed=0)
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])


@pytest.mark.parametrize("size", [(1, 8, 1), (10, 8, 23), (300, 80, 3_000), (45_000, 500, 230_000)])
def test_counts_are_exact(size):
    users, items, interactions = size
    shop = synthetic_shop(*size, seed=1)
    log = shop.interaction_table
    assert len(log) == interactions
    assert log["user"].n_unique() == users
    assert shop.item_table["item"].n_unique() == items
    assert set(log["item"]) <= set(shop.item_table["item"])
    assert log.group_by("user").len()["len"].min() >= min(5, interactions // users)


def test_same_seed_same_shop(shop):
    again = SyntheticShop(shop.users, shop.items, shop.interactions, shop.seed)
    assert again.interaction_table.equals(shop.interaction_table)
    assert again.item_table.equals(shop.item_table)
    other = SyntheticShop(shop.users, shop.items, shop.interactions, shop.seed + 1)
    assert not other.interaction_table.equals(shop.interaction_table)


def hit_rate(data, recommend):
    """How often the test target is among ten recommendations for the item before it."""
    pairs = [(data.history_at(user)[-2], data.history_at(user)[-1]) for user in range(data.n_users)]
    return np.mean([target in recommend(previous) for previous, target in pairs])


def top_ten(counts):
    return {key for key, _ in counts.most_common(10)}


def test_order_predicts_better_than_popularity(data):
    histories = [data.history_at(user)[:-2] for user in range(data.n_users)]
    popular = top_ten(Counter(np.concatenate(histories).tolist()))
    followers = defaultdict(Counter)
    for history in histories:
        for previous, following in zip(history[:-1].tolist(), history[1:].tolist(), strict=True):
            followers[previous][following] += 1
    assert hit_rate(data, lambda item: top_ten(followers[item])) > 2.5 * hit_rate(data, lambda item: popular)


def test_fields_predict_the_next_item(data):
    """Predict the next leaf category from the last one, compared with the most frequent leaf categories."""
    leaf = data.fields[:, data.field_names.index("cat3")]
    histories = [leaf[data.history_at(user)] for user in range(data.n_users)]
    popular = {key for key, _ in Counter(np.concatenate(histories).tolist()).most_common(3)}
    followers = defaultdict(Counter)
    for history in histories:
        for previous, following in zip(history[:-2].tolist(), history[1:-1].tolist(), strict=True):
            followers[previous][following] += 1
    hits = [{key for key, _ in followers[h[-2]].most_common(3)} >= {h[-1]} for h in histories]
    assert np.mean(hits) > 2 * np.mean([history[-1] in popular for history in histories])


def test_popularity_is_skewed_and_stores_specialize(data):
    counts = np.sort(np.bincount(data.sequence))[::-1]
    assert counts[: len(counts) // 10].sum() > 0.25 * counts.sum()
    table = data.item_table
    shelves_of_a_store = table.group_by("store").agg(
        pl.col("cat2").value_counts(sort=True).first().struct.field("count")
    )
    share = shelves_of_a_store["count"].sum() / len(table)
    assert share > 0.7


def test_tastes_drift(monkeypatch):
    """With drift, the favorite shelf differs more often between the two halves of a long history."""

    def loyalty(shop):
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["categories"])
        shelf = data.fields[:, 1]
        long = [shelf[data.history_at(user)] for user in range(data.n_users) if len(data.history_at(user)) >= 30]
        favourites = [[Counter(half.tolist()).most_common(1)[0][0] for half in np.array_split(h, 2)] for h in long]
        return np.mean([first == second for first, second in favourites])

    drifting = loyalty(synthetic_shop(users=600, items=1_000, interactions=30_000, seed=0))
    monkeypatch.setattr("resid.data.synthetic._DRIFT", 0.0)
    assert drifting < 0.8 * loyalty(synthetic_shop(users=600, items=1_000, interactions=30_000, seed=0))


def test_raw_files_are_written_block_by_block(shop, tmp_path, monkeypatch):
    monkeypatch.setattr("resid.data.synthetic._USERS_PER_BLOCK", 100)
    shop = SyntheticShop(shop.users, shop.items, shop.interactions, shop.seed)
    sizes = [len(block) for block in shop.blocks()]
    assert len(sizes) == 3
    assert sum(sizes) == shop.interactions
    shop.write_amazon_2023(tmp_path, "Shop")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["Shop.jsonl.gz", "meta_Shop.jsonl.gz"]
    with gzip.open(tmp_path / "Shop.jsonl.gz") as lines:
        reviews = [json.loads(line) for line in lines]
    log = shop.interaction_table
    assert [review["user_id"] for review in reviews] == log["user"].to_list()
    assert [review["timestamp"] for review in reviews] == log["timestamp"].to_list()
    assert set(reviews[0]) == {
        "rating", "title", "text", "images", "asin", "parent_asin", "user_id", "timestamp", "helpful_vote",
        "verified_purchase",
    }  # fmt: skip


@pytest.mark.parametrize("size", [(0, 8, 10), (5, 3, 10), (5, 8, 4)])
def test_impossible_shops_are_refused(size):
    with pytest.raises(InputError, match="a synthetic shop needs"):
        synthetic_shop(*size)
