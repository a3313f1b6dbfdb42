"""The three releases of the Amazon reviews, in the format of the published files."""

import gzip
import json

import polars as pl
import pytest

from resid import Dataset, InputError
from resid.data.amazon import PAPER_COUNTS, RELEASES, compare_with_paper, prepare_amazon


@pytest.fixture
def raw(shop, tmp_path):
    shop.write_amazon_2023(tmp_path, "Shop")
    return tmp_path


def write_old(folder, release, log, items):
    """Write tables as the releases of 2018 and 2014 do; the metadata of 2014 is Python, not JSON."""
    old = log.select(
        pl.col("user").alias("reviewerID"), pl.col("item").alias("asin"), pl.col("timestamp").alias("unixReviewTime")
    )
    name = "Shop.json.gz" if release == "amazon-2018" else "reviews_Shop.json.gz"
    (folder / name).write_bytes(gzip.compress(old.write_ndjson().encode()))
    records = []
    for item in items.iter_rows(named=True):
        path = item["categories"]
        own = {"category": path} if release == "amazon-2018" else {"categories": [path, ["Elsewhere"]]}
        records.append({"asin": item["item"], "brand": item["store"], "title": 'It\'s "new"', **own})
    dump = json.dumps if release == "amazon-2018" else repr
    text = "\n".join(dump(record) for record in [*records, records[0] | {"brand": "a second row"}])
    (folder / "meta_Shop.json.gz").write_bytes(gzip.compress(text.encode()))


class TestReleases:
    def test_2023_equals_the_tables(self, shop, raw):
        data = prepare_amazon("amazon-2023", "Shop", raw, category_root="drop")
        tables = Dataset.from_tables(
            shop.interaction_table, shop.item_table, ["store", "categories"], unlisted_items="missing", keep=["title"]
        )
        assert data.fingerprint == tables.fingerprint
        assert data.field_names == ("store", "cat1", "cat2", "cat3")

    def test_2023_five_core_file_is_preferred(self, shop, raw):
        columns = {"user": "user_id", "item": "parent_asin"}
        some = shop.interaction_table.with_columns(rating=pl.lit(5.0)).rename(columns).head(2_000)
        text = some.select("user_id", "parent_asin", "rating", "timestamp").write_csv()
        (raw / "Shop.csv.gz").write_bytes(gzip.compress(text.encode()))
        assert prepare_amazon("amazon-2023", "Shop", raw).steps[0]["interactions"] == 2_000

    @pytest.mark.parametrize("release", ["amazon-2018", "amazon-2014"])
    def test_older(self, shop, tmp_path, release):
        write_old(tmp_path, release, shop.interaction_table, shop.item_table)
        data = prepare_amazon(release, "Shop", tmp_path, keep=())
        tables = Dataset.from_tables(
            shop.interaction_table, shop.item_table, ["store", "categories"], unlisted_items="missing", keep=[]
        )
        assert data.fingerprint == tables.fingerprint

    def test_python_literals_are_not_run(self, shop, tmp_path):
        write_old(tmp_path, "amazon-2014", shop.interaction_table, shop.item_table)
        trap = tmp_path / "trap"
        lines = gzip.decompress((tmp_path / "meta_Shop.json.gz").read_bytes()) + f"\nopen({str(trap)!r}, 'w')".encode()
        (tmp_path / "meta_Shop.json.gz").write_bytes(gzip.compress(lines))
        with pytest.raises(InputError, match=r"meta_Shop\.json\.gz, line \d+: not a JSON object"):
            prepare_amazon("amazon-2014", "Shop", tmp_path)
        assert not trap.exists()

    def test_unzipped_files_will_do(self, raw):
        expected = prepare_amazon("amazon-2023", "Shop", raw).fingerprint
        for path in list(raw.glob("*.gz")):
            path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
            path.unlink()
        assert prepare_amazon("amazon-2023", "Shop", raw).fingerprint == expected


class TestMetadata:
    def test_root_of_the_category_path(self, raw):
        kept, dropped = (prepare_amazon("amazon-2023", "Shop", raw, category_root=root) for root in ("keep", "drop"))
        assert kept.vocabulary("cat1").to_list() == ["Shop"]
        assert set(dropped.vocabulary("cat1")) == {path.split(" > ")[1] for path in kept.vocabulary("cat2")}
        assert prepare_amazon("amazon-2023", "Shop", raw).fingerprint == kept.fingerprint

    def test_the_root_is_dropped_for_the_data_sets_of_the_paper(self, shop, tmp_path):
        shop.write_amazon_2023(tmp_path, "Video_Games")
        data = prepare_amazon("amazon-2023", "Video_Games", tmp_path)
        assert (
            data.fingerprint == prepare_amazon("amazon-2023", "Video_Games", tmp_path, category_root="drop").fingerprint
        )
        kept = prepare_amazon("amazon-2023", "Video_Games", tmp_path, category_root="keep")
        assert kept.vocabulary("cat1").to_list() == ["Video Games"]
        assert data.vocabulary("cat1").len() > 1

    def test_items_without_metadata_lack_their_fields(self, raw, shop):
        path = raw / "meta_Shop.jsonl.gz"
        lines = gzip.decompress(path.read_bytes()).splitlines()
        gone = {json.loads(line)["parent_asin"] for line in lines[:40]}
        path.write_bytes(gzip.compress(b"\n".join(lines[40:])))
        dropped = prepare_amazon("amazon-2023", "Shop", raw)
        assert not gone & set(dropped.item_ids)
        kept = prepare_amazon("amazon-2023", "Shop", raw, missing="keep")
        assert gone & set(kept.item_ids)

    def test_kept_columns(self, raw):
        data = prepare_amazon("amazon-2023", "Shop", raw, keep=("price", "description"))
        assert data.item_table.columns[-2:] == ["price", "description"]
        with pytest.raises(InputError, match="'colour' cannot be kept; the columns of amazon-2023 are title"):
            prepare_amazon("amazon-2023", "Shop", raw, keep=("colour",))


class TestBadInput:
    def test_unknown_release(self, raw):
        with pytest.raises(InputError, match=r"unknown data set 'amazon-1999' .*choose from amazon-2023"):
            prepare_amazon("amazon-1999", "Shop", raw)

    def test_missing_file(self, raw, tmp_path):
        with pytest.raises(
            InputError, match=r"no Shops\.csv\.gz or Shops\.jsonl\.gz \(did you mean 'Shop\.jsonl\.gz'\?\)"
        ):
            prepare_amazon("amazon-2023", "Shops", raw)
        with pytest.raises(InputError, match="download it with: resid download amazon-2014 Books"):
            prepare_amazon("amazon-2014", "Books", tmp_path / "none")

    @pytest.mark.parametrize("name", ["Shop.jsonl.gz", "meta_Shop.jsonl.gz"])
    def test_truncated_gzip(self, raw, name):
        (raw / name).write_bytes((raw / name).read_bytes()[:-300])
        with pytest.raises(InputError, match=rf"{name}: the gzip file is truncated"):
            prepare_amazon("amazon-2023", "Shop", raw)


def test_comparison_with_the_paper(shop, raw):
    data = prepare_amazon("amazon-2023", "Shop", raw)
    assert compare_with_paper("amazon-2023", "Shop", data) is None
    assert compare_with_paper("amazon-2018", "Books", data) is None
    for release in ("amazon-2023", "resid-published"):
        assert compare_with_paper(release, "Books", data)["items"] == (data.n_items, 485_218)
    assert len(PAPER_COUNTS) == 10


def test_addresses():
    release = RELEASES["amazon-2023"]
    reviews, metadata = release.addresses("Books", five_core=False)
    assert reviews.endswith("/amazon_2023/raw/review_categories/Books.jsonl.gz")
    assert metadata.endswith("/amazon_2023/raw/meta_categories/meta_Books.jsonl.gz")
    five_core, _ = release.addresses("Books", five_core=True, mirror="http://here/")
    assert five_core == "http://here/benchmark/5core/rating_only/Books.csv.gz"
