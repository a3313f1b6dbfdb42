"""`resid.update`: new interactions, and new items, for a fitted model; `renew` fits everything anew and maps old IDs to new ones."""

import hashlib
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl

from resid.core.errors import InputError, as_path, counted, explain_disk_errors
from resid.core.files import refuse_foreign_folder
from resid.core.runtime import Runtime
from resid.data.dataset import MANIFEST, Dataset, require_dataset
from resid.data.growth import grow, read_interactions
from resid.data.new_items import read_new_items
from resid.data.prepare import LATEST
from resid.methods.fit import fit
from resid.methods.recipe import Recipe
from resid.recommend import Recommender
from resid.recommend.items import AddedItems, as_text
from resid.recommend.settings import UpdateSettings
from resid.recommend.update import TrainedFurther
from resid.runs import change_model, load, load_dataset, read_run, read_settings, write_new_ids

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Updated:
    """What an update did.

    Attributes
    ----------
    model : Recommender
        The updated model.
    data : Dataset
        The grown Dataset, which the next update starts from.
    interactions, users : int
        The new interactions, and the users who have them.
    left_out : int
        Interactions that the Dataset had already, by their time.
    added : AddedItems or None
        Where new items went, if there were any.
    training : TrainedFurther
        What was trained, and the metrics before and after.
    """

    model: Recommender
    data: Dataset
    interactions: int
    users: int
    left_out: int
    added: AddedItems | None
    training: TrainedFurther

    def __str__(self) -> str:
        lines = [str(self.added)] if self.added is not None else []
        older = f"; {self.left_out:,} older ones were left out" if self.left_out else ""
        lines.append(f"{counted(self.interactions, 'new interaction')} of {counted(self.users, 'user')}{older}")
        return "\n".join([*lines, str(self.training)])


def update(
    model: Recommender | str | Path,
    interactions: Any,
    items: Any = None,
    *,
    out: str | Path | None = None,
    data: Dataset | str | Path | None = None,
    save_data: str | Path | None = None,
    settings: UpdateSettings | None = None,
    final: bool | None = None,
    columns: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
    **options: Any,
) -> Updated:
    """Train a fitted model further on new interactions; the IDs of items stay as they are.

    New items are added first, see `Recommender.add_items`. See `TrainedRecommender.update` for the training.

    Parameters
    ----------
    model
        A recommender, which is changed; or the folder of a run or a saved model, which is not unless it is `out`.
    interactions
        A path or a frame with the columns user, item and timestamp, see `Dataset.from_tables`.
    items
        A table of items, if some are new; those that the model has are skipped.
    out
        The folder for the updated model; required if `model` is a folder. An update that was killed continues with the same call.
    data
        The Dataset that the model was fitted to, or its folder; by default the one that a run records. Without one, the model is
        trained on the histories in `interactions` alone, which may be those of the whole log.
    save_data
        A folder for the grown Dataset: the next update takes it as `data`, and the model can be evaluated on it.
    settings, final
        See `TrainedRecommender.update`.
    columns, options
        Column names and, as options, `separator`, `encoding` and `timestamp_format`; see `Dataset.from_tables`.
    runtime
        Devices, trackers and progress; the folder is chosen here if `model` is a folder.

    Raises
    ------
    InputError
        If the model cannot be updated, a table is invalid, an item is unknown, or nothing is new.
    """
    runtime = runtime or Runtime()
    if isinstance(model, Recommender):
        earlier = Dataset.load(data) if isinstance(data, (str, Path)) else data
        refuse_place(earlier, save_data)
        updated = _update(model, interactions, items, earlier, settings, final, columns, runtime, options)
        if out is not None:
            model.save(out)
        return _saved(updated, save_data)
    if out is None:
        raise InputError("give the folder for the updated model, out (--out).")
    folder, place = as_path(model), as_path(out).resolve()
    if read_run(place) is not None:
        raise InputError(f"{out} is a run, which stays on its Dataset; choose another folder for the updated model.")
    earlier = known_dataset(folder, data)
    refuse_place(earlier, save_data)
    work = place.with_name(f".{place.name}.update")
    with explain_disk_errors(as_path(out), work), change_model(folder, out) as loaded:
        runtime = replace(runtime, folder=work)
        updated = _update(loaded, interactions, items, earlier, settings, final, columns, runtime, options)
        updated = _saved(updated, save_data)
    shutil.rmtree(work, ignore_errors=True)
    return updated


def known_dataset(folder: Path, data: Dataset | str | Path | None) -> Dataset | None:
    """Return the Dataset that a run or a saved model was fitted to; None, with a warning, if it is unknown."""
    if isinstance(data, Dataset):
        return data
    if data is None and read_run(folder) is None:
        log.warning(
            "the Dataset of %s is unknown, so only the histories of the new interactions are trained on; give the Dataset with "
            "data (--data), unless these are the whole log",
            folder,
        )
        return None
    return load_dataset(folder, data)


def _update(
    model: Recommender,
    interactions: Any,
    items: Any,
    earlier: Dataset | None,
    settings: UpdateSettings | None,
    final: bool | None,
    columns: Mapping[str, str] | None,
    runtime: Runtime,
    options: dict[str, Any],
) -> Updated:
    """Read the tables, add new items and train; see `update`."""
    if earlier is not None:
        require_dataset(earlier)
        model.require_data(earlier)
    changed, added = type(model).from_artifact(model.to_artifact()), None  # so that an error changes nothing
    if items is not None:
        new = read_items(items, model, columns, options)
        added = changed.take_in(new) if len(new) else None
    after = earlier.notes.get(LATEST) if earlier is not None else None
    users = earlier.user_ids if earlier is not None else None
    runtime.progress.step("Reading the new interactions")
    read, left_out = read_interactions(interactions, changed.catalogue_, users, after=after, columns=columns, **options)
    data = grow(changed.catalogue_, read, earlier)
    if runtime.folder is not None:  # another update in the same place starts anew
        identity = [model.checksum, data.fingerprint, settings.to_dict() if settings else None, final]
        runtime = runtime.within(hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12])
    training = changed.update(data, earlier, settings=settings, final=final, runtime=runtime)
    model.__dict__ = changed.__dict__
    return Updated(model, data, len(read), read["user"].n_unique(), left_out, added, training)


def read_items(items: Any, model: Recommender, columns: Mapping[str, str] | None, options: Mapping[str, Any]) -> Any:
    """Return the items of a table that a model does not have."""
    text = {name: value for name, value in options.items() if name in ("separator", "encoding")}
    return read_new_items(items, model.catalogue_, (columns or {}).get("item", "item"), skip_known=True, **text)


def _saved(updated: Updated, folder: str | Path | None) -> Updated:
    """Write the grown Dataset, if a folder is given for it."""
    if folder is not None:
        updated.data.save(folder)
    return updated


def refuse_place(earlier: Dataset | None, folder: str | Path | None) -> None:
    """Raise an `InputError` if the grown Dataset cannot be saved here, or would replace the one from which it grew."""
    if folder is None:
        return
    refuse_foreign_folder(as_path(folder), MANIFEST)
    own = earlier.folder if earlier is not None else None
    if own is not None and own.resolve() == Path(folder).resolve():
        raise InputError(f"{folder} is the Dataset that grows; choose another folder for the grown one.")


def renew(
    folder: str | Path,
    interactions: Any,
    items: Any = None,
    *,
    out: str | Path,
    save_data: str | Path,
    data: Dataset | str | Path | None = None,
    recipe: str | Path | Recipe | None = None,
    columns: Mapping[str, str] | None = None,
    runtime: Runtime | None = None,
    **options: Any,
) -> tuple[Recommender, pl.DataFrame]:
    """Fit everything anew to the grown log, with the recipe of the model; all items get new IDs, and withdrawn ones stay withdrawn.

    Parameters
    ----------
    folder
        A run, or a saved model.
    interactions, items, data, columns, options
        See `update`; the Dataset must be known.
    out
        The folder of the new run. If it is killed, the same call continues it.
    save_data
        A folder for the grown Dataset.
    recipe
        The recipe; by default that of the run, with its settings.
    runtime
        Devices, trackers and progress.

    Returns
    -------
    model, ids
        The model, and a table with the columns ``item``, ``old_id``, null for a new item, and ``new_id``, as 3-7-1. It is written
        to the run's folder as Parquet and CSV.
    """
    folder, model = as_path(folder), load(folder)
    known, record = known_dataset(folder, data), read_run(folder)
    if known is None:
        raise InputError(
            f"{folder}: new IDs are made from the whole log; give the Dataset of this model with data (--data)."
        )
    if recipe is None:
        if record is None or record.recipe is None:
            raise InputError(
                f"{folder} is a saved model, whose recipe is unknown; give the run, or a recipe (--recipe)."
            )
        recipe = recipe_of(folder, record.recipe)
    old = ids_as_text(model)
    refuse_place(known, save_data)
    model.require_data(known)
    catalogue = model.catalogue_
    if items is not None:
        catalogue = read_items(items, model, columns, options).catalogue
    read, _ = read_interactions(
        interactions, catalogue, known.user_ids, after=known.notes.get(LATEST), columns=columns, **options
    )
    grown = grow(catalogue, read, known)
    grown.save(save_data)
    fitted = fit(grown, recipe, out, runtime=runtime)
    withdrawn = catalogue.item_ids.gather(catalogue.withdrawn)
    withdrawn = withdrawn.filter(
        ~withdrawn.is_in(fitted.catalogue_.item_ids.gather(fitted.catalogue_.withdrawn).implode())
    )
    if len(withdrawn):
        with change_model(out, out) as fitted:
            fitted.remove_items(withdrawn.to_list())
    new = ids_as_text(fitted)
    table = new.rename({"id": "new_id"}).join(
        old.rename({"id": "old_id"}), on="item", how="left", maintain_order="left"
    )
    table = table.select("item", "old_id", "new_id")
    write_new_ids(out, table)
    return fitted, table


def recipe_of(folder: Path, name: str) -> Recipe:
    """Return the recipe of a run, with the settings that it was fitted with."""
    settings = read_settings(folder)
    try:
        return Recipe.parse(name, settings)
    except InputError as error:
        raise InputError(f"{folder}: {error}") from error


def ids_as_text(model: Recommender) -> pl.DataFrame:
    """Return the semantic IDs of all items as text, as they are shown: a table with the columns item and id."""
    table = model.semantic_ids
    rows = table.drop("item").iter_rows()
    return pl.DataFrame({"item": table["item"], "id": [as_text(codes) for codes in rows]})
