"""What commands import: those that print something at once do without the libraries that take seconds to import."""

import subprocess
import sys
from dataclasses import fields

import pytest

from resid import Dataset, fit
from resid.core.registry import _SETTINGS, find_part, find_settings, kinds
from resid.core.settings import settings_of_estimator
from resid.methods.recipe import list_recipes, recipe_names

HEAVY = {"torch", "sklearn", "scipy", "numba", "lightning_fabric", "pandas", "pyarrow", "transformers", "matplotlib"}
RUN = "import sys\nfrom resid.cli import main\ncode = main(sys.argv[1:])\nsys.stderr.write(' '.join(sys.modules))\nsys.exit(code)"


def imported(*arguments):
    """Return the top-level packages that a command imports."""
    answer = subprocess.run([sys.executable, "-c", RUN, *map(str, arguments)], capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    return {name.split(".")[0] for name in answer.stderr.split()}


@pytest.mark.parametrize(
    "arguments",
    [
        "--help",
        "--version",
        "fit --help",
        "evaluate --help",
        "prepare --help",
        "recipes",
        "recipes --json",
        "analyse",
        "analyse tsne --help",
    ],
)
def test_printed_at_once(arguments):
    assert not imported(*arguments.split()) & HEAVY


def test_help_reads_no_tables():
    assert not imported("--help") & {"polars", "numpy", "pydantic"}


@pytest.mark.parametrize(
    "recipe", ["resid", "resid-t5", "resid-codes", "resid-paper", "sasrec-fields", "hgn", "s3rec", "popularity"]
)
def test_recipes_show(recipe):
    assert not imported("recipes", "show", recipe) & HEAVY


def test_info(prepared):
    assert not imported("info", prepared) & HEAVY


def test_recommend_imports_what_the_model_needs(prepared, tmp_path):
    data = Dataset.load(prepared)
    tiny = {"encoder.width": 16, "generator.width": 16, "encoder.epochs": 1, "generator.epochs": 1}
    fit(data, "popularity", tmp_path / "popularity")
    fit(data, "resid", tmp_path / "resid", changes=tiny)
    history = f"--history={data.item_ids[0]}"
    assert not imported("recommend", tmp_path / "popularity", history) & HEAVY
    found = imported("recommend", tmp_path / "resid", history)
    assert "torch" in found
    assert not found & {"sklearn", "numba", "lightning_fabric"}  # of the quantizer, and of the training


class TestSettings:
    """Settings that are found without their part are those of the part."""

    def test_declared(self):
        for stage, kind in (
            ("encoder", "famae"),
            ("quantizer", "gaoq"),
            ("generator", "joint"),
            ("recommender", "hgn"),
        ):
            find_settings(stage, kind)  # imports the settings of the stage
            assert (stage, kind) in _SETTINGS
        for (stage, kind), settings in list(_SETTINGS.items()):
            assert find_part(stage, kind).settings_class is settings
            assert find_settings(stage, kind) is settings

    @pytest.mark.parametrize("kind", ["gaoq", "hierarchical", "letter", "rq-kmeans", "rq-vae"])
    def test_of_estimators(self, kind):
        """The names, types and defaults are those of the constructor."""
        declared, derived = find_settings("quantizer", kind), settings_of_estimator(find_part("quantizer", kind))
        named = [[(field.name, field.type, field.default) for field in fields(cls)] for cls in (declared, derived)]
        assert named[0] == named[1]

    def test_of_all_parts(self):
        for stage in ("encoder", "quantizer", "generator", "recommender"):
            for kind in kinds(stage):
                assert find_settings(stage, kind) is find_part(stage, kind).settings_class


def test_listed_recipes_are_those_that_can_be_read():
    from resid import Recipe

    assert len(list_recipes()) == len(set(recipe_names()))
    assert {"resid", "sasrec", "sasrec-fields"} <= set(recipe_names())
    assert "popularity-fields" not in recipe_names()
    for entry in list_recipes():
        recipe = Recipe.read(entry.name)
        assert (recipe.name, recipe.description) == (entry.name, entry.description)
        assert sorted(spec.kind for spec in recipe.parts.values()) == sorted(entry.kinds)
