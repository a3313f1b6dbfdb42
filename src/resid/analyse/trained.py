"""Analyses that train: every point is a recipe whose stages are fitted and evaluated in one run, or reused from it.

The stages are keyed by settings and inputs, so points share what they have in common, an interrupted analysis continues, and a
finished one is only drawn again.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.evaluate import evaluate
from resid.generate.settings import CodeGeneratorSettings
from resid.methods.recipe import Recipe
from resid.recommend import Recommender
from resid.runs import Run, evaluation_folder, read_metrics, write_evaluation

RUNS = "runs"  # in the folder of the analysis
_SPLIT = "test"
_BESIDE_CODES = ("input_embeddings", "output_embeddings", "learned_item_embeddings")


def codes_only(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """Return a changed recipe whose generator reads and scores codes alone, except for what the changes say.

    What it reaches then depends on the IDs, and not on embeddings that it reads beside them.
    """
    made = recipe.replace(changes)
    settings = made.part("generator").settings
    if not isinstance(settings, CodeGeneratorSettings):
        return made
    off = (name for name in _BESIDE_CODES if hasattr(settings, name) and f"generator.{name}" not in changes)
    return made.replace({f"generator.{name}": False for name in off})


@contextmanager
def open_run(folder: Path, data: Dataset, recipes: Sequence[Recipe], runtime: Runtime | None) -> Iterator[Run]:
    """Open the run of an analysis, after a check that all recipes fit the Dataset."""
    for recipe in recipes:
        recipe.check(data)
    runtime = runtime or Runtime()
    if runtime.n_processes > 1:
        raise InputError("an analysis runs in one process; start it without torchrun and with --devices 1.")
    with Run.open(folder / RUNS, data, runtime) as run:
        yield run


def measure(run: Run, recipe: Recipe, data: Dataset, place: str) -> tuple[Recommender, dict[str, Any]]:
    """Fit a recipe and evaluate it on the test split; what the run already has is reused.

    Parameters
    ----------
    run
        From `open_run`.
    recipe
        The point.
    data
        The Dataset.
    place
        Which point of how many this is, for the progress.

    Returns
    -------
    model, metrics
        The fitted recommender with its parts, and Recall@10 and NDCG@10 with seen items kept.
    """
    progress = run.runtime.progress
    progress.result(place)
    model = recipe.method.compose(run, recipe.parts, data)
    stage = run.stage_folder(recipe.method.sections[-1])
    found = _known(stage, data)
    if found is None:
        progress.step(f"Evaluating {model.kind} on the {_SPLIT} split")
        evaluation = evaluate(model, data, _SPLIT, progress=progress)
        found = evaluation.metrics()
        write_evaluation(run.folder, _SPLIT, found, evaluation.table(), evaluation_folder(stage))
    metrics = found["seen_kept"]
    progress.result(f"{place}: R@10 {metrics['recall@10']:.4f}, N@10 {metrics['ndcg@10']:.4f}")
    return model, {name: metrics[name] for name in ("recall@10", "ndcg@10")}


def _known(stage: Path, data: Dataset) -> dict[str, Any] | None:
    """Return the evaluation of a stage's part on this Dataset; None if there is none, or one that is damaged."""
    try:
        found = read_metrics(stage, _SPLIT)
    except InputError:
        return None
    complete = found.get("fingerprint") == data.fingerprint and found["seen_kept"].keys() >= {"recall@10", "ndcg@10"}
    return found if complete else None


def applicable(recipe: Recipe, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changes that concern a recipe: those of its sections, and those without a section."""
    return {name: value for name, value in changes.items() if "." not in name or name.split(".")[0] in recipe.parts}
