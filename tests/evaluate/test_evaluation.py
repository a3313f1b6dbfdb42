"""Metrics against ranx, intervals against a plain bootstrap, and slices of users."""

import json

import numpy as np
import pytest

from resid import Dataset, InputError
from resid.data.settings import PrepareSettings
from resid.evaluate import (
    NOT_FOUND,
    evaluate,
    gains,
    intervals,
    mean_reciprocal_ranks,
    paired_differences,
    ranking_metrics,
    ranks_of,
    slices,
)
from resid.evaluate.evaluation import Ranker
from resid.sequential import Popularity


def test_metrics_by_hand():
    items = np.array([[3, 1, 2], [4, 5, -1], [9, 8, 7]])
    ranks = ranks_of(items, np.array([1, 6, 9]))
    assert ranks.tolist() == [1, NOT_FOUND, 0]
    metrics = ranking_metrics(ranks, (1, 3))
    assert metrics["recall@1"] == pytest.approx(1 / 3)
    assert metrics["recall@3"] == pytest.approx(2 / 3)
    assert metrics["ndcg@1"] == pytest.approx(1 / 3)
    assert metrics["ndcg@3"] == pytest.approx((1 + 1 / np.log2(3)) / 3)


@pytest.mark.filterwarnings("ignore")  # warnings of ranx itself
def test_metrics_equal_those_of_ranx(monkeypatch):
    import numba

    monkeypatch.setattr(
        numba.config, "DISABLE_JIT", True
    )  # compiling ranx takes most of a minute, its Python code no time
    import ranx

    random = np.random.default_rng(0)
    scores = random.integers(0, 9, size=(60, 40)).astype(float)  # many ties
    targets = random.integers(0, 40, size=60)
    items = np.argsort(-scores, axis=1, kind="stable")[:, :12]  # ties in catalogue order
    wanted = ranx.Qrels({f"u{user}": {f"i{target}": 1} for user, target in enumerate(targets)})
    names = ["recall@5", "recall@10", "ndcg@5", "ndcg@10", "mrr@5", "mrr@10"]

    def ours(items):
        ranks = ranks_of(items, targets)
        return ranking_metrics(ranks) | mean_reciprocal_ranks(ranks)

    ties = 1e-6 * np.arange(40)  # ranx leaves the order of ties open
    run = ranx.Run(
        {f"u{u}": {f"i{item}": row[item] - ties[item] for item in range(40)} for u, row in enumerate(scores)}
    )
    assert ours(items) == pytest.approx(ranx.evaluate(wanted, run, names))
    # If no other item has the score of the target, ties do not matter, and ranx gets the plain scores.
    scores[np.arange(60), targets] += 0.5
    items = np.argsort(-scores, axis=1, kind="stable")[:, :12]
    run = ranx.Run({f"u{u}": {f"i{item}": row[item] for item in range(40)} for u, row in enumerate(scores)})
    assert ours(items) == pytest.approx(ranx.evaluate(wanted, run, names))


def test_intervals():
    ranks = np.random.default_rng(1).integers(0, 30, size=400)
    found = intervals(ranks, (10,))
    values = gains(ranks, (10,))
    random = np.random.default_rng(2)
    for name, (low, high) in found.items():
        means = [random.choice(values[name], 400).mean() for _ in range(1_000)]
        assert (low, high) == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.01)
        assert low < values[name].mean() < high
    assert intervals(ranks) == intervals(ranks)


def test_slices(shop):
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
    counts = np.zeros(data.n_items, dtype=int)
    for user in range(data.n_users):
        for item in data.sequence[data.offsets[user] : data.offsets[user + 1] - 2]:
            counts[item] += 1
    assert np.array_equal(data.training_counts, counts)
    parts = slices(data, data.test)
    by_history = [part for name, part in parts.items() if name.startswith("history")]
    by_target = [part for name, part in parts.items() if name.startswith("target")]
    for group in (by_history, by_target):
        assert (np.sum(group, axis=0) == 1).all()  # each user is in exactly one slice
    assert (data.test.end - data.test.begin)[parts["history 6–10"]].tolist() == [
        length for length in data.test.end - data.test.begin if 6 <= length <= 10
    ]
    assert (
        counts[data.test.targets[parts["target rare"]]].max() < counts[data.test.targets[parts["target popular"]]].min()
    )


def test_intervals_do_not_depend_on_other_cutoffs():
    ranks = np.random.default_rng(0).integers(0, 30, 500)
    few, many = intervals(ranks, (10,)), intervals(ranks, (1, 5, 10, 20))
    assert few == {name: many[name] for name in few}


def test_evaluate_refuses_a_path(shop):
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
    with pytest.raises(InputError, match=r"expected a recommender, got a str; see resid\.load"):
        evaluate("runs/mine", data)


class _Oracle:
    """The smallest thing that can be evaluated: it is no Recommender, but has the methods of a `Ranker`."""

    kind = "oracle"
    settings = PrepareSettings()
    measured_ = None

    def __init__(self, data):
        self.data = data

    def require_data(self, data):
        if data.fingerprint != self.data.fingerprint:
            raise InputError("another Dataset")

    def ranks(self, windows, k=10, *, progress=None, shift=0):
        ranks = np.arange(len(windows)) % 4 + shift
        return ranks, np.zeros(len(windows), dtype=np.int64)


def test_evaluate_takes_any_ranker(shop):
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
    oracle = _Oracle(data)
    assert isinstance(oracle, Ranker)
    assert isinstance(Popularity(), Ranker)
    assert not isinstance("runs/mine", Ranker)
    found = evaluate(oracle, data, "validation", k=5, shift=1)
    metrics = found.metrics((1, 5))
    assert metrics["model"] == "oracle"
    assert metrics["settings"] == PrepareSettings().to_dict()
    assert (metrics["split"], metrics["users"], metrics["options"]) == ("validation", data.n_users, {"shift": 1})
    assert metrics["seen_kept"]["recall@1"] == 0
    assert metrics["seen_kept"]["recall@5"] == metrics["seen_dropped"]["ndcg@1"] == 1
    assert metrics["seen_kept"]["intervals"]["recall@5"] == (1.0, 1.0)
    assert sum(part["users"] for name, part in metrics["slices"].items() if name.startswith("history")) == data.n_users
    json.dumps(metrics)
    assert found.table()["rank"].to_list() == (np.arange(data.n_users) % 4 + 2).tolist()
    other = Dataset.from_tables(shop.interaction_table, shop.item_table, ["categories"])
    with pytest.raises(InputError, match="another Dataset"):
        evaluate(oracle, other)


class TestPaired:
    def test_equals_a_bootstrap_one_by_one(self):
        rng = np.random.default_rng(0)
        ranks, others = (np.where(rng.random(400) < 0.5, rng.integers(20, size=400), NOT_FOUND) for _ in range(2))
        found = paired_differences(ranks, others, (10,))["ndcg@10"]
        values = gains(ranks, (10,))["ndcg@10"] - gains(others, (10,))["ndcg@10"]
        assert found["difference"] == pytest.approx(values.mean())
        means = [values[rng.integers(400, size=400)].mean() for _ in range(4_000)]
        assert found["interval"] == pytest.approx(np.quantile(means, [0.025, 0.975]), abs=0.004)

    def test_pairing_removes_what_users_have_in_common(self):
        """One model finds what the other finds and a little more: the difference is certain, the two metrics are not."""
        ranks = np.where(np.arange(400) % 2, 3, NOT_FOUND)
        better = np.where(np.arange(400) % 40 == 0, 3, ranks)
        low, _ = paired_differences(better, ranks, (10,))["recall@10"]["interval"]
        assert low > 0
        assert intervals(better, (10,))["recall@10"][0] < ranking_metrics(ranks, (10,))["recall@10"]

    def test_against_another_model(self, shop):
        data = Dataset.from_tables(shop.interaction_table)
        first, second = (evaluate(_Oracle(data), data, shift=shift) for shift in (0, 4))
        found = first.against(second.table())
        expected = first.metrics()["seen_kept"]["ndcg@10"] - second.metrics()["seen_kept"]["ndcg@10"]
        assert found["seen_kept"]["ndcg@10"]["difference"] == pytest.approx(expected)
        assert (
            found["seen_kept"]["recall@10"] == found["seen_dropped"]["ndcg@10"] == {"difference": 0, "interval": (0, 0)}
        )
        with pytest.raises(InputError, match="another split or Dataset"):
            first.against(evaluate(_Oracle(data), data, "validation").table())
