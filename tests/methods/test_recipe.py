"""Recipes: printed, edited, passed back; and what is wrong with one is said in a sentence."""

import pytest

from resid import InputError, Recipe
from resid.methods.recipe import names


@pytest.mark.parametrize("name", names())
def test_what_is_printed_can_be_passed_back(name, tmp_path):
    recipe = Recipe.read(name)
    (tmp_path / "mine.toml").write_text(recipe.toml())
    again = Recipe.read(tmp_path / "mine.toml")
    assert again.parts == recipe.parts
    assert again.description == recipe.description != ""
    assert again.toml() == recipe.toml()


def test_a_star_reads_fields():
    plain, starred = Recipe.read("sasrec"), Recipe.read("sasrec*")
    assert not plain.part("recommender").settings.fields
    assert starred.part("recommender").settings == plain.part("recommender").settings.replace(fields=True)
    assert starred.name == "sasrec*"
    assert "popularity*" not in names()
    with pytest.raises(InputError, match=r"there is no recipe 'resid\*'"):
        Recipe.read("resid*")


def test_settings_are_changed_by_stage():
    recipe = Recipe.read("resid").replace({"encoder.epochs": "3", "quantizer.branching": ("4", "5"), "seed": 7})
    assert recipe.part("encoder").settings.epochs == 3
    assert recipe.part("quantizer").settings.branching == (4, 5)
    assert {part.settings.seed for part in recipe.parts.values()} == {7}
    assert Recipe.read(recipe) is recipe
    with pytest.raises(InputError, match="the recipe 'popularity' has no encoder; it has recommender"):
        Recipe.read("popularity").part("encoder")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.epoch": 3}, r"\[encoder\] there is no setting 'epoch' \(did you mean 'epochs'\?\)"),
        ({"epochs": 3}, r"there is no setting 'epochs' \(did you mean '\w+\.epochs'\?\)"),
        (
            {"encodr.epochs": 3},
            r"there is no setting 'encodr.epochs' \(did you mean 'encoder.epochs'\?\); name it by its stage, as encoder.epochs",
        ),
        ({"generator.dropout": 1.5}, r"\[generator\] the setting 'dropout' cannot be 1.5: Input should be less than 1"),
        ({"seed": -1}, r"the setting 'seed' cannot be -1"),
        ({"seed": "one"}, r"the setting 'seed' cannot be 'one'"),
    ],
)
def test_changes_that_cannot_be_made(changes, message):
    with pytest.raises(InputError, match=message):
        Recipe.read("resid").replace(changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[encoder", "this is not TOML"),
        (
            '[encoder]\nkind = "famea"',
            r"\[encoder\] needs a kind, one of famae, sasrec, bert4rec, not 'famea' \(did you mean 'famae'\?\)",
        ),
        ("[generator]\nepochs = 3", r"\[generator\] needs a kind, one of onepass, t5, not None"),
        ('[encoder]\nkind = "famae"\nepochs = 0', r"\[encoder\] the setting 'epochs' cannot be 0"),
        ('[encodr]\nkind = "famae"', r"there is no stage 'encodr' \(did you mean 'encoder'\?\)"),
        ("epochs = 3", "there is no stage 'epochs'"),
        ("recommender = 5", r"the stage 'recommender' must be a table, \[recommender\], not 5"),
        ('[encoder]\nkind = ["famae"]', r"\[encoder\] needs a kind, one of famae, sasrec, bert4rec, not \['famae'\]"),
        ('[encoder]\nkind = "famae"', "a recipe has the stages encoder .* this one has encoder"),
        ("", "this one has none"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=rf"bad\.toml: .*{message}"):
        Recipe.read(tmp_path / "bad.toml")


def test_any_description_can_be_written(tmp_path):
    recipe = Recipe("mine", 'two\nlines, a "quote", a \\ and \x7f', Recipe.read("popularity").parts)
    (tmp_path / "mine.toml").write_text(recipe.toml())
    assert Recipe.read(tmp_path / "mine.toml").description == recipe.description
    with pytest.raises(InputError, match="the recipe 'popularity' has nothing random, so it takes no seed"):
        Recipe.read("popularity").replace({"seed": 1})


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(
        InputError, match=r"there is no recipe 'resit' \(did you mean 'resid'\?\); there are bert4rec, bert4rec\*, "
    ):
        Recipe.read("resit")
    with pytest.raises(InputError, match=r"nowhere\.toml: No such file or directory; 'resid recipes' lists"):
        Recipe.read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ["s3rec-paper", "s3rec-paper*"])
def test_the_paper_compares_sigmoids(name):
    settings = Recipe.read(name).parts["recommender"].settings
    assert (settings.nested_sigmoids, settings.pretrain_epochs, settings.fields) == (True, 100, name.endswith("*"))
    assert not Recipe.read("s3rec").parts["recommender"].settings.nested_sigmoids
