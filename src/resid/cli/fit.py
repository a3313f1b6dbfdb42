"""`resid fit` and `resid recipes`: from a Dataset and a recipe to a recommender."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

from cyclopts import App
from rich.table import Table

from resid.cli.app import AsJson, app, output, print_json
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder

if TYPE_CHECKING:
    from resid import Recommender


@app.command
def fit(
    data: Path,
    *,
    out: Path,
    training: Training = DEFAULTS,
    as_json: AsJson = False,
) -> None:
    """Fit a recommender to a Dataset; an interrupted run continues, and finished stages are reused.

    Under torchrun, all processes train together: torchrun --nproc-per-node 2 -m resid fit DATA --out RUN.

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder: one subfolder per stage, and the recommender in model/.
    as_json
        Print the result as JSON.
    """
    from resid import fit as fit_recipe  # torch takes a second to import

    refuse_dataset_folder(out)
    made = training.changed_recipe()
    runtime = training.runtime()
    model = fit_recipe(data, made, out, runtime=runtime)
    if runtime.is_first:
        print_fitted(model, out, made.name, as_json)
        if not as_json:
            text = f"Next: resid evaluate {shlex.quote(str(out))}"
            output.print(text, highlight=False, markup=False, soft_wrap=True)


def print_fitted(model: "Recommender", out: Path, recipe: str, as_json: bool) -> None:
    """Print the best epoch of a fitted recommender."""
    best = model.history_[model.best_epoch_ - 1] if model.best_epoch_ else {}
    if as_json:
        print_json({"folder": str(out), "recipe": recipe, "epochs": len(model.history_), "best": best})
        return
    if best:
        output.print(
            f"Best epoch {best['epoch']} of {len(model.history_)}: R@10 {best['recall@10']:.4f}, "
            f"N@10 {best['ndcg@10']:.4f} on validation users during training",
            highlight=False,
        )
    output.print(f"Wrote {out}", highlight=False, markup=False, soft_wrap=True)


recipes = App(name="recipes", help="List the recipes, or show one.", result_action="return_value")
app.command(recipes)


@recipes.default
def list_recipes(*, as_json: AsJson = False) -> None:
    """List the recipes that come with the library.

    Parameters
    ----------
    as_json
        Print them as JSON.
    """
    from resid import Recipe
    from resid.methods.recipe import recipe_names

    known = [Recipe.read(name) for name in recipe_names()]
    if as_json:
        print_json({recipe.name: recipe.description for recipe in known})
        return
    table = Table("recipe", "parts", "description")
    for recipe in known:
        table.add_row(recipe.name, " → ".join(part.kind for part in recipe.parts.values()), recipe.description)
    output.print(table)


@recipes.command
def show(recipe: str) -> None:
    """Print a recipe with all of its settings as TOML, to edit and pass to `resid fit --recipe`.

    Parameters
    ----------
    recipe
        Its name, or the path of a TOML file.
    """
    from resid import Recipe

    output.print(Recipe.read(recipe).toml(), highlight=False, markup=False, soft_wrap=True, end="")
