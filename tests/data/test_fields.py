"""The kinds of item fields: how they are guessed and given, and that no kind loses items."""

import logging
import random

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from resid import Dataset, InputError
from resid.data.codes import MAX_TAGS, bin_codes, quantile_edges
from resid.data.fields import WHOLE, field_columns
from resid.data.readers import open_table
from resid.data.settings import PrepareSettings
from resid.data.synthetic import synthetic_shop

GENRES = "Action Adventure Animation Children Comedy Crime Drama Horror Musical Mystery Romance SciFi Thriller".split()


def movies(n_items=60, seed=0):
    """Return a table like that of MovieLens: one to six genres in alphabetical order, release years and prices."""
    rng = random.Random(seed)
    return pl.DataFrame(
        {
            "item": range(n_items),
            "genres": [sorted(rng.sample(GENRES, rng.choice([1, 1, 1, 2, 2, 3, 4, 6]))) for _ in range(n_items)],
            "release_year": [rng.randint(1930, 2000) for _ in range(n_items)],
            "price": [round(rng.uniform(1, 30), 2) for _ in range(n_items)],
            "title": [f"Movie {item}" for item in range(n_items)],
        }
    )


def ratings(n_items=60, seed=0):
    rng = random.Random(seed)
    rows = [(user, item, time) for user in range(60) for time, item in enumerate(rng.sample(range(n_items), 14))]
    return pl.DataFrame(rows, schema=["user", "item", "timestamp"], orient="row")


FIELDS = ["genres", "release_year:number", "price"]


@pytest.fixture(scope="module")
def data():
    return Dataset.from_tables(ratings(), movies(), FIELDS)


class TestMovies:
    def test_all_items_stay(self, data):
        assert data.n_items == 60
        assert data.field_kinds == {"genres": "tags", "release_year": "number", "price": "number"}
        assert data.settings.fields == ("genres", "release_year", "price")
        assert set(data.notes["guessed_kinds"]) == {"genres", "price"}
        assert data.notes["guessed_kinds"]["genres"].startswith("tags: only ")

    def test_codes_are_those_of_the_values(self, data):
        assert data.vocabulary("genres").to_list() == GENRES
        for codes, genres in zip(data.fields[:, 0], data.item_table["genres"].to_list(), strict=True):
            assert [GENRES[code - 1] for code in codes if code] == genres
            assert (codes[len(genres) :] == 0).all()
        assert (data.fields[:, 1:, 1:] == 0).all()
        assert data.field_sizes == (14, 11, 11)

    def test_bins_hold_about_equally_many_items(self, data):
        for field, name in ((1, "release_year"), (2, "price")):
            codes, edges = data.fields[:, field, 0], data.edges[name]
            assert len(edges) == 9
            for code, number in zip(codes, data.item_table[name], strict=True):
                low, high = (-np.inf, *edges)[code - 1], (*edges, np.inf)[code - 1]
                assert low <= number < high
            counts = np.bincount(codes, minlength=11)[1:]
            assert counts.min() >= 3
            assert counts.max() <= 9
        assert data.vocabulary("price").len() == 10
        assert data.vocabulary("price")[0] == f"below {data.edges['price'][0]}"

    def test_everything_comes_back(self, data, tmp_path):
        data.save(tmp_path / "data")
        loaded = Dataset.load(tmp_path / "data")
        assert np.array_equal(loaded.fields, data.fields)
        assert loaded.edges == data.edges
        assert loaded.settings == data.settings
        assert loaded.info() == data.info()
        assert loaded.item_table.equals(data.item_table)
        assert loaded._compute_fingerprint() == data.fingerprint
        assert loaded.vocabulary("genres").equals(data.vocabulary("genres"))

    def test_info(self, data):
        genres, year, _ = data.info()["fields"]
        mean = np.mean([len(genres) for genres in data.item_table["genres"].to_list()])
        assert genres == {
            "name": "genres",
            "kind": "tags",
            "values": 13,
            "missing": 0.0,
            "mean_tags": pytest.approx(mean),
        }
        assert year["edges"] == list(data.edges["release_year"])

    def test_kinds_given_or_guessed_make_no_difference(self, data):
        given = {"genres": "tags", "release_year": "number", "price": None}
        for fields in (["genres:tags", "release_year:number", "price:number"], given):
            assert Dataset.from_tables(ratings(), movies(), fields).fingerprint == data.fingerprint

    def test_edges_are_part_of_the_fingerprint(self, data):
        others = [Dataset.from_tables(ratings(), movies(), FIELDS, bins=5)]
        others.append(Dataset.from_tables(ratings(), movies().with_columns(pl.col("price") * 2), FIELDS))
        others.append(Dataset.from_tables(ratings(), movies(), ["genres", "release_year", "price"]))
        assert len({data.fingerprint, *(other.fingerprint for other in others)}) == 4
        assert others[0].field_sizes == (14, 6, 6)
        assert others[2].field_kinds["release_year"] == "category"

    def test_text_files(self, data, tmp_path):
        """MovieLens separates genres by "|"."""
        table = movies().with_columns(pl.col("genres").list.join("|"))
        table.write_csv(tmp_path / "items.csv")
        fields = ["genres:tags", "release_year:number", "price"]
        assert Dataset.from_tables(ratings(), tmp_path / "items.csv", fields).fingerprint == data.fingerprint
        movies().write_ndjson(tmp_path / "items.jsonl")
        assert Dataset.from_tables(ratings(), tmp_path / "items.jsonl", fields).fingerprint == data.fingerprint

    def test_order_of_tags_and_rows_does_not_matter(self, data):
        table = movies().with_columns(pl.col("genres").list.reverse().list.concat("genres"))[::-1]
        assert Dataset.from_tables(ratings(), table, FIELDS).fingerprint == data.fingerprint


class TestMissing:
    def test_no_tags_and_no_number(self):
        table = movies().with_columns(
            genres=pl.when(pl.col("item") == 3).then(pl.lit([], pl.List(pl.String)))
            .when(pl.col("item") == 4).then(None)
            .when(pl.col("item") == 5).then(pl.lit(["", None, " "]))
            .otherwise("genres"),
            price=pl.when(pl.col("item") == 6).then(None).when(pl.col("item") == 7).then(float("nan")).otherwise("price"),
        )  # fmt: skip
        kept = Dataset.from_tables(ratings(), table, FIELDS, missing="keep")
        assert np.flatnonzero(kept.fields[:, 0, 0] == 0).tolist() == [3, 4, 5]
        assert np.flatnonzero(kept.fields[:, 2, 0] == 0).tolist() == [6, 7]
        assert kept.info()["fields"][0]["missing"] == pytest.approx(3 / 60)
        dropped = Dataset.from_tables(ratings(), table, FIELDS)
        assert dropped.item_ids.to_list() == [item for item in range(60) if item not in (3, 4, 5, 6, 7)]

    def test_a_column_without_any_value(self):
        table = movies().with_columns(price=pl.lit(None, pl.Float64), genres=pl.lit([], pl.List(pl.String)))
        kept = Dataset.from_tables(ratings(), table, [*FIELDS[:1], "price:number"], missing="keep")
        assert not kept.fields.any()
        assert kept.field_sizes == (1, 1)

    def test_a_step_that_removes_much_is_a_warning(self, caplog):
        table = movies().with_columns(price=pl.when(pl.col("item") % 3 > 0).then("price"))
        with caplog.at_level(logging.WARNING):
            Dataset.from_tables(ratings(), table, FIELDS)
        assert "'items with missing fields dropped' removed 20 of 60 items" in caplog.text
        assert "keep them with missing='keep' (--missing keep)" in caplog.text


class TestNewItems:
    def test_are_read_as_those_of_the_dataset(self, data):
        ids, codes = data.catalogue.encode_items(movies())
        assert np.array_equal(codes, data.fields)
        assert ids.to_list() == data.item_ids.to_list()

    def test_other_values(self, data, caplog):
        new = pl.DataFrame(
            {
                "item": [100, 101],
                "genres": [["Drama", "Opera", *GENRES[:6]], None],
                "release_year": [1800, None],
                "price": [1e6, 10.0],
            }
        )
        with caplog.at_level(logging.WARNING):
            _, codes = data.catalogue.encode_items(new)
        assert "field 'genres': 1 of 8 values are unknown" in caplog.text
        assert sorted(codes[0, 0].tolist()) == [-1, 1, 2, 3, 4, 5, 6, 7]
        assert codes[:, 1, 0].tolist() == [1, 0]
        assert codes[0, 2, 0] == 10
        assert not codes[1, 0].any()
        assert codes[1, 2, 0] == bin_codes(pl.Series([10.0]), data.edges["price"])[0]

    def test_single_values(self, data):
        assert data.catalogue.field_codes("genres", ["Drama", None, "Opera"]).tolist() == [7, 0, -1]
        assert data.catalogue.field_codes("price", [0, None, float("nan"), 1e9]).tolist() == [1, 0, 0, 10]
        with pytest.raises(InputError, match="the values of the field 'price' are numbers"):
            data.catalogue.field_codes("price", ["much"])

    def test_a_dataset_without_kinds_is_read_as_before(self, shop, tmp_path):
        """As those that were prepared before there were kinds."""
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store", "categories"])
        old = {k: v for k, v in data.settings.to_dict().items() if k not in ("kinds", "short_paths", "bins")}
        facts = data.catalogue.facts() | {"prepare": old}
        del facts["edges"]
        catalogue = type(data.catalogue).from_facts(facts, data.item_table, data.training_counts)
        assert (
            catalogue.kinds
            == data.field_kinds
            == {"store": "category", **dict.fromkeys(("cat1", "cat2", "cat3"), "path")}
        )
        known = shop.item_table.filter(pl.col("item").is_in(data.item_ids.implode()))
        assert np.array_equal(catalogue.encode_items(known)[1], data.catalogue.encode_items(known)[1])
        short = known.head(1).with_columns(pl.col("categories").list.head(2))
        assert catalogue.encode_items(short)[1][0, 3] == 0


class TestPaths:
    def test_short_paths_repeat_their_last_level(self, log, items):
        data = Dataset.from_tables(log, items, ["categories"])
        assert data.n_items == 6
        assert data.notes["guessed_kinds"]["categories"].startswith("path: 100% of the names")
        assert data.item_table["cat2"].to_list() == ["x > y", "x > z", "w > y", "w > y", "x > y", "x"]
        assert data.item_table["cat3"].to_list() == ["x > y", "x > z", "w > y", "w > y", "x > y > q", "x"]

    def test_by_name_alone(self, log, items):
        data = Dataset.from_tables(log, items, ["categories"], qualify_paths=False)
        assert data.item_table["cat2"].to_list() == ["y", "z", "y", "y", "y", "x"]
        assert data.item_table["cat3"].to_list() == ["y", "z", "y", "y", "q", "x"]

    def test_or_lack_levels(self, log, items):
        data = Dataset.from_tables(log, items, ["categories"], short_paths="missing", missing="keep")
        assert data.item_table["cat2"].to_list() == ["x > y", "x > z", "w > y", "w > y", "x > y", None]
        assert data.item_table["cat3"].to_list() == [None, None, None, None, "x > y > q", None]

    def test_empty_paths_are_missing(self, log, items):
        paths = pl.Series([["x", "y"], [], None, ["", "y"], ["x", None, "z"], ["x", "y"]])
        data = Dataset.from_tables(log, items.with_columns(categories=paths), ["categories:path"], missing="keep")
        assert data.item_table["cat1"].to_list() == ["x", None, None, None, "x", "x"]
        assert data.item_table["cat2"].to_list() == ["x > y", None, None, None, "x", "x > y"]

    def test_complete_paths_do_not_depend_on_the_option(self, shop):
        options = ({"short_paths": "repeat"}, {"short_paths": "missing"})
        tables = (shop.interaction_table, shop.item_table, ["store", "categories"])
        first, second = (Dataset.from_tables(*tables, **option) for option in options)
        assert first.fingerprint == second.fingerprint


class TestGuess:
    def guess(self, lists):
        table = pl.DataFrame({"item": range(len(lists)), "x": lists})
        return field_columns(table, PrepareSettings(fields=("x",)), open_table(table, "items", None))[1]

    def test_names_under_several_parents(self, shop):
        assert self.guess(shop.item_table["categories"].to_list()) == ("path",)

    def test_names_that_sometimes_change_their_level(self):
        paths = [["a", f"b{k % 4}", f"c{k % 7}"] for k in range(97)] + [["a", "c1"]] * 3
        assert self.guess(paths) == ("path",)

    @given(st.integers(0, 1000))
    def test_genres(self, seed):
        assert self.guess(movies(80, seed)["genres"].to_list()) == ("tags",)

    def test_text_with_separators(self):
        assert self.guess(["Drama|Comedy", "Drama", "Comedy|Crime", "Crime|Drama", None, ""]) == ("tags",)
        assert self.guess(["a | b", "c | d", "e | f"]) == ("category",)  # titles
        assert self.guess(["a|b", *"cdefghijklm", "a", "b"]) == ("category",)  # one of 14

    def test_reasons(self, data, tmp_path):
        table = movies().with_columns(
            pl.col("genres").list.join("|"), number="item", copies=pl.lit(3), shop=pl.lit("x")
        )
        table.write_csv(tmp_path / "items.csv")
        for items in (table, tmp_path / "items.csv"):
            read = Dataset.from_tables(ratings(), items, ["genres", "number", "copies", "shop", "title"])
            assert read.vocabulary("genres").to_list() == GENRES
            assert np.array_equal(read.fields[:, 0], data.fields[:, 0])
            assert read.notes["guessed_kinds"] == {
                "genres": "tags: its values are separated by |",
                "number": f"category: {WHOLE}, and it has a different value for almost every item",
                "copies": f"category: {WHOLE}",
                "title": "category: it has a different value for almost every item",
            }

    def test_single_values_and_distinct_values(self):
        assert self.guess([["a"], ["b"], ["a"], ["c"]]) == ("tags",)
        assert self.guess([["a", "b"], ["c", "d"], ["e", "f"]]) == ("tags",)


class TestNumbers:
    @given(st.lists(st.one_of(st.none(), st.integers(-5, 5), st.floats(-100, 100)), max_size=40), st.integers(2, 12))
    def test_no_bin_is_empty(self, numbers, bins):
        values = pl.Series(numbers, dtype=pl.Float64, strict=False)
        edges = quantile_edges(values, bins)
        assert len(edges) < bins
        assert list(edges) == sorted(set(edges))
        codes = bin_codes(values, edges)
        assert (codes == 0).tolist() == values.is_null().to_list()
        known = codes[codes > 0]
        assert set(known.tolist()) == (set(range(1, len(edges) + 2)) if len(known) else set())
        order = np.argsort(values.drop_nulls().to_numpy(), kind="stable")
        assert (np.diff(known[order]) >= 0).all()


class TestManyTags:
    def test_the_most_frequent_stay(self, log, items, caplog):
        many = [f"t{tag:03}" for tag in range(MAX_TAGS + 10)]
        lists = [many, *([[f"t{10 + item}", "common"] for item in range(5)])]
        with caplog.at_level(logging.WARNING):
            data = Dataset.from_tables(log, items.with_columns(tags=pl.Series(lists)), ["tags:tags"])
        assert f"field 'tags': 1 items keep only their {MAX_TAGS} most frequent tags" in caplog.text
        assert data.notes["reduced_tags"] == {"tags": 1}
        assert data.item_table["tags"][0].to_list() == many[:MAX_TAGS]
        assert data.fields.shape == (6, 1, MAX_TAGS)


class TestShop:
    def test_tags_leave_the_rest_of_the_shop(self, shop):
        tagged = synthetic_shop(users=300, items=80, interactions=3_000, seed=3, tags=5)
        assert tagged.interaction_table.equals(shop.interaction_table)
        assert tagged.item_table.drop("tags").equals(shop.item_table)
        assert set(tagged.item_table["tags"].list.len()) == {1, 2, 3, 4, 5}
        data = Dataset.from_tables(
            tagged.interaction_table, tagged.item_table, ["store", "categories", "tags", "price"]
        )
        assert list(data.field_kinds.values()) == ["category", "path", "path", "path", "tags", "number"]

    def test_too_many_tags(self):
        with pytest.raises(InputError, match="have at most 8 tags, not 9"):
            synthetic_shop(users=3, items=8, interactions=30, tags=9)


class TestBadFields:
    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            (["genres:tag"], r"field 'genres': there is no kind 'tag' \(did you mean 'tags'\?\); the kinds are category, path"),
            ({"genres": "set"}, "field 'genres': there is no kind 'set'; the kinds are"),
            (["genre:tags"], "there is no field 'genre', it has item, genres.*did you mean 'genres'"),
            (["title:number"], "column 'title': 'Movie 0' is not a number; use title:category, or convert the column"),
            (["genres:number"], "column 'genres' has lists, not numbers; use genres:tags or genres:path"),
            (["genres:category"], "column 'genres' has lists, not single values; use genres:tags or genres:path"),
            (["title:path"], r"column 'title' has text, not lists; use title:tags for values separated by \|, or a Parquet or JSON-lines file"),
            (["release_year:tags"], "column 'release_year' has integers, not lists; use release_year:category or release_year:number"),
            (["price:tags"], "column 'price' has numbers, not lists; use price:number"),
            (["price:path"], "column 'price' has numbers, not lists; use price:number"),
            (["old:tags"], "column 'old' has true and false, not lists; use old:category"),
            (["old:number"], "column 'old' has true and false, not numbers; use old:category"),
            (["day"], "column 'day' has dates or times, not text or integers; convert the column"),
            (["record"], "column 'record' has records, not text or integers; convert the column"),
            (["decimals"], "column 'decimals' has lists of numbers; convert them to text or integers"),
            (["genres:tags:number"], "field 'genres:tags:number' has two kinds; give one"),
            (["genres:"], "field 'genres:' has no kind after the colon; add one of category, path, tags, number"),
            (["genres", "genres:tags"], r"column 'genres' is listed twice in fields \(--fields\); list it once"),
            (["nested:tags"], "column 'nested' has lists of lists; flatten them to one list per item"),
            (["nested"], "column 'nested' has lists of lists; flatten them to one list per item"),
            (["price:category"], "column 'price' has numbers, not text or integers; use price:number"),
            (["infinite"], "column 'infinite': a value is infinite; leave the cell empty"),
            ("genres", r"fields must be a list of column names, for example \['store', 'genres:tags'\], not 'genres'"),
        ],
    )  # fmt: skip
    def test_one_sentence(self, fields, message):
        table = movies().with_columns(
            nested=pl.lit([[1], [2]]), infinite=pl.Series([0.5, float("inf")] * 30), decimals=pl.lit([0.5]),
            old=pl.col("release_year") < 1950, day=pl.date(2020, 1, 1), record=pl.struct("price"),
        )  # fmt: skip
        with pytest.raises(InputError, match=message) as caught:
            Dataset.from_tables(ratings(), table, fields)
        assert "\n" not in str(caught.value)

    def test_an_unknown_kind_in_a_file_that_is_read_in_part(self, tmp_path):
        movies().write_ndjson(tmp_path / "items.jsonl")
        with pytest.raises(InputError, match="there is no kind 'tagz'"):
            Dataset.from_tables(ratings(), tmp_path / "items.jsonl", ["genres:tagz"])

    def test_a_column_with_a_colon(self):
        table = movies().rename({"title": "dc:title", "genres": "x:tags"})
        assert Dataset.from_tables(ratings(), table, ["dc:title"]).field_kinds == {"dc:title": "category"}
        assert Dataset.from_tables(ratings(), table, {"x:tags": "tags"}).field_kinds == {"x:tags": "tags"}
