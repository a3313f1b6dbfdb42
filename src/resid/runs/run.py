"""A run: a folder with one subfolder per stage, keyed by settings and inputs. The only place that knows the layout.

::

    runs/mine/
      run.json              the Dataset, the latest folder of every stage, the model's recipe and stages
      recipe.toml           all settings of the model
      <stage>/<key>/        here, or in a folder of stages that several runs share
        part/               the fitted part
        training/           checkpoints, and the metrics of every epoch
        cost.json           its time and memory
        final/              the checkpoints of the same part trained on all interactions
        evaluation/         what an analysis that trains measured of the part
      model/                the recommender with its encoder and quantizer, for `resid.load`
      final/                the same method trained on all interactions, by `resid fit --final`
      evaluation/           what `resid evaluate` wrote about the model; in a comparison with its cost.json
      new-ids.parquet, .csv after `resid update --new-ids`: the old and the new ID of every item

The key of a stage is a checksum of the part's kind and settings and of exactly the inputs that it reads. A finished stage with
the same key is loaded, an interrupted one continues, and another key gets another folder, so that no training is lost when
settings are tried.
"""

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import polars as pl

from resid.core.checksums import SEAL, is_sealed, manifest_text, pop_checksum, seal_file
from resid.core.errors import InputError, as_path, counted, first_line
from resid.core.files import MANIFEST, METRICS, RUN, atomic_file, refuse_file, write_text
from resid.core.locks import exclusive
from resid.core.part import Input, Part, PartSpec
from resid.core.registry import stage_of
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.recommend import Recommender
from resid.runs.cost import measured

FORMAT = 2
_RECIPE, _MODEL, _FINAL, _EVALUATION, _NEW_IDS = "recipe.toml", "model", "final", "evaluation", "new-ids"
_PART, _TRAINING = "part", "training"


@dataclass(frozen=True)
class RunRecord:
    """The content of `run.json`.

    Attributes
    ----------
    data : str or None
        The folder of the Dataset.
    fingerprint : str
        The fingerprint of the Dataset.
    stages : dict
        Stage to the folder of its latest part, relative to the run; the last name is its key.
    recipe : str or None
        The name of the model's recipe; None while there is no model.
    model_stages : dict
        The stages of the model.
    validation : dict
        The metrics of the model and of simple recommenders on validation users.
    """

    data: str | None
    fingerprint: str
    stages: Mapping[str, str] = field(default_factory=dict)
    recipe: str | None = None
    model_stages: Mapping[str, str] = field(default_factory=dict)
    validation: Mapping[str, Mapping[str, float]] = field(default_factory=dict)


class Run:
    """The stages of a run; open one with `Run.open`.

    Attributes
    ----------
    folder : Path
    shared : Path or None
        The folder with the stages that several runs share.
    stages : dict
        The stages of this process so far, and their folders relative to the run.
    """

    def __init__(self, folder: Path, data: Dataset, runtime: Runtime, shared: Path | None = None) -> None:
        self.folder, self.runtime, self.shared = folder, runtime, shared
        self.stages: dict[str, str] = {}
        data_folder = str(data.folder.resolve()) if data.folder else None
        self._record = read_run(folder) or RunRecord(data_folder, data.fingerprint)

    @classmethod
    @contextmanager
    def open(
        cls,
        folder: str | Path | None,
        data: Dataset,
        runtime: Runtime | None = None,
        stages: str | Path | None = None,
    ) -> Iterator[Self]:
        """Open a run for writing; no other process can open it at the same time.

        Parameters
        ----------
        folder
            The run's folder; None is a temporary folder.
        data
            The Dataset of the run.
        runtime
            Devices, trackers and progress.
        stages
            A folder for stages that several runs share, which may run at the same time; None keeps them in the run's folder.

        Raises
        ------
        InputError
            If the folder is something else, a run on another Dataset, or in use.
        """
        runtime = runtime or Runtime()
        with ExitStack() as stack:
            place = folder if folder is not None else stack.enter_context(tempfile.TemporaryDirectory())
            place = as_path(_broadcast(runtime, str(place) if folder is None else place))
            shared = as_path(stages) if stages is not None else None
            problem = None
            if runtime.is_first:  # alone, as the others would see files that it is writing
                try:
                    _refuse_foreign(place, data)
                    # Among runs that share stages, only one that is being stopped still has the folder.
                    stack.enter_context(exclusive(place, _nothing if shared is not None else None))
                    cls(place, data, runtime)._write_record()
                except InputError as error:
                    problem = str(error)
            if problem := _broadcast(runtime, problem):
                raise InputError(problem)
            yield cls(place, data, runtime, shared)
            _barrier(runtime)  # a temporary folder is removed when all processes are done with it

    def stage(self, name: str, spec: PartSpec, *inputs: Input | None) -> Part:
        """Return the fitted part of a stage: loaded if it is there, otherwise fitted, or continued, and saved.

        Under several processes, parts that train do so in all of them; other parts are fitted by the first one.

        Parameters
        ----------
        name
            The name of the stage in this run.
        spec
            The part.
        inputs
            What its `fit` takes, None for an optional input that is missing; their digests are part of the key.
        """
        key = _broadcast(
            self.runtime, stage_key(spec, *inputs)
        )  # of the first process, as others may differ in the last bit
        folder = (self.shared or self.folder) / name / key
        self.stages[name] = Path(os.path.relpath(folder, self.folder)).as_posix()
        with self._alone(name, folder):
            part = self._load(name, spec, folder / _PART)
            if part is None:
                self.runtime.progress.step(f"{_title(name)}: fitting {spec.kind} in {folder}")
                part = self._fit(spec, inputs, folder)
        self._record = replace(self._record, stages={**self._record.stages, name: self.stages[name]})
        self._write_record()
        return part

    def _alone(self, name: str, folder: Path) -> AbstractContextManager[None]:
        """Lock the folder of a shared stage, after any other run that is fitting it has finished."""
        if self.shared is None or not self.runtime.is_first:
            return nullcontext()
        return exclusive(
            folder, lambda: self.runtime.progress.step(f"{_title(name)}: waiting for another run that fits it")
        )

    def _load(self, name: str, spec: PartSpec, folder: Path) -> Part | None:
        """Return the part in a folder; None, with a message, if there is none or it is damaged."""
        if not _broadcast(self.runtime, folder.exists()):
            return None
        part, problem = None, ""
        try:
            part = Part.load(folder)
        except InputError as error:
            problem = str(error).partition(";")[0]  # without the advice, which is followed here
        if not _all_have(self.runtime, part is not None):
            self.runtime.progress.step(f"{_title(name)}: the saved part is damaged ({problem}); fitting it again")
            return None
        self.runtime.progress.step(f"{_title(name)}: reusing {spec.kind} from {folder.parent}")
        return part

    def _fit(self, spec: PartSpec, inputs: tuple[Input | None, ...], folder: Path) -> Part:
        part, runtime = spec.create(), replace(self.runtime, folder=folder / _TRAINING)
        alone = runtime.n_processes > 1 and not part.distributed
        device = runtime.fabric.device if runtime.fabric is not None else None
        with measured(folder, device) if runtime.is_first else nullcontext():
            if not alone or runtime.is_first:
                chosen = replace(runtime, fabric=_one_device(runtime)) if alone else runtime
                part = part.fit_part(*inputs, runtime=chosen)
            if runtime.is_first:
                if (folder / _PART).exists():  # damaged, as `_load` said
                    shutil.rmtree(folder / _PART)
                part.save(folder / _PART)
        _barrier(runtime)
        return Part.load(folder / _PART) if alone and not runtime.is_first else part

    @property
    def validation(self) -> Mapping[str, Mapping[str, float]]:
        """What was measured of the model that these stages make; empty if there is none yet."""
        return self._record.validation if self._record.model_stages == self.stages else {}

    def finish(
        self, model: Recommender, recipe: str, toml: str, validation: Mapping[str, Mapping[str, float]] | None = None
    ) -> None:
        """Save the model of the run; another model is replaced, and its evaluation results are removed.

        Parameters
        ----------
        model
            The fitted recommender.
        recipe
            The name of its recipe.
        toml
            The recipe with all settings.
        validation
            Metrics on validation users, kept in the record.
        """
        if self.runtime.is_first:
            known, other = self._record.recipe, self._record.model_stages != self.stages
            if known is not None and other:
                by = f"{recipe} with other settings" if recipe == known else recipe
                self.runtime.progress.step(
                    f"Replacing the model of {self.folder} ({known}) by {by}; its trained stages are kept"
                )
            if not other and has_model(self.folder) and (changes := len(lineage_of(self.folder / _MODEL))):
                self.runtime.progress.step(
                    f"Undoing {counted(changes, 'change')} of the items of {self.folder / _MODEL}"
                )
            model.save(self.folder / _MODEL)
            results = evaluation_folder(self.folder)
            if results.is_dir() and other:  # only now, as the disk may be full
                self.runtime.progress.step(f"Removing {results}, which describes another model")
                shutil.rmtree(results)
            with atomic_file(self.folder / _RECIPE) as partial:
                partial.write_text(f"# {SEAL}\n{toml}", encoding="utf-8")  # at the top: it is not lost with the end
                seal_file(partial)
        measured = dict(validation or {})
        self._record = replace(self._record, recipe=recipe, model_stages=dict(self.stages), validation=measured)
        self._write_record()  # last, so that the record describes the saved model

    def stage_folder(self, name: str) -> Path:
        """Return the folder of a stage of this process."""
        return self.folder / self.stages[name]

    def final_runtime(self, stage: str) -> Runtime:
        """Return the runtime with which a stage's part is trained on all interactions, beside its own training."""
        return replace(self.runtime, folder=final_folder(self.stage_folder(stage)))

    def load_final(self) -> Recommender | None:
        """Return the model of the run that was trained on all interactions; None if there is none, or it is damaged."""
        try:
            return Recommender.load(final_folder(self.folder)) if final_folder(self.folder).is_dir() else None
        except InputError as error:
            self.runtime.progress.step(f"Final: the saved model is damaged ({error}); fitting it again")
            return None

    def save_final(self, model: Recommender) -> None:
        """Save the model that was trained on all interactions."""
        if final_folder(self.folder).exists():  # another one, or damaged
            shutil.rmtree(final_folder(self.folder))
        model.save(final_folder(self.folder))

    def _write_record(self) -> None:
        if self.runtime.is_first:
            write_text(self.folder / RUN, manifest_text({"format": FORMAT, **asdict(self._record)}))


def read_run(folder: str | Path) -> RunRecord | None:
    """Return the record of a run's folder; None if it is not a run."""
    path = Path(folder) / RUN
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        unaltered, version = pop_checksum(content), content.pop("format")
        record = RunRecord(**content) if version == FORMAT else None
        if record and unaltered is False:
            raise ValueError("its checksum does not match")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{path}: damaged; remove it and run 'resid fit' again.") from error
    if record is None:
        raise InputError(
            f"{path}: format {version!r} is not supported, this version reads {FORMAT}; choose another folder."
        )
    return record


def load(folder: str | Path) -> Recommender:
    """Load a recommender from a run's folder, or from a folder that `Recommender.save` wrote.

    Raises
    ------
    InputError
        If there is no complete recommender, or one that this version does not know.
    """
    return Recommender.load(model_folder(folder))


def model_folder(folder: str | Path) -> Path:
    """Return the folder of a run's model, or `folder` itself if it is not a run; raise an `InputError` if there is none."""
    folder = as_path(folder)
    if not folder.exists():
        raise InputError(f"{folder}: there is no such folder; create a model with 'resid fit'.")
    if read_run(folder) is None:
        return folder
    if not has_model(folder):
        raise InputError(f"{folder}: this run has no model yet; run the same 'resid fit' again to continue it.")
    return folder / _MODEL


def has_model(folder: str | Path) -> bool:
    """Return whether a run's folder has a model."""
    return (Path(folder) / _MODEL).is_dir()


def final_folder(folder: str | Path) -> Path:
    """Return the folder of a run's model that was trained on all interactions, or of a stage's training for it."""
    return Path(folder) / _FINAL


def evaluation_folder(folder: str | Path) -> Path:
    """Return the folder of the evaluation results of a run, or of a stage."""
    return Path(folder) / _EVALUATION


def new_ids_path(folder: str | Path, ending: str = "parquet") -> Path:
    """Return the path of the table of old and new IDs that `write_new_ids` writes to a run's folder."""
    return Path(folder) / f"{_NEW_IDS}.{ending}"


def write_new_ids(folder: str | Path, table: pl.DataFrame) -> None:
    """Write the old and the new ID of every item to a run's folder, as Parquet and as CSV."""
    for ending in ("parquet", "csv"):
        with atomic_file(new_ids_path(folder, ending)) as partial:
            table.write_parquet(partial) if ending == "parquet" else table.write_csv(partial)


def lineage_of(folder: Path) -> list[dict[str, Any]]:
    """Return the changes of the items of a saved model, see `Recommender.lineage_`, without reading the model."""
    try:
        facts = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["facts"]
        changes: list[dict[str, Any]] = facts.get("lineage", [])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # damaged; loading the model says so
        return []
    return changes


def load_stage(folder: str | Path, stage: str) -> Part | None:
    """Load the part of a stage from a run's folder: the model's, or the latest; None if there is none."""
    record = read_run(folder)
    stages = (record.model_stages or record.stages) if record else {}
    return Part.load(Path(folder) / stages[stage] / _PART) if stage in stages else None


@dataclass(frozen=True)
class StageRecord:
    """What a run kept of a stage.

    Attributes
    ----------
    name : str
        The name of the stage in the run.
    finished : datetime or None
        When the part was written, by the file system; None if there is no part.
    training : dict
        The metrics of every epoch by training phase; a stage with one phase has it under the empty name.
    """

    name: str
    finished: datetime | None
    training: Mapping[str, Sequence[Mapping[str, Any]]]


def read_stages(folder: str | Path) -> list[StageRecord]:
    """Return what a run kept of the stages of its model, or of the latest stages if it has no model."""
    record = read_run(folder)
    found = []
    for name, place in ((record.model_stages or record.stages) if record else {}).items():
        part, training = Path(folder) / place / _PART / MANIFEST, Path(folder) / place / _TRAINING
        # Phases train one after another, so the times of their files tell their order.
        files = sorted(training.rglob(METRICS), key=lambda file: (file.stat().st_mtime, file))
        found.append(
            StageRecord(
                name,
                datetime.fromtimestamp(part.stat().st_mtime, tz=UTC) if part.is_file() else None,
                {" ".join(file.parent.relative_to(training).parts): _read_metrics(file) for file in files},
            )
        )
    return found


def read_settings(folder: str | Path) -> str:
    """Return all settings of a run's model as TOML; empty if the file is missing.

    Raises
    ------
    InputError
        If the file is not as the run wrote it.
    """
    path = Path(folder) / _RECIPE
    if not path.is_file():
        return ""
    try:
        sealed = is_sealed(path)
        text = path.read_text(encoding="utf-8")
    except ValueError as error:
        raise InputError(
            f"{path}: damaged, or changed since the model was fitted; run the same 'resid fit' again to restore it."
        ) from error
    return text.partition("\n")[2] if sealed else text


def _read_metrics(path: Path) -> list[dict[str, Any]]:
    """Return the metrics of every epoch."""
    try:
        records = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
        if not all(isinstance(record, dict) and isinstance(record.get("epoch"), int) for record in records):
            raise ValueError("a line is not the metrics of an epoch")
    except (OSError, ValueError) as error:
        raise InputError(
            f"{path}: damaged ({first_line(error)}); remove this file, which only reports read."
        ) from error
    return records


def load_dataset(folder: str | Path, data: str | Path | None = None) -> Dataset:
    """Load the Dataset of a run or model: the given one, or the one that the run records, also that of its final model."""
    record = read_run(folder)
    if record is None and Path(folder).name == _FINAL:
        record = read_run(Path(folder).parent)
    known = record.data if record else None
    if data is None and known is None:
        raise InputError(f"{folder}: the Dataset of this model is unknown; give it with --data.")
    if data is None and not Path(str(known)).exists():
        raise InputError(f"{known}: the Dataset of {folder} is missing; give it with --data.")
    found = Dataset.load(data or Path(str(known)))
    if record is not None and record.fingerprint != found.fingerprint:
        raise InputError(f"{folder} was fitted to {_other_dataset(record, found)}; use that Dataset, or fit again.")
    return found


def stage_key(spec: PartSpec, *inputs: Input | None) -> str:
    """Return the key of a stage: a checksum of the part's kind and settings, and of what it reads."""
    content: list[Any] = [
        spec.stage,
        spec.kind,
        spec.settings.identity(),
        [each.digest if each is not None else None for each in inputs],
        *spec.settings.file_digests(),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:12]


def _nothing() -> None:
    """Wait without a message."""


def _refuse_foreign(folder: Path, data: Dataset) -> None:
    """Raise an `InputError` if a folder is something else, or a run on another Dataset."""
    refuse_file(folder)
    record = read_run(folder)
    if record is None:
        visible = [path for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []
        if foreign := [path.name for path in visible if not _belongs(path)]:  # run.json may have been removed
            raise InputError(
                f"{folder}: the folder exists and is not a run (it contains {min(foreign)}); choose another folder."
            )
    elif record.fingerprint != data.fingerprint:
        raise InputError(
            f"{folder}: this is a run on another Dataset ({_other_dataset(record, data)}, fingerprint "
            f"{record.fingerprint[:16]}); choose another folder."
        )


def _other_dataset(record: RunRecord, data: Dataset) -> str:
    """Return the Dataset of a run, as it is called in a message about `data`, which is another one."""
    again = data.folder and record.data == str(data.folder.resolve())
    return f"{record.data} before it was prepared again" if again else str(record.data or "another Dataset")


def _belongs(path: Path) -> bool:
    """Return whether something in a folder can be part of a run."""
    if path.name in (_RECIPE, _MODEL, _EVALUATION, _FINAL) or path.stem == _NEW_IDS:
        return True
    try:
        stage_of(path.name)
    except InputError:
        return False
    return path.is_dir()


def _broadcast(runtime: Runtime, value: Any) -> Any:
    """Return the value of the first process."""
    return runtime.fabric.broadcast(value) if runtime.fabric is not None and runtime.n_processes > 1 else value


def _all_have(runtime: Runtime, value: bool) -> bool:
    """Return whether a value is true in all processes."""
    if runtime.fabric is None or runtime.n_processes == 1:
        return value
    import torch

    return bool(torch.as_tensor(runtime.fabric.all_reduce(torch.tensor(float(value)), reduce_op="min")))


def _one_device(runtime: Runtime) -> Any:
    """Return a fabric with the device of this process alone."""
    from lightning_fabric import Fabric

    device = runtime.fabric.device if runtime.fabric is not None else None
    kind = device.type if device is not None else "cpu"
    return Fabric(accelerator=kind, devices=[device.index or 0] if device is not None and kind != "cpu" else 1)


def _barrier(runtime: Runtime) -> None:
    if runtime.fabric is not None and runtime.n_processes > 1:
        runtime.fabric.barrier()


def _title(name: str) -> str:
    """Return the name of a stage for a message."""
    return name.replace("_", " ").capitalize()
