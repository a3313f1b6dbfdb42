"""Recipes: printed, edited and passed back; errors are one sentence."""

import dataclasses

import pytest

from resid import InputError, Recipe
from resid.core.registry import kinds
from resid.methods.recipe import recipe_names

ENCODERS, GENERATORS = (", ".join(kinds(stage)) for stage in ("encoder", "generator"))


@pytest.mark.parametrize("name", recipe_names())
def test_what_is_printed_can_be_passed_back(name, tmp_path):
    recipe = Recipe.read(name)
    (tmp_path / "mine.toml").write_text(recipe.toml())
    again = Recipe.read(tmp_path / "mine.toml")
    assert again.parts == recipe.parts
    assert again.description == recipe.description != ""
    assert again.toml() == recipe.toml()


def test_the_variant_with_fields_and_its_alias():
    plain, fields = Recipe.read("sasrec"), Recipe.read("sasrec-fields")
    assert not plain.part("recommender").settings.use_fields
    assert fields.part("recommender").settings == plain.part("recommender").settings.replace(use_fields=True)
    assert fields.name == "sasrec-fields"
    assert Recipe.read("sasrec*") == fields
    assert {"hgn-fields", "s3rec-paper-fields"} < set(recipe_names())
    assert "popularity-fields" not in recipe_names()
    for name in ("resid*", "popularity-fields"):
        with pytest.raises(InputError, match="has no variant with fields"):
            Recipe.read(name)


def test_settings_are_changed_by_stage():
    recipe = Recipe.read("resid").replace({"encoder.epochs": "3", "quantizer.branching": ("4", "5"), "seed": 7})
    assert recipe.part("encoder").settings.epochs == 3
    assert recipe.part("quantizer").settings.branching == (4, 5)
    assert {part.settings.seed for part in recipe.parts.values()} == {7}
    assert Recipe.read(recipe) is recipe
    with pytest.raises(InputError, match="the recipe 'popularity' has no encoder; it has recommender"):
        Recipe.read("popularity").part("encoder")


def test_a_part_is_replaced_by_another_kind():
    """With its default settings; other changes of the same section apply to the new kind, in any order."""
    recipe = Recipe.read("resid").replace({"generator.layers": 3, "generator.kind": "t5"})
    assert recipe.part("generator").kind == "t5"
    assert recipe.part("generator").settings == Recipe.read("resid-t5").part("generator").settings.replace(layers=3)
    for kind in kinds("quantizer"):
        assert Recipe.read("resid").replace({"quantizer.kind": kind}).part("quantizer").kind == kind
    with pytest.raises(InputError, match=rf"there is no generator 'gpt'; available generators: {GENERATORS}"):
        Recipe.read("resid").replace({"generator.kind": "gpt"})


@pytest.mark.parametrize(
    ("recipe", "old", "new"),
    [
        ("resid", "encoder.hidden", "ffn_width"),
        ("resid", "encoder.clip", "max_grad_norm"),
        ("resid", "generator.beam", "beam_size"),
        ("resid-codes", "generator.smoothing", "label_smoothing"),
        ("sasrec", "recommender.fields", "use_fields"),
        ("hgn", "recommender.last", "n_recent"),
    ],
)
def test_the_old_name_of_a_setting(recipe, old, new):
    section, name = old.split(".")
    with pytest.raises(InputError, match=rf"\[{section}\] the setting '{name}' is now called '{new}'"):
        Recipe.read(recipe).replace({old: 1})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"encoder.epoch": 3}, r"\[encoder\] there is no setting 'epoch' \(did you mean 'epochs'\?\)"),
        ({"dropout": 3}, r"there is no setting 'dropout' \(did you mean '\w+\.dropout'\?\)"),
        (
            {"encodr.epochs": 3},
            r"there is no setting 'encodr.epochs' \(did you mean 'encoder.epochs'\?\); use section.name, for example encoder.epochs",
        ),
        ({"generator.dropout": 1.5}, r"\[generator\] invalid value 1.5 for 'dropout': it must be less than 1"),
        ({"seed": -1}, r"invalid value -1 for 'seed'"),
        ({"seed": "one"}, r"invalid value 'one' for 'seed'"),
    ],
)
def test_changes_that_cannot_be_made(changes, message):
    with pytest.raises(InputError, match=message):
        Recipe.read("resid").replace(changes)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[encoder]\nseed = " + "9" * 5_000, "invalid TOML, a number has too many digits; fix the file"),
        ("x = " + "[" * 20_000, "invalid TOML, lists or tables are nested too deeply; fix the file"),
        ("[encoder", "invalid TOML, end of document: expected ']' at the end of a table declaration; fix the file"),
        ("seed = 1\n[encoder x", r"invalid TOML, line 2, column 10: expected ']' .*; fix the file"),
        (
            '[encoder]\nkind = "famea"',
            r"there is no encoder 'famea' \(did you mean 'famae'\?\)\.$",
        ),
        ("[generator]\nepochs = 3", rf"\[generator\] needs a kind, one of {GENERATORS}, not None"),
        ('[encoder]\nkind = "famae"\nepochs = 0', r"\[encoder\] invalid value 0 for 'epochs'"),
        ('[encodr]\nkind = "famae"', r"there is no stage 'encodr' \(did you mean 'encoder'\?\)"),
        ("epochs = 3", "there is no stage 'epochs'"),
        ("recommender = 5", r"'recommender' must be a table, \[recommender\], not 5"),
        ('[encoder]\nkind = ["famae"]', rf"\[encoder\] needs a kind, one of {ENCODERS}, not \['famae'\]"),
        (
            '[encoder]\nkind = "famae"',
            r"a recipe must have the sections .*encoder \+ quantizer \+ generator .* this one has encoder",
        ),
        ("", "the recipe has no sections; start from one that 'resid recipes show resid' prints"),
        ('method = "tigr"\n[recommender]\nkind = "popularity"', "there is no method 'tigr'"),
        (
            'method = "semantic-ids"\n[recommender]\nkind = "popularity"',
            "the method 'semantic-ids' needs the sections encoder, quantizer, generator, not recommender",
        ),
    ],
)
def test_files_that_cannot_be_used(tmp_path, text, message):
    (tmp_path / "bad.toml").write_text(text)
    with pytest.raises(InputError, match=rf"bad\.toml: .*{message}"):
        Recipe.read(tmp_path / "bad.toml")


def test_any_description_can_be_written(tmp_path):
    recipe = dataclasses.replace(Recipe.read("popularity"), description='two\nlines, a "quote", a \\ and \x7f')
    (tmp_path / "mine.toml").write_text(recipe.toml())
    assert Recipe.read(tmp_path / "mine.toml").description == recipe.description
    with pytest.raises(InputError, match="the recipe 'popularity' has no random part, so it takes no seed"):
        Recipe.read("popularity").replace({"seed": 1})


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(
        InputError,
        match=r"there is no recipe 'resit' \(did you mean 'resid'\?\); available recipes: resid, bert4rec, bert4rec-fields, ",
    ):
        Recipe.read("resit")
    with pytest.raises(InputError, match=r"nowhere\.toml: there is no such file; 'resid recipes' lists"):
        Recipe.read(tmp_path / "nowhere.toml")


@pytest.mark.parametrize("name", ["s3rec-paper", "s3rec-paper-fields"])
def test_the_paper_compares_sigmoids(name):
    settings = Recipe.read(name).parts["recommender"].settings
    assert (settings.nested_sigmoids, settings.pretrain_epochs, settings.use_fields) == (
        True,
        100,
        name.endswith("-fields"),
    )
    assert not Recipe.read("s3rec").parts["recommender"].settings.nested_sigmoids


def test_settings_that_are_valid_only_together():
    changes = {"encoder.masking": "random", "encoder.attention": "bidirectional"}
    for order in (changes, dict(reversed(changes.items()))):
        assert Recipe.read("resid").replace(order).part("encoder").settings.masking == "random"
    with pytest.raises(InputError, match="needs attention"):
        Recipe.read("resid").replace({"encoder.masking": "random"})
