"""Density of item-ID embeddings in a joint projection with the embeddings of categories.

Figure appx_emb_distribution of the paper: items are a density map, categories are points as large as they have items. If fields
shape the space of items, categories lie where their items are; the number beside the picture says so without a projection.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

from resid.analyse.figure import COLORS, Figure, new_figure, styled, without_axes
from resid.analyse.finding import Finding
from resid.analyse.groups import field_groups
from resid.analyse.projection import TITLES, Projection, project, unit_rows
from resid.analyse.run_parts import dataset_of, encoder_of, labels
from resid.core.progress import Progress, default_progress
from resid.data.dataset import Dataset
from resid.encode import Encoder

_CELLS = 120  # of the density map, per axis
_SMOOTHING = 1.8  # cells
_NEAREST = 10  # items of a category's embedding that are compared
_FEWEST = 2  # items of a category that is counted


def analyse_density(
    runs: Sequence[Path],
    data: Path | None = None,
    *,
    fields: Sequence[str] = (),
    projection: Projection = "umap",
    items: int = 20_000,
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """Project item-ID and category embeddings of runs together.

    Parameters
    ----------
    runs
        Folders of runs with an encoder, or of sequential models, all of the same Dataset. Where an encoder has no embeddings of
        categories, a category is the mean of its items.
    data
        The Dataset's folder; by default that of the first run.
    fields
        The categories; by default all whose names begin with "cat", or the one with the fewest values.
    projection
        UMAP, or t-SNE, which needs no further package.
    items
        Maximum number of items, always the same ones.
    seed
        Of the projection and the sample.
    progress
        Counts pictures.
    """
    progress = progress or default_progress()
    dataset = dataset_of(runs[0], data)
    names = list(fields) or [name for name in dataset.field_names if name.startswith("cat")]
    names = names or [field_groups(dataset).title.removeprefix("category ")]
    chosen = np.sort(np.random.default_rng(seed).permutation(dataset.n_items)[:items])
    maps, rows = {}, []
    with progress.bar("Projection", len(runs), unit="pictures") as advance:
        for folder, label in zip(runs, labels(runs), strict=True):
            vectors, categories = _embeddings(encoder_of(folder), dataset, names)
            rows += [{"embeddings": label} | row for row in _alignment(vectors, categories, dataset)]
            points = [vectors[chosen], *(table for table, _ in categories.values())]
            places = project(np.concatenate(points), projection, seed)
            maps[label] = np.split(places, np.cumsum([len(part) for part in points])[:-1])
            advance(1)
    table = pl.DataFrame(rows)
    words = [
        f"{row['embeddings']}, {row['field']} {row['aligned']:.1%} (by chance {row['aligned_chance']:.1%})"
        for row in table.iter_rows(named=True)
    ]
    sentence = f"Of the ten items nearest to the embedding of a category, these belong to it: {'; '.join(words)}."
    sizes = [np.bincount(field_groups(dataset, name).of_item + 1) for name in names]
    return Finding("density", table, _draw(maps, names, sizes, table, projection), sentence)


def _embeddings(
    encoder: Encoder, data: Dataset, fields: Sequence[str]
) -> tuple[NDArray[np.float32], dict[str, tuple[NDArray[np.float32], str]]]:
    """Return item vectors, shape (items, d), and for every field its vectors without "missing", and what they are."""
    embeddings, tables = encoder.embed(data), encoder.initial_tables()
    vectors = embeddings.part("item") if "item" in embeddings.columns else embeddings.vectors
    found = {}
    for field in fields:
        groups = field_groups(data, field)
        if field in tables and tables[field].shape[1] == vectors.shape[1]:
            found[field] = np.asarray(tables[field])[1 : len(groups.names) + 1], "embedding"
            continue
        has = groups.of_item >= 0
        sums = np.zeros((len(groups.names), vectors.shape[1]), dtype=np.float32)
        np.add.at(sums, groups.of_item[has], vectors[has])
        counts = np.bincount(groups.of_item[has], minlength=len(sums))
        found[field] = (sums / np.maximum(counts, 1)[:, None]).astype(np.float32), "mean of its items"
    return vectors, found


def _alignment(
    vectors: NDArray[np.float32], categories: dict[str, tuple[NDArray[np.float32], str]], data: Dataset
) -> list[dict[str, Any]]:
    """Return how many of the items nearest to a category, by cosine, belong to it: the mean over categories."""
    unit = unit_rows(vectors)
    rows = []
    for field, (table, kind) in categories.items():
        of_item = field_groups(data, field).of_item
        sizes = np.bincount(of_item[of_item >= 0], minlength=len(table))
        counted = np.flatnonzero(sizes >= _FEWEST)
        k = min(_NEAREST, len(unit))
        nearest = np.argpartition(-(table[counted] @ unit.T), k - 1, axis=1)[:, :k]
        reachable = np.minimum(sizes[counted], k)  # a small category cannot fill all places
        own = (of_item[nearest] == counted[:, None]).sum(axis=1) / reachable
        chance = np.minimum(sizes[counted] / len(unit) * k / reachable, 1)
        row = {"field": field, "category_vector": kind, "categories": len(counted), "items": len(unit)}
        rows.append(row | {"aligned": float(own.mean()), "aligned_chance": float(chance.mean())})
    return rows


@styled
def _draw(
    maps: dict[str, list[NDArray[np.float32]]],
    fields: list[str],
    sizes: list[NDArray[np.int64]],
    table: pl.DataFrame,
    projection: Projection,
) -> Figure:
    figure, panels = new_figure(1, len(maps), size=(5.0, 4.4))
    largest = max(int(size[1:].max(initial=1)) for size in sizes)
    for axes, (label, (items, *categories)) in zip(panels, maps.items(), strict=True):
        everything = np.concatenate([items, *categories])
        low, high = everything.min(axis=0), everything.max(axis=0)
        margin = 0.04 * (high - low)
        low, high = low - margin, high + margin
        edges = [np.linspace(low[axis], high[axis], _CELLS + 1) for axis in (0, 1)]
        counts = gaussian_filter(np.histogram2d(items[:, 0], items[:, 1], bins=edges)[0], _SMOOTHING)
        extent = (float(low[0]), float(high[0]), float(low[1]), float(high[1]))
        axes.imshow(
            np.sqrt(counts.T), origin="lower", extent=extent, cmap="Greys", aspect="auto", interpolation="bilinear"
        )
        for field, places, size, color in zip(fields, categories, sizes, COLORS[1:], strict=False):
            area = 4 + 110 * size[1 : len(places) + 1] / largest
            axes.scatter(
                places[:, 0],
                places[:, 1],
                s=area,
                color=color,
                alpha=0.65,
                edgecolors="white",
                linewidths=0.4,
                rasterized=True,
                label=field,
            )
        without_axes(axes)
        rows = table.filter(pl.col("embeddings") == label).iter_rows(named=True)
        words = ", ".join(f"{row['field']} {row['aligned']:.0%} ({row['aligned_chance']:.0%})" for row in rows)
        axes.set_title(f"{label}, {TITLES[projection]}\naligned (by chance): {words}")
    legend = panels[-1].legend(loc="lower right", title="categories")
    for handle in legend.legend_handles:
        handle.set_sizes([30])  # type: ignore[union-attr]
    return figure
