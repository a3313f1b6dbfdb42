"""Semantic IDs: lookups, the tree of prefixes, and the file."""

import numpy as np
import polars as pl
import pytest

from resid import InputError
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
    for path, message in (("x.parquet", "this file has no valid semantic IDs"), ("nothing.parquet", "there is no such file")):
        with pytest.raises(InputError, match=message):
            SemanticIds.load(tmp_path / path)
