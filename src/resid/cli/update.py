"""`resid update`: train a saved model further on new interactions, or make everything anew."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from resid import InputError
from resid.cli.app import AsJson, column_names, output, print_json
from resid.cli.training import Training
from resid.core.errors import counted


def update(
    model: Path,
    interactions: Path,
    items: Path | None = None,
    *,
    out: Path,
    data: Path | None = None,
    save_data: Path | None = None,
    new_ids: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    final: Annotated[bool, Parameter(negative="", show_default=False)] = False,
    epochs: int | None = None,
    replay: float | None = None,
    recipe: str | None = None,
    columns: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    accelerator: Literal["cpu", "cuda", "mps", "auto"] = "cpu",
    as_json: AsJson = False,
) -> None:
    """Train a model further on new interactions; semantic IDs stay as they are, and new items are added first.

    If it is interrupted, the same command continues. MODEL is not changed unless it is also --out.

    Example: ``resid update runs/mine new-interactions.parquet new-items.parquet --out models/today --save-data data/today``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    interactions
        The new interactions, with the columns user, item and timestamp; those that the Dataset has, by their time, are skipped.
    items
        A table with the new items; those that the model has are skipped.
    out
        The folder for the updated model.
    data
        The Dataset that the model was fitted to. Default: the one of the run. A saved model without it is trained on the
        histories of INTERACTIONS alone.
    save_data
        A folder for the grown Dataset, on which the updated model can be evaluated and from which the next update starts.
    new_ids
        Fit everything anew to the grown log, and write a table of old and new IDs to --out, which becomes a run.
    final
        Train on all interactions but a few, for production. Default for a model of `resid fit --final`.
    epochs
        Maximum number of passes over the new and the replayed targets.
    replay
        Number of old targets that are trained on again per new one.
    recipe
        With --new-ids: the recipe; by default that of the run.
    columns
        Column names of the tables: user=reviewer,item=asin,timestamp=time.
    separator
        Of CSV and TSV files, for example ";", or tab. Default: a comma, or a tab for .tsv.
    encoding
        Of text files, for example utf-16 or latin-1. Default: UTF-8.
    timestamp_format
        Of timestamps that are text, for example "%d/%m/%Y %H:%M".
    accelerator
        The kind of device.
    as_json
        Print what was done as JSON.
    """
    from resid import update as update_model  # here, as these imports take seconds
    from resid.methods.update import renew
    from resid.recommend.settings import UpdateSettings
    from resid.runs import new_ids_path

    names = column_names(columns)
    runtime = Training(accelerator=accelerator).runtime()
    texts = {"separator": separator, "encoding": encoding, "timestamp_format": timestamp_format}
    if new_ids:
        if save_data is None:
            raise InputError("--new-ids makes a run on the grown Dataset; give a folder for it with --save-data.")
        if final or epochs is not None or replay is not None:
            raise InputError(
                "--new-ids fits everything anew and takes no --final, --epochs or --replay; leave them out."
            )
        _, ids = renew(
            model, interactions, items,
            out=out, save_data=save_data, data=data, recipe=recipe, columns=names, runtime=runtime, **texts,
        )  # fmt: skip
        if as_json:
            print_json({"model": str(out), "items": len(ids), "ids": str(new_ids_path(out))})
            return
        text = f"{counted(len(ids), 'item')} have new IDs. Wrote {out}, and old and new IDs to {new_ids_path(out)}"
        output.print(text, highlight=False, markup=False, soft_wrap=True)
        return
    if recipe is not None:
        raise InputError("--recipe is for --new-ids; an update keeps the settings of the model.")
    given = {name: value for name, value in (("epochs", epochs), ("replay", replay)) if value is not None}
    settings = UpdateSettings().replace(**given)
    updated = update_model(
        model, interactions, items,
        out=out, data=data, save_data=save_data, settings=settings, final=final or None, columns=names,
        runtime=runtime, **texts,
    )  # fmt: skip
    if as_json:
        added = updated.added.table.to_dicts() if updated.added is not None else []
        counts = {name: getattr(updated, name) for name in ("interactions", "users", "left_out")}
        print_json({"model": str(out), **counts, "items": added, "training": vars(updated.training)})
        return
    lines = [str(updated), f"Wrote {out}", *([f"Wrote {save_data}"] if save_data else [])]
    if updated.model.measured_ is not None:
        lines.append("It was trained on all interactions, so no honest figure exists for it")
    elif save_data:
        lines.append(f"Next: resid evaluate {out} --data {save_data}")
    if save_data is None:
        lines.append(
            "The grown Dataset was not saved; to evaluate this model or to update it again, update with --save-data."
        )
    output.print("\n".join(lines), highlight=False, markup=False, soft_wrap=True)
