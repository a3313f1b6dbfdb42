"""What a report says about runs, as plain data that is ready for JSON. It computes nothing that another part computes."""

import platform
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.core.files import content_of
from resid.core.progress import Progress, Silent
from resid.data.dataset import Dataset
from resid.evaluate import intervals, paired_differences, ranking_metrics, ranks_in_table, slices
from resid.recommend import Recommender
from resid.report.data import data_content
from resid.report.examples import example_content, example_users
from resid.report.ids import ids_text, quality_rows, run_quality, score_weights
from resid.report.training import training_content
from resid.report.tree import ItemLabels, id_tree
from resid.runs import load, load_dataset, read_evaluation, read_run, read_settings

MAX_NODES = 6_000  # of all ID trees of a page together
_LEAST_NODES = 300  # of an ID tree, however many there are
_EXAMPLE_RUNS = 4  # whose recommendations are shown
_CUTOFFS = (5, 10)
_RANKINGS = {"kept": "rank", "dropped": "rank_seen_dropped"}  # → column of an evaluation's table
_PACKAGES = ("resid", "torch", "numpy", "polars", "scikit-learn", "lightning-fabric")


@dataclass(frozen=True)
class _Fitted:
    """A run and what is loaded of it; `missing` says why there are no ranks."""

    name: str
    folder: Path
    model: Recommender
    ranks: pl.DataFrame | None
    missing: str


def report_content(
    folders: Sequence[str | Path], data: str | Path | None = None, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Collect what a report says about runs.

    Parameters
    ----------
    folders
        The folders of the runs, all on the same Dataset.
    data
        The Dataset's folder; by default the one that the runs record.
    progress
        Counts runs.

    Raises
    ------
    InputError
        If a folder is not a run, a run has no model, or the runs have different Datasets.
    """
    paths = [Path(folder) for folder in folders]
    dataset = _common_dataset(paths, data)
    labels = ItemLabels(dataset)
    with (progress or Silent()).bar("Report", len(paths) + 1, unit="steps") as advance:
        runs = [_open(name, path, dataset) for name, path in zip(_names(paths), paths, strict=True)]
        share = max(_LEAST_NODES, MAX_NODES // max(1, sum(run.model.ids_ is not None for run in runs)))
        described = []
        for run in runs:
            described.append(_run_content(run, dataset, labels, share))
            advance(1)
        evaluated = [run for run in runs if run.ranks is not None]
        windows = example_users(dataset, evaluated[0].ranks if evaluated else None)
        models = {run.name: run.model for run in runs[:_EXAMPLE_RUNS]}
        examples = example_content(models, dataset, windows, labels)
        advance(1)
    return {
        "title": "Report of " + (runs[0].name if len(runs) == 1 else f"{len(runs)} runs"),
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": {"Python": platform.python_version(), **{name: version(name) for name in _PACKAGES}},
        "platform": f"{platform.system()} {platform.machine()}",
        "data": data_content(dataset),
        "runs": described,
        "training": training_content({run.name: (run.folder, run.model) for run in runs}),
        "differences": _differences(evaluated),
        "examples": {
            "users": examples,
            "chosen_by": evaluated[0].name if evaluated else None,
            "runs": list(models),
        },
        "items": labels.table(),
    }


def _common_dataset(paths: Sequence[Path], data: str | Path | None) -> Dataset:
    """Return the Dataset of all runs; raise an `InputError` if there are several, or a folder is not a run."""
    if not paths:
        raise InputError("name at least one run.")
    if repeated := [path for path in paths if [other.resolve() for other in paths].count(path.resolve()) > 1]:
        raise InputError(f"{repeated[0]} is given twice; name every run once.")
    records = {}
    for path in paths:
        record = read_run(path)
        if record is None:
            content = content_of(path) if path.is_dir() else None
            what = f"{path} is {content}" if content else f"{path}: this is not the folder of a run"
            raise InputError(f"{what}; a report is written about runs, which 'resid fit' makes.")
        records[path] = record
    first = records[paths[0]].fingerprint
    if strange := [path for path, record in records.items() if record.fingerprint != first]:
        raise InputError(
            f"{strange[0]}: this run is on another Dataset than {paths[0]}; write a report about each of them."
        )
    if data is not None:
        return load_dataset(paths[0], data)
    known = [path for path, record in records.items() if record.data and Path(record.data).exists()]
    return load_dataset((known or paths)[0])


def _names(paths: Sequence[Path]) -> list[str]:
    """Return the names of the runs: their folders' names, or the whole paths where these are not different."""
    names = [path.resolve().name for path in paths]
    return names if len(set(names)) == len(names) else [str(path) for path in paths]


def _open(name: str, folder: Path, data: Dataset) -> _Fitted:
    """Load the model of a run, and its ranks on the test split."""
    model = load(folder)
    model.require_data(data)
    try:
        ranks = read_evaluation(folder, "test", "test", max(_CUTOFFS))
        if len(ranks) != len(data.test):
            raise InputError(f"{folder}: the evaluation is of other users; run 'resid evaluate {folder}' again.")
    except InputError as error:
        return _Fitted(name, folder, model, None, str(error))
    return _Fitted(name, folder, model, ranks, "")


def _run_content(run: _Fitted, data: Dataset, labels: ItemLabels, max_nodes: int) -> dict[str, Any]:
    record, ids = read_run(run.folder), run.model.ids_
    assert record is not None  # noqa: S101 - checked when the Dataset was chosen
    tree = quality = None
    if ids is not None:
        tree = id_tree(ids.head(data.n_items), data, labels, max_nodes)  # without those that were added to the model
        found = run_quality(run.folder, data, run.model, ids)
        quality = {"text": ids_text(found), "levels": ids.levels, "rows": quality_rows(found["levels"])}
    return {
        "name": run.name,
        "folder": str(run.folder),
        "recipe": record.recipe,
        "model": type(run.model).__name__,
        "settings": read_settings(run.folder),
        "validation": record.validation,
        "evaluation": _evaluation_content(run.ranks, data) if run.ranks is not None else None,
        "missing": run.missing,
        "weights": score_weights(run.model),
        "quality": quality,
        "tree": tree,
    }


def _evaluation_content(ranks: pl.DataFrame, data: Dataset) -> dict[str, Any]:
    """Return the metrics of all users and of slices of them, each with its interval, with seen items kept and dropped."""
    parts = {"all users": np.ones(len(ranks), dtype=bool), **slices(data, data.test)}
    found = [
        {
            "name": name,
            "users": int(part.sum()),
            **{ranking: _measured(ranks_in_table(ranks, column)[part]) for ranking, column in _RANKINGS.items()},
        }
        for name, part in parts.items()
        if part.any()
    ]
    return {"all": found[0], "slices": found[1:]}


def _measured(ranks: NDArray[np.int64]) -> dict[str, tuple[float, float, float]]:
    """Return the mean and the bounds of its interval for every metric."""
    bounds = intervals(ranks, _CUTOFFS)
    return {name: (value, *bounds[name]) for name, value in ranking_metrics(ranks, _CUTOFFS).items()}


def _differences(runs: Sequence[_Fitted]) -> list[dict[str, Any]]:
    """Return how much better every evaluated run is than the first one, by a paired bootstrap over users."""
    tables = {run.name: run.ranks for run in runs if run.ranks is not None}
    first = next(iter(tables), "")

    def difference(name: str, column: str) -> dict[str, tuple[float, float, float]]:
        ranks, others = (ranks_in_table(tables[each], column) for each in (name, first))
        compared = paired_differences(ranks, others, _CUTOFFS)
        return {metric: (value["difference"], *value["interval"]) for metric, value in compared.items()}

    return [
        {"run": name, "to": first, **{ranking: difference(name, column) for ranking, column in _RANKINGS.items()}}
        for name in list(tables)[1:]
    ]
