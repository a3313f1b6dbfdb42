"""The preprocessing steps: k-core, missing fields, short histories, chronology."""

from collections import Counter

import narwhals as nw
import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resid import Dataset
from resid.data.engines import PolarsEngine
from resid.data.prepare import k_core

ids = st.integers(0, 12).map(str)  # text, which the engine converts to categoricals
pairs = st.lists(st.tuples(ids, ids), max_size=150)


def core_of(rows, k):
    frame = pl.DataFrame(rows, schema={"user": pl.String, "item": pl.String}, orient="row")
    engine = PolarsEngine()
    return engine.collect(k_core(engine.compact(nw.from_native(frame.lazy())), k, engine)).rows()


def slow_core(rows, k):
    """Remove one offending user or item at a time."""
    rows = list(rows)
    while True:
        users, items = Counter(user for user, _ in rows), Counter(item for _, item in rows)
        bad = next((pair for pair in rows if users[pair[0]] < k or items[pair[1]] < k), None)
        if bad is None:
            return rows
        rows = (
            [pair for pair in rows if pair[0] != bad[0]] if users[bad[0]] < k else [p for p in rows if p[1] != bad[1]]
        )


class TestKCore:
    def test_the_largest_that_is_not_empty_is_named(self):
        rows = [(user, item, 0) for user in range(7) for item in range(9)]  # a 7-core, for each item has seven users
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        for k in (8, 9, 50):
            with pytest.raises(ValueError, match=f"the {k}-core is empty.*k_core=7"):
                Dataset.from_tables(log, k_core=k)

    @given(pairs, st.integers(1, 5))
    def test_is_the_largest_set_with_enough_interactions(self, rows, k):
        left = core_of(rows, k)
        for side in (0, 1):
            assert all(count >= k for count in Counter(pair[side] for pair in left).values())
        assert sorted(left) == sorted(slow_core(rows, k))  # the largest such set is unique

    @given(pairs, st.integers(1, 5), st.randoms())
    def test_order_of_rows_does_not_matter(self, rows, k, random):
        shuffled = list(rows)
        random.shuffle(shuffled)
        assert sorted(core_of(rows, k)) == sorted(core_of(shuffled, k))


def slow_histories(log: pl.DataFrame) -> dict:
    histories: dict = {}
    for user, item, _ in sorted(log.rows(), key=lambda row: row[2]):  # stable, so ties keep their order
        histories.setdefault(user, []).append(item)
    return histories


class TestHistories:
    @given(
        st.lists(st.tuples(st.integers(0, 4), st.integers(0, 6), st.integers(0, 5)), min_size=1, max_size=60),
        st.sampled_from([pl.Int64, pl.String]),
    )
    def test_equal_a_slow_reference(self, rows, type_):
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        log = log.with_columns(pl.col("user", "item").cast(type_))
        expected = {user: items for user, items in slow_histories(log).items() if len(items) >= 3}
        if not expected:
            with pytest.raises(ValueError, match="no user has 3 interactions left"):
                Dataset.from_tables(log, k_core=1)
            return
        data = Dataset.from_tables(log, k_core=1)
        found = {data.user_ids[u]: data.item_ids.gather(data.history_at(u)).to_list() for u in range(data.n_users)}
        assert found == expected
        assert data.item_ids.to_list() == sorted({item for items in expected.values() for item in items})

    def test_duplicates_are_kept_and_counted(self, log):
        data = Dataset.from_tables(pl.concat([log, log[:3]]))
        assert data.notes["duplicate_interactions"] == 3
        assert data.n_interactions == len(log) + 3


class TestMissingFields:
    def test_drop_then_short_users_without_a_second_core(self, log, items):
        data = Dataset.from_tables(log, items, ["store"])
        assert data.item_ids.to_list() == [
            "i0",
            "i1",
            "i2",
            "i4",
            "i5",
        ]  # each still has six users, each user five items
        assert [step["interactions"] for step in data.steps] == [36, 36, 30, 30]
        assert [step["items"] for step in data.steps] == [6, 6, 5, 5]

    def test_users_left_with_too_little_are_dropped(self):
        rows = [(user, item, 0) for user in range(4) for item in range(3)] + [(4, item, 0) for item in (0, 1, 3)]
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        items = pl.DataFrame({"item": range(4), "store": ["a", "b", "c", None]})
        data = Dataset.from_tables(log, items, ["store"], k_core=1)
        assert data.user_ids.to_list() == [0, 1, 2, 3]

    def test_keep_makes_missing_a_value(self, log, items):
        data = Dataset.from_tables(log, items, ["store", "categories"], missing="keep")
        assert data.n_items == 6
        assert data.fields[:, 0].tolist() == [1, 2, 1, 0, 2, 3]
        assert data.vocabulary("store").to_list() == ["a", "b", "c"]
        assert data.field_sizes[0] == 4

    def test_unlisted_items_can_count_as_missing(self, log, items):
        listed = items.filter(pl.col("item") != "i0")
        kept = Dataset.from_tables(log, listed, ["store"], missing="keep", unlisted_items="missing")
        assert kept.fields[:, 0].tolist() == [0, 2, 1, 0, 2, 3]
        dropped = Dataset.from_tables(log, listed, ["store"], unlisted_items="missing")
        assert "i0" not in dropped.item_ids.to_list()


class TestFields:
    def test_levels_of_a_path_are_qualified(self, log, items):
        data = Dataset.from_tables(log, items, ["categories"], missing="keep", short_paths="missing")
        assert data.field_names == ("cat1", "cat2", "cat3")
        assert data.vocabulary("cat1").to_list() == ["w", "x"]
        assert data.vocabulary("cat2").to_list() == ["w > y", "x > y", "x > z"]
        assert data.vocabulary("cat3").to_list() == ["x > y > q"]
        assert data.fields[5].tolist() == [2, 0, 0]  # an empty name ends the path

    def test_names_with_the_separator_in_them(self, log, items):
        paths = pl.Series([["a > b", "c"], ["a", "b > c"], ["a", "b"], ["a", "b"], ["a", "b"], ["a", "b"]])
        data = Dataset.from_tables(log, items.with_columns(categories=paths), ["categories"], path_levels=2)
        assert data.vocabulary("cat2").len() == 3

    def test_levels_by_name_alone(self, log, items):
        options = {"missing": "keep", "qualify_paths": False, "path_levels": 2, "short_paths": "missing"}
        data = Dataset.from_tables(log, items, ["categories"], **options)
        assert data.vocabulary("cat2").to_list() == ["y", "z"]

    def test_other_lists_keep_their_name(self, log, items):
        data = Dataset.from_tables(log, items.rename({"categories": "shelf"}), ["shelf"], missing="keep", path_levels=1)
        assert data.field_names == ("shelf1",)

    def test_integers_sort_as_integers_and_may_come_as_decimals(self, log, items):
        sizes = items.with_columns(size=pl.Series([10.0, 9.0, 10.0, 9.0, float("nan"), 100.0]))
        data = Dataset.from_tables(log, sizes, ["size"], missing="keep")
        assert data.vocabulary("size").to_list() == [9, 10, 100]
        assert data.fields[:, 0].tolist() == [2, 1, 2, 1, 0, 3]

    def test_booleans_and_empty_text(self, log, items):
        more = items.with_columns(new=pl.Series([True, False] * 3), text=pl.Series(["", " ", "b", "a", "b", "b"]))
        data = Dataset.from_tables(log, more, ["new", "text"], missing="keep")
        assert data.vocabulary("new").to_list() == ["false", "true"]
        assert data.fields[:, 1].tolist() == [0, 0, 2, 1, 2, 2]

    def test_codes_and_vocabulary_agree(self, shop):
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
        for column, name in enumerate(data.field_names):
            codes = data.fields[:, column]
            assert data.vocabulary(name).gather(codes - 1).to_list() == data.item_table[name].to_list()
            assert np.array_equal(np.unique(codes), np.arange(1, data.field_sizes[column]))

    def test_kept_columns(self, log, items):
        assert Dataset.from_tables(log, items, ["store"]).item_table.columns == ["item", "store", "title"]
        kept = Dataset.from_tables(log, items, ["store"], keep=["categories"])
        assert kept.item_table.columns == ["item", "store", "categories"]
