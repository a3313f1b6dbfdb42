"""`resid.fit`: from a Dataset and a recipe to a recommender."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resid.core.errors import InputError
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset, require_dataset
from resid.methods.floor import compare_with_floor
from resid.methods.recipe import Recipe
from resid.recommend import Recommender
from resid.runs import Run


def fit(
    data: Dataset | str | Path,
    recipe: str | Path | Recipe = "resid",
    folder: str | Path | None = None,
    *,
    changes: Mapping[str, Any] | None = None,
    runtime: Runtime | None = None,
    stages: str | Path | None = None,
    final: bool = False,
) -> Recommender:
    """Fit a recommender to a Dataset.

    Afterwards it is compared with popularity and co-occurrence on validation users; a warning is logged if it is worse.

    Parameters
    ----------
    data
        The Dataset, or its folder.
    recipe
        A name that `resid recipes` lists, the path of a TOML file, or a Recipe.
    folder
        The run's folder. Finished stages are reused and interrupted ones continue. If None, nothing is saved.
    changes
        Other settings, by section and name: ``{"encoder.epochs": 20}``; ``{"seed": 1}`` sets the seed of every part,
        ``{"epochs": 5}`` the epochs.
    runtime
        Devices, trackers and progress; its folder is not used.
    stages
        A folder for stages that several runs share: each is fitted once, also if the runs are fitted at the same time. By
        default they are in the run's folder.
    final
        Then train on all interactions, for production, and return that model, which is saved as ``final`` in the run's folder; see
        `Recommender.refit_on_all`. The run's own model stays the one that can be measured.

    Raises
    ------
    InputError
        If the recipe is invalid, or the folder belongs to another Dataset, to something else, or to a running process.
    """
    if isinstance(data, (str, Path)):
        data = Dataset.load(data)
    require_dataset(data)
    if not isinstance(changes, Mapping | None):
        raise InputError(f"'changes' must be a mapping such as {{'encoder.epochs': 20}}, not {changes!r}.")
    made = Recipe.read(recipe).replace(changes or {})
    made.check(data)
    if final:
        from resid.methods.final import check_final, fit_final  # here, as most runs do not need it

        check_final(made)
    with Run.open(folder, data, runtime, stages) as run:
        model = made.method.compose(run, made.parts, data)
        run.finish(model, made.name, made.toml(), compare_with_floor(run, model, data))
        if final:
            model = fit_final(run, model, data)
    return model
