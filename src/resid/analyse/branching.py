"""Sensitivity to the branching (b1, b2) of the tree: R@10 as a heat map, quantizer and generator rebuilt, one encoder shared.

Table appx_sensitivity_branching of the paper.
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path

import numpy as np
import polars as pl

from resid.analyse.figure import SEQUENTIAL, Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.trained import measure, open_run
from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.methods.recipe import Recipe
from resid.quantize.cluster_tree import automatic_branching


def analyse_branching(
    data: Dataset,
    recipe: Recipe,
    folder: Path,
    *,
    first: Sequence[int] = (),
    second: Sequence[int] = (),
    runtime: Runtime | None = None,
) -> Finding:
    """Measure the R@10 of the generator on test users for every pair of branching factors.

    Parameters
    ----------
    data
        The Dataset.
    recipe
        With a quantizer that has the setting ``branching``.
    folder
        Receives the run.
    first, second
        The values of b1 and b2; by default half, once and twice the automatic value.
    runtime
        Devices, trackers and progress.
    """
    if not hasattr(recipe.part("quantizer").settings, "branching"):
        raise InputError(f"the quantizer of '{recipe.name}' has no branching; use resid-codes or resid-q2.")
    sizes = [
        sorted(set(given)) or sorted({max(2, automatic // 2), automatic, 2 * automatic})
        for given, automatic in zip((first, second), automatic_branching(data.n_items), strict=True)
    ]
    pairs = list(product(*sizes))
    recipes = [recipe.replace({"quantizer.branching": pair}) for pair in pairs]
    rows = []
    with open_run(folder, data, recipes, runtime) as run:
        for number, ((b1, b2), point) in enumerate(zip(pairs, recipes, strict=True), 1):
            model, metrics = measure(run, point, data, f"Branching {number} of {len(pairs)}: b1 = {b1}, b2 = {b2}")
            last = model.ids_.level_sizes[-1] if model.ids_ is not None else None
            rows.append({"b1": b1, "b2": b2, "last_level": last, "items_per_leaf": data.n_items / (b1 * b2)} | metrics)
    table = pl.DataFrame(rows)
    best, worst = (table.sort("recall@10", descending=down).row(0, named=True) for down in (True, False))
    sentence = (
        f"R@10 is highest, {best['recall@10']:.4f}, with (b1, b2) = ({best['b1']}, {best['b2']}), {best['items_per_leaf']:.1f} items "
        f"per leaf, and lowest, {worst['recall@10']:.4f}, with ({worst['b1']}, {worst['b2']})."
    )
    return Finding("branching", table, _draw(table, *sizes), sentence)


@styled
def _draw(table: pl.DataFrame, first: list[int], second: list[int]) -> Figure:
    grid = table["recall@10"].to_numpy().reshape(len(first), len(second))
    figure, (axes,) = new_figure(size=(1.8 + 0.8 * len(second), 1.4 + 0.55 * len(first)))
    image = axes.imshow(grid, cmap=SEQUENTIAL, aspect="auto")
    middle = (grid.min() + grid.max()) / 2
    for row, column in np.ndindex(*grid.shape):
        value, color = grid[row, column], "white" if grid[row, column] < middle else "black"
        weight = "bold" if value == grid.max() else "normal"
        axes.text(column, row, f"{value:.4f}", ha="center", va="center", color=color, fontweight=weight)
    axes.grid(False)
    axes.set(xlabel="b2", ylabel="b1", title="R@10, test users")
    axes.set_xticks(range(len(second)), [str(size) for size in second])
    axes.set_yticks(range(len(first)), [str(size) for size in first])
    figure.colorbar(image)
    return figure
