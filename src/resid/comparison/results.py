"""What is to be run for a comparison, and what is there already: fitted with the same settings and data, and evaluated."""

import tomllib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.data.dataset import Dataset
from resid.evaluate.cold_items import NEW, OLD, WITHOUT
from resid.evaluate.metrics import NOT_FOUND, gains
from resid.methods.recipe import Recipe
from resid.runs import (
    RunRecord,
    evaluation_folder,
    read_cost,
    read_evaluation,
    read_metrics,
    read_run,
    read_settings,
    stage_key,
)

CUTOFFS = (5, 10)
RANKINGS = {"seen_kept": "rank", "seen_dropped": "rank_seen_dropped"}  # name → column of the ranks
COLD_ITEMS = "cold-items"  # the name of the protocol, and of its evaluation
# Groups of targets in the protocol cold-items: the rows that belong to them, and what the columns of the ranks are called.
GROUPS = {NEW: (pl.col("new"), "rank"), OLD: (~pl.col("new"), "rank"), WITHOUT: (pl.col("asked"), "rank_without")}


@dataclass(frozen=True, eq=False)
class Task:
    """A recipe with a seed, which is fitted and evaluated in a process of its own.

    Attributes
    ----------
    row : str
        The name of the row that it belongs to.
    label : str
        What tells it from the other tasks of the row: ``seed 0``, ``trial 3``.
    recipe : Recipe
        With its seed.
    folder : Path
        Of the run.
    split : str
        On which it is evaluated, or `COLD_ITEMS`.
    """

    row: str
    label: str
    recipe: Recipe
    folder: Path
    split: str = "test"

    def __str__(self) -> str:
        return f"{self.row}, {self.label}"


@dataclass(frozen=True)
class Result:
    """What a task left in its folder.

    Attributes
    ----------
    ranks : DataFrame
        As `Evaluation.table` returns them.
    stages : dict
        The key and the cost of every stage.
    evaluation : dict
        The cost of the evaluation, the decoding, and the environment in which it ran; what is known of them.
    """

    ranks: pl.DataFrame
    stages: dict[str, dict[str, Any]]
    evaluation: dict[str, Any]

    @property
    def seconds(self) -> float:
        """The time of all stages and of the evaluation, as far as it is known."""
        costs = (*self.stages.values(), self.evaluation)
        return float(sum(cost.get("seconds") or 0.0 for cost in costs))

    def gains(self, ranking: str, group: str | None = None) -> dict[str, NDArray[np.float64]]:
        """Return Recall@K and NDCG@K at every target; `ranking` is one of `RANKINGS`, `group` one of `GROUPS`."""
        rows, column = (pl.lit(True), "rank") if group is None else GROUPS[group]
        ranks = self.ranks.filter(rows)[RANKINGS[ranking].replace("rank", column, 1)]
        return gains((ranks.cast(pl.Int64).fill_null(NOT_FOUND) - 1).to_numpy(), CUTOFFS)

    def metrics(self, ranking: str, group: str | None = None) -> dict[str, float]:
        """Return the means of the gains."""
        return {name: float(values.mean()) for name, values in self.gains(ranking, group).items()}

    def groups(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return group → ranking → metrics; empty unless the protocol is `COLD_ITEMS`."""
        named = GROUPS if "new" in self.ranks.columns else {}
        return {group: {ranking: self.metrics(ranking, group) for ranking in RANKINGS} for group in named}


def fitted_record(task: Task, data: Dataset) -> RunRecord | None:
    """Return the record of a task's run if it was fitted with the same settings and data; otherwise None.

    The model itself may have been removed since.

    Raises
    ------
    InputError
        If the folder has a run on another Dataset, or one of another version.
    """
    record = read_run(task.folder)
    if record is None:
        return None
    if record.fingerprint != data.fingerprint:
        raise InputError(
            f"{task.folder}: this run is on another Dataset ({record.data}, fingerprint {record.fingerprint[:16]}); choose another "
            "folder with --out."
        )
    if record.recipe is None:
        return None
    try:
        written = tomllib.loads(read_settings(task.folder))
    except ValueError:  # damaged
        return None
    wanted = tomllib.loads(task.recipe.toml())
    if written | {"description": ""} != wanted | {"description": ""}:
        return None
    for section, spec in task.recipe.parts.items():  # files that settings name may have changed
        key = Path(record.model_stages.get(section, "")).name
        if spec.settings.file_digests() and key != stage_key(spec, data):
            return None
    return record


def read_result(task: Task, data: Dataset) -> Result | None:
    """Return the result of a task; None if it is not there with the same settings and data.

    The record of the run, its settings and its evaluation are enough, so that a comparison continues without its models.
    """
    record = fitted_record(task, data)
    if record is None:
        return None
    try:
        ranks = read_evaluation(task.folder, task.split, task.split, max(CUTOFFS))
    except InputError:  # missing, damaged, or of an earlier version
        return None
    content = read_metrics(task.folder, task.split)
    stages = content.get("stages") or stage_costs(task, record)
    cost = read_cost(evaluation_folder(task.folder))
    known = {name: content[name] for name in ("decoding", "environment") if name in content}
    return Result(ranks, stages, known | (asdict(cost) if cost else {}))


def stage_costs(task: Task, record: RunRecord) -> dict[str, dict[str, Any]]:
    """Return the key of every stage of a task's model, and its cost where it is known."""
    places = {name: task.folder / place for name, place in record.model_stages.items()}
    costs = {name: read_cost(place) for name, place in places.items()}
    return {name: {"key": places[name].name, **(asdict(cost) if cost else {})} for name, cost in costs.items()}


def mean_gains(results: list[Result], ranking: str, group: str | None = None) -> dict[str, NDArray[np.float64]]:
    """Return the gains at every target, or at those of a group, averaged over the seeds of a row."""
    of_seeds = [result.gains(ranking, group) for result in results]
    return {name: np.mean([values[name] for values in of_seeds], axis=0) for name in of_seeds[0]}


def user_indices(results: list[Result], group: str | None = None) -> NDArray[np.int64]:
    """Return the user of every target, or of those of a group, counted from 0.

    Raises
    ------
    InputError
        If the results are not of the same targets.
    """
    targets = ["user", "target"]
    first = results[0].ranks
    if any(not result.ranks.select(targets).equals(first.select(targets)) for result in results):
        raise InputError(
            "the evaluations are of different targets; remove the folder runs/ and run the comparison again."
        )
    rows = pl.lit(True) if group is None else GROUPS[group][0]
    return first.filter(rows)["user"].rank("dense").to_numpy().astype(np.int64) - 1
