"""`resid.spark.recommend` on a local session gives what the model gives in this process."""

import polars as pl
import pytest

import resid.spark
from resid import InputError
from tests.small import small_data, small_onepass

pytestmark = pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("model") / "model"
    small_onepass().save(folder)
    return str(folder)


def test_log_and_histories(spark, folder):
    data = small_data()
    users = data.user_ids[:30].to_list()
    histories = [data.history(user).to_list() for user in users]
    items, scores = small_onepass().recommend(histories, 3, where={"in_stock": True})
    expected = {(user, rank): item for user, row in zip(users, items, strict=True) for rank, item in enumerate(row, 1)}
    log = [(u, i, step) for u, history in zip(users, histories, strict=True) for step, i in enumerate(history)]
    frames = [
        spark.createDataFrame(sorted(log, key=lambda row: row[1]), ["who", "item", "timestamp"]),
        spark.createDataFrame(list(zip(users, histories, strict=True)), ["who", "items"]),
    ]
    for frame in frames:
        found = resid.spark.recommend(frame, folder, 3, columns={"user": "who"}, where={"in_stock": True})
        assert found.columns == ["user", "rank", "item", "score"]
        table = pl.DataFrame(found.toArrow())
        assert {(row["user"], row["rank"]): row["item"] for row in table.iter_rows(named=True)} == expected
        best = table.filter(pl.col("user") == users[0]).sort("rank")["score"]
        assert best.to_list() == pytest.approx(scores[0].tolist(), abs=1e-4)


def test_mistakes_are_found_before_the_job_starts(spark, folder):
    frame = spark.createDataFrame([("u", "a", 1)], ["user", "itm", "timestamp"])
    with pytest.raises(InputError, match=r"no column 'item' \(did you mean 'itm'\?\)"):
        resid.spark.recommend(frame, folder)
    with pytest.raises(InputError, match="must be an array of item ids, not 'string'"):
        resid.spark.recommend(frame, folder, columns={"items": "itm"})
    with pytest.raises(InputError, match="k must be an integer"):
        resid.spark.recommend(frame, folder, 0)
    with pytest.raises(InputError, match="there is no field 'stor'"):
        resid.spark.recommend(frame, folder, where="stor=a")
