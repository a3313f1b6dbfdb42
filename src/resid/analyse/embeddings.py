"""Quality of embeddings against downstream recall: Metric 1 and 2 of FAMAE after some epochs, IDs and generator rebuilt for each.

Figure exp_metric_corr of the paper. It takes checkpoints of one training; here, every point is a training of its own with that
many epochs, whose learning rate has decayed to zero, as the embeddings that one would use.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import cast

import polars as pl

from resid.analyse.correlation import pearson, shown, spearman
from resid.analyse.figure import COLORS, Figure, new_figure, styled
from resid.analyse.finding import Finding
from resid.analyse.trained import measure, open_run
from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.encode import Encoder
from resid.methods.recipe import Recipe

_METRICS = {"metric1": "Metric 1 R@10, all fields masked", "metric2": "Metric 2 R@10, item ID masked"}


def analyse_embeddings(
    data: Dataset,
    recipe: Recipe,
    folder: Path,
    *,
    epochs: Sequence[int] = (1, 2, 4, 8, 16),
    runtime: Runtime | None = None,
) -> Finding:
    """Compare Metric 1 and 2 on validation windows with the R@10 of the generator on test users.

    Parameters
    ----------
    data
        The Dataset.
    recipe
        With the encoder ``famae``.
    folder
        Receives the run.
    epochs
        Numbers of epochs of FAMAE, one point each.
    runtime
        Devices, trackers and progress.
    """
    if not cast(Encoder, recipe.part("encoder").create()).has_metrics:
        raise InputError(
            f"Metrics 1 and 2 are defined for FAMAE only, but '{recipe.name}' has another encoder; use resid-codes."
        )
    counts = sorted(set(epochs))
    if len(counts) < 2 or counts[0] < 1:
        raise InputError("give at least two different positive numbers of epochs, for example 1,2,4,8.")
    # Evaluated once, at the end, so that the weights are those of the last epoch.
    recipes = [recipe.replace({"encoder.epochs": count, "encoder.evaluate_every": count}) for count in counts]
    rows = []
    with open_run(folder, data, recipes, runtime) as run:
        for number, (count, point) in enumerate(zip(counts, recipes, strict=True), 1):
            model, metrics = measure(run, point, data, f"Checkpoint {number} of {len(counts)}: FAMAE of {count} epochs")
            quality = cast(Encoder, model.parts_["encoder"]).history_[-1]
            rows.append({"epochs": count} | {name: quality[f"{name}.recall@10"] for name in _METRICS} | metrics)
    table = pl.DataFrame(rows)
    recall = table["recall@10"].to_numpy()
    found = {name: (pearson(table[name], recall), spearman(table[name], recall)) for name in _METRICS}
    words = [
        f"{text.split(' R@10')[0]} {shown(found[name][0])} ({shown(found[name][1])})" for name, text in _METRICS.items()
    ]
    sentence = (
        f"Correlation with downstream R@10 over {len(rows)} checkpoints, Pearson (Spearman): {words[0]}, {words[1]}; "
        f"R@10 from {recall.min():.4f} to {recall.max():.4f}."
    )
    return Finding("embeddings", table, _draw(table, found), sentence)


@styled
def _draw(table: pl.DataFrame, found: dict[str, tuple[float | None, float | None]]) -> Figure:
    figure, panels = new_figure(1, 2)
    for axes, color, (name, text) in zip(panels, COLORS, _METRICS.items(), strict=False):
        axes.plot(table[name], table["recall@10"], "o-", color=color)
        for x, y, epochs in table.select(name, "recall@10", "epochs").iter_rows():
            axes.annotate(f"{epochs}", (x, y), textcoords="offset points", xytext=(4, 5), fontsize=8)
        axes.set(xlabel=text, title=f"Pearson {shown(found[name][0])}, Spearman {shown(found[name][1])}")
    panels[0].set_ylabel("downstream R@10, test users")
    figure.supxlabel("numbers beside the points: epochs of FAMAE", fontsize=8)
    return figure
