"""Preprocessing on a local Spark session: the same Dataset, byte for byte."""

import os

import narwhals as nw
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.data.amazon import prepare_amazon
from resid.data.engines import SparkEngine
from tests.data.test_fields import movies, ratings

AMAZON = ["store", "cat2", "cat3", "cat4"]
FIELDS = {
    "amazon2014-beauty": AMAZON,
    "amazon2014-sports": AMAZON,
    "amazon2018-scientific": AMAZON,
    "amazon2023-all-beauty": ["store"],
    "complete-journey": ["store", "cat1", "cat2", "cat3"],
}


def same_bytes(first, second):
    assert sorted(os.listdir(first)) == sorted(os.listdir(second))
    for name in os.listdir(first):
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


@pytest.mark.parametrize("name", FIELDS)
def test_real_data_byte_for_byte(spark, real_data, tmp_path, name):
    tables = [real_data / name / "interactions.parquet", real_data / name / "items.parquet", FIELDS[name]]
    Dataset.from_tables(*tables).save(tmp_path / "polars")
    Dataset.from_tables(*tables, engine="spark", scratch=tmp_path).save(tmp_path / "spark")
    assert sorted(os.listdir(tmp_path)) == ["polars", "spark"]  # the scratch files are gone
    same_bytes(tmp_path / "polars", tmp_path / "spark")


def test_ties_in_many_files_and_parts(spark, real_data, tmp_path, monkeypatch):
    """Baskets with equal timestamps, in several files of different sizes, through several parts."""
    folder = real_data / "complete-journey"
    log = pl.read_parquet(folder / "interactions.parquet").head(60_000)
    (tmp_path / "log").mkdir()
    for number, (start, stop) in enumerate([(0, 5_000), (5_000, 45_000), (45_000, 60_000)]):
        log[start:stop].write_parquet(tmp_path / "log" / f"{number}.parquet")
    monkeypatch.setattr(SparkEngine, "_INTERACTIONS_PER_PART", 10_000)
    items, fields = folder / "items.parquet", ["store", "cat1"]
    Dataset.from_tables(log, items, fields).save(tmp_path / "polars")
    Dataset.from_tables(tmp_path / "log", items, fields, engine="spark").save(tmp_path / "spark")
    same_bytes(tmp_path / "polars", tmp_path / "spark")


def test_amazon_raw(spark, shop, tmp_path):
    shop.write_amazon_2023(tmp_path / "raw", "Shop")
    options = {"raw": tmp_path / "raw", "k_core": 8}  # several rounds
    prepare_amazon("amazon-2023", "Shop", **options).save(tmp_path / "polars")
    prepare_amazon("amazon-2023", "Shop", **options, engine="spark").save(tmp_path / "spark")
    same_bytes(tmp_path / "polars", tmp_path / "spark")


def test_options_of_text_files(spark, log, tmp_path):
    days = pl.from_epoch(log["timestamp"] + 20_000, time_unit="d")
    log = log.with_columns(timestamp=days.dt.strftime("%d/%m/%Y 8:05"), user=pl.format("é{}", "user"))
    path = tmp_path / "log.csv"
    path.write_text(pl.concat([log, log]).write_csv(separator=";"), encoding="latin-1")
    options = {"separator": ";", "encoding": "latin-1", "duplicates": "drop"}
    for timestamp_format in (None, "%d/%m/%Y %H:%M"):
        datasets = [
            Dataset.from_tables(path, engine=engine, timestamp_format=timestamp_format, **options)
            for engine in ("polars", "spark")
        ]
        assert datasets[0].fingerprint == datasets[1].fingerprint == Dataset.from_tables(log).fingerprint
        assert datasets[0].notes == datasets[1].notes


def test_text_files(spark, log, items, tmp_path):
    log = log.with_columns(
        pl.lit("2026-01-01T00:00:").add(pl.col("timestamp").cast(pl.String).str.zfill(2)).alias("timestamp")
    )
    log.write_csv(tmp_path / "log.csv")
    items.drop("categories").write_ndjson(tmp_path / "items.jsonl")
    tables = tmp_path / "log.csv", tmp_path / "items.jsonl", ["store"]
    first, second = Dataset.from_tables(*tables), Dataset.from_tables(*tables, engine="spark")
    assert first.fingerprint == second.fingerprint


def test_times_do_not_depend_on_the_session(spark, tmp_path):
    """02:30 does not exist in Berlin on that day, but it does with an offset or in UTC."""
    times = [
        "2026-03-29 02:30:00",
        "2026-03-29T03:10:00",
        "2026-03-29T03:20:00Z",
        "2026-03-29T05:25+02:00",
        "2026-03-30",
    ]
    log = pl.DataFrame({"user": "u", "item": list("abcde"), "timestamp": times})[::-1]
    spark.conf.set("spark.sql.session.timeZone", "Europe/Berlin")
    data = Dataset.from_tables(spark.createDataFrame(log.to_arrow()), k_core=1)
    spark.conf.unset("spark.sql.session.timeZone")
    assert data.item_ids.gather(data.history_at(0)).to_list() == list("abcde")
    assert Dataset.from_tables(log, k_core=1).fingerprint == data.fingerprint


def test_time_split(spark, shop, tmp_path, monkeypatch):
    moments = pl.from_epoch("timestamp", time_unit="ms").dt.cast_time_unit("us")
    shop.interaction_table.with_columns(timestamp=moments).write_parquet(tmp_path / "log.parquet")
    monkeypatch.setattr(SparkEngine, "_INTERACTIONS_PER_PART", 1_000)
    options = {"split": "time", "validate_from": "0.7", "test_from": "0.85", "targets": "all"}
    for engine in ("polars", "spark"):
        Dataset.from_tables(tmp_path / "log.parquet", engine=engine, **options).save(tmp_path / engine)
    same_bytes(tmp_path / "polars", tmp_path / "spark")


def test_folders_and_strange_names(spark, tmp_path):
    (tmp_path / "log" / "deep").mkdir(parents=True)
    for name, item in (("deep/b c", "x"), ("deep/b!", "y"), ("b~", "z"), ("_hidden", "h")):
        pl.DataFrame({"user": ["u"], "item": [item], "timestamp": [1]}).write_parquet(
            tmp_path / "log" / f"{name}.parquet"
        )
    first = Dataset.from_tables(tmp_path / "log", k_core=1)
    assert first.item_ids.to_list() == ["x", "y", "z"]
    assert first.fingerprint == Dataset.from_tables(tmp_path / "log", k_core=1, engine="spark").fingerprint


def test_a_narwhals_frame_over_spark(spark, log):
    frame = nw.from_native(spark.createDataFrame(log.to_arrow()))
    assert Dataset.from_tables(frame).fingerprint == Dataset.from_tables(log).fingerprint


class TestBadInput:
    def refused(self, match, *tables, **options):
        with pytest.raises(InputError, match=match) as caught:
            Dataset.from_tables(*tables, **options)
        assert "\n" not in str(caught.value)

    def test_null(self, spark, log):
        frame = spark.createDataFrame(log.with_columns(pl.col("user").replace("u3", None)).to_arrow())
        self.refused(r"column 'user': missing value in 6 rows, first in rows like \{'user': None, 'item': 'i3'", frame)

    def test_timestamp(self, spark, log):
        text = pl.Series(["2026-01-01"] * 35 + ["noon"])
        frame = spark.createDataFrame(log.with_columns(timestamp=text).to_arrow())
        self.refused("column 'timestamp': invalid timestamp in row like .*'noon'", frame)

    def test_item_without_a_row(self, spark, log, items):
        frames = [spark.createDataFrame(frame.to_arrow()) for frame in (log, items[1:])]
        self.refused("no row for 1 of the items in the interactions table, first 'i0'", *frames, ["store"])

    def test_bad_json_line(self, spark, log, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text(log.write_ndjson() + "nonsense\n")
        self.refused(r"log\.jsonl: not a JSON object .*'nonsense'", path, engine="spark")
        data = Dataset.from_tables(path, engine="spark", skip_bad_lines=True)
        assert data.notes["skipped_lines"] == 1
        assert data.n_interactions == 36

    def test_truncated_gzip(self, spark, shop, tmp_path):
        shop.write_amazon_2023(tmp_path, "Shop")
        path = tmp_path / "Shop.jsonl.gz"
        path.write_bytes(path.read_bytes()[:-2_000])
        columns = {"user": "user_id", "item": "parent_asin"}
        self.refused(r"Shop\.jsonl\.gz: (the file )?cannot be read", path, columns=columns, engine="spark")

    def test_ragged_csv(self, spark, tmp_path):
        (tmp_path / "log.csv").write_text("user,item,timestamp\na,b,1\na,b,2,3,4\n")
        self.refused(r"log\.csv: (the file )?cannot be read", tmp_path / "log.csv", engine="spark")

    def test_one_spark_frame_only(self, spark, log, items):
        self.refused(
            "pass both tables as Spark frames, or neither", spark.createDataFrame(log.to_arrow()), items, ["store"]
        )


def test_kinds_of_fields(spark, tmp_path):
    table = movies().with_columns(
        categories=pl.Series([["Film", f"Shelf {item % 3}", f"Box {item % 7}"][: 1 + item % 3] for item in range(60)]),
        price=pl.when(pl.col("item") % 9 > 0).then("price"),
        genres=pl.when(pl.col("item") % 11 > 0).then("genres").otherwise(pl.lit([], pl.List(pl.String))),
    )
    ratings().write_parquet(tmp_path / "log.parquet")
    table.write_parquet(tmp_path / "items.parquet")
    paths, fields = (
        (tmp_path / "log.parquet", tmp_path / "items.parquet"),
        ["genres", "categories", "release_year:number", "price"],
    )
    for engine in ("polars", "spark"):
        data = Dataset.from_tables(*paths, fields, engine=engine, missing="keep")
        assert list(data.field_kinds.values()) == ["tags", "path", "path", "path", "number", "number"]
        data.save(tmp_path / engine)
    same_bytes(tmp_path / "polars", tmp_path / "spark")
