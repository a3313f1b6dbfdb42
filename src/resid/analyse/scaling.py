"""Scaling: NDCG@10 against the number of parameters outside of embedding tables, for networks of several widths and depths.

Figure appx_scaling_ndcg10 of the paper. The generator, or the sequential model, changes its size; encoder and quantizer stay.
"""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import polars as pl
from torch import nn

from resid.analyse.figure import Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.trained import applicable, measure, open_run
from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.methods.recipe import Recipe
from resid.recommend import Recommender

_FFN = 4  # width of the feed-forward networks, as a multiple of that of the model
_HEAD = 32  # width of an attention head


def analyse_scaling(
    data: Dataset,
    recipes: Sequence[Recipe],
    folder: Path,
    *,
    widths: Sequence[int] = (32, 64, 128, 256),
    layers: Sequence[int] = (2,),
    changes: Mapping[str, Any] | None = None,
    runtime: Runtime | None = None,
) -> Finding:
    """Measure the NDCG@10 of recipes on test users for several sizes of their networks.

    Parameters
    ----------
    data
        The Dataset.
    recipes
        Of Transformers: generators or sequential models.
    folder
        Receives the run.
    widths, layers
        Sizes of the networks; every width with every number of layers. Feed-forward networks are four times as wide, and an
        attention head has a width of 32, if that is a divisor.
    changes
        Other settings; each applies to the recipes that have its section.
    runtime
        Devices, trackers and progress.
    """
    changes = changes or {}
    known = [name for recipe in recipes for name in applicable(recipe, changes)]
    if strange := [name for name in changes if name not in known]:
        raise InputError(f"none of the recipes has the section of '{strange[0]}'.")
    sizes = list(product(sorted(set(widths)), sorted(set(layers))))
    points = [
        (recipe.name, width, depth, _sized(recipe.replace(applicable(recipe, changes)), width, depth))
        for recipe in recipes
        for width, depth in sizes
    ]
    rows = []
    with open_run(folder, data, [point for *_, point in points], runtime) as run:
        for number, (name, width, depth, point) in enumerate(points, 1):
            text = f"Size {number} of {len(points)}: {name}, width {width}, {depth} layers"
            model, metrics = measure(run, point, data, text)
            counts = dict(zip(("parameters", "embedding_parameters"), _parameters(model), strict=True))
            rows.append({"recipe": name, "width": width, "layers": depth} | counts | metrics)
    table = pl.DataFrame(rows)
    best = table.sort("ndcg@10", descending=True).group_by("recipe", maintain_order=True).first()
    words = [
        f"{row['recipe']} {row['ndcg@10']:.4f} with {row['parameters']:,} parameters"
        for row in best.iter_rows(named=True)
    ]
    sentence = f"Best NDCG@10, with parameters outside of embedding tables: {'; '.join(words)}."
    return Finding("scaling", table, _draw(table), sentence)


def _sized(recipe: Recipe, width: int, layers: int) -> Recipe:
    """Return a recipe whose last part, the network that recommends, has another size."""
    section = recipe.method.sections[-1]
    settings = recipe.part(section).settings
    if not hasattr(settings, "layers") or not hasattr(settings, "ffn_width"):
        raise InputError(f"the {section} of '{recipe.name}' has no layers; use a recipe with a Transformer.")
    heads = width // _HEAD if width % _HEAD == 0 else 1
    sized = {"width": width, "layers": layers, "ffn_width": _FFN * width, "heads": heads}
    if hasattr(settings, "head_width"):
        sized["head_width"] = width // heads
    return recipe.replace({f"{section}.{name}": value for name, value in sized.items()})


def _parameters(model: Recommender) -> tuple[int, int]:
    """Return the number of parameters outside of embedding tables, and in them."""
    network: nn.Module = model.model_  # type: ignore[attr-defined]
    tables = {id(each.weight): each.weight.numel() for each in network.modules() if isinstance(each, nn.Embedding)}
    others = {id(each): each.numel() for each in network.parameters() if id(each) not in tables}
    return sum(others.values()), sum(tables.values())


@styled
def _draw(table: pl.DataFrame) -> Figure:
    figure, (axes,) = new_figure(size=(5.2, 3.6))
    for name in table["recipe"].unique(maintain_order=True):
        points = table.filter(pl.col("recipe") == name).sort("parameters")
        axes.plot(points["parameters"], points["ndcg@10"], "o-", label=name)
    axes.set(xscale="log", xlabel="parameters outside of embedding tables", ylabel="NDCG@10, test users")
    axes.legend()
    return figure
