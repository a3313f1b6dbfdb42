"""Kinds of fields on the command line: given, guessed, and shown."""

import json

import pytest

from resid import Dataset
from resid.cli import main
from resid.cli.recommend import _cut
from tests.data.test_fields import movies, ratings


@pytest.fixture
def tables(tmp_path):
    ratings().write_parquet(tmp_path / "log.parquet")
    movies().write_parquet(tmp_path / "items.parquet")
    return [str(tmp_path / "log.parquet"), str(tmp_path / "items.parquet")]


def test_kinds_are_given_guessed_and_shown(tables, tmp_path, capsys):
    out = tmp_path / "data"
    assert (
        main(["prepare", *tables, "--fields", "genres,release_year:number,price", "--bins", "5", "--out", str(out)])
        == 0
    )
    printed = capsys.readouterr().out
    assert "tags, " in printed
    assert "per item" in printed
    assert "number, in bins" in printed
    assert "Column 'genres' was taken as tags: only " in printed
    assert "(--fields genres:KIND chooses another kind)" in printed
    assert Dataset.load(out).n_items == 60
    assert main(["info", str(out)]) == 0
    assert "number, in bins" in capsys.readouterr().out
    assert main(["info", str(out), "--json"]) == 0
    fields = json.loads(capsys.readouterr().out)["fields"]
    assert [field["kind"] for field in fields] == ["tags", "number", "number"]
    assert len(fields[2]["edges"]) == 4


def test_whole_numbers(tables, tmp_path, capsys):
    assert main(["prepare", *tables, "--fields", "release_year", "--out", str(tmp_path / "data")]) == 0
    assert (
        "Column 'release_year' was taken as category: its numbers are whole and may be ids "
        "(use --fields release_year:number for a quantity)"
    ) in capsys.readouterr().out


def test_short_paths(tables, tmp_path):
    arguments = ["prepare", *tables, "--fields", "genres:path", "--out", str(tmp_path / "data")]
    assert main(arguments) == 0
    assert Dataset.load(tmp_path / "data").n_items == 60
    assert main([*arguments, "--short-paths", "missing"]) == 0
    assert Dataset.load(tmp_path / "data").n_items < 30


def test_an_unknown_kind(tables, tmp_path, capsys):
    assert main(["prepare", *tables, "--fields", "genres:list", "--out", str(tmp_path / "data")]) == 2
    assert "there is no kind 'list'; the kinds are category, path, tags, number" in " ".join(
        capsys.readouterr().err.split()
    )


def test_tags_are_cut_between_two_of_them():
    assert _cut(["Drama", "Comedy"]) == "Drama, Comedy"
    assert _cut([f"genre {number}" for number in range(9)]) == "genre 0, genre 1, genre 2, genre 3, …"
    assert _cut(["x" * 50, "yy"]) == "x" * 36 + "…, …"
    assert _cut("word " * 20) == "word " * 7 + "word…"
    assert _cut(None) == "–"


def test_recommended_items_show_their_tags(tables, tmp_path, capsys):
    out, run = str(tmp_path / "data"), str(tmp_path / "run")
    assert main(["prepare", *tables, "--fields", "genres:tags", "--keep", "", "--out", out]) == 0
    assert main(["fit", out, "--recipe", "popularity", "--out", run]) == 0
    capsys.readouterr()
    assert main(["recommend", run, "--history", "1,2", "-k", "2"]) == 0
    assert "Series" not in capsys.readouterr().out
