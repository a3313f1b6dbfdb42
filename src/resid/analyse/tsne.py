"""t-SNE of item embeddings, colored by category and by co-occurrence community, with numbers beside every picture.

Figure appx_tsne_catei2i_all of the paper. A picture alone proves nothing: silhouette and neighbor purity are computed from the
embeddings themselves, not from their projection, and over the items of the groups that have a color.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
from numpy.typing import NDArray
from sklearn.metrics import silhouette_score

from resid.analyse.figure import COLORS, GREY, Figure, new_figure, styled, without_axes
from resid.analyse.finding import Finding
from resid.analyse.groups import Groups, communities, field_groups, neighbor_purity
from resid.analyse.projection import project
from resid.analyse.run_parts import dataset_of, encoder_of, labels
from resid.core.errors import InputError
from resid.core.progress import Progress, default_progress
from resid.encode import ItemEmbeddings

_FEWEST = 10  # items
_ITEM = "item"  # the columns of the item ID


def analyse_tsne(
    runs: Sequence[Path],
    data: Path | None = None,
    *,
    field: str | None = None,
    items: int = 5_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """Draw the item embeddings of runs; of embeddings with fields, also the columns of the item ID alone.

    The whole vector of an item with fields contains the embedding of its category, so that it is easily told apart by category;
    the item ID's columns are not.

    Parameters
    ----------
    runs
        Folders of runs with an encoder, or of sequential models, all of the same Dataset.
    data
        The Dataset's folder; by default that of the first run.
    field
        The category that colors items; by default the one with the fewest values.
    items
        Maximum number of items that are drawn, always the same ones; the others are left out of the numbers as well.
    seed
        Of t-SNE, Louvain and the sample.
    progress
        Counts pictures.
    """
    progress = progress or default_progress()
    dataset = dataset_of(runs[0], data)
    progress.step("Communities of the co-occurrence graph")
    groups = [each.largest(len(COLORS) - 1) for each in (field_groups(dataset, field), communities(dataset, seed))]
    chosen = np.sort(np.random.default_rng(seed).permutation(dataset.n_items)[:items])
    if len(chosen) < _FEWEST:
        raise InputError(f"t-SNE needs at least {_FEWEST} items, not {len(chosen)}.")
    groups = [Groups(each.title, each.of_item[chosen], each.names) for each in groups]
    pictures = {
        name: vectors[chosen]
        for folder, label in zip(runs, labels(runs), strict=True)
        for name, vectors in _vectors(label, encoder_of(folder).embed(dataset)).items()
    }
    maps, rows = [], []
    with progress.bar("t-SNE", len(pictures), unit="pictures") as advance:
        for name, vectors in pictures.items():
            maps.append(project(vectors, "tsne", seed))
            rows += [{"embeddings": name, "groups": each.title} | _numbers(vectors, each) for each in groups]
            advance(1)
    table = pl.DataFrame(rows)
    words = []
    for each in groups:
        best = table.filter(pl.col("groups") == each.title).sort("purity", descending=True).row(0, named=True)
        words.append(
            f"{each.title} {best['purity']:.1%} in {best['embeddings']} (by chance {best['purity_chance']:.1%})"
        )
    sentence = f"Highest purity of the ten nearest neighbors: {'; '.join(words)}."
    return Finding("tsne", table, _draw(list(pictures), maps, groups, table), sentence)


def _vectors(label: str, embeddings: ItemEmbeddings) -> dict[str, NDArray[np.float32]]:
    """Return what is drawn of embeddings: all columns, and those of the item ID if there are others."""
    found = {label: embeddings.vectors}
    if len(embeddings.columns) > 1 and _ITEM in embeddings.columns:
        found[f"{label}, item ID"] = embeddings.part(_ITEM)
    return found


def _numbers(vectors: NDArray[np.float32], groups: Groups) -> dict[str, float | None]:
    """Return silhouette and neighbor purity over the items that have a group."""
    has = groups.of_item >= 0
    own, of_item = vectors[has], groups.of_item[has]
    count = len(np.unique(of_item))
    if not 1 < count < len(of_item):
        return {"items": len(of_item), "silhouette": None, "purity": None, "purity_chance": None}
    purity, chance = neighbor_purity(own, of_item)
    silhouette = float(silhouette_score(own, of_item, metric="cosine"))
    return {"items": len(of_item), "silhouette": silhouette, "purity": purity, "purity_chance": chance}


@styled
def _draw(names: list[str], maps: list[NDArray[np.float32]], groups: list[Groups], table: pl.DataFrame) -> Figure:
    figure, panels = new_figure(len(names), len(groups), size=(3.4, 3.1))
    for number, (axes, row) in enumerate(zip(panels, table.iter_rows(named=True), strict=True)):
        places, each = maps[number // len(groups)], groups[number % len(groups)]
        none = each.of_item < 0
        axes.scatter(places[none, 0], places[none, 1], s=2, color=GREY, linewidths=0, rasterized=True)
        for group, color in zip(range(len(each.names)), COLORS, strict=False):
            own = each.of_item == group
            label = _short(each.names[group]) if number < len(groups) else None
            axes.scatter(places[own, 0], places[own, 1], s=3, color=color, linewidths=0, rasterized=True, label=label)
        without_axes(axes)
        numbers = "too few groups"
        if row["purity"] is not None:
            numbers = (
                f"silhouette {row['silhouette']:.2f}, purity {row['purity']:.0%} (chance {row['purity_chance']:.0%})"
            )
        axes.set_title(f"{row['embeddings']}, by {each.title}\n{numbers}".replace("-0.", "−0."))
    for axes in panels[: len(groups)]:
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, -0.02), markerscale=4, fontsize=5.5, ncols=3, handletextpad=0
        )
    return figure


def _short(name: str) -> str:
    return name if len(name) <= 24 else name[:23] + "…"
