"""`resid recipes`: list the recipes, or show one."""

from cyclopts import App
from rich.table import Table

from resid.cli.app import AsJson, output, print_json

recipes = App(
    name="recipes", help="List the recipes, or show one.\n\nExample: ``resid recipes``", result_action="return_value"
)


@recipes.default
def list_recipes(*, as_json: AsJson = False) -> None:
    """List the recipes that come with the library.

    Parameters
    ----------
    as_json
        Print them as JSON.
    """
    from resid.methods import recipe as library  # here, as this import takes a while

    known = library.list_recipes()
    if as_json:
        print_json({recipe.name: recipe.description for recipe in known})
        return
    table = Table("recipe", "parts", "description")
    for recipe in known:
        table.add_row(recipe.name, " → ".join(recipe.kinds), recipe.description)
    output.print(table)


@recipes.command
def show(recipe: str) -> None:
    """Print a recipe with all of its settings as TOML, to edit and pass to `resid fit --recipe`.

    Example: ``resid recipes show sasrec-fields``

    Parameters
    ----------
    recipe
        Its name, or the path of a TOML file.
    """
    from resid import Recipe

    output.print(Recipe.read(recipe).toml(), highlight=False, markup=False, soft_wrap=True, end="")
