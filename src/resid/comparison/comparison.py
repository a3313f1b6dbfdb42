"""`resid.compare`: fit and evaluate several recipes with several seeds, and put the results into tables.

::

    results/mine/
      comparison.json          the record: protocol, settings, results, costs, significance
      data/                    protocol cold-items: the Dataset without the new items
      table.md, table.tex      the same for people
      runs/<recipe>-<seed>/    model, evaluation, run.json, recipe.toml
      stages/<stage>/<key>/    the stages, which runs share
      tuning/                  the studies, and the runs of their trials
      logs/                    what the processes wrote to standard error
"""

import json
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from rich.console import Console

from resid.comparison.cold import leave_room, prepare_cold
from resid.comparison.display import Display
from resid.comparison.processes import Workplace, check_devices, run_tasks
from resid.comparison.results import COLD_ITEMS, GROUPS, RANKINGS, Result, Task, mean_gains, read_result, user_indices
from resid.comparison.rows import Row, read_rows
from resid.comparison.significance import against_best_rival
from resid.comparison.tables import latex, markdown
from resid.comparison.tuning import Search, read_space, spaces_of_rows
from resid.core.checksums import manifest_text, pop_checksum
from resid.core.errors import InputError, as_path, counted
from resid.core.files import refuse_file, refuse_ours, write_text
from resid.core.locks import exclusive
from resid.core.progress import ConsoleProgress, default_progress
from resid.data.cold_items import ColdItems, hide_newest
from resid.data.dataset import Dataset, require_dataset
from resid.evaluate.cold_items import NEW
from resid.methods.recipe import Recipe

FORMAT = 1
RECORD, MARKDOWN, LATEX = "comparison.json", "table.md", "table.tex"
RUNS, STAGES, TUNING, LOGS, DATA = "runs", "stages", "tuning", "logs", "data"


@dataclass(frozen=True)
class Comparison:
    """The result of `compare`.

    Attributes
    ----------
    folder : Path
    record : dict
        The content of ``comparison.json``.
    n_run : int
        How many recipes and seeds were run now; the others were there.
    """

    folder: Path
    record: Mapping[str, Any]
    n_run: int

    @property
    def failures(self) -> dict[str, str]:
        """Why runs failed, by row and seed."""
        runs = ((f"{row['name']}, {run['label']}", run["error"]) for row in self.record["rows"] for run in row["runs"])
        return {name: error for name, error in runs if error}

    def markdown(self) -> str:
        """Return the tables as Markdown."""
        return markdown(self.record)

    def latex(self) -> str:
        """Return the tables as LaTeX."""
        return latex(self.record)

    def _repr_markdown_(self) -> str:
        return self.markdown()


def compare(
    data: Dataset | str | Path,
    recipes: Sequence[str | Path | Recipe] | str,
    out: str | Path,
    *,
    seeds: int | Sequence[int] = 3,
    protocol: Literal["split", "cold-items"] = "split",
    cold_share: float = 0.1,
    tune: Sequence[str] | str = (),
    trials: int | None = None,
    jobs: int | None = None,
    devices: Sequence[str] = ("cpu",),
    precision: str = "32-true",
    console: Console | None = None,
) -> Comparison:
    """Compare recipes on a Dataset; what is there with the same settings and data is not run again.

    Every recipe and seed is fitted and evaluated in a process of its own. Stages with the same settings and inputs are fitted
    once. A recipe that fails does not end the comparison. Call it again to continue after an interruption, or to try failed
    recipes again.

    Parameters
    ----------
    data
        The Dataset, which must have been saved, or its folder.
    recipes
        Names that `resid recipes` lists, with wildcards (``resid-*``) or changes (``tiger[generator.kind=onepass]``), TOML files
        or Recipes; as a text, separated by commas.
    out
        The folder of the comparison.
    seeds
        The seeds, or their number: 3 is 0, 1 and 2. A recipe without anything random is run once.
    protocol
        ``"split"`` evaluates the test targets of the Dataset's split. ``"cold-items"`` hides the items that appeared last from
        training and validation, adds them to the fitted model, and evaluates new and old targets; see `resid.data.hide_newest`.
    cold_share
        The share of items that ``"cold-items"`` hides.
    tune
        Settings to search on validation users first, with their values: ``"encoder.learning_rate=1e-3,3e-3"``. Each recipe that
        has such a setting is then compared with its best settings.
    trials
        Number of trials per recipe, chosen by TPE; None tries all combinations.
    jobs
        How many processes run at a time; one per device by default.
    devices
        ``cpu``, ``mps``, ``cuda:0``, …; the processes are spread over them.
    precision
        ``"32-true"`` or ``"bf16-mixed"``.
    console
        Where progress is shown; by default on a terminal and in a notebook.

    Raises
    ------
    InputError
        If a recipe is unknown, or the folder belongs to something else, another Dataset or a running comparison.
    """
    dataset = data if isinstance(data, Dataset) else Dataset.load(as_path(data))
    require_dataset(dataset)
    if dataset.folder is None:
        raise InputError("the Dataset is not saved, so other processes cannot read it; call its 'save' first.")
    rows, numbers = read_rows(recipes), _seeds(seeds)
    spaces = spaces_of_rows(rows, read_space([tune] if isinstance(tune, str) else tune))
    if trials is not None and (trials < 1 or not spaces):
        raise InputError("the number of trials must be at least 1, and needs settings to tune.")
    folder, places = as_path(out), check_devices(tuple(devices), jobs)
    if protocol not in ("split", COLD_ITEMS):
        raise InputError(f"there is no protocol '{protocol}'; use 'split' or '{COLD_ITEMS}'.")
    cold = hide_newest(dataset, cold_share) if protocol == COLD_ITEMS else None
    _refuse_foreign(folder, dataset, cold)
    if console is None and isinstance(shown := default_progress(), ConsoleProgress):
        console = shown.console
    place = Workplace(dataset.folder.resolve(), folder / STAGES, folder / LOGS, places, precision)
    with exclusive(folder):
        if cold is not None:
            rows = [leave_room(row, cold) for row in rows]
            place = replace(
                place, data=prepare_cold(cold, folder / DATA), cold_items={"data": str(place.data), "share": cold.share}
            )
        made = _Comparison(folder, dataset, rows, numbers, place, console, cold)
        made.tune(spaces, trials)
        made.run()
        return made.finish()


class _Comparison:
    """A comparison in progress; it is the source of its tasks."""

    def __init__(
        self,
        folder: Path,
        data: Dataset,
        rows: list[Row],
        seeds: tuple[int, ...],
        place: Workplace,
        console: Console | None,
        cold: ColdItems | None,
    ) -> None:
        self.folder, self.rows, self.seeds, self.cold = folder, rows, seeds, cold
        self.whole, self.data = data, data if cold is None else cold.known  # what is evaluated, and what is fitted to
        self.place, self.console = place, console
        self.tuning: dict[str, Any] = {}
        self.untuned = dict[str, str]()  # rows whose trials all failed, and why
        self.results = dict[Task, Result | None]()
        self.errors = dict[Task, str]()
        self.waiting = list[Task]()
        self.n_run = 0

    def tune(self, spaces: dict[str, dict[str, tuple[str, ...]]], trials: int | None) -> None:
        """Search settings, and replace the rows by those with the best settings."""
        if not spaces:
            return
        self._write(self._record(significance=False))  # says whose folder this is
        search = Search(self.rows, spaces, self.folder / TUNING, self.data, trials, self.seeds[0])
        display = Display(self.console, "Tuning", {}, [], {}, len(self.place.devices))
        display.total = search.left
        with display:
            run_tasks(search, self.place, display)
        best, self.untuned = search.tuned(), search.failures()
        self.rows = [best.get(row.name, row) for row in self.rows]
        self.tuning = search.record()
        self.n_run += display.ended

    def run(self) -> None:
        """Run what is not there yet."""
        split = "test" if self.cold is None else COLD_ITEMS
        tasks = [
            Task(row.name, f"seed {seed}", row.seeded(seed), self.folder / RUNS / f"{row.folder}-{seed}", split)
            for seed in self.seeds  # all recipes with the first seed, then the next, so that a table is complete early
            for row in self.rows
            if seed in row.seeds(self.seeds)
        ]
        self.results = {t: None if t.row in self.untuned else read_result(t, self.data) for t in tasks}
        there = {task: result for task, result in self.results.items() if result is not None}
        self.errors = {task: self.untuned[task.row] for task in tasks if task.row in self.untuned}
        self.waiting = [task for task in tasks if task not in there and task not in self.errors]
        if not self.waiting:
            return
        self._write(self._record(significance=False))  # says whose folder this is
        known = dict[str, list[float]]()
        for task, result in there.items():
            known.setdefault(task.row, []).append(result.seconds)
        states = {(task.row, task.label): "there" for task in there}
        display = Display(self.console, "Comparison", states, self.waiting, known, len(self.place.devices))
        with display:
            run_tasks(self, self.place, display)

    def next_task(self) -> Task | None:
        """Return the next recipe and seed."""
        return self.waiting.pop(0) if self.waiting else None

    def finished(self, task: Task, error: str | None) -> None:
        """Read the result of a task, and write the tables so far."""
        self.n_run += 1
        self.results[task] = read_result(task, self.data) if error is None else None
        if self.results[task] is None:
            self.errors[task] = error or "the process left no result."
        self._write(self._record(significance=False))

    def finish(self) -> Comparison:
        """Write the record and the tables with the significance of all differences."""
        record = self._record(significance=True)
        self._write(record)
        return Comparison(self.folder, record, self.n_run)

    def _write(self, record: Mapping[str, Any]) -> None:
        """Write the record and the tables, if they have changed."""
        for name, text in (
            (MARKDOWN, markdown(record)),
            (LATEX, latex(record)),
            (RECORD, manifest_text({"format": FORMAT, **record})),
        ):
            path = self.folder / name
            if not path.exists() or path.read_text(encoding="utf-8") != text:
                write_text(path, text)

    def _record(self, significance: bool) -> dict[str, Any]:
        data, settings = self.whole, self.whole.settings.to_dict()
        compared = dict(self._significance()) if significance else {}
        on_new = dict(self._significance(NEW)) if significance and self.cold else {}
        return {
            "data": {
                "name": (data.folder or Path()).resolve().name,
                "fingerprint": data.fingerprint,
                "users": data.n_users,
                "items": data.n_items,
                "interactions": data.n_interactions,
                "targets": len(data.test),
            },
            "protocol": {
                "split": settings.get("split", "leave-one-out"),
                "evaluated": "test",
                "candidates": "all items",
                "seen_items": {"seen_kept": "kept in the ranking", "seen_dropped": "dropped from the ranking"},
                "k_core": settings["k_core"],
                "max_length": settings["max_length"],
                "unseen_targets": settings["unseen_targets"],
                "preprocessing": settings,
                "selection": "best epoch by NDCG@10 of validation users",
                "decoding": "beam search over the IDs of items",
                "significance": "paired bootstrap over users against the best rival, means over seeds, Holm",
                "devices": list(self.place.devices),
                "precision": self.place.precision,
                **({} if self.cold is None else {"cold_items": self.cold.facts()}),
            },
            "seeds": list(self.seeds),
            "tuning": self.tuning,
            "rows": [self._row(row, compared.get(row.name, {}), on_new.get(row.name, {})) for row in self.rows],
        }

    def _row(self, row: Row, significance: dict[str, Any], on_new: dict[str, Any]) -> dict[str, Any]:
        tasks = [task for task in self.results if task.row == row.name]
        done = [result for task in tasks if (result := self.results[task]) is not None]
        of_seeds = {ranking: [result.metrics(ranking) for result in done] for ranking in RANKINGS}
        groups = [result.groups() for result in done]
        return {
            "name": row.name,
            "description": row.recipe.description,
            "settings": tomllib.loads(row.recipe.toml()),
            "done": len(done),
            "mean": {ranking: _over_seeds(values, np.mean) for ranking, values in of_seeds.items()} if done else {},
            "deviation": {r: _over_seeds(v, _deviation) for r, v in of_seeds.items()} if len(done) > 1 else {},
            "significance": significance,
            **({} if self.cold is None else {"groups": _groups_over_seeds(groups), "significance_on_new": on_new}),
            "runs": [self._run(task, self.results[task]) for task in tasks],
        }

    def _run(self, task: Task, result: Result | None) -> dict[str, Any]:
        return {
            "label": task.label,
            "folder": str(task.folder.relative_to(self.folder)),
            "error": self.errors.get(task),
            "metrics": {ranking: result.metrics(ranking) for ranking in RANKINGS} if result else {},
            **({} if self.cold is None else {"groups": result.groups() if result else {}}),
            "stages": result.stages if result else {},
            "evaluation": result.evaluation if result else {},
        }

    def _significance(self, group: str | None = None) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield row → ranking → metric → the comparison with the best rival, on all targets or those of a group."""
        done = {
            row.name: [r for task, r in self.results.items() if r is not None and task.row == row.name]
            for row in self.rows
        }
        done = {name: results for name, results in done.items() if results}
        if len(done) < 2:
            return
        users = user_indices([result for results in done.values() for result in results], group)
        found = {
            ranking: against_best_rival({name: mean_gains(each, ranking, group) for name, each in done.items()}, users)
            for ranking in RANKINGS
        }
        for name in done:
            yield name, {ranking: found[ranking][name] for ranking in RANKINGS}


def read_comparison(folder: str | Path) -> dict[str, Any] | None:
    """Return the record of a comparison's folder; None if it is not one.

    Raises
    ------
    InputError
        If it is damaged, or was written by another version.
    """
    path = Path(folder) / RECORD
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        unaltered, version = pop_checksum(content), content.pop("format")
        if version == FORMAT and not unaltered:
            raise ValueError("its checksum does not match")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: damaged; remove it and run 'resid compare' again.") from error
    if version != FORMAT:
        raise InputError(
            f"{path}: format {version!r} is not supported, this version reads {FORMAT}; choose another folder, or remove this "
            "file and run 'resid compare' again."
        )
    return content


def _refuse_foreign(folder: Path, data: Dataset, cold: ColdItems | None) -> None:
    """Raise an `InputError` if a folder is something else, or a comparison on another Dataset or with another protocol."""
    refuse_file(folder)
    refuse_ours(folder)
    record = read_comparison(folder)
    if record is not None and record["data"]["fingerprint"] != data.fingerprint:
        raise InputError(
            f"{folder}: this is a comparison on another Dataset ({record['data']['name']}, fingerprint "
            f"{record['data']['fingerprint'][:16]}); choose another folder."
        )
    if record is not None and record["protocol"].get("cold_items") != (cold.facts() if cold else None):
        raise InputError(
            f"{folder}: this is a comparison with another protocol or share of new items; choose another folder."
        )
    own = {RECORD, MARKDOWN, LATEX, RUNS, STAGES, TUNING, LOGS, DATA}
    present = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []
    if foreign := sorted(set(present) - own):
        raise InputError(
            f"{folder}: the folder exists and is not a comparison (it contains {foreign[0]}); choose another folder."
        )


def _seeds(seeds: int | Sequence[int]) -> tuple[int, ...]:
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(dict.fromkeys(seeds))
    if not numbers:
        raise InputError(f"a comparison needs at least {counted(1, 'seed')}, not {seeds}.")
    return numbers


def _over_seeds(metrics: list[dict[str, float]], summarize: Any) -> dict[str, float]:
    return {name: float(summarize([each[name] for each in metrics])) for name in metrics[0]}


def _groups_over_seeds(groups: list[dict[str, dict[str, dict[str, float]]]]) -> dict[str, Any]:
    """Return group → ranking → the means of the metrics; empty if there is no result."""
    if not groups:
        return {}
    return {
        group: {ranking: _over_seeds([each[group][ranking] for each in groups], np.mean) for ranking in RANKINGS}
        for group in GROUPS
    }


def _deviation(values: list[float]) -> float:
    """Return the sample standard deviation."""
    return float(np.std(values, ddof=1))
