"""From a recipe to a recommender: the stages one after the other, each in a folder of its own, none run twice.

::

    runs/mine/
      run.json               the Dataset, the recipe of the model, and which folders its stages have
      recipe.toml            all of the model's settings
      encoder/<key>/         checkpoints, metrics of every epoch, the encoder, embeddings/
      quantizer/<key>/       ids.parquet
      generator/<key>/       checkpoints, metrics of every epoch
      recommender/<key>/     the same, of a recommender without semantic IDs
      model/                 the recommender, for `resid.load`
      evaluation/            its figures, if `resid evaluate` has made them

The key of a stage is made of its settings and of what it reads. A stage with the same key is taken as it is, one that was
interrupted continues, and one with another key gets another folder, so that no training is lost when a setting is tried.
"""

import hashlib
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

from resid.core.artifact import MANIFEST
from resid.data.dataset import Dataset, require_dataset
from resid.core.files import refuse_file, refuse_foreign_folder
from resid.core.errors import InputError, as_path
from resid.core.progress import Progress, Silent
from resid.methods.recipe import Part, Recipe
from resid.recommend.base import Recommender, recommender_class

RUN, RECIPE = "run.json", "recipe.toml"
EVALUATION = "evaluation"  # where `resid evaluate` puts the figures of the model
_PARTS = {"encoder", "quantizer", "generator", "recommender", "model", RECIPE, EVALUATION}  # of a run's folder
FORMAT = 1


def fit(
    data: Dataset | str | Path,
    recipe: str | Path | Recipe = "resid",
    folder: str | Path | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    fabric: Any = None,
    progress: Progress | None = None,
) -> Recommender:
    """Fit a recommender to a Dataset.

    Parameters
    ----------
    data
        The Dataset, or its folder.
    recipe
        A name that `resid recipes` lists, the path of a TOML file, or a Recipe.
    folder
        The run's folder. What is finished there is taken as it is, what was interrupted continues. None keeps nothing.
    changes
        Other settings, by stage and name: ``{"encoder.epochs": 20}``; ``{"seed": 1}`` is the seed of every stage.
    fabric
        Where to train, see `resid.train.open_fabric`; by default on the CPU.
    progress
        Shows stages, epochs and steps.

    Raises
    ------
    InputError
        If the recipe cannot be used, or the folder belongs to another Dataset, to something else, or to a run under way.
    """
    from resid.train.process import exclusive  # torch takes a second to import

    if isinstance(data, (str, Path)):
        data = Dataset.load(data, verify=True)
    require_dataset(data)
    if not isinstance(changes, Mapping | None):
        raise InputError(f"changes are settings by name, as {{'encoder.epochs': 20}}, not {changes!r}.")
    made = Recipe.read(recipe).changed(changes or {})
    if fabric is not None and fabric.world_size > 1:
        raise InputError(
            "all stages at once run in one process; under torchrun, 'resid encode' trains an encoder, and the method 'fit' of a "
            "recommender takes a fabric."
        )
    _check_branching(made, data)
    _check_fields(made, data)
    with ExitStack() as stack:
        place = as_path(folder if folder is not None else stack.enter_context(tempfile.TemporaryDirectory()))
        _refuse_foreign(place, data)
        stack.enter_context(exclusive(place))
        if not read_run(place):
            note_run(place, data)
        refuse_foreign_folder(place / "model", MANIFEST)
        run = _Run(place, data, made, fabric, progress or Silent())
        model = run.recommender()
        if (place / EVALUATION).is_dir() and not _is_of(place, made, run.stages):
            run.progress.step(f"{place / EVALUATION} is of another model and is removed")
            shutil.rmtree(place / EVALUATION)
        model.save(place / "model")
        note_run(place, data, made, run.stages)  # only now, so that what the run says of itself is true of its model
    return model


class _Run:
    """The stages of one recipe in one folder."""

    def __init__(self, folder: Path, data: Dataset, recipe: Recipe, fabric: Any, progress: Progress) -> None:
        self.folder, self.data, self.recipe, self.fabric, self.progress = folder, data, recipe, fabric, progress
        self.stages: dict[str, str] = {}

    def recommender(self) -> Recommender:
        """Run what has not been run."""
        parts = self.recipe.parts
        if "recommender" in parts:
            return self._recommend(parts["recommender"])
        embeddings = self._encode(parts["encoder"])
        ids = self._quantize(parts["quantizer"], embeddings)
        return self._generate(parts["generator"], embeddings, ids)

    def _recommend(self, part: Part) -> Recommender:
        from resid.train import TrainSettings

        make: Any = recommender_class(part.kind)
        model = make(part.settings)
        if not isinstance(part.settings, TrainSettings):  # it counts, and has nothing to continue
            counted: Recommender = model.fit(self.data)
            return counted
        folder = self._folder_of("recommender", part, self.data.fingerprint)
        self.progress.step(f"Recommender: {part.kind} in {folder}")
        fitted: Recommender = model.fit(self.data, folder, fabric=self.fabric, progress=self.progress)
        return fitted

    def _encode(self, part: Part) -> Any:
        from resid.encode import FAMAE, ItemEmbeddings

        folder = self._folder_of("encoder", part, self.data.fingerprint)
        path = folder / "embeddings"
        found = self._reused("Encoder", path, lambda: ItemEmbeddings.load(path, check=True))
        if found is not None:
            return found
        self.progress.step(f"Encoder: {part.kind} in {folder}")
        make: Any = FAMAE if part.kind == "famae" else recommender_class(part.kind)
        encoder = make(part.settings).fit(self.data, folder / "training", fabric=self.fabric, progress=self.progress)
        encoder.save(folder / "encoder")
        encoder.embed(self.data).save(path)
        return ItemEmbeddings.load(path)

    def _quantize(self, part: Part, embeddings: Any) -> Any:
        from resid.quantize import SemanticIds
        from resid.quantize.methods import quantize

        folder = self._folder_of("quantizer", part, embeddings.digest)
        path = folder / "ids.parquet"
        found = self._reused("Quantizer", path, lambda: SemanticIds.load(path))
        if found is not None:
            return found
        self.progress.step(f"Quantizer: {part.kind} in {folder}")
        try:
            ids, _ = quantize(part.kind, part.settings, self.data, embeddings, folder / "training", self.progress)
        except InputError as error:
            raise InputError(f"[quantizer] {error}") from error
        ids.save(path)
        return ids

    def _generate(self, part: Part, embeddings: Any, ids: Any) -> Recommender:
        make: Any = recommender_class(part.kind)
        folder = self._folder_of(
            "generator", part, self.data.fingerprint, embeddings.digest, _digest(ids.codes.tobytes())
        )
        self.progress.step(f"Generator: {part.kind} in {folder}")
        fitted: Recommender = make(part.settings).fit(
            self.data, ids, embeddings.vectors, folder, fabric=self.fabric, progress=self.progress
        )
        return fitted

    def _reused(self, stage: str, path: Path, load: Callable[[], Any]) -> Any:
        """Return what a stage left at a path; None if it has not come so far, or left it damaged, which is said."""
        if not path.exists():
            return None
        try:
            found = load()
        except InputError as error:
            self.progress.step(f"{stage}: {error} That is done now")
            return None
        self.progress.step(f"{stage}: {path} is there, reused")
        return found

    def _folder_of(self, stage: str, part: Part, *reads: str) -> Path:
        key = _digest(json.dumps([part.kind, part.settings.plain(), *reads], sort_keys=True).encode())
        self.stages[stage] = f"{stage}/{key}"
        return self.folder / stage / key


def read_run(folder: str | Path) -> dict[str, Any]:
    """Return what `run.json` of a run's folder says; an empty dictionary if there is none."""
    path = Path(folder) / RUN
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        version = content["format"]
        whole = version != FORMAT or {"data", "fingerprint", "recipe", "stages"} <= set(content)
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, KeyError, TypeError):
        version, whole = None, False
    if not whole:
        raise InputError(f"{path}: damaged; remove it and run 'resid fit' again.")
    if version != FORMAT:
        raise InputError(f"{path}: format {version!r} is not known here, {FORMAT} is; update resid.")
    return content


def _check_branching(recipe: Recipe, data: Dataset) -> None:
    """Refuse a tree that is too large for the catalogue, before the encoder has been trained for it."""
    from resid.quantize.tree import checked_branching

    part = recipe.parts.get("quantizer")
    branching = getattr(part.settings, "branching", None) if part else None
    if isinstance(branching, tuple) or (isinstance(branching, int) and part and part.kind == "gaoq"):
        try:
            checked_branching(cast(Any, branching), data.n_items)
        except ValueError as error:
            raise InputError(f"[quantizer] {error}") from error


def _check_fields(recipe: Recipe, data: Dataset) -> None:
    """Refuse a model that reads fields where there are none, before a folder is made for it."""
    if any(getattr(part.settings, "fields", False) for part in recipe.parts.values()):
        from resid.sequential.base import require_fields

        require_fields(data)


def note_run(
    folder: Path, data: Dataset, recipe: Recipe | None = None, stages: Mapping[str, str] | None = None
) -> None:
    """Write down what a run is: its Dataset, and the recipe and stages that its model is made of, once it has one."""
    content = {
        "format": FORMAT,
        "data": str(data.folder.resolve()) if data.folder else None,
        "fingerprint": data.fingerprint,
        "recipe": recipe.name if recipe else None,
        "stages": dict(stages or {}),
    }
    _replace(folder / RUN, json.dumps(content, indent=1) + "\n")
    if recipe:
        _replace(folder / RECIPE, recipe.toml())


def _is_of(folder: Path, recipe: Recipe, stages: Mapping[str, str]) -> bool:
    """Tell whether the model in a run's folder is what a recipe gives, whatever the recipe's name."""
    written = folder / RECIPE
    return read_run(folder)["stages"] == stages and written.exists() and Recipe.read(written).parts == recipe.parts


def _replace(path: Path, text: str) -> None:
    """Write a file, whole or not at all."""
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)


def _refuse_foreign(folder: Path, data: Dataset) -> None:
    """Refuse a folder that is something else, or the run of another Dataset."""
    refuse_file(folder)
    if (folder / "training").is_dir():
        raise InputError(f"{folder}: a single stage was trained here; choose another folder for all of them.")
    known = read_run(folder)
    others = [path.name for path in folder.iterdir() if not path.name.startswith(".")] if folder.exists() else []
    if not known and (foreign := set(others) - _PARTS):  # a run whose run.json was removed is still one
        raise InputError(f"{folder}: this exists and is not a run (it has {min(foreign)}); choose another folder.")
    if known and known["fingerprint"] != data.fingerprint:
        again = data.folder and known["data"] == str(data.folder.resolve())
        where = f"{known['data']} as it was before it was prepared again" if again else known["data"]
        raise InputError(
            f"{folder}: this is a run on another Dataset ({where}, fingerprint {known['fingerprint'][:16]}); "
            "choose another folder."
        )


def _digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]
