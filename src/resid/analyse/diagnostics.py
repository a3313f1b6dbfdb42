"""Does a diagnostic of IDs predict the Recall@10 of a generator that is trained on them? A scatter and rank correlations over runs.

The paper leaves it open. A diagnostic that does lets a user choose IDs without training a generator.

Generators differ more than IDs do, so runs are compared within a *stratum*: the same Dataset and the same generator with the
same settings but the seed. Values and recalls are ranked within strata, and the centred ranks of all strata are correlated; with
one stratum, that is Spearman's correlation. The interval is a bootstrap over runs within strata. As there are many diagnostics,
the p-value of each is that of the largest correlation among all of them when recalls are permuted within strata.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray
from scipy.stats import rankdata

from resid.analyse.correlation import shown
from resid.analyse.figure import COLORS, GREY, Figure, new_mosaic, styled
from resid.analyse.finding import Finding
from resid.analyse.run_parts import dataset_of, embeddings_of, evaluation_of, ids_of, labels
from resid.analyse.verdict import diagnostics_of, in_words
from resid.core.errors import InputError, counted
from resid.core.progress import Progress, default_progress
from resid.quantize import id_quality

_SAMPLES = 2_000  # of the bootstrap and of the permutations
_FEWEST = 4  # runs that can be compared
_LEVEL = 0.05  # of the corrected p-value below which a diagnostic counts as shown to predict
_PANELS = 6  # diagnostics with a scatter

_ABOUT = ("run", "stratum", "recall@10")

Floats = NDArray[np.float64]


def analyse_diagnostics(
    runs: Sequence[Path],
    data: Path | None = None,
    *,
    split: str = "test",
    command: str = "",
    seed: int = 0,
    progress: Progress | None = None,
) -> Finding:
    """Correlate every diagnostic of the runs' IDs with their Recall@10.

    Parameters
    ----------
    runs
        Folders of evaluated runs; those without semantic IDs or without an evaluation are left out, with a message.
    data
        The Dataset's folder; by default that of each run.
    split
        Whose evaluation is read.
    command
        Is kept in the record, so that it can be repeated.
    seed
        Of bootstrap and permutations.
    progress
        Counts runs.
    """
    table, places = _measure(runs, data, split, progress or default_progress())
    sizes = (
        table["stratum"].value_counts().filter(pl.col("count") > 1)["count"]
        if len(table)
        else pl.Series([], dtype=pl.Int64)
    )
    if sizes.sum() < _FEWEST:
        raise InputError(
            f"there are too few runs to compare: at least {_FEWEST} must have IDs, an evaluation, and the same Dataset and "
            "generator as another one."
        )
    names = [name for name in table.columns if name not in _ABOUT]
    values = {name: table[name].to_numpy().astype(float) for name in names}
    recall, strata = table["recall@10"].to_numpy(), table["stratum"].to_numpy()
    found = _correlate(values, recall, strata, np.random.default_rng(seed))
    if not len(found):
        raise InputError("no diagnostic differs between the runs of a generator; give runs with different IDs.")
    long = table.unpivot(names, index=list(_ABOUT), variable_name="diagnostic").drop_nulls("value")
    long = found.join(long, on="diagnostic", how="left", maintain_order="left")
    best = found.row(0, named=True)
    predicts = best["p"] < _LEVEL
    record = {
        "diagnostic": best["diagnostic"] if predicts else None,
        "highest": best["diagnostic"],
        "spearman": best["spearman"],
        "interval": [best["low"], best["high"]],
        "p_corrected": best["p"],
        "diagnostics": len(found),
        "runs": best["runs"],
        "strata": len(sizes),
        "values": sorted(value for value in values[best["diagnostic"]].tolist() if not np.isnan(value)),
        "data": ", ".join(sorted(places)),
        "split": split,
        "command": command,
    }
    sentence = (
        f"Over {best['runs']} runs with {counted(len(sizes), 'generator')}, the highest rank correlation with R@10 is that of "
        f"'{in_words(best['diagnostic'])}': {shown(best['spearman'])}, 95% interval {shown(best['low'])} to {shown(best['high'])}, "
        f"p = {best['p']:.3f} corrected for {len(found)} diagnostics, so it {'predicts' if predicts else 'is not shown to predict'} R@10."
    )
    return Finding("diagnostics", long, _draw(table, found), sentence, record)


def _measure(runs: Sequence[Path], data: Path | None, split: str, progress: Progress) -> tuple[pl.DataFrame, set[str]]:
    """Return a row for every run that has IDs and an evaluation, and the names of their Datasets."""
    rows, places = [], set()
    with progress.bar("Diagnostics", len(runs), unit="runs") as advance:
        for folder, label in zip(runs, labels(runs), strict=True):
            try:
                evaluation, ids = evaluation_of(folder, split), ids_of(folder)
            except InputError as error:
                progress.result(f"Left out: {error}")
                advance(1)
                continue
            dataset = dataset_of(folder, data)
            ids.require_data(dataset, folder)
            vectors = embeddings_of(folder, dataset, ids)
            quality = id_quality(ids, None if vectors is None else vectors.vectors, dataset)
            row = {"run": label, "stratum": _stratum(evaluation), "recall@10": evaluation["seen_kept"]["recall@10"]}
            rows.append(row | diagnostics_of(quality))
            places.add(dataset.folder.resolve().name if dataset.folder else dataset.fingerprint[:8])
            advance(1)
    table = pl.DataFrame(rows, infer_schema_length=None)
    return _numbered(table) if rows else table, places


def _stratum(evaluation: dict[str, Any]) -> str:
    """Return what two runs must have in common to be compared: Dataset, generator and its settings but the seed."""
    settings = {name: value for name, value in evaluation["settings"].items() if name != "seed"}
    text = json.dumps([evaluation["fingerprint"], settings, evaluation.get("options")], sort_keys=True)
    return f"{evaluation['model']} {text}"


def _numbered(table: pl.DataFrame) -> pl.DataFrame:
    """Replace long names of strata by the generator's name, with a number where several have the same."""
    kinds, names = dict[str, int](), dict[str, str]()
    for stratum in table["stratum"].unique(maintain_order=True):
        kind = stratum.split(" ")[0]
        kinds[kind] = kinds.get(kind, 0) + 1
        names[stratum] = kind if kinds[kind] == 1 else f"{kind} {kinds[kind]}"
    return table.with_columns(pl.col("stratum").replace_strict(names))


def _correlate(
    values: dict[str, Floats], recall: Floats, strata: NDArray[np.str_], rng: np.random.Generator
) -> pl.DataFrame:
    """Return the rank correlation of every diagnostic with its interval and p-value, the strongest first.

    A diagnostic that is constant in all strata is left out.
    """
    groups = [np.flatnonzero(strata == stratum) for stratum in np.unique(strata)]
    drawn, permuted = (
        np.concatenate([_draw_indices(group, draw) for group in groups], axis=1)
        for draw in (
            lambda group: rng.choice(group, (_SAMPLES, len(group))),
            lambda group: rng.permuted(np.tile(group, (_SAMPLES, 1)), axis=1),
        )
    )
    order = np.concatenate(groups)
    recall, strata, rows, by_chance = recall[order], strata[order], [], np.zeros(_SAMPLES)
    place = np.argsort(order)  # of a run in the order of the strata
    drawn, permuted = place[drawn], place[permuted]
    for name, unordered in values.items():
        own = unordered[order]
        rho = _rank_correlation(own[None], recall[None], strata)[0]
        if np.isnan(rho):
            continue
        samples = _rank_correlation(own[drawn], recall[drawn], strata)
        low, high = np.nanquantile(samples, [0.025, 0.975])
        chance = _rank_correlation(np.broadcast_to(own, permuted.shape), recall[permuted], strata)
        by_chance = np.maximum(by_chance, np.abs(np.nan_to_num(chance)))
        counts = {"runs": int((~np.isnan(own)).sum())}
        rows.append({"diagnostic": name, "spearman": rho, "low": low, "high": high} | counts)
    for row in rows:
        row["p"] = float((1 + (by_chance >= abs(row["spearman"]) - 1e-12).sum()) / (1 + _SAMPLES))
    return (
        pl.DataFrame(rows).sort(pl.col("spearman").abs(), descending=True, maintain_order=True)
        if rows
        else pl.DataFrame()
    )


def _draw_indices(group: NDArray[np.int64], draw: Any) -> NDArray[np.int64]:
    found: NDArray[np.int64] = draw(group)
    return found


def _rank_correlation(x: Floats, y: Floats, strata: NDArray[np.str_]) -> Floats:
    """Return the correlation of ranks that are centred within strata, for samples of runs.

    Parameters
    ----------
    x, y
        Values and recalls, shape (samples, runs); runs whose value is not a number are left out.
    strata
        Of the runs, shape (runs,).

    Returns
    -------
    ndarray
        Shape (samples,); not a number if x or y is constant in all strata.
    """
    products = np.zeros((3, len(x)))
    for stratum in np.unique(strata):
        own = strata == stratum
        a, b = x[:, own], np.where(np.isnan(x[:, own]), np.nan, y[:, own])
        ranks = [rankdata(part, axis=1, nan_policy="omit") for part in (a, b)]
        a, b = (np.nan_to_num(part - np.nanmean(part, axis=1, keepdims=True)) for part in ranks)
        products += np.stack([(a * b).sum(axis=1), (a * a).sum(axis=1), (b * b).sum(axis=1)])
    both, first, second = products
    norm = np.sqrt(first * second)
    return np.where(norm > 0, both / np.where(norm > 0, norm, 1), np.nan)


@styled
def _draw(table: pl.DataFrame, found: pl.DataFrame) -> Figure:
    """Draw all correlations with their intervals, and the scatter of the strongest."""
    layout = [["all", *(f"{row}{column}" for column in range(3))] for row in range(2)]
    figure, panels = new_mosaic(layout, size=(3.3, 3.1), widths=(1.5, 1, 1, 1))
    axes, places = panels.pop("all"), np.arange(len(found))
    axes.hlines(places, found["low"], found["high"], color=GREY, linewidth=3)
    axes.plot(found["spearman"], places, "o", markersize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(places, [in_words(name) for name in found["diagnostic"]], fontsize=7)
    axes.set(xlabel="rank correlation with R@10, 95% interval", xlim=(-1.05, 1.05), ylim=(len(found) - 0.5, -0.5))
    strata = table["stratum"].unique(maintain_order=True).to_list()
    for panel, row in zip(panels.values(), found.head(_PANELS).iter_rows(named=True), strict=False):
        for stratum, color in zip(strata, COLORS, strict=False):
            own = table.filter(pl.col("stratum") == stratum)
            panel.plot(own[row["diagnostic"]], own["recall@10"], "o", color=color, markersize=5, label=stratum)
        panel.set_title(f"{shown(row['spearman'])}, p = {row['p']:.3f}")
        panel.set_xlabel(in_words(row["diagnostic"]), fontsize=8)
    for panel in list(panels.values())[len(found) :]:
        panel.set_axis_off()
    for name in ("00", "10"):
        panels[name].set_ylabel("R@10")
    panels["00"].legend(title="generator")
    return figure
