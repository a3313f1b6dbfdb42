"""Semantic IDs: lookups, the tree of prefixes, and the file."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from resid import Dataset, InputError
from resid.quantize import SemanticIds

CODES = [[1, 0, 2], [0, 3, 1], [1, 0, 0], [0, 3, 1], [1, 2, 0]]


@pytest.fixture
def ids():
    return SemanticIds(CODES, (2, 4, 3), list("abcde"))


def test_find(ids):
    assert [found.tolist() for found in ids.find([[0, 3, 1], [1, 0, 2], [1, 0, 1], [0, 0, 0]])] == [[1, 3], [0], [], []]
    assert not ids.unique
    assert SemanticIds(CODES[:3]).unique


def test_find_codes_out_of_range(ids):
    assert [found.tolist() for found in ids.find([[0, 4, 2], [1, -1, 1], [2, 0, 0]])] == [[], [], []]
    assert ids.step(1, 0, 4) == -1
    with pytest.raises(InputError, match="an ID has 3 codes, not 2"):
        ids.find([[0, 3]])


def test_invalid_codes_and_item_ids():
    for bad in ([[0.7, 1.9]], [[2**40, 1]], [["a"]]):
        with pytest.raises(InputError, match=r"codes must be integers below 2\^31"):
            SemanticIds(bad)
    with pytest.raises(InputError, match="the item id 'a' occurs more than once"):
        SemanticIds(CODES[:2], item_ids=["a", "a"])


def test_prefix_tree():
    random = np.random.default_rng(0)
    codes = random.integers(0, 5, size=(200, 3))
    ids = SemanticIds(codes)
    prefixes = [[()]] + [sorted({tuple(row[:depth]) for row in codes.tolist()}) for depth in (1, 2, 3)]
    for depth in range(3):
        assert ids.nodes(depth) == len(prefixes[depth])
        for node, prefix in enumerate(prefixes[depth]):
            following, nodes = ids.children(depth, node)
            expected = [p for p in prefixes[depth + 1] if p[:depth] == prefix]
            assert following.tolist() == [p[-1] for p in expected]
            assert [prefixes[depth + 1][n] for n in nodes] == expected
            for code in range(5):
                there = ids.step(depth, node, code)
                wanted = (*prefix, code)
                assert there == (prefixes[depth + 1].index(wanted) if wanted in prefixes[depth + 1] else -1)
    assert (ids.step(1, [-1, -1], [0, 1]) == -1).all()  # no node has no children


def test_deduplicated(ids):
    more = ids.deduplicated()
    assert more.unique
    assert more.codes[:, -1].tolist() == [0, 0, 0, 1, 0]
    assert more.level_sizes == (2, 4, 3, 2)
    assert more.item_ids.to_list() == list("abcde")


def test_round_trip(ids, tmp_path):
    ids.save(tmp_path / "runs" / "ids.parquet")
    loaded = SemanticIds.load(tmp_path / "runs" / "ids.parquet")
    assert np.array_equal(loaded.codes, ids.codes)
    assert loaded.level_sizes == ids.level_sizes == (2, 4, 3)
    assert loaded.item_ids.to_list() == list("abcde")
    assert pl.read_parquet(tmp_path / "runs" / "ids.parquet").columns == ["item", "c1", "c2", "c3"]
    assert [file.name for file in (tmp_path / "runs").iterdir()] == ["ids.parquet"]


def test_invalid_arguments_and_files(tmp_path):
    with pytest.raises(InputError, match=r"codes must be at least 0 and below the level sizes"):
        SemanticIds(CODES, (2, 3, 3))
    with pytest.raises(InputError, match=r"codes must be at least 0 and below the level sizes"):
        SemanticIds([[0, -1]])
    with pytest.raises(InputError, match=r"codes must have the shape \(items, levels\), not \(3,\)"):
        SemanticIds([1, 2, 3])
    with pytest.raises(InputError, match="there are codes for 5 items but 2 item ids"):
        SemanticIds(CODES, item_ids=["a", "b"])
    (tmp_path / "x.parquet").write_text("no")
    for path, message in (
        ("x.parquet", "this file has no valid semantic IDs"),
        ("nothing.parquet", "there is no such file"),
    ):
        with pytest.raises(InputError, match=message):
            SemanticIds.load(tmp_path / path)


class TestFile:
    @pytest.fixture
    def saved(self, ids, tmp_path):
        named = SemanticIds(ids.codes, ids.level_sizes, ids.item_ids, {"kind": "gaoq", "sizes": [2, 4]})
        named.save(tmp_path / "ids.parquet")
        return named, tmp_path / "ids.parquet"

    def test_round_trip(self, saved):
        ids, path = saved
        loaded = SemanticIds.load(path)
        assert loaded.facts == ids.facts
        assert loaded.digest == ids.digest
        assert loaded.item_ids.equals(ids.item_ids)
        metadata = pl.read_parquet_metadata(path)
        assert metadata["format"] == "2"
        assert len(metadata["checksum"]) == len("resid-sha256:") + 64
        loaded.save(path.with_name("again.parquet"))
        assert path.with_name("again.parquet").read_bytes() == path.read_bytes()

    @pytest.mark.parametrize("item_ids", [None, [7, 5, 3, 2, 1], ["ä", "resid-sha256:", "c", "", "e"]])
    def test_item_ids(self, item_ids, tmp_path):
        ids = SemanticIds(CODES, item_ids=item_ids)
        ids.save(tmp_path / "ids.parquet")
        assert SemanticIds.load(tmp_path / "ids.parquet").item_ids.to_list() == (item_ids or [0, 1, 2, 3, 4])

    def test_flipped_bits_are_refused(self, saved):
        """Before it is parsed: Polars ends the process at some damaged files."""
        _, path = saved
        content = path.read_bytes()
        for place in range(0, len(content), 5):
            path.write_bytes(content[:place] + bytes([content[place] ^ 1 << place % 8]) + content[place + 1 :])
            with pytest.raises(InputError, match=r"this file has no valid semantic IDs .*; quantize again"):
                SemanticIds.load(path)
        for length in (0, 3, len(content) // 2, len(content) - 1):
            path.write_bytes(content[:length])
            with pytest.raises(InputError, match="this file has no valid semantic IDs"):
                SemanticIds.load(path)

    @pytest.mark.parametrize(
        ("metadata", "message"),
        [
            ({}, "its metadata do not contain the level sizes; another program wrote it"),
            ({"sizes": "2,4,3", "format": "3"}, "format '3' is not supported; update resid"),
            ({"sizes": "2,4,3", "format": "2"}, "its checksum is missing"),
            ({"sizes": "2,4"}, "codes have 3 levels, but 2 level sizes were given"),
        ],
    )
    def test_other_files(self, ids, metadata, message, tmp_path):
        ids.table().write_parquet(tmp_path / "ids.parquet", metadata=metadata)
        with pytest.raises(InputError, match=message):
            SemanticIds.load(tmp_path / "ids.parquet")

    def test_format_1(self, ids, tmp_path):
        """Files of earlier versions have no checksum."""
        ids.table().write_parquet(tmp_path / "ids.parquet", metadata={"sizes": "2,4,3"})
        assert SemanticIds.load(tmp_path / "ids.parquet").digest == ids.digest

    def test_failing_write_leaves_the_old_file(self, saved, monkeypatch):
        ids, path = saved
        before = path.read_bytes()

        def fail(self, path, **options):
            path.write_bytes(b"half")
            raise OSError("the device is gone")

        monkeypatch.setattr(pl.DataFrame, "write_parquet", fail)
        with pytest.raises(OSError, match="the device is gone"):
            ids.deduplicated().save(path)
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == ["ids.parquet"]
        with pytest.raises(InputError, match="IDs are saved as Parquet; name a file"):
            ids.save(path.parent)


def test_digest(ids):
    assert ids.digest == SemanticIds(CODES, (2, 4, 3)).digest  # of codes and level sizes, not of item ids
    assert ids.digest != SemanticIds(CODES, (2, 4, 4)).digest
    assert ids.digest != SemanticIds(CODES[::-1], (2, 4, 3)).digest
    assert ids.digest != ids.deduplicated().digest
    assert SemanticIds([[1], [0]], (12,)).digest != SemanticIds([[1], [0]], (2,)).digest


def test_require_data(log, items):
    data = Dataset.from_tables(log, items, ["store"], k_core=1)
    codes = np.arange(5)[:, None]
    names = data.item_ids.to_list()
    SemanticIds(codes).require_data(data)  # without item ids
    SemanticIds(codes, item_ids=names, facts={"data": data.fingerprint}).require_data(data)
    with pytest.raises(InputError, match=r"^these are the IDs of other items: 4 IDs for 5 items\.$"):
        SemanticIds(codes[:4]).require_data(data)
    with pytest.raises(
        InputError, match=rf"^x\.parquet: .* item 0 is {names[1]} in the IDs and {names[0]} in the Dataset"
    ):
        SemanticIds(codes, item_ids=[names[1], names[0], *names[2:]]).require_data(data, Path("x.parquet"))
    with pytest.raises(InputError, match="these IDs belong to another Dataset, or it was prepared again"):
        SemanticIds(codes, item_ids=names, facts={"data": "other"}).require_data(data)
