"""Metrics of lists against slow references in the words of their definitions; the lists themselves."""

import json
import math

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.cli import main
from resid.evaluate import evaluate, intervals, paired_differences
from resid.evaluate.beyond_accuracy import beyond_accuracy, intra_list_diversity, long_tail
from resid.sequential import CoOccurrence, Popularity
from tests.data.test_fields import movies, ratings


@pytest.fixture(scope="module")
def data(shop):
    """By time and with all later items as targets, so that users have several lists."""
    options = {"split": "time", "validate_from": 0.7, "test_from": 0.85, "targets": "all"}
    return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"], **options)


@pytest.fixture(scope="module")
def found(data):
    return evaluate(CoOccurrence().fit(data), data, k=10, lists=True)


def slow_metrics(lists, data, windows):
    """Return the metrics of lists of item indices, which have no -1, one interaction and one pair at a time."""
    n = data.n_items
    training = [int(i) for row in range(data.n_users) for i, kept in zip(
        data.history_at(row), data.in_training[data.offsets[row] : data.offsets[row + 1]], strict=True) if kept]  # fmt: skip
    count = [training.count(item) for item in range(n)]
    often = [sum(items.count(item) for items in lists) for item in range(n)]
    # Half of the mean absolute difference of all pairs, relative to the mean.
    gini = sum(abs(a - b) for a in often for b in often) / (2 * n * sum(often))
    head, share = set(), 0
    for item in sorted(range(n), key=lambda item: (-count[item], item)):
        if share < 0.8 * len(training):
            head.add(item)
            share += count[item]

    def mean(values):
        values = list(values)
        return sum(values) / len(values)

    def information(item):
        return -math.log2((count[item] + 1) / (len(training) + n))

    def distance(a, b):
        return mean(float(x != y) for x, y in zip(data.fields[a], data.fields[b], strict=True))

    long = [items for items in lists if len(items) > 1]
    pairs = [[distance(a, b) for i, a in enumerate(items) for b in items[:i]] for items in long]
    histories = [
        [count[item] for item in data.sequence[first:end]]
        for first, end in zip(windows.first, windows.end, strict=True)
    ]
    full = [items for items in lists if items]
    return {
        "coverage": mean(item in {i for items in lists for i in items} for item in range(n)),
        "gini": gini,
        "novelty": mean(mean(map(information, items)) for items in full),
        "diversity": mean(map(mean, pairs)),
        "long_tail": mean(mean(item not in head for item in items) for items in full),
        "popularity_lift": mean(mean(count[item] for item in items) for items in full) / mean(map(mean, histories)) - 1,
    }


@pytest.mark.parametrize("gaps", [False, True])
def test_equal_a_slow_reference(data, found, gaps):
    windows = data.test.take(np.arange(60))
    items = found.rankings[1].items[:60].copy()
    if gaps:  # some lists are short, one has a single item and one has none
        items[np.random.default_rng(0).integers(1, 11, size=60)[:, None] <= np.arange(10)] = -1
        items[0], items[1, 1:] = -1, -1
    metrics = beyond_accuracy(items, data, windows, (3, 10))
    for k in (3, 10):
        lists = [[int(item) for item in row[:k] if item >= 0] for row in items]
        expected = slow_metrics(lists, data, windows)
        assert {name: metrics[f"{name}@{k}"] for name in expected} == pytest.approx(expected)
        assert len(metrics) == 2 * len(expected)


def test_extremes(data):
    """The same list for all is as concentrated as can be; all items for all are not."""
    windows, n = data.test, data.n_items
    same = beyond_accuracy(np.zeros((len(windows), 1), dtype=np.int64), data, windows, (1,))
    assert same["coverage@1"] == 1 / n
    assert same["gini@1"] == pytest.approx(1 - 1 / n)
    assert "diversity@1" not in same  # one item has no pair
    everything = beyond_accuracy(np.tile(np.arange(n), (len(windows), 1)), data, windows, (n,))
    assert everything[f"coverage@{n}"] == 1
    assert everything[f"gini@{n}"] == pytest.approx(0)
    assert everything[f"long_tail@{n}"] == pytest.approx(long_tail(data.training_counts).mean())


def test_items_that_were_added_to_the_model_do_not_count(data):
    lists = np.array([[0, 1, data.n_items + 2], [data.n_items, 3, 0]])
    known, windows = np.where(lists < data.n_items, lists, -1), data.test.take(np.arange(len(data.test)) < 2)
    assert beyond_accuracy(lists, data, windows, (3,)) == beyond_accuracy(known, data, windows, (3,))


def test_long_tail():
    assert long_tail(np.array([1, 40, 40, 10, 9, 0])).tolist() == [True, False, False, True, True, True]  # exactly 80%
    assert long_tail(np.array([1, 40, 39, 10, 10, 0])).tolist() == [True, False, False, False, True, True]


def test_diversity_of_tags():
    """Sets of tags differ by their Jaccard distance; other fields by being unequal."""
    data = Dataset.from_tables(ratings(), movies(), ["genres:tags", "release_year:category"], missing="keep")
    tags, years = (data.item_table[name].to_list() for name in ("genres", "release_year"))
    rng = np.random.default_rng(1)
    items = np.array([rng.permutation(data.n_items)[:4] for _ in range(30)])

    def distance(a, b):
        one, other = (set(tags[item] or ()) for item in (a, b))
        differ = 1 - len(one & other) / len(one | other) if one | other else 0
        return (differ + (years[a] != years[b])) / 2

    assert data.fields.ndim == 3
    expected = np.mean([distance(a, b) for row in items for i, a in enumerate(row) for b in row[:i]])
    assert 0 < expected < 1
    assert intra_list_diversity(items, data.fields) == pytest.approx(expected)


def test_popularity_has_the_metrics_of_its_list(data):
    found = evaluate(Popularity().fit(data), data, k=10, lists=True).metrics((10,))["beyond_accuracy"]
    assert found["seen_kept"]["coverage@10"] == 10 / data.n_items
    assert found["seen_kept"]["long_tail@10"] == 0
    assert found["seen_kept"]["popularity_lift@10"] > found["seen_dropped"]["popularity_lift@10"] > 0
    without = evaluate(Popularity().fit(data), data).metrics((10,))["beyond_accuracy"]["seen_kept"]
    assert list(without) == ["mrr@10"]
    assert without["mrr@10"] == found["seen_kept"]["mrr@10"]


class TestSeveralTargets:
    def test_counts_and_protocol(self, data, found):
        metrics = found.metrics()
        json.dumps(metrics)
        assert metrics["targets"] == len(data.test) > metrics["users"] == len(set(data.test.users.tolist()))
        assert metrics["protocol"]["split"] == "time"
        assert metrics["protocol"]["test_from"] == data.notes["time_split"]["test_from"]
        assert metrics["protocol"]["candidates"] == "whole catalogue"
        by_history = [part for name, part in metrics["slices"].items() if name.startswith("history")]
        assert sum(part["targets"] for part in by_history) == metrics["targets"]
        assert repr(found).endswith("seen items kept)")

    def test_intervals_draw_users(self):
        """If all targets of a user have one rank, there is as much certainty as with one target per user."""
        ranks = np.random.default_rng(0).integers(0, 20, size=100)
        users = np.repeat(np.arange(100), 9)
        many = intervals(np.repeat(ranks, 9), (10,), users=users)["recall@10"]
        assert many == pytest.approx(intervals(ranks, (10,))["recall@10"], abs=0.02)
        narrow = intervals(np.repeat(ranks, 9), (10,))["recall@10"]
        assert narrow[1] - narrow[0] < 0.5 * (many[1] - many[0])
        # One target per user is what it was without users.
        assert intervals(ranks, users=np.arange(100)) == intervals(ranks)

    def test_against_draws_users(self):
        rng = np.random.default_rng(3)
        better = np.repeat(rng.random(80) < 0.5, 6)
        ranks, others = np.where(better, 0, 30), np.full(480, 30)
        users = np.repeat(np.arange(80), 6)
        low, high = paired_differences(ranks, others, (10,), users=users)["recall@10"]["interval"]
        means = [better[::6][rng.integers(80, size=80)].mean() for _ in range(2_000)]
        assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.03)


class TestLists:
    def test_match_the_ranks(self, data, found):
        lists, table = found.lists(), found.table()
        assert lists.columns == ["row", "user", "seen", "rank", "item", "score"]
        for seen, column in (("kept", "rank"), ("dropped", "rank_seen_dropped")):
            chosen = lists.filter(pl.col("seen") == seen)
            assert chosen.group_by("row").len()["len"].max() == 10
            joined = chosen.join(table.with_row_index("row").with_columns(pl.col("row").cast(pl.UInt32)), on="row")
            assert (joined["user"] == joined["user_right"]).all()
            hits = joined.filter(pl.col("item") == pl.col("target"))
            assert hits["rank"].cast(pl.Int64).to_list() == hits[column if column != "rank" else "rank_right"].to_list()
            assert len(hits) == table[column].count()
            assert (joined.sort("row", "rank")["score"].diff().fill_null(0) <= 0).sum() > 0
        history, _ = data.test.unbounded.window(5)
        known = set(data.item_ids.gather(history.astype(np.int64)).to_list())
        assert not known & set(lists.filter(pl.col("seen") == "dropped", pl.col("row") == 5)["item"].to_list())

    def test_were_not_kept(self, data):
        with pytest.raises(InputError, match=r"lists were not kept; use evaluate\(\.\.\., lists=True\)"):
            evaluate(Popularity().fit(data), data).lists()

    def test_a_ranker_without_lists(self, shop):
        from tests.evaluate.test_evaluation import _Oracle

        plain = Dataset.from_tables(shop.interaction_table)
        with pytest.raises(InputError, match="a _Oracle has no lists, only ranks"):
            evaluate(_Oracle(plain), plain, lists=True)


def test_command(data, tmp_path, capsys):
    data.save(tmp_path / "data")
    run = tmp_path / "run"
    assert main(["fit", str(tmp_path / "data"), "--recipe", "popularity", "--out", str(run)]) == 0
    assert main(["evaluate", str(run), "--lists"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for text in ("The top 10 beyond accuracy", "seen kept", "dropped*", f"All {data.n_items} items are ranked",
                 "time split: trained before", "all of each period", "-lists.parquet"):  # fmt: skip
        assert text in printed
    lists = pl.read_parquet(run / "evaluation" / "test-lists.parquet")
    metrics = json.loads((run / "evaluation" / "test.json").read_text())
    assert lists["row"].n_unique() == metrics["targets"]
    shares = lists.filter(pl.col("seen") == "kept")["item"].n_unique() / data.n_items
    assert metrics["beyond_accuracy"]["seen_kept"]["coverage@10"] == pytest.approx(shares)
    # Lists of earlier ranks do not stay beside new ranks.
    assert main(["evaluate", str(run), "--json"]) == 0
    assert not (run / "evaluation" / "test-lists.parquet").exists()
    assert "beyond_accuracy" in json.loads(capsys.readouterr().out)
