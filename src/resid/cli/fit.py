"""`resid fit`: from a Dataset and a recipe to a recommender."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from resid.cli.app import AsJson, output, print_json
from resid.cli.show import measured_text
from resid.cli.training import DEFAULTS, Training, refuse_dataset_folder

if TYPE_CHECKING:
    from resid import Recommender


def fit(
    data: Path,
    *,
    out: Path,
    final: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    training: Training = DEFAULTS,
    as_json: AsJson = False,
) -> None:
    """Fit a recommender to a Dataset; an interrupted run continues, and finished stages are reused.

    Under torchrun, all processes train together: torchrun --nproc-per-node 2 -m resid fit DATA --out RUN.

    Example: ``resid fit data/mine --recipe resid --out runs/mine``

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder: one subfolder per stage, and the recommender in model/.
    final
        Also train a model for production on all interactions, including those held out for evaluation, and write it to final/ in
        the run's folder, with the metrics of the evaluated model.
    as_json
        Print the result as JSON.
    """
    from resid import fit as fit_recipe  # here, as these imports take a while
    from resid.runs import final_folder

    refuse_dataset_folder(out)
    made = training.changed_recipe()
    runtime = training.runtime()
    model = fit_recipe(data, made, out, runtime=runtime, final=final)
    if runtime.is_first and model.measured_ is not None:
        if as_json:
            print_json({"folder": str(final_folder(out)), "recipe": made.name, "measured": dict(model.measured_)})
            return
        lines = [measured_text(model.measured_), f"Wrote {out}, and the model for production to {final_folder(out)}"]
        output.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
    elif runtime.is_first:
        print_fitted(model, out, made.name, as_json)
        if not as_json:
            text = f"Next: resid evaluate {shlex.quote(str(out))}"
            output.print(text, highlight=False, markup=False, soft_wrap=True)


def print_fitted(model: "Recommender", out: Path, recipe: str, as_json: bool) -> None:
    """Print the best epoch of a fitted recommender."""
    from resid.runs import read_run

    best = model.history_[model.best_epoch_ - 1] if model.best_epoch_ else {}
    if as_json:
        record = read_run(out)
        found = {"folder": str(out), "recipe": recipe, "epochs": len(model.history_), "best": best}
        print_json(found | {"validation": record.validation if record else {}})
        return
    if best:
        output.print(
            f"Best epoch {best['epoch']} of {len(model.history_)}: R@10 {best['recall@10']:.4f}, "
            f"N@10 {best['ndcg@10']:.4f} on validation users during training, {model.validated_by}",
            highlight=False,
        )
    output.print(f"Wrote {out}", highlight=False, markup=False, soft_wrap=True)
