"""Overlap of the codes of targets and histories, and the cosine of items with the same second code.

Tables appx_sid_overlap and appx_code2_cosine of the paper; `resid.quantize.quality` has the estimators.
"""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl

from resid.analyse.figure import GREY, Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.run_parts import dataset_of, embeddings_of, ids_of, labels
from resid.quantize import id_quality

_NAMES = ("overlap", "overlap_chance", "cosine", "cosine_between")


def analyse_overlap(runs: Sequence[Path], data: Path | None = None) -> Finding:
    """Compare the IDs of runs level by level.

    Parameters
    ----------
    runs
        Folders of runs, or of saved models.
    data
        The Dataset's folder; by default that of each run.
    """
    rows = []
    for folder, label in zip(runs, labels(runs), strict=True):
        dataset, ids = dataset_of(folder, data), ids_of(folder)
        ids.require_data(dataset, folder)
        vectors = embeddings_of(folder, dataset, ids)
        quality = id_quality(ids, None if vectors is None else vectors.vectors, dataset)
        for level in quality["levels"]:
            rows.append(
                {"run": label, "level": level["level"], "codes": level["size"]} | {n: level.get(n) for n in _NAMES}
            )
    table = pl.DataFrame(rows, schema_overrides=dict.fromkeys(_NAMES, pl.Float64))
    second = table.filter(pl.col("level") == 2)
    most = table.filter(pl.col("level") <= 2).sort("overlap", descending=True)
    words = [f"code {n}: {row['overlap']:.4f} ({row['run']})" for n in (1, 2) for row in _first(most, n)]
    sentence = f"Highest overlap of targets with histories, {', '.join(words)}"
    if second["cosine"].is_not_null().any():
        row = second.filter(pl.col("cosine").is_not_null()).sort("cosine", descending=True).row(0, named=True)
        sentence += f"; highest cosine of items with the same second code: {row['cosine']:.4f} ({row['run']})"
    return Finding("overlap", table, _draw(table), f"{sentence}.")


def _first(table: pl.DataFrame, level: int) -> list[dict[str, float]]:
    return table.filter(pl.col("level") == level).head(1).to_dicts()


@styled
def _draw(table: pl.DataFrame) -> Figure:
    """Draw overlaps of the first two levels and cosines of the second one, a bar per run; a line marks the floor."""
    names = table["run"].unique(maintain_order=True).to_list()
    figure, panels = new_figure(1, 3, size=(2.9, 1.5 + 0.32 * len(names)))
    contents = (
        (1, "overlap", "overlap_chance", "overlap, first code\n(line: by chance)"),
        (2, "overlap", "overlap_chance", "overlap, second code\n(line: by chance)"),
        (2, "cosine", "cosine_between", "cosine, second code\n(line: under different parents)"),
    )
    for axes, (level, name, floor, title) in zip(panels, contents, strict=True):
        chosen = pl.DataFrame({"run": names}).join(
            table.filter(pl.col("level") == level), on="run", how="left", maintain_order="left"
        )
        places, values, floors = (
            np.arange(float(len(names))),
            *(chosen[c].fill_null(np.nan).to_numpy() for c in (name, floor)),
        )
        axes.barh(places, values, color="C0", height=0.6)
        axes.vlines(floors, places - 0.4, places + 0.4, color="black", linewidth=1.5)
        for place, value in zip(places, values, strict=True):
            axes.text(
                np.nanmax([value, 0]), place, " –" if np.isnan(value) else f" {value:.4f}", va="center", fontsize=8
            )
        axes.set_yticks(places, names if axes is panels[0] else [""] * len(names))
        axes.set(title=title, ylim=(len(names) - 0.5, -0.5))
        axes.margins(x=0.3)
        axes.grid(axis="y", color=GREY, alpha=0)
    return figure
