"""Tables as people have them: separators, encodings, ways to write a time, duplicates, ties, and what is reported."""

import gzip
import json
import logging
from datetime import datetime, timedelta

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.cli import main
from resid.data.fields import field_columns
from resid.data.readers import open_table
from resid.data.settings import PrepareSettings
from resid.data.splits import Histories
from resid.data.tables import checked_interactions

COLUMNS = {name: name for name in ("user", "item", "timestamp")}


def checked(log, timestamp_format=None, **options):
    """Return the validated log, which is all that most of these tests need."""
    table = open_table(log, "interactions", list(COLUMNS.values()), **options)
    table = checked_interactions(table, COLUMNS, timestamp_format)
    return table.engine.collect(table.frame)


def refused(match, log, timestamp_format=None, **options):
    with pytest.raises(InputError, match=match) as caught:
        checked(log, timestamp_format, **options)
    message = str(caught.value)
    assert "\n" not in message
    assert "\\x" not in message
    assert "\0" not in message


class TestSeparator:
    def test_is_an_option(self, log, tmp_path):
        for separator, name in ((";", ";"), ("\t", "tab"), ("\t", "\\t"), ("|", "|")):
            log.write_csv(tmp_path / "log.csv", separator=separator)
            table = open_table(tmp_path / "log.csv", "interactions", None, separator=name)
            assert table.engine.collect(table.frame).drop("__row__").equals(log.cast(pl.String))

    def test_the_error_names_it(self, log, tmp_path):
        path = tmp_path / "log.csv"
        log.write_csv(path, separator=";")
        refused(r"log\.csv: there is no column 'user'.*pass separator=';' \(--separator ';'\)", path)
        path.write_text("user;item;timestamp\na;b;1,5\n")  # a decimal comma
        refused("row 1 has 2 values but the header has 1; the separator seems to be ';'", path)

    @pytest.mark.parametrize("encoding", [None, "utf-16", "utf-16-be", "utf-32"])
    def test_one_of_two_tables_may_have_the_usual_one(self, log, items, tmp_path, encoding):
        """Likewise the encoding: the item table is UTF-8, of an even and an odd number of bytes."""
        (tmp_path / "log.csv").write_text(log.write_csv(separator=";"), encoding=encoding or "utf-8")
        expected = Dataset.from_tables(log, items, ["store"]).fingerprint
        for suffix, separator, end in ((".csv", ",", ""), (".csv", ",", "\n"), (".tsv", "\t", ""), (".csv", ";", "")):
            path = tmp_path / f"items{suffix}"
            path.write_text(items.drop("categories").write_csv(separator=separator) + end)
            data = Dataset.from_tables(tmp_path / "log.csv", path, ["store"], separator=";", encoding=encoding)
            assert data.fingerprint == expected

    @pytest.mark.parametrize("separator", ["", ";;", '"', "\n", "é", 5])
    def test_must_be_one_character(self, log, tmp_path, separator):
        log.write_csv(tmp_path / "log.csv")
        refused("is not a single character such as ';'", tmp_path / "log.csv", separator=separator)


class TestEncoding:
    @pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "latin-1", "utf-8-sig"])
    @pytest.mark.parametrize("suffix", [".csv", ".jsonl.gz"])
    def test_is_an_option(self, log, tmp_path, encoding, suffix):
        log = log.with_columns(pl.format("é{}", "user").alias("user"))
        text = (log.write_csv() if suffix == ".csv" else log.write_ndjson()).encode(encoding)
        path = tmp_path / f"log{suffix}"
        path.write_bytes(gzip.compress(text) if suffix.endswith(".gz") else text)
        table = open_table(path, "interactions", None, encoding=encoding)
        assert table.engine.collect(table.frame)["user"].to_list() == log["user"].to_list()

    @pytest.mark.parametrize("name", ["log.csv", "log.jsonl"])
    def test_the_error_names_it(self, log, tmp_path, name):
        path = tmp_path / name
        text = log.write_csv() if name == "log.csv" else log.write_ndjson()
        path.write_text(text, encoding="utf-16")
        refused(rf"{name}: the encoding seems to be UTF-16, not UTF-8; pass encoding='utf-16' \(--encoding", path)
        path.write_text(text, encoding="utf-16-be")
        refused("pass encoding='utf-16-be'", path)
        path.write_bytes(text.replace("u1", "é").encode("latin-1"))
        refused(rf"{name}, line \d+: not valid UTF-8; pass the encoding of the file", path)
        refused("the file is not valid utf-32; pass another encoding", path, encoding="utf-32")

    @pytest.mark.parametrize("encoding", ["nonsense", "base64", "zlib", 5])
    def test_must_be_one(self, log, tmp_path, encoding):
        log.write_csv(tmp_path / "log.csv")
        refused("is not a text encoding", tmp_path / "log.csv", encoding=encoding)


class TestTimestamps:
    def times(self, *texts, format=None):
        log = pl.DataFrame({"user": 1, "item": range(len(texts)), "timestamp": list(texts)})
        return checked(log, format)["timestamp"].to_list()

    def refused(self, match, *values, format=None):
        refused(match, pl.DataFrame({"user": 1, "item": range(len(values)), "timestamp": list(values)}), format)

    def test_ways_to_write_a_date(self):
        day = datetime.fromisoformat("2020-02-28T00:00:00+00:00")
        assert self.times("2020/02/28", "2020-2-28", "28/02/2020", "28.2.2020 0:00") == [day] * 4
        assert self.times("02/28/2020", "2/28/2020 00:00:00", "2020-02-28 00:00:00 UTC") == [day] * 3
        assert self.times("2020-02-28 00:00:00 UTC", "2020-02-28T01:00:00+01:00", "2020-02-28 0:00 GMT") == [day] * 3

    def test_day_or_month(self):
        self.refused(
            r"ambiguous date, .* in rows 1, 2 \('03/04/2020 10:11'\); pass timestamp_format='%d/%m/%Y %H:%M' or "
            r"'%m/%d/%Y %H:%M' \(--timestamp-format\)",
            "03/04/2020 10:11",
            "05/06/2020 10:11",
        )
        self.refused(
            r"date with the month first, where other rows have the day first, in row 2 \('02/28/2020'\); write all dates in one",
            "28/02/2020",
            "02/28/2020",
        )
        assert [time.day for time in self.times("03/04/2020", format="%d/%m/%Y")] == [3]
        assert [time.day for time in self.times("03/04/2020", format="%m/%d/%Y")] == [4]

    def test_format(self):
        assert self.times("28 Feb 2020 3:04 PM", format="%d %b %Y %I:%M %p") == [datetime(2020, 2, 28, 15, 4)]
        assert self.times("28.02.20 3:04:05.25", format="%d.%m.%y %H:%M:%S.%f")[0].microsecond == 250_000
        self.refused(
            r"timestamp does not have the format '%d/%m/%Y' in row 2 \('noon'\)",
            "28/02/2020",
            "noon",
            format="%d/%m/%Y",
        )
        self.refused("%f must follow a dot", "28.02.20 3:04:05,25", format="%d.%m.%y %H:%M:%S,%f")
        self.refused("is for text, and these timestamps are Int64; leave it out", 1, 2, format="%d")

    @pytest.mark.parametrize("format", ["", "noon", 5])
    def test_a_format_that_is_none(self, log, format):
        with pytest.raises(InputError, match="is not a format such as '%d/%m/%Y"):
            Dataset.from_tables(log, timestamp_format=format)

    def test_seconds_and_milliseconds(self):
        second = 1_582_848_000
        self.refused(
            r"column 'timestamp': milliseconds since 1970 instead of seconds in row 3 \(1582848000000\); use one unit",
            *(second, second + 1, second * 1000, second + 2, 0),
        )
        self.refused(
            "seconds since 1970 instead of microseconds in row 1", str(second), f"{second}000000", f"{second}000001"
        )
        assert len(self.times(5, second, second * 1000)) == 3  # not all of them are times since 1970
        assert len(self.times(second * 1000, second * 1000 + 5, 0)) == 3


class TestDuplicates:
    def test_a_doubled_log(self, log, caplog):
        double = pl.concat([log, log])
        data = Dataset.from_tables(double, duplicates="drop")
        assert data.fingerprint == Dataset.from_tables(log).fingerprint
        assert data.notes["duplicate_interactions"] == 36
        assert data.steps[1] == {"step": "duplicate interactions dropped", "users": 6, "items": 6, "interactions": 36}
        assert not caplog.text  # it was asked for
        assert "repeated_test_targets" not in data.notes
        kept = Dataset.from_tables(double)
        assert kept.notes["repeated_test_targets"] == kept.n_users == 6
        assert kept.info()["density"] == data.info()["density"] == 1
        history, target = kept.test.window(0)
        assert history[-1] == target  # what the report warns of
        assert "36 of 72 interactions are exact duplicates; drop them with duplicates='drop' (--dup" in caplog.text

    def test_ties_keep_the_order_of_the_file(self):
        log = pl.DataFrame({"user": "u", "item": list("dbdca"), "timestamp": [1, 1, 1, 1, 0]})
        data = Dataset.from_tables(log, k_core=1, duplicates="drop")
        assert data.history("u").to_list() == list("adbc")

    def test_unknown_value(self, log):
        with pytest.raises(InputError, match="invalid value 'both' for duplicates"):
            Dataset.from_tables(log, duplicates="both")


class TestTies:
    def slow(self, users):
        """Count the targets that have a neighbour of equal timestamp, another item, in any of the file's orders."""
        counts = {"validation": 0, "test": 0}
        for rows in users:
            for name, back in (("validation", 2), ("test", 1)):
                time = rows[-back][1]
                counts[name] += len({item for item, at in rows if at == time}) > 1
        return counts

    def test_equal_a_slow_reference(self):
        rng = np.random.default_rng(0)
        users = [
            sorted(zip(rng.integers(3, size=n), rng.integers(4, size=n), strict=True), key=lambda row: row[1])
            for n in rng.integers(3, 7, size=300)
        ]
        rows = [(user, *row) for user, history in enumerate(users) for row in history]
        tied = [i > 0 and a[0] == rows[i - 1][0] and a[2] == rows[i - 1][2] for i, a in enumerate(rows)]
        offsets = np.cumsum([0, *map(len, users)])
        sequence = np.array([row[1] for row in rows], dtype=np.int32)
        found = Histories(sequence, offsets, 3).count_tied_targets(np.array(tied))
        assert found == self.slow(users)
        assert 0 < found["test"] < 300

    def test_are_reported(self, tmp_path, capsys):
        """User 0 has a basket of two at the end, user 1 has one that holds the validation target, user 2 has none."""
        times = [[0, 1, 2, 2], [0, 1, 1, 2], [0, 1, 2, 3]]
        rows = [(user, item, times[user][item]) for user in range(3) for item in range(4)]
        pl.DataFrame(rows, schema=list(COLUMNS), orient="row").write_csv(tmp_path / "log.csv")
        out = str(tmp_path / "data")
        assert main(["prepare", str(tmp_path / "log.csv"), "--k-core", "1", "--max-length", "3", "--out", out]) == 0
        assert (
            "another item of the history: 2 validation, 1 test (the order of the file decides)"
            in capsys.readouterr().out
        )
        assert main(["info", out]) == 0
        assert "3 of 3 histories are longer than the window of 3 items" in capsys.readouterr().out
        assert main(["info", out, "--json"]) == 0
        facts = json.loads(capsys.readouterr().out)
        assert facts["history_lengths"]["longer_than_window"] == 3
        assert (facts["notes"]["tied_validation_targets"], facts["notes"]["tied_test_targets"]) == (2, 1)


def test_the_command_takes_all_options(log, tmp_path, capsys):
    days = [datetime(2026, 1, 1) + timedelta(days=value) for value in log["timestamp"]]
    dates = log.with_columns(timestamp=pl.Series([f"{day:%d %b %y}" for day in days]))
    path = tmp_path / "log.csv"
    path.write_text(pl.concat([dates, dates]).write_csv(separator=";"), encoding="utf-16")
    arguments = ["--separator", ";", "--encoding", "utf-16", "--timestamp-format", "%d %b %y", "--duplicates", "drop"]
    assert main(["prepare", str(path), *arguments, "--out", str(tmp_path / "data")]) == 0
    printed = capsys.readouterr().out
    assert "Duplicate interactions (dropped): 36" in printed
    assert "Targets that no training history contains: 0 validation, 0 test\n" in printed
    assert "copy of the item" not in printed
    keep = [*arguments[:-1], "keep"]
    assert main(["prepare", str(path), *keep, "--out", str(tmp_path / "double")]) == 0
    printed = capsys.readouterr().out
    assert "Targets that are a copy of the item before them: 0 validation, 6 test (of 6 users)" in printed
    assert Dataset.load(tmp_path / "data").fingerprint == Dataset.from_tables(log).fingerprint


class TestWarnings:
    def test_name_the_step_and_the_option(self, log, items, caplog):
        caplog.set_level(logging.WARNING)
        rare = pl.DataFrame({"user": ["u9"] * 2, "item": ["i8", "i9"], "timestamp": [0, 1]})
        Dataset.from_tables(pl.concat([log, rare]))
        assert (
            "step '5-core' removed 2 of 8 items and 2 of 38 interactions; keep more with a smaller k_core (--k-core)"
            in caplog.text
        )
        Dataset.from_tables(log, items, ["store"])
        assert (
            "'items with missing fields dropped' removed 1 of 6 items and 6 of 36 interactions; "
            "keep them with missing='keep' (--missing keep)" in caplog.text
        )

    def test_short_histories_and_skipped_lines(self, tmp_path, caplog):
        rows = [(user, item, item) for user in range(4) for item in range(3 if user else 2)]
        path = tmp_path / "log.jsonl"
        path.write_text(pl.DataFrame(rows, schema=list(COLUMNS), orient="row").write_ndjson() + "oops\n" * 2)
        Dataset.from_tables(path, k_core=1, skip_bad_lines=True)
        assert "removed 2 of 11 interactions; training, validation and test need one each" in caplog.text
        more = pl.DataFrame([(9, item, item) for item in range(20)], schema=list(COLUMNS), orient="row")
        Dataset.from_tables(
            pl.concat([pl.DataFrame(rows, schema=list(COLUMNS), orient="row"), more]), k_core=1, min_interactions=4
        )
        assert "removed 11 of 31 interactions; keep more with a smaller min_interactions (--min-inter" in caplog.text
        assert "skipped 2 of 13 lines because they are invalid; skip_bad_lines (--skip-bad-lines)" in caplog.text

    def test_nothing_to_say(self, log, caplog):
        Dataset.from_tables(log)
        assert not caplog.text


class TestRawErrors:
    """What a fuzzer found; `tests/faults/test_inputs.py` looks for more."""

    @pytest.mark.parametrize("suffix", [".csv.gz", ".jsonl.gz"])
    def test_gzip_damaged_in_the_middle(self, tmp_path, suffix):
        rows = pl.DataFrame({"user": range(3_000), "item": [n * 7919 % 1_000 for n in range(3_000)], "timestamp": 0})
        text = rows.write_csv() if suffix == ".csv.gz" else rows.write_ndjson()
        content = bytearray(gzip.compress(text.encode()))
        path = tmp_path / f"log{suffix}"
        for place in (
            20,
            len(content) // 2,
        ):  # the code table, which cannot be read, and the text, whose checksum differs
            damaged = content[:place] + b"\0\xff" * 10 + content[place + 20 :]
            path.write_bytes(damaged)
            refused("the gzip file is truncated or damaged", path)

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            (b'{"user": "\xe9", "item": 1, "timestamp": 1}', "line 2: not valid UTF-8"),
            (b'\xef\xbb\xbf{"user": "a", "item": 1, "timestamp": 1}', "line 2: not a JSON object"),
            ('{"user": "ä"}'.encode("utf-16"), "line 2: not valid UTF-8"),  # not guessed for a single line
            (
                b'{"user": "a", "item": 1, "timestamp": 1' + b"0" * 60 + b"}",
                "line 2: column 'timestamp' has a number beyond 64 bits; fix",
            ),
            (
                b'{"user": "a", "item": 1, "timestamp": 1e999}',
                "line 2: column 'timestamp' has a number beyond 64 bits; fix",
            ),
            (
                b'{"user": "a", "item": 99999999999999999999, "timestamp": 1}',
                "line 2: column 'item' has a number beyond 64 bits; fix",
            ),
            (b'{"user": "a", "item": ["b"], "timestamp": 1}', "a column has values of different types"),
            (
                b'{"user": ["b"], "item": 1, "timestamp": 1}',
                r"line 2: \['b'\] in column 'user', which has text in other lines",
            ),
            (
                b'{"user": {"c": 1}, "item": 1, "timestamp": 1}',
                r"line 2: \{'c': 1\} in column 'user', which has text in",
            ),
            (b'{"user": "a", "item": 1, "timestamp": ' + b"[" * 2000 + b"]" * 2000 + b"}", "line 2: "),
        ],
    )
    def test_lines_that_do_not_fit(self, tmp_path, line, problem):
        path = tmp_path / "log.jsonl"
        path.write_bytes(b'{"user": "a", "item": 1, "timestamp": 1}\n' + line + b"\n")
        refused(problem, path)

    def test_a_line_after_those_that_gave_the_types(self, tmp_path, monkeypatch):
        from resid.data import jsonl

        monkeypatch.setattr(jsonl, "_CHUNK", 20)
        path = tmp_path / "log.jsonl"
        for value, problem in (
            ('["b"]', r"column 'item' has \['b'\] and integers in other lines; fix or remove the line"),
            ("2.5", "column 'item' has 2.5 and integers in other lines; fix or remove the line"),
            ("1e999", "column 'item' has a number beyond 64 bits; fix or remove the line"),
        ):
            first = '{"user": "a", "item": 1, "timestamp": 1}\n'
            path.write_text(first + first.replace('"item": 1', f'"item": {value}'))
            refused(f"line 2: {problem}", path)

    def test_text_that_looks_like_a_list(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text(
            "".join(f'{{"user": "[u]", "item": "[\\"{item}\\"]", "timestamp": 1, "more": [1]}}\n' for item in "ab")
        )
        assert checked(path)["item"].to_list() == ['["a"]', '["b"]']

    def test_columns_of_different_types(self, tmp_path):
        path = tmp_path / "log.jsonl"
        path.write_text('{"user": {"a": 1}}\n{"user": [1]}\n')
        refused("a column has values of different types", path)

    def test_lines_of_python_that_are_not_json(self, tmp_path):
        from resid.data.jsonl import read_jsonl

        (tmp_path / "meta.json").write_text("{'a': {1, 2}}\n")
        with pytest.raises(InputError, match="line 1: not a JSON object"):
            read_jsonl(tmp_path / "meta.json", ["a"], dialect="literal")

    def test_whole_floats_beyond_64_bits(self, items):
        table = open_table(items.with_columns(size=pl.lit(1e300)), "items", None)
        settings = PrepareSettings(fields=("size",))
        assert field_columns(table.engine.collect(table.frame), settings, table)[1] == ("number",)
        with pytest.raises(InputError, match=r"column 'size' has numbers, not text or integers; use size:number"):
            field_columns(table.engine.collect(table.frame), settings.replace(kinds=("category",)), table)

    @pytest.mark.parametrize("value", [None, {"a": 1}, [1], b"x"])
    def test_a_column_with_the_name_of_the_row_numbers(self, log, value, tmp_path):
        frame = log.with_columns(user=pl.lit(None, pl.String), __row__=pl.Series([value] * 36))
        refused("column 'user': missing value in 36 rows, first in rows 1, 2, 3", frame)
        frame.write_parquet(tmp_path / "log.parquet")
        refused("column 'user': missing value in 36 rows, first in rows 1, 2, 3", tmp_path / "log.parquet")

    def test_integers_of_128_bits(self, log):
        for value in (-(2**100), 2**100):
            frame = log.with_columns(user=pl.Series([value] * 36, dtype=pl.Int128))
            refused("column 'user': ids must be text or 64-bit integers, not Int128", frame)
        assert checked(log.with_columns(user=pl.Series([5] * 36, dtype=pl.Int128)))["user"].dtype == pl.Int64
