"""`resid fit` and `resid recipes`: from a Dataset and a recipe to a recommender."""

import shlex
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter
from rich.table import Table

from resid import Recipe
from resid import fit as fit_recipe
from resid.cli.app import AsJson, app, errors, output, print_json, read_changes
from resid.core.progress import ConsoleProgress
from resid.methods.recipe import names


@app.command
def fit(
    data: Path,
    *,
    out: Path,
    recipe: str = "resid",
    seed: str | None = None,
    change: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    accelerator: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Fit a recommender to a Dataset; a second call continues an interrupted first, and reuses what has not changed.

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder: one sub-folder per stage, and the recommender in model/.
    recipe
        A name that `resid recipes` lists, or the path of a TOML file.
    seed
        Decides everything random, in all stages.
    change
        Any setting of the recipe, by stage, as name=value: --set encoder.epochs=20 --set quantizer.branching=32,40.
    accelerator
        Where to train.
    as_json
        Print the result as JSON.
    """
    from resid.train import open_fabric  # torch takes a second to import, which other commands need not wait

    changes = ({"seed": seed} if seed is not None else {}) | read_changes(change)
    made = Recipe.read(recipe).replace(changes)
    model = fit_recipe(data, made, out, fabric=open_fabric(accelerator), progress=ConsoleProgress(errors))
    history = getattr(model, "history_", [])
    best = history[model.best_epoch_ - 1] if history else {}  # type: ignore[attr-defined]
    if as_json:
        print_json({"folder": str(out), "recipe": made.name, "epochs": len(history), "best": best})
        return
    if best:
        output.print(
            f"Epoch {best['epoch']} of {len(history)} is kept: on validation users R@10 {best['recall@10']:.4f}, "
            f"N@10 {best['ndcg@10']:.4f}",
            highlight=False,
        )
    text = f"Wrote {out}. Next: resid evaluate {shlex.quote(str(out))}"
    output.print(text, highlight=False, markup=False, soft_wrap=True)


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
    known = {name: Recipe.read(name) for name in names()}
    if as_json:
        print_json({name: recipe.description for name, recipe in known.items()})
        return
    table = Table("recipe", "parts", "what it is")
    for name, recipe in known.items():
        table.add_row(name, " → ".join(part.kind for part in recipe.parts.values()), recipe.description)
    output.print(table)


@recipes.command
def show(recipe: str) -> None:
    """Print a recipe with all of its settings as TOML, to be edited and passed to `resid fit --recipe`.

    Parameters
    ----------
    recipe
        Its name, or the path of a TOML file.
    """
    output.print(Recipe.read(recipe).toml(), highlight=False, markup=False, soft_wrap=True, end="")
