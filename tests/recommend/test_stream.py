"""Recommendations for files: all formats, as `recommend` gives them, in many parts, and after an interrupt."""

import gzip
import json

import polars as pl
import pytest

from resid import InputError
from resid.core.locks import exclusive
from resid.core.progress import Silent
from resid.recommend import recommend_file, stream
from resid.sequential import CoOccurrence
from tests.small import small_data, small_onepass


@pytest.fixture(scope="module")
def log():
    data = small_data()
    rows = [(user, item, step) for user in data.user_ids for step, item in enumerate(data.history(user))]
    table = pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")
    return table.sample(fraction=1, shuffle=True, seed=0)  # not grouped by user


@pytest.fixture(scope="module")
def lists(log):
    ordered = log.sort("timestamp", maintain_order=True).group_by("user", maintain_order=True)
    return ordered.agg(pl.col("item").alias("items")).sort("user")


@pytest.fixture(scope="module")
def expected(lists):
    items, scores = small_onepass().recommend(lists["items"].to_list(), 4)
    rows = [
        (user, rank, item, float(score))
        for user, row, values in zip(lists["user"], items, scores, strict=True)
        for rank, (item, score) in enumerate(zip(row, values, strict=True), 1)
    ]
    return pl.DataFrame(rows, schema=["user", "rank", "item", "score"], orient="row")


def same(found, expected):
    keys = ["user", "rank"]
    found, expected = found.sort(keys), expected.sort(keys)
    assert found["item"].to_list() == expected["item"].to_list()
    assert found["user"].to_list() == expected["user"].to_list()
    assert (found["score"] - expected["score"]).abs().max() < 1e-4


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(stream, "_FILE_ROWS", 500)
    monkeypatch.setattr(stream, "_FILE_USERS", 40)
    monkeypatch.setattr(stream, "_READ_ROWS", 700)


def write(table, path):
    if path.name.endswith(".parquet"):
        table.write_parquet(path, row_group_size=200)
    elif path.name.endswith(".jsonl"):
        table.write_ndjson(path)
    else:
        if "items" in table.columns:
            table = table.with_columns(pl.col("items").list.join(","))
        text = table.write_csv()
        path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize(
    ("name", "out"),
    [
        ("log.parquet", "out.parquet"),
        ("log.csv", "out.csv"),
        ("log.csv.gz", "out.jsonl"),
        ("log.jsonl", "out.parquet"),
    ],
)
def test_a_log(log, expected, tmp_path, name, out):
    write(log, tmp_path / name)
    result = recommend_file(small_onepass(), tmp_path / name, tmp_path / out, 4)
    read = {"parquet": pl.read_parquet, "csv": pl.read_csv, "jsonl": pl.read_ndjson}[out.split(".")[1]]
    same(read(tmp_path / out), expected)
    assert (result.users, result.rows) == (small_data().n_users, len(expected))
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([name, out])


@pytest.mark.usefixtures("small_files")
@pytest.mark.parametrize("name", ["lists.parquet", "lists.csv", "lists.jsonl"])
def test_one_history_per_row(lists, expected, tmp_path, name):
    write(lists.rename({"items": "read"}) if name.endswith("parquet") else lists, tmp_path / name)
    columns = {"items": "read"} if name.endswith("parquet") else None
    recommend_file(small_onepass(), tmp_path / name, tmp_path / "out.parquet", 4, columns=columns)
    found = pl.read_parquet(tmp_path / "out.parquet")
    same(found, expected)
    assert found["user"].unique(maintain_order=True).to_list() == lists["user"].to_list()  # in the order of the file


def test_a_small_log_gives_users_in_order(log, expected, tmp_path):
    write(log, tmp_path / "log.parquet")
    recommend_file(small_onepass(), tmp_path / "log.parquet", tmp_path / "out.parquet", 4)
    assert pl.read_parquet(tmp_path / "out.parquet")["user"].to_list() == expected["user"].to_list()


class Stopping(Silent):
    """Raises an interrupt after so many users."""

    def __init__(self, users):
        self.left, self.done = users, []

    def bar(self, text, total, *, done=0, unit=""):
        self.done.append((text, total, done))
        return super().bar(text, total) if text != "Recommending" else self._bar()

    def _bar(self):
        import contextlib

        @contextlib.contextmanager
        def opened():
            yield self.advance

        return opened()

    def advance(self, amount, note=""):
        self.left -= amount
        if self.left < 0:
            raise KeyboardInterrupt


@pytest.mark.usefixtures("small_files")
def test_continues_after_an_interrupt(lists, expected, tmp_path, caplog):
    strange = lists.with_columns(items=pl.concat_list(pl.lit("unknown"), pl.col("items")))
    write(strange, tmp_path / "lists.parquet")
    arguments = (small_onepass(), tmp_path / "lists.parquet", tmp_path / "out.parquet", 4)
    with pytest.raises(KeyboardInterrupt):
        recommend_file(*arguments, progress=Stopping(100))
    work = tmp_path / ".out.parquet.partial-work"
    finished = {path: path.stat().st_mtime_ns for path in (work / "output").iterdir()}
    assert len(finished) == 2  # of 40 users each
    again = Stopping(10**6)
    recommend_file(*arguments, progress=again)
    assert again.done == [("Recommending", len(lists), 80)]
    same(pl.read_parquet(tmp_path / "out.parquet"), expected)
    assert f"Skipped {len(lists)} unknown item ids (e.g. 'unknown')" in caplog.text  # also of the first two parts
    assert not work.exists()


@pytest.mark.usefixtures("small_files")
def test_another_job_starts_anew(lists, tmp_path):
    write(lists, tmp_path / "lists.parquet")
    arguments = (small_onepass(), tmp_path / "lists.parquet", tmp_path / "out.parquet")
    with pytest.raises(KeyboardInterrupt):
        recommend_file(*arguments, 3, progress=Stopping(100))
    other = Stopping(10**6)
    recommend_file(*arguments, 2, where="in_stock=true", progress=other)
    assert other.done[-1] == ("Recommending", len(lists), 0)
    found = pl.read_parquet(tmp_path / "out.parquet")
    assert found["rank"].max() == 2
    stocked = small_data().item_table.filter("in_stock")["item"]
    assert found["item"].is_in(stocked.to_list()).all()


def test_two_at_once(lists, tmp_path):
    write(lists, tmp_path / "lists.parquet")
    with (
        exclusive(tmp_path / ".out.csv.partial-work"),
        pytest.raises(InputError, match=r"out\.csv: another run is using this file; wait for it"),
    ):
        recommend_file(small_onepass(), tmp_path / "lists.parquet", tmp_path / "out.csv")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", "user,item\n1,2\n", "there is no column 'timestamp', it has user, item"),
        ("a.csv", "user;items\n1;a\n", "the separator seems to be ';'"),
        ("a.csv", "user,items\n", "the table is empty"),
        ("a.csv", "", "empty"),
        ("a.csv", "user,items\n1,a,b\n", "row 1 has 3 values but the header has 2"),
        ("a.csv", "user,items\n,a\n", "column 'user': missing value in row 1"),
        ("a.csv", "user,item,timestamp\n1,a,1\n2,,2\n", "column 'item': missing value in row 2"),
        ("a.jsonl", '{"user": 1, "items": 5}\n', "a history is a list of item ids, not Int64"),
        ("a.jsonl", '{"user": 1, "items": [["a"]]}\n', "a history is a list of item ids, not List"),
        (
            "a.jsonl",
            '{"user": "a", "item": "b", "timestamp": 1}\n{"user": "a", "item": ["b"], "timestamp": 2}\n',
            "line 2: ['b'] in column 'item', which has text in other lines",
        ),
        ("a.jsonl", "no\n", "line 1: not a JSON object"),
        ("a.txt", "user", "unknown file format"),
        ("a.parquet", "PAR1", "the file cannot be read"),
    ],
)
def test_bad_files(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as error:
        recommend_file(small_onepass(), tmp_path / name, tmp_path / "out.parquet")
    assert message in str(error.value)
    assert ".partial" not in str(error.value)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_users_that_are_integers_only_at_first(tmp_path, monkeypatch):
    """The type of ids is that of the whole file, although each part is checked alone."""
    monkeypatch.setattr(stream, "_FILE_USERS", 2)
    item = small_data().item_ids[0]
    rows = [f"{user},{item}" for user in ("1", "2", "3", "x")]
    (tmp_path / "a.csv").write_text("\n".join(["user,items", *rows, "y,", ""]))
    model = CoOccurrence().fit(small_data())
    recommend_file(model, tmp_path / "a.csv", tmp_path / "out.jsonl", 1)
    users = [json.loads(line)["user"] for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert users == ["1", "2", "3", "x", "y"]
