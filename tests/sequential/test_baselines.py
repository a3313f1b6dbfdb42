"""Popularity and co-occurrence: counts checked by hand, and their metrics on real data."""

import numpy as np
import polars as pl
import pytest

from resid import Dataset
from resid.evaluate import ranking_metrics
from resid.recommend import Recommender
from resid.sequential import CoOccurrence, CoOccurrenceSettings, Popularity, PopularityNew
from tests.recommend.contract import RecommenderContract


class TestPopularity(RecommenderContract):
    @classmethod
    def make(cls, data):
        return Popularity().fit(data)

    def test_it_counts_training_histories_only(self, model, data):
        training = [item for user in range(data.n_users) for item in data.history_at(user)[:-2]]
        assert model.catalogue_.counts.tolist() == np.bincount(training, minlength=12).tolist()


class TestPopularityNew(RecommenderContract):
    @classmethod
    def make(cls, data):
        return PopularityNew().fit(data)

    def test_new_items_come_first_by_the_popularity_of_their_fields(self, model, data):
        changed = Recommender.from_artifact(model.to_artifact())
        stores = pl.DataFrame({"store": data.item_table["store"], "count": data.training_counts}).drop_nulls()
        by_count = stores.group_by("store").agg(pl.col("count").sum()).sort("count")["store"].to_list()
        new = pl.DataFrame({"item": ["unknown", "rare", "popular"], "store": ["?", by_count[0], by_count[-1]]})
        changed.add_items(new)
        items, scores = changed.recommend(self.HISTORIES[0], 15)
        assert items[:3].tolist() == ["popular", "rare", "unknown"]
        assert items[3:].tolist() == model.recommend(self.HISTORIES[0], 12)[0].tolist()
        assert (np.diff(scores) <= 0).all()


class TestCoOccurrence(RecommenderContract):
    @classmethod
    def make(cls, data):
        return CoOccurrence().fit(data)

    def test_by_hand(self):
        histories = {"a": "pqrxx", "b": "pqyyy", "c": "pzzzz"}
        rows = [(user, item, step) for user, items in histories.items() for step, item in enumerate(items)]
        log = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
        data = Dataset.from_tables(log, k_core=1)  # training: p q r, p q y, p z z
        model = CoOccurrence(CoOccurrenceSettings(n_recent=2, decay=0.5)).fit(data)
        items, scores = model.recommend(["r", "p"], 6)
        share = np.sqrt([2 * 3, 1 * 3, 1 * 2])  # q with p, r with p, r with q
        wanted = {"q": 2 / share[0] + 0.5 / share[2], "p": 0.5 / share[1], "r": 1 / share[1]}
        wanted |= {"y": 1 / np.sqrt(3), "z": 1 / np.sqrt(3)}
        found = dict(zip(items.tolist(), scores.tolist(), strict=True))
        assert {name: found[name] for name in wanted} == pytest.approx(wanted, abs=1e-5)
        assert items[-1] == "x"  # co-occurs with nothing
        assert 0 < found["x"] < 1e-5


@pytest.mark.parametrize(
    ("name", "popularity", "kept", "dropped", "ndcg"),
    [("amazon2018-scientific", 0.023, 0.0904, 0.0975, 0.0626), ("amazon2014-beauty", 0.011, 0.0601, 0.0662, 0.0345)],
)
def test_metrics_on_real_data(real_data, name, popularity, kept, dropped, ndcg):
    folder = real_data / name
    data = Dataset.from_tables(
        folder / "interactions.parquet", folder / "items.parquet", ["store", "cat2", "cat3", "cat4"], missing="keep"
    )
    assert ranking_metrics(Popularity().fit(data).ranks(data.test)[0])["recall@10"] == pytest.approx(
        popularity, abs=6e-4
    )
    ranks, fresh = CoOccurrence().fit(data).ranks(data.test)
    assert ranking_metrics(ranks)["recall@10"] == pytest.approx(kept, abs=1.5e-3)
    assert ranking_metrics(ranks)["ndcg@10"] == pytest.approx(ndcg, abs=1.5e-3)
    assert ranking_metrics(fresh)["recall@10"] == pytest.approx(dropped, abs=1.5e-3)
