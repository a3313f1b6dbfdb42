"""The model for production: trained on all interactions, with the figures of the model that was measured beside it."""

from resid.data.dataset import Dataset
from resid.evaluate import evaluate
from resid.recommend import Recommender
from resid.runs import Run

_CUTOFFS = (5, 10)


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
    progress.step(f"Final: training {model.kind} on all interactions for {model.best_epoch_} epochs")
    final = model.refit_on_all(data, runtime=run.runtime_of(model.stage, "final"))
    if run.runtime.is_first:
        test = evaluate(model, data, k=max(_CUTOFFS), progress=progress).metrics(_CUTOFFS)
        figures = {"test": test["seen_kept"], "test_seen_dropped": test["seen_dropped"], "users": test["users"]}
        final.measured_ = {**(final.measured_ or {}), **figures, "validation": dict(run.validation.get("model", {}))}
        run.save_final(final)
    return final
