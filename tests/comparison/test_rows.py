"""The rows of a comparison, and the settings that are searched."""

import pytest

from resid import InputError, Recipe
from resid.comparison.rows import read_rows, split_list
from resid.comparison.tuning import read_space, spaces_of_rows


def test_names_wildcards_and_changes():
    rows = read_rows("popularity,sasrec*,resid-e?,tiger[generator.kind=onepass, quantizer.codebook_size=16]")
    names = [row.name for row in rows]
    assert names[:-1] == ["popularity", "sasrec-fields", "resid-e1", "resid-e2", "resid-e3"]
    assert names[-1] == "tiger[generator.kind=onepass,quantizer.codebook_size=16]"
    assert rows[-1].recipe.part("generator").kind == "onepass"
    assert rows[-1].recipe.part("quantizer").settings.codebook_size == 16
    assert rows[-1].folder == "tiger_generator.kind=onepass_quantizer.codebook_size=16"


def test_lists_within_changes():
    (row,) = read_rows("resid[quantizer.branching=4,5,generator.epochs=2]")
    assert row.recipe.part("quantizer").settings.branching == (4, 5)
    assert row.recipe.part("generator").settings.epochs == 2
    assert split_list("a[x=1,2],b , ,c") == ["a[x=1,2]", "b", "c"]


def test_files(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(Recipe.read("hgn").toml())
    assert [row.name for row in read_rows([path, "hgn"])] == ["mine", "hgn"]
    (tmp_path / "hgn.toml").write_text(Recipe.read("hgn").replace({"epochs": 1}).toml())
    with pytest.raises(InputError, match="two different recipes are called 'hgn'"):
        read_rows([tmp_path / "hgn.toml", "hgn"])


def test_the_same_twice_is_one_row():
    assert len(read_rows("resid-e1,resid-e*")) == len(read_rows("resid-e*")) == 3


@pytest.mark.parametrize(
    ("recipes", "message"),
    [
        ("sasrecc", r"there is no recipe 'sasrecc' \(did you mean 'sasrec'\?\)"),
        ("tigr*", r"no recipe matches 'tigr\*' \(did you mean 'tiger'\?\)"),
        ("tiger[generator.kind", "is not a recipe; changes are written in brackets"),
        ("tiger[dropout]", r"tiger: 'dropout' does not have the form name=value"),
        ("tiger[generator.x=1]", "there is no setting 'x'"),
        (" , ", "there are no recipes to compare"),
    ],
)
def test_bad_recipes(recipes, message):
    with pytest.raises(InputError, match=message):
        read_rows(recipes)


def test_seeds():
    popularity, sasrec = read_rows("popularity,sasrec")
    assert popularity.seeds((0, 1, 2)) == (0,)
    assert sasrec.seeds((0, 1, 2)) == (0, 1, 2)
    assert sasrec.seeded(2).part("recommender").settings.seed == 2
    assert popularity.seeded(2) == popularity.recipe


def test_spaces():
    rows = read_rows("popularity,sasrec,resid")
    space = read_space(["recommender.dropout=0.1,0.2 quantizer.branching=4,5|6,7"])
    assert space == {"recommender.dropout": ("0.1", "0.2"), "quantizer.branching": ("4,5", "6,7")}
    found = spaces_of_rows(rows, space)
    assert found == {
        "sasrec": {"recommender.dropout": ("0.1", "0.2")},
        "resid": {"quantizer.branching": ("4,5", "6,7")},
    }
    for bad, message in (
        ("recommender.dropout", "does not have the form name=value,value"),
        ("decoder.dropout=1", "none of the recipes has the setting 'decoder.dropout'"),
        ("recommender.dropout=0.1,x", "invalid value 'x' for 'dropout'"),
    ):
        with pytest.raises(InputError, match=message):
            spaces_of_rows(rows, read_space([bad]))


def test_changes_replace_earlier_ones():
    (row,) = read_rows("sasrec[epochs=1,recommender.width=8]")
    changed = row.changed(["recommender.width=16"])
    assert changed.name == "sasrec[epochs=1,recommender.width=16]"
    assert changed.recipe.part("recommender").settings.width == 16
    assert changed.recipe.part("recommender").settings.epochs == 1
