"""Search of listed settings on validation users, with Optuna; the study is a file, so an interrupted search continues."""

import itertools
import math
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resid.comparison.results import Task, read_result
from resid.comparison.rows import Row
from resid.core.errors import InputError
from resid.data.dataset import Dataset

if TYPE_CHECKING:
    from optuna import Study, Trial

STUDIES = "studies.db"
_METRIC, _RANKING = "ndcg@10", "seen_kept"
Space = dict[str, tuple[str, ...]]


def read_space(texts: Sequence[str]) -> Space:
    """Read the values of settings: ``encoder.learning_rate=1e-3,3e-3``, several of them separated by spaces.

    Values that are lists themselves are separated by ``|``: ``quantizer.branching=32,40|64,20``.
    """
    space = Space()
    for text in (part for each in texts for part in each.split()):
        name, equals, values = text.partition("=")
        listed = tuple(dict.fromkeys(value for value in values.split("|" if "|" in values else ",") if value))
        if not equals or not name or not listed:
            raise InputError(
                f"--tune: '{text}' does not have the form name=value,value, for example encoder.learning_rate=1e-3,3e-3."
            )
        space[name] = listed
    return space


def spaces_of_rows(rows: Sequence[Row], space: Space) -> dict[str, Space]:
    """Return the part of a space that each row has, after checking every value; raise an `InputError` if no row has a setting."""
    of_rows = {row.name: Space() for row in rows}
    for name, values in space.items():
        section, _, setting = name.partition(".")
        having = [
            row for row in rows if section in row.recipe.parts and hasattr(row.recipe.parts[section].settings, setting)
        ]
        if not having:
            raise InputError(
                f"--tune: none of the recipes has the setting '{name}'; 'resid recipes show NAME' lists them."
            )
        for row in having:
            for value in values:
                row.changed([f"{name}={value}"])  # raises an error that names the value
            of_rows[row.name][name] = values
    return {name: own for name, own in of_rows.items() if own}


class Search:
    """The trials of several rows, one study each.

    Parameters
    ----------
    rows
        The rows whose settings are searched.
    spaces
        Row → setting → its values.
    folder
        Receives the studies, and the runs of the trials.
    data
        The Dataset.
    trials
        Number of trials per row, chosen by TPE; None tries all combinations.
    seed
        Of the recipes, and of the sampler.
    """

    def __init__(
        self, rows: Sequence[Row], spaces: dict[str, Space], folder: Path, data: Dataset, trials: int | None, seed: int
    ) -> None:
        self.rows = {row.name: row for row in rows if row.name in spaces}
        self.spaces, self.folder, self.data, self.seed = spaces, folder, data, seed
        self.studies = {name: self._open(name, trials) for name in self.rows}
        self.wanted = {name: trials or math.prod(map(len, space.values())) for name, space in spaces.items()}
        self.running: dict[Task, Trial] = {}
        self.errors = dict[str, str]()

    def _open(self, name: str, trials: int | None) -> "Study":
        """Return the study of a row; what an interrupted search was trying is tried first."""
        optuna = _optuna()
        self.folder.mkdir(parents=True, exist_ok=True)
        row, space = self.rows[name], self.spaces[name]
        shown = " ".join(f"{setting}={'|'.join(values)}" for setting, values in space.items())
        study: Study = optuna.create_study(
            storage=f"sqlite:///{self.folder / STUDIES}",
            sampler=optuna.samplers.TPESampler(seed=self.seed),
            study_name=f"{row.name}, seed {self.seed}: {shown}",
            direction="maximize",
            load_if_exists=True,
        )
        for trial in study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.RUNNING,)):
            study.tell(trial.number, state=optuna.trial.TrialState.FAIL)
            study.enqueue_trial(trial.params)
        if trials is None:
            for values in itertools.product(*space.values()):
                study.enqueue_trial(dict(zip(space, values, strict=True)), skip_if_exists=True)
        return study

    @property
    def left(self) -> int:
        """The number of trials that are not finished."""
        return sum(max(0, self.wanted[name] - len(self._finished(name))) for name in self.studies)

    def _finished(self, name: str) -> list[Any]:
        """Return the trials of a row that have a value, or whose training failed."""
        return [
            trial
            for trial in self.studies[name].get_trials(deepcopy=False)
            if trial.value is not None or "error" in trial.user_attrs
        ]

    def next_task(self) -> Task | None:
        """Return the next trial of a row that has some left."""
        for name, study in self.studies.items():
            running = sum(task.row == name for task in self.running)
            if len(self._finished(name)) + running >= self.wanted[name]:
                continue
            distributions = {
                setting: _optuna().distributions.CategoricalDistribution(values)
                for setting, values in self.spaces[name].items()
            }
            trial = study.ask(distributions)
            row = self.rows[name]
            changes = [f"{setting}={value}" for setting, value in trial.params.items()]
            place = self.folder / row.folder / str(trial.number)
            task = Task(name, f"trial {trial.number}", row.changed(changes).seeded(self.seed), place, "validation")
            self.running[task] = trial
            return task
        return None

    def finished(self, task: Task, error: str | None) -> None:
        """Tell the study the NDCG@10 of a trial, or that it failed."""
        trial, study = self.running.pop(task), self.studies[task.row]
        result = read_result(task, self.data) if error is None else None
        if result is None:
            self.errors[task.row] = error or "the trial left no result"
            trial.set_user_attr("error", self.errors[task.row])
            study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        else:
            trial.set_user_attr("seconds", result.seconds)
            study.tell(trial, result.metrics(_RANKING)[_METRIC])

    def tuned(self) -> list[Row]:
        """Return the rows with their best settings; raise an `InputError` if all trials of a row failed."""
        return [row.changed([f"{s}={v}" for s, v in self._best(name).items()]) for name, row in self.rows.items()]

    def _best(self, name: str) -> dict[str, str]:
        done = [trial for trial in self._finished(name) if trial.value is not None]
        if not done:
            raise InputError(f"all trials of '{name}' failed: {self._failures(name)[0]}")
        best = max(done, key=lambda trial: (trial.value, -trial.number))
        return dict(best.params)

    def _failures(self, name: str) -> list[str]:
        return [trial.user_attrs["error"] for trial in self._finished(name) if "error" in trial.user_attrs]

    def record(self) -> dict[str, Any]:
        """Return every trial, and the best settings of every row, ready for JSON."""
        return {
            name: {
                "settings": {setting: list(values) for setting, values in self.spaces[name].items()},
                "metric": f"validation {_METRIC}, {_RANKING}",
                "best": self._best(name),
                "trials": [
                    {
                        "number": trial.number,
                        "settings": dict(trial.params),
                        "value": trial.value,
                        "seconds": trial.user_attrs.get("seconds"),
                        "error": trial.user_attrs.get("error"),
                    }
                    for trial in self._finished(name)
                ],
            }
            for name in self.rows
        }


def _optuna() -> Any:
    try:
        import optuna
    except ImportError as error:
        raise InputError("--tune needs Optuna; install it with pip install 'resid[tune]'.") from error
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna
