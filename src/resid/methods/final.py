"""The model for production: trained on all interactions, with the figures of the model that was measured beside it."""

from resid.core.errors import InputError, counted
from resid.data.dataset import Dataset
from resid.evaluate import evaluate
from resid.methods.recipe import Recipe
from resid.recommend import Recommender
from resid.recommend.trained import TrainedRecommender
from resid.runs import Run

_CUTOFFS = (5, 10)


def check_final(recipe: Recipe) -> None:
    """Raise an `InputError` before anything is fitted if the model of a recipe cannot be trained on all interactions."""
    for spec in recipe.parts.values():
        part = spec.create()
        if isinstance(part, Recommender) and (not isinstance(part, TrainedRecommender) or part.needs_inputs):
            raise InputError(
                f"the recipe '{recipe.name}' cannot be trained on all interactions (--final): '{spec.kind}' cannot be trained again."
            )


def fit_final(run: Run, model: Recommender, data: Dataset) -> Recommender:
    """Return the model of a run trained on all interactions, see `Recommender.refit_on_all`; loaded if it is there.

    Parameters
    ----------
    run
        The run, whose model is saved.
    model
        Its model, which is measured on the test split for this.
    data
        Its Dataset.
    """
    known, progress = run.load_final(), run.runtime.progress
    if known is not None and known.measured_ and known.measured_["checksum"] == model.checksum:
        progress.step(f"Final: reusing the model that was trained on all interactions from {run.folder}")
        return known
    progress.step(f"Final: training {model.kind} on all interactions for {counted(model.best_epoch_, 'epoch')}")
    final = model.refit_on_all(data, runtime=run.final_runtime(model.stage))
    if run.runtime.is_first:
        test = evaluate(model, data, k=max(_CUTOFFS), progress=progress).metrics(_CUTOFFS)
        figures = {"test": test["seen_kept"], "test_seen_dropped": test["seen_dropped"], "users": test["users"]}
        final.measured_ = {**(final.measured_ or {}), **figures, "validation": dict(run.validation.get("model", {}))}
        run.save_final(final)
    return final
