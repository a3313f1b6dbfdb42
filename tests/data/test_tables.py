"""The same table in every frame and file format, and every kind of invalid table."""

import gzip
import json
from datetime import datetime, timedelta

import duckdb
import narwhals as nw
import polars as pl
import pytest

import resid
from resid import Dataset, InputError

FIELDS = ["store", "categories"]


def prepare(log, items, **options):
    return Dataset.from_tables(log, items, FIELDS, missing="keep", **options)


class TestOneDatasetFromEveryFrame:
    @pytest.fixture
    def expected(self, log, items):
        return prepare(log, items).fingerprint

    def test_pandas(self, log, items, expected):
        assert prepare(log.to_pandas(), items.to_pandas()).fingerprint == expected

    def test_polars_lazy(self, log, items, expected):
        assert prepare(log.lazy(), items.lazy()).fingerprint == expected

    def test_pyarrow(self, log, items, expected):
        assert prepare(log.to_arrow(), items.to_arrow()).fingerprint == expected

    def test_duckdb(self, log, items, expected):
        connection = duckdb.connect()
        relations = [connection.from_arrow(frame.to_arrow()) for frame in (log, items)]
        assert prepare(*relations).fingerprint == expected

    def test_spark(self, log, items, expected, spark):
        frames = [spark.createDataFrame(frame.to_arrow()) for frame in (log, items)]
        assert prepare(*frames).fingerprint == expected

    def test_narwhals(self, log, items, expected):
        assert prepare(nw.from_native(log), nw.from_native(items)).fingerprint == expected


class TestOneDatasetFromEveryFile:
    """Text files have no types, so ids are integers and there are no list columns."""

    @pytest.fixture
    def tables(self, log, items):
        number = pl.col("item").str.strip_prefix("i").cast(pl.Int64)
        log = log.with_columns(number, pl.col("user").str.strip_prefix("u").cast(pl.Int64))
        return log, items.with_columns(number).drop("categories")

    def prepare(self, log, items):
        return Dataset.from_tables(log, items, ["store"], missing="keep")

    @pytest.mark.parametrize("compressed", [False, True])
    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl"])
    def test_text(self, tables, tmp_path, suffix, compressed):
        paths = []
        for name, frame in zip(("log", "items"), tables, strict=True):
            text = frame.write_ndjson() if suffix == ".jsonl" else frame.write_csv(separator=",\t"[suffix == ".tsv"])
            path = tmp_path / f"{name}{suffix}{'.gz' if compressed else ''}"
            path.write_bytes(gzip.compress(text.encode()) if compressed else text.encode())
            paths.append(path)
        assert self.prepare(*paths).fingerprint == self.prepare(*tables).fingerprint

    def test_parquet_file_and_folder(self, tables, tmp_path):
        log, items = tables
        items.write_parquet(tmp_path / "items.parquet")
        (tmp_path / "log").mkdir()
        log[:20].write_parquet(tmp_path / "log" / "part-0.parquet")
        log[20:].write_parquet(tmp_path / "log" / "part-1.parquet")
        prepared = self.prepare(tmp_path / "log", str(tmp_path / "items.parquet"))
        assert prepared.fingerprint == self.prepare(log, items).fingerprint

    def test_ids_of_text_files_are_text_if_one_of_them_is(self, tables, tmp_path):
        log, items = tables
        log.write_csv(tmp_path / "log.csv")
        extra = pl.DataFrame({"item": ["B7"], "store": ["a"], "title": ["No sales"]})
        pl.concat([items.with_columns(pl.col("item").cast(pl.String)), extra]).write_csv(tmp_path / "items.csv")
        assert self.prepare(tmp_path / "log.csv", tmp_path / "items.csv").item_ids[0] == "0"

    def test_leading_zeros_stay(self, tables, tmp_path):
        log, items = tables
        padded = pl.format("00{}", "item").alias("item")
        log.with_columns(padded).write_csv(tmp_path / "log.csv")
        items.with_columns(padded).write_csv(tmp_path / "items.csv")
        assert self.prepare(tmp_path / "log.csv", tmp_path / "items.csv").item_ids[0] == "000"


class TestIds:
    strange = ("🎸", "tab\there", "quote\"'", "line\nbreak", "x" * 5_000, "a,b")

    @pytest.mark.parametrize("suffix", [".csv", ".tsv", ".jsonl", ".parquet"])
    def test_strange_text_survives_files_and_folders(self, log, tmp_path, suffix):
        log = log.with_columns(pl.col("item").replace_strict({f"i{n}": text for n, text in enumerate(self.strange)}))
        path = tmp_path / f"log{suffix}"
        if suffix == ".parquet":
            log.write_parquet(path)
        elif suffix == ".jsonl":
            log.write_ndjson(path)
        else:
            log.write_csv(path, separator=",\t"[suffix == ".tsv"])
        Dataset.from_tables(path).save(tmp_path / "data")
        data = Dataset.load(tmp_path / "data")
        assert sorted(data.item_ids) == sorted(self.strange)
        assert [data.item_ids[int(index)] for index in data.item_indices(self.strange)] == list(self.strange)

    @pytest.mark.parametrize("first", [-(2**63), 2**63 - 6, 2**64 - 6])
    def test_large_integers_survive(self, log, tmp_path, first):
        ids = pl.Series(list(range(first, first + 6)), dtype=pl.UInt64 if first >= 2**63 else pl.Int64)
        log = log.with_columns(ids.gather(pl.Series(log["item"]).str.slice(1).cast(pl.UInt32)).alias("item"))
        Dataset.from_tables(log).save(tmp_path / "data")
        assert Dataset.load(tmp_path / "data").item_ids.to_list() == list(range(first, first + 6))

    @pytest.mark.parametrize("suffix", [".jsonl", ".csv", ".parquet"])
    def test_large_integers_survive_files(self, log, tmp_path, suffix):
        number = pl.col("item").str.slice(1).cast(pl.UInt64)
        log = log.with_columns(number + (2**63 if suffix != ".csv" else 8 * 10**18))
        path = tmp_path / f"log{suffix}"
        {".jsonl": log.write_ndjson, ".csv": log.write_csv, ".parquet": log.write_parquet}[suffix](path)
        assert Dataset.from_tables(path).fingerprint == Dataset.from_tables(log).fingerprint

    @pytest.mark.parametrize("type_", [pl.Int16, pl.UInt64, pl.UInt32])
    def test_width_of_integers_does_not_matter(self, log, type_):
        log = log.with_columns(pl.col("item").str.slice(1).cast(pl.Int64))
        narrow = log.with_columns(pl.col("item").cast(type_))
        assert Dataset.from_tables(narrow).fingerprint == Dataset.from_tables(log).fingerprint

    @pytest.mark.parametrize("type_", [pl.Categorical, pl.Categorical(pl.Categories("own"))])
    def test_categories_are_text(self, log, type_):
        pl.Series(["i5", "z", "i3"]).cast(type_)  # so that the codes are not those of the log alone
        same = log.with_columns(pl.col("user", "item").cast(type_))
        assert Dataset.from_tables(same).fingerprint == Dataset.from_tables(log).fingerprint

    def test_other_types_are_refused(self, log):
        with pytest.raises(
            InputError, match=r"column 'user': ids must be text or 64-bit integers, not Float64; convert"
        ):
            Dataset.from_tables(log.with_columns(user=pl.lit(0.5)))

    def test_text_and_integers_in_two_typed_tables_are_refused(self, log, items):
        numbers = items.with_columns(pl.int_range(6).alias("item"))
        with pytest.raises(InputError, match="item ids are integers here but text in the interactions table"):
            prepare(log, numbers)


class TestTimestamps:
    def same_order(self, log, timestamps):
        return (
            Dataset.from_tables(log.with_columns(timestamp=timestamps)).fingerprint
            == Dataset.from_tables(log).fingerprint
        )

    def test_dates_datetimes_and_decimals(self, log):
        days = [datetime(2026, 1, 1) + timedelta(days=value) for value in log["timestamp"]]
        assert self.same_order(log, pl.Series(days))
        assert self.same_order(log, pl.Series(days).cast(pl.Date))
        assert self.same_order(log, log["timestamp"] / 7)

    @pytest.mark.parametrize(
        "format", ["%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M", "%Y-%m-%dT%H:%M:%S.%f", "%Y-%m-%dT%H:%M:%SZ"]
    )
    def test_dates_as_text(self, log, format):
        days = [datetime(2026, 1, 1) + timedelta(days=value) for value in log["timestamp"]]
        assert self.same_order(log, pl.Series([day.strftime(format) for day in days]))

    def test_offsets_from_utc_count(self, log):
        times = [datetime(2026, 1, 1, 12) + timedelta(minutes=value) for value in log["timestamp"]]
        text = [
            f"{time + timedelta(hours=index % 5):%Y-%m-%dT%H:%M:%S}+0{index % 5}:00" for index, time in enumerate(times)
        ]
        assert self.same_order(log, pl.Series(text))

    def test_nanoseconds_as_text(self, log):
        assert self.same_order(log, (log["timestamp"] + 1_700_000_000_000_000_000).cast(pl.String))

    def test_numbers_as_text(self, log):
        assert self.same_order(log, log["timestamp"].cast(pl.String))
        assert self.same_order(log, pl.Series([f"{value}.5e0" for value in log["timestamp"]]))

    def test_ties_keep_the_order_of_the_file(self):
        log = pl.DataFrame({"user": ["u"] * 4, "item": list("dbca"), "timestamp": [1, 1, 1, 0]})
        data = Dataset.from_tables(log, k_core=1)
        assert data.item_ids.gather(data.history_at(0)).to_list() == list("adbc")


class TestBadTables:
    def refused(self, match, log, items=None, **options):
        fields = options.pop("fields", None if items is None else FIELDS)
        with pytest.raises(InputError, match=match) as caught:
            Dataset.from_tables(log, items, fields, missing="keep", **options)
        assert isinstance(caught.value, ValueError)
        assert "\n" not in str(caught.value)

    def test_no_such_file(self, tmp_path):
        self.refused(r"none\.csv: there is no such file", tmp_path / "none.csv")

    def test_unknown_format(self, tmp_path):
        (tmp_path / "log.xlsx").touch()
        self.refused(r"log\.xlsx: unknown file format", tmp_path / "log.xlsx")
        (tmp_path / "log.parquet.gz").touch()
        self.refused(r"log\.parquet\.gz: unknown file format", tmp_path / "log.parquet.gz")

    def test_not_a_table(self):
        self.refused("a dict is not a table; pass a path", {"user": [1]})

    def test_mixed_types_in_pandas(self, log):
        frame = log.to_pandas().astype({"item": object})
        frame.loc[3, "item"] = 7
        self.refused("the interactions table: the frame cannot be converted", frame)

    def test_missing_column(self, log, tmp_path):
        path = tmp_path / "log.csv"
        log.rename({"item": "items"}).write_csv(path)
        self.refused(
            r"log\.csv: there is no column 'item', it has user, items, timestamp \(did you mean 'items'\?\); "
            r"pass its name with columns={'item': 'items'} \(--columns item=items\)",
            path,
        )
        self.refused(r"mean 'USERID'\?.*--columns user=USERID", log.rename({"user": "USERID"}))
        self.refused(r"timestamp; pass its name with .*\(--columns user=NAME\)", log, columns={"user": "zzz"})

    def test_unknown_field(self, log, items):
        self.refused(
            "the items table: there is no field 'shop', it has item, store, categories, title; choose",
            log,
            items,
            fields=["shop"],
        )

    def test_fields_must_be_named(self, log, items):
        self.refused(
            r"choose the columns to use as item fields, .*\(--fields title\); it has item, store",
            log,
            items,
            fields=None,
        )

    def test_fields_without_items(self, log):
        self.refused("fields require an item table", log, fields=["store"])

    @pytest.mark.parametrize("column", ["user", "item", "timestamp"])
    def test_null(self, log, column, tmp_path):
        path = tmp_path / "log.csv"
        missing = pl.int_range(36).is_in([2, 5, 8, 9])
        log.with_columns(pl.when(missing).then(None).otherwise(pl.col(column)).alias(column)).write_csv(path)
        path.write_text(path.read_text() + "\n\n")  # blank lines are no rows
        self.refused(rf"log\.csv, column '{column}': missing value in 4 rows, first in rows 3, 6, 9; fill", path)

    @pytest.mark.parametrize("column", ["user", "timestamp"])
    def test_nan(self, log, column):
        frame = log.with_columns(pl.int_range(36).alias(column).cast(pl.Float64)).to_pandas()
        frame.loc[4, column] = float("nan")
        self.refused(f"column '{column}': missing value in row 5", frame)

    @pytest.mark.parametrize(("value", "type_"), [(2**70, pl.Int128), (-(2**70), pl.Int128), (2**63, pl.UInt64)])
    def test_timestamps_beyond_64_bits(self, value, type_):
        frame = pl.DataFrame({"user": [1] * 4, "item": [1, 2, 3, 4]})
        small = frame.with_columns(timestamp=pl.Series([3, 1, 2, 4], dtype=type_))
        assert Dataset.from_tables(small, k_core=1).history(1).to_list() == [2, 3, 1, 4]
        large = frame.with_columns(timestamp=pl.Series([3, 1, value, 4], dtype=type_))
        self.refused(
            rf"column 'timestamp': number too large for a signed 64-bit integer in row 3 \({value}\)", large, k_core=1
        )

    def test_timestamp_that_is_neither_number_nor_date(self, log):
        text = log["timestamp"].cast(pl.String)
        self.refused("column 'timestamp': invalid timestamp in row 3",
                     log.with_columns(timestamp=text.scatter(2, "noon")))  # fmt: skip
        dates = pl.Series(["2026-01-31"] * 36)
        self.refused("invalid timestamp in row 4",
                     log.with_columns(timestamp=dates.scatter(3, "2026-02-31")))  # fmt: skip
        numbered = log.with_columns(timestamp=dates.scatter(3, "7"))
        self.refused("invalid timestamp in row 4", numbered)  # the smaller group is reported
        self.refused("timestamps must be numbers or dates, not Boolean", log.with_columns(timestamp=pl.lit(True)))

    def test_item_without_a_row(self, log, items):
        self.refused(r"column 'item': no row for 2 of the items in the interactions table, first 'i1' \(in row 2\)",
                     log, items.filter(~pl.col("item").is_in(["i1", "i4"])))  # fmt: skip

    def test_two_rows_for_one_item(self, log, items):
        self.refused(r"column 'item': duplicate item in rows 1, 7 \('i0'\)",
                     log, pl.concat([items, items[:1]]))  # fmt: skip

    def test_null_in_the_item_table(self, log, items):
        self.refused("the items table, column 'item': missing value in row 3",
                     log, items.with_columns(pl.col("item").replace("i2", None)))  # fmt: skip

    def test_empty_table(self, log, items):
        self.refused("the interactions table: the table is empty", log[:0])
        self.refused("the items table: the table is empty", log, items[:0])

    @pytest.mark.parametrize("name", ["log.csv", "log.jsonl", "log.parquet"])
    def test_empty_file(self, tmp_path, name):
        (tmp_path / name).touch()
        self.refused(rf"{name}: the file", tmp_path / name)

    def test_empty_core(self, log):
        self.refused(r"the 7-core is empty; the largest k with a non-empty core is 6, so use k_core=6", log, k_core=7)

    def test_unsuitable_field(self, log, items):
        self.refused("column 'store' has dates or times, not text or integers; convert the column",
                     log, items.with_columns(store=pl.date(2020, 1, 1)))  # fmt: skip

    def test_fields_of_one_name(self, log, items):
        self.refused(
            "two fields would be called 'cat1'", log, items.with_columns(cat1=1), fields=["cat1", "categories"]
        )

    def test_the_id_is_no_field(self, log, items):
        self.refused("column 'item': this is the item id", log, items, fields=["item"])
        self.refused("fields must be a list of column names", log, items, fields="store")

    def test_kept_columns_that_cannot_be(self, log, items):
        self.refused(
            "column 'cat1': cannot be kept because a field has the same name",
            log,
            items.with_columns(cat1=1),
            keep=["cat1"],
        )
        self.refused(
            "column 'raw': binary columns cannot be kept", log, items.with_columns(raw=pl.lit(b"x")), keep=["raw"]
        )

    def test_strange_fields(self, log, items):
        infinite = items.with_columns(store=pl.Series([1.0, float("inf"), 2, 3, 4, 5]))
        self.refused("column 'store': a value is infinite; leave the cell empty", log, infinite)
        nested = items.with_columns(categories=pl.Series([[["x"], ["y"]]] * 6))
        self.refused("column 'categories' has lists of lists; flatten them", log, nested)

    def test_empty_text_is_missing(self, log):
        self.refused("column 'user': missing value in 6 rows", log.with_columns(pl.col("user").replace("u1", "")))

    def test_items_of_other_integers(self, log, items):
        log = log.with_columns(pl.col("item").str.slice(1).cast(pl.Int64) - 1)
        large = items.with_columns(item=pl.int_range(6).cast(pl.UInt64) + 2**63)
        self.refused("item ids are integers beyond 2\\^63 here but integers in", log, large)

    def test_two_columns_of_one_name(self, log):
        frame = log.to_pandas().rename(columns={"item": "user"})
        self.refused("the interactions table: the frame cannot be", frame)

    def test_folder_without_tables(self, tmp_path):
        self.refused("the folder contains no .parquet files", tmp_path)

    def test_bad_setting(self, log):
        self.refused("invalid engine 'Spark'", log, engine="Spark")
        self.refused("invalid value 0 for 'k_core'", log, k_core=0)
        self.refused("columns: unknown key 'shop'", log, columns={"shop": "store"})

    def test_damaged_parquet(self, log, tmp_path):
        path = tmp_path / "log.parquet"
        log.write_parquet(path)
        path.write_bytes(path.read_bytes()[:-20])
        self.refused(r"log\.parquet: (the file )?cannot be read .* complete\?", path)

    @pytest.mark.parametrize("suffix", [".csv", ".jsonl"])
    def test_truncated_gzip(self, log, tmp_path, suffix):
        path = tmp_path / f"log{suffix}.gz"
        text = log.write_ndjson() if suffix == ".jsonl" else log.write_csv()
        path.write_bytes(gzip.compress(text.encode())[:-30])
        self.refused(rf"log\{suffix}\.gz: the (gzip file is truncated|file cannot be read)", path)

    def test_ragged_csv(self, tmp_path):
        path = tmp_path / "log.csv"
        path.write_text("user,item,timestamp\na,b,1\na,b,2,3,4\n")
        self.refused(r"log\.csv: row 2 has 5 values but the header has 3; fix the row", path)

    @pytest.mark.parametrize(
        ("content", "fault"),
        [
            (b"user;item;timestamp\na;b;1\n", "the separator seems to be ';', so pass separator=';' "),
            (b"user,item,timestamp\n\xe9,b,1\n", "line 2: not valid UTF-8; pass the encoding"),
            (b"", "the file is empty; it needs a header and rows"),
        ],
    )
    def test_text_that_is_not_a_table(self, tmp_path, content, fault):
        (tmp_path / "log.csv").write_bytes(content)
        self.refused(fault, tmp_path / "log.csv")

    def test_not_a_gzip(self, tmp_path):
        (tmp_path / "log.jsonl.gz").write_text("{}" * 20)
        self.refused("not a gzip file", tmp_path / "log.jsonl.gz")

    def test_infinite_timestamp(self, log):
        self.refused(
            "column 'timestamp': missing value in row 1",
            log.with_columns(timestamp=pl.Series([float("inf")] + [1.0] * 35)),
        )

    def test_one_column_for_two(self, log):
        self.refused("must be three different columns", log, columns={"user": "item"})

    def test_decimals_in_a_text_file(self, log, items, tmp_path):
        items.drop("categories").with_columns(store=pl.Series([0.5, 1.5] * 3)).write_csv(tmp_path / "items.csv")
        data = Dataset.from_tables(log, tmp_path / "items.csv", ["store"])
        assert data.field_kinds == {"store": "number"}
        assert data.fields[:, 0].tolist() == [1, 2] * 3
        self.refused("column 'store' has numbers, not text or integers; use store:number",
                     log, tmp_path / "items.csv", fields=["store:category"])  # fmt: skip

    def test_every_item_lacks_a_field(self, log, items):
        with pytest.raises(
            InputError, match="column 'cat4': every item has a missing field, this one is missing in 100%"
        ):
            Dataset.from_tables(log, items.with_columns(store=pl.lit(None, pl.String)).head(6), ["categories", "title"],
                                path_levels=4, short_paths="missing")  # fmt: skip


class TestJsonLines:
    def test_bad_line_is_named(self, log, tmp_path):
        lines = log.write_ndjson().splitlines()
        lines.insert(10, '{"user": "u1", "item"')
        path = tmp_path / "log.jsonl"
        path.write_text("\n".join(lines))
        with pytest.raises(InputError, match=r"log\.jsonl, line 11: not a JSON object .*--skip-bad-lines"):
            Dataset.from_tables(path)
        data = Dataset.from_tables(path, skip_bad_lines=True)
        assert data.notes["skipped_lines"] == 1
        assert data.fingerprint == Dataset.from_tables(log).fingerprint

    def test_a_mark_of_byte_order_is_no_text(self, log, tmp_path):
        path = tmp_path / "log.jsonl.GZ"
        path.write_bytes(gzip.compress(b"\xef\xbb\xbf" + log.write_ndjson().encode()))
        assert Dataset.from_tables(path).fingerprint == Dataset.from_tables(log).fingerprint

    def test_a_chunk_of_bad_lines_only(self, log, tmp_path, monkeypatch):
        monkeypatch.setattr("resid.data.jsonl._CHUNK", 20)
        path = tmp_path / "log.jsonl"
        path.write_text("oops\n" * 10 + "\n" + log.write_ndjson())
        data = Dataset.from_tables(path, skip_bad_lines=True)
        assert data.notes["skipped_lines"] == 10
        assert data.fingerprint == Dataset.from_tables(log).fingerprint

    def test_nothing_but_blank_lines(self, tmp_path):
        (tmp_path / "log.jsonl").write_text("\n\n\n")
        with pytest.raises(InputError, match="the file has no valid lines"):
            Dataset.from_tables(tmp_path / "log.jsonl")

    def test_unused_columns_may_contain_anything(self, log, items, tmp_path, monkeypatch):
        monkeypatch.setattr("resid.data.jsonl._CHUNK", 20)
        lines = [json.loads(line) for line in items.drop("title").write_ndjson().splitlines()]
        lines = [line | {"price": "from 5" if number > 3 else number} for number, line in enumerate(lines)]
        (tmp_path / "items.jsonl").write_text("\n".join(map(json.dumps, lines)))
        data = Dataset.from_tables(log, tmp_path / "items.jsonl", FIELDS, missing="keep")
        assert data.fingerprint == prepare(log, items.drop("title")).fingerprint

    @pytest.mark.parametrize("line", ["[1, 2]", "3", '"text"', "nonsense", "{} {}", '{"user": NaN}'])
    def test_what_is_not_an_object_is_bad(self, log, tmp_path, line):
        path = tmp_path / "log.jsonl"
        path.write_text(f"{line}\n{log.write_ndjson()}")
        with pytest.raises(InputError, match="line 1: not a JSON object"):
            Dataset.from_tables(path)

    def test_blank_lines_do_not_count_as_rows_but_as_lines(self, log, tmp_path):
        text = log.with_columns(pl.when(pl.int_range(36) != 7).then("user").alias("user")).write_ndjson()
        path = tmp_path / "log.jsonl"
        path.write_text("\n\n" + text)
        with pytest.raises(InputError, match="column 'user': missing value in line 10"):
            Dataset.from_tables(path)

    def test_types_may_change_between_chunks_only_to_text(self, log, tmp_path, monkeypatch):
        monkeypatch.setattr("resid.data.jsonl._CHUNK", 100)
        log.write_ndjson(tmp_path / "log.jsonl")
        assert Dataset.from_tables(tmp_path / "log.jsonl").fingerprint == Dataset.from_tables(log).fingerprint
        with (tmp_path / "log.jsonl").open("a") as file:
            file.write(json.dumps({"user": "u0", "item": "i0", "timestamp": "noon"}))
        with pytest.raises(InputError, match=r"log\.jsonl, line 37: .*noon.* fix or remove the line"):
            Dataset.from_tables(tmp_path / "log.jsonl")


def test_column_mapping(log, items):
    renamed = log.rename({"user": "who", "item": "what", "timestamp": "when"})
    columns = {"user": "who", "item": "what", "timestamp": "when"}
    data = resid.Dataset.from_tables(renamed, items.rename({"item": "what"}), FIELDS, columns=columns, missing="keep")
    assert data.fingerprint == prepare(log, items).fingerprint


def test_the_item_table_may_call_the_item_item(log, items):
    data = Dataset.from_tables(log.rename({"item": "sku"}), items, ["store"], columns={"item": "sku"})
    assert data.fingerprint == Dataset.from_tables(log, items, ["store"]).fingerprint


def test_integer_fields_of_text_files(log, items, tmp_path):
    table = items.drop("categories", "title").with_columns(store=pl.Series([10, 9, 10, 9, 9, 100]))
    table.write_csv(tmp_path / "items.csv")
    data = Dataset.from_tables(log, tmp_path / "items.csv", ["store"])
    assert data.fingerprint == Dataset.from_tables(log, table, ["store"]).fingerprint


def test_a_column_called_row_is_the_users_own(log, items):
    data = Dataset.from_tables(log.with_columns(row=1), items.with_columns(row=pl.lit("x")), ["row"])
    assert data.field_names == ("row",)
