"""Search of listed settings on validation users, with Optuna; the study is a file, so an interrupted search continues."""

import hashlib
import itertools
import json
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

    def _open(self, name: str, trials: int | None) -> "Study":
        """Return the study of a row; what an interrupted search was trying is tried first."""
        optuna = _optuna()
        self.folder.mkdir(parents=True, exist_ok=True)
        row, space = self.rows[name], self.spaces[name]
        shown = " ".join(f"{setting}={'|'.join(values)}" for setting, values in space.items())
        study: Study = optuna.create_study(
            storage=f"sqlite:///{self.folder / STUDIES}",
            sampler=optuna.samplers.TPESampler(seed=self.seed),
            study_name=f"{row.name} ({self._digest(row)}): {shown}",
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

    def _digest(self, row: Row) -> str:
        """Return a checksum of all that the results of a row's trials depend on."""
        recipe = row.seeded(self.seed)
        files = [digest for spec in recipe.parts.values() for digest in spec.settings.file_digests()]
        content = json.dumps([self.data.fingerprint, recipe.toml(), files])
        return hashlib.sha256(content.encode()).hexdigest()[:12]

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
            trial.set_user_attr("error", error or "the process left no result.")
            study.tell(trial, state=_optuna().trial.TrialState.FAIL)
        else:
            trial.set_user_attr("seconds", result.seconds)
            study.tell(trial, result.metrics(_RANKING)[_METRIC])

    def tuned(self) -> dict[str, Row]:
        """Return the rows with their best settings, by the name of the row; without those whose trials all failed."""
        found = {name: (row, self._best(name)) for name, row in self.rows.items()}
        return {name: row.changed([f"{s}={v}" for s, v in best.items()]) for name, (row, best) in found.items() if best}

    def failures(self) -> dict[str, str]:
        """Return why there are no best settings, for the rows whose trials all failed."""
        return {
            name: f"all trials failed: {self._finished(name)[0].user_attrs['error']}"
            for name in self.rows
            if not self._best(name)
        }

    def _best(self, name: str) -> dict[str, str]:
        done = [trial for trial in self._finished(name) if trial.value is not None]
        return dict(max(done, key=lambda trial: (trial.value, -trial.number)).params) if done else {}

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
