"""Attention of the target position to the history: FAMAE with last-position masking against BERT-style masking.

Figure appx_attention of the paper. Every window has all fields of its target masked, and weights are averaged over heads and
windows at the same distance from the target. Distant items are in long histories only, where every item gets less: weights
are therefore also given relative to equal weights in the same window, and curves show those.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.analyse.correlation import shown, spearman
from resid.analyse.figure import SEQUENTIAL, Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.run_parts import dataset_of, encoder_of, labels
from resid.core.errors import InputError
from resid.data.dataset import Dataset
from resid.encode.famae import FAMAE

_RECENT = 5  # items whose share of the attention is reported
_BATCH = 256  # windows at a time


def analyse_attention(
    runs: Sequence[Path],
    data: Path | None = None,
    *,
    split: Literal["validation", "test"] = "validation",
    windows: int = 2_000,
    min_history: int = 10,
) -> Finding:
    """Average the attention of the target of every layer, by the distance of the item from the target.

    Parameters
    ----------
    runs
        Folders of runs with FAMAE, for example one with ``masking = "last"`` and one with ``"random"``.
    data
        The Dataset's folder; by default that of each run.
    split
        Of the windows.
    windows
        Maximum number of windows, always the same ones.
    min_history
        Windows with shorter histories are left out, as short ones have no distant items.
    """
    rows = []
    for folder, label in zip(runs, labels(runs), strict=True):
        dataset, encoder = dataset_of(folder, data), encoder_of(folder)
        if not isinstance(encoder, FAMAE):
            raise InputError(
                f"{folder}: the encoder is not FAMAE, which alone has a target position; use a run of resid."
            )
        name = f"{label} ({encoder.settings.masking}, {encoder.settings.attention})"
        layers, counts = _by_distance(encoder, dataset, split, windows, min_history)
        for layer, (weights, relative) in enumerate(layers, 1):
            for distance, (weight, lift, count) in enumerate(zip(weights, relative, counts, strict=True)):
                rows.append(
                    {
                        "run": name,
                        "layer": layer,
                        "distance": distance,
                        "weight": weight,
                        "relative": lift,
                        "windows": int(count),
                    }
                )
    table = pl.DataFrame(rows)
    last = table.filter(pl.col("layer") == pl.col("layer").max().over("run"))
    words = [_recency(part) for part in last.partition_by("run", maintain_order=True)]
    sentence = (
        f"Of the attention to the history in the last layer, the {_RECENT} most recent items get {'; '.join(words)}."
    )
    return Finding("attention", table, _draw(table), sentence)


def _by_distance(
    encoder: FAMAE, data: Dataset, split: Literal["validation", "test"], limit: int, min_history: int
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return the mean weights and relative weights, shape (layers, 2, distances), and the numbers of windows, (distances,).

    The distance of the target itself is 0.
    """
    all_windows = data.windows(split)
    lengths = all_windows.end - all_windows.begin
    chosen = np.flatnonzero(lengths >= min_history)
    if not len(chosen):
        raise InputError(f"no {split} window has a history of {min_history} items; use a smaller --min-history.")
    chosen = np.sort(np.random.default_rng(0).choice(chosen, min(limit, len(chosen)), replace=False))
    width = int(lengths[chosen].max()) + 1
    sums = np.zeros((encoder.settings.layers, 2, width))
    for first in range(0, len(chosen), _BATCH):
        batch = chosen[first : first + _BATCH]
        for layer, weights in enumerate(encoder.attention(data, split, batch)):
            backwards = weights.mean(dim=1).numpy()[:, ::-1]  # (windows, distances); padding has no weight
            sums[layer, 0, : backwards.shape[1]] += backwards.sum(axis=0)
            sums[layer, 1, : backwards.shape[1]] += (backwards * (lengths[batch] + 1)[:, None]).sum(axis=0)
    counts = (lengths[chosen][:, None] >= np.arange(width)).sum(axis=0)
    return sums / counts, counts


def _recency(part: pl.DataFrame) -> str:
    """Return the share of the most recent items, and the rank correlation of weight and recency."""
    history = part.filter(pl.col("distance") > 0)
    totals = (history["weight"] * history["windows"]).to_numpy()
    share = totals[:_RECENT].sum() / totals.sum()
    order = spearman(-history["distance"], history["relative"])
    return f"{share:.0%} in {part['run'][0]} (Spearman of relative weight and recency {shown(order)})"


@styled
def _draw(table: pl.DataFrame) -> Figure:
    """Draw a line per run for every layer, and below it the same as a strip of colors as in the paper."""
    layers = int(table["layer"].max())  # type: ignore[arg-type]
    names = table["run"].unique(maintain_order=True).to_list()
    figure, panels = new_figure(2, layers, size=(4.4, 2.6))
    for layer, (axes, strip) in enumerate(zip(panels[:layers], panels[layers:], strict=True), 1):
        lines = []
        for name in names:
            own = table.filter((pl.col("run") == name) & (pl.col("layer") == layer) & (pl.col("distance") > 0))
            axes.plot(own["distance"], own["relative"], ".-", label=name)
            lines.append(own["relative"].to_numpy())
        axes.invert_xaxis()  # as in a history, the most recent item is on the right
        axes.set(
            title=f"layer {layer}: weight of an item, 1 if all are equal",
            xlabel="distance from the target",
            ylim=(0, None),
        )
        longest = max(map(len, lines), default=0)
        grid = np.full((len(lines), longest), np.nan)
        for row, line in enumerate(lines):
            grid[row, : len(line)] = line / max(line.max(), 1e-12)
        shown_last = (longest + 0.5, 0.5, len(lines) - 0.5, -0.5)
        strip.imshow(grid[:, ::-1], cmap=SEQUENTIAL, aspect="auto", extent=shown_last, interpolation="nearest")
        strip.set_yticks(range(len(names)), names if layer == 1 else [""] * len(names))
        strip.grid(False)
        strip.set(title="relative to the largest weight", xlabel="distance from the target")
    panels[0].legend()
    return figure
