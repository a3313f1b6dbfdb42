"""The rows of a comparison: recipes by name, wildcard or file, each with changes of its own if wanted.

``tiger[generator.kind=onepass,generator.dropout=0.2]`` is the recipe ``tiger`` with other settings, and also the name of its row.
"""

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from resid.core.errors import InputError, nearest
from resid.methods.recipe import Recipe, read_changes, recipe_names

_LONGEST = 120  # characters of a folder's name


@dataclass(frozen=True)
class Row:
    """A recipe that is compared.

    Attributes
    ----------
    name : str
        The recipe's name with its changes.
    recipe : Recipe
    """

    name: str
    recipe: Recipe

    @property
    def folder(self) -> str:
        """The name of the row as the name of a folder."""
        plain = re.sub(r"[^\w.=+-]+", "_", self.name).strip("_.")
        if len(plain) <= _LONGEST:
            return plain
        return f"{plain[:_LONGEST]}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    def seeds(self, wanted: Sequence[int]) -> tuple[int, ...]:
        """Return the seeds with which the recipe is fitted: one suffices if nothing in it is random."""
        return tuple(wanted) if self.recipe.is_random else tuple(wanted[:1])

    def seeded(self, seed: int) -> Recipe:
        """Return the recipe with a seed."""
        return self.recipe.replace({"seed": seed}) if self.recipe.is_random else self.recipe

    def changed(self, changes: Sequence[str]) -> "Row":
        """Return the row with further settings, each as name=value."""
        if not changes:
            return self
        name, own = _split_changes(self.name)
        new = {change.partition("=")[0] for change in changes}
        kept = [change for change in own if change.partition("=")[0] not in new]
        recipe = self.recipe.replace(read_changes(changes, self.name))
        return Row(f"{name}[{','.join([*kept, *changes])}]", recipe)


def read_rows(recipes: Sequence[str | Path | Recipe] | str) -> list[Row]:
    """Return the rows of a comparison.

    Parameters
    ----------
    recipes
        Recipes, their names or TOML files, or one text with several of them separated by commas. A name may have the
        wildcards ``*`` and ``?``, and changes in brackets.

    Raises
    ------
    InputError
        If one is unknown, or two different ones have the same name.
    """
    given = split_list(recipes) if isinstance(recipes, str) else recipes
    rows = dict[str, Row]()
    for row in (row for each in given for row in _read(each)):
        known = rows.setdefault(row.folder, row)
        if known.recipe != row.recipe:
            raise InputError(f"two different recipes are called '{row.name}'; rename one of the files.")
    if not rows:
        raise InputError("there are no recipes to compare; 'resid recipes' lists what is available.")
    return list(rows.values())


def split_list(text: str) -> list[str]:
    """Split a text at the commas that are not within brackets."""
    return [part.strip() for part in re.split(r",(?![^\[]*\])", text) if part.strip()]


def _read(given: str | Path | Recipe) -> list[Row]:
    if isinstance(given, Recipe):
        return [Row(given.name, given)]
    name, changes = _split_changes(str(given))
    if not re.search(r"[*?]", name) or (name.endswith("*") and name[:-1] + "-fields" in recipe_names()):
        recipe = Recipe.read(name)
        return [Row(recipe.name, recipe).changed(changes)]
    found = [known for known in recipe_names() if fnmatchcase(known, name)]
    if not found:
        near = nearest(name.strip("*?"), recipe_names())
        raise InputError(f"no recipe matches '{name}'{near}; 'resid recipes' lists what is available.")
    return [Row(known, Recipe.read(known)).changed(changes) for known in found]


def _split_changes(text: str) -> tuple[str, list[str]]:
    """Split ``name[a=1,b=2,3]`` into the name and its changes; what has no ``=`` continues a list."""
    parts = re.fullmatch(r"([^\[\]]+)(?:\[([^\[\]]*)\])?", text)
    if parts is None:
        raise InputError(
            f"'{text}' is not a recipe; changes are written in brackets, for example tiger[generator.kind=onepass]."
        )
    changes = list[str]()
    for piece in (piece.strip() for piece in (parts[2] or "").split(",") if piece.strip()):
        if "=" in piece or not changes:
            changes.append(piece)
        else:
            changes[-1] += f",{piece}"
    return parts[1].strip(), changes
