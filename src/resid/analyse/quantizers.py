"""Running time of the quantizers on the embeddings of runs: GAOQ, RQ-VAE (TIGER) and LETTER.

Table exp_wall_clock of the paper; `resid.analyse.timing` says how times are measured. Embeddings are given and not part of the
time. The paper does not state the number of passes over the vectors, so there are bars for two numbers.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from resid.analyse.figure import Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.run_parts import dataset_of, encoder_of, labels
from resid.analyse.timing import COUNTS, PAPER_MINUTES, PASSES, compare_tokenizers, compile_gaoq, in_words
from resid.core.progress import Progress, default_progress


def analyse_quantizers(
    runs: Sequence[Path], data: Path | None = None, *, passes: int = 5, progress: Progress | None = None
) -> Finding:
    """Time the quantizers.

    Parameters
    ----------
    runs
        Folders of runs with an encoder, or of sequential models.
    data
        The Dataset's folder; by default that of each run.
    passes
        Number of passes of RQ-VAE and LETTER that are measured.
    progress
        Counts runs.
    """
    progress = progress or default_progress()
    compile_gaoq()
    rows, words = [], []
    with progress.bar("Quantizers", len(runs), unit="runs") as advance:
        for folder, label in zip(runs, labels(runs), strict=True):
            vectors = np.array(encoder_of(folder).embed(dataset_of(folder, data)).vectors)
            found = compare_tokenizers(label, vectors, "auto", passes)
            rows += _rows(found)
            words.append(f"{label}, {len(vectors):,} items of {vectors.shape[1]} dimensions: {in_words(found)}")
            advance(1)
    table = pl.DataFrame(rows)
    return Finding("quantizers", table, _draw(table), f"{'. '.join(words)}.")


def _rows(found: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a row for every quantizer and number of passes."""
    about = {name: found[name] for name in ("vectors", "items", "dimensions")}
    empty = {"passes": None, "seconds_per_pass": None, "seconds_once": None}
    rows = [about | {"quantizer": "gaoq"} | empty | {"seconds": found["gaoq"]["seconds"], "ratio": 1.0}]
    for kind in PASSES:
        once = {"seconds_per_pass": found[kind]["per_pass"], "seconds_once": found[kind]["once"]}
        for count in COUNTS:
            each = found[kind][count]
            rows.append(
                about
                | {"quantizer": kind, "passes": each["passes"]}
                | once
                | {"seconds": each["seconds"], "ratio": each["ratio"]}
            )
    return rows


@styled
def _draw(table: pl.DataFrame) -> Figure:
    """Draw the ratios to the time of GAOQ, with the paper's as marks."""
    names = table["vectors"].unique(maintain_order=True).to_list()
    figure, panels = new_figure(1, len(names), size=(5.0, 2.6))
    marks = {kind: [m[1 + at] / m[0] for m in PAPER_MINUTES.values()] for at, kind in enumerate(PASSES)}
    for axes, name in zip(panels, names, strict=True):
        own = table.filter(pl.col("vectors") == name)
        bars = [
            f"{row['quantizer']}, {row['passes']:,} passes" if row["passes"] else row["quantizer"]
            for row in own.iter_rows(named=True)
        ]
        places, ratios, seconds = np.arange(float(len(own))), own["ratio"].to_numpy(), own["seconds"]
        axes.barh(places, ratios, height=0.6)
        for place, ratio, each in zip(places, ratios, seconds, strict=True):
            axes.text(ratio, place, f" {ratio:,.0f}×, {each:,.0f} s", va="center", fontsize=8)
        for kind, values in marks.items():
            for place in np.flatnonzero((own["quantizer"] == kind).to_numpy()):
                axes.plot(
                    values,
                    [place + 0.4] * len(values),
                    "v",
                    color="C3",
                    markersize=4,
                    label="paper" if not place - 1 else None,
                )
        axes.set(xscale="log", title=f"{name}, {own['items'][0]:,} items", xlabel="time relative to GAOQ")
        axes.set_xlim(0.7, max(ratios.max(), max(map(max, marks.values()))) * 12)
        axes.set_yticks(places, bars)
        axes.invert_yaxis()
    panels[0].legend(loc="upper right")
    return figure
