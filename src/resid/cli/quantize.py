"""`resid quantize` and `resid inspect`: the Q-stage alone, from item embeddings to semantic IDs, and how good they are."""

import os
import shutil
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape

from resid import Dataset, InputError, load
from resid.cli.app import AsJson, app, errors, names, output, print_json
from resid.cli.show import ids_table
from resid.core.artifact import MANIFEST
from resid.core.progress import ConsoleProgress
from resid.methods.fit import read_run

Method = Literal["gaoq", "hierarchical", "rq-kmeans", "rq-vae"]


@app.command
def quantize(
    data: Path,
    embeddings: Path,
    *,
    out: Path,
    method: Method = "gaoq",
    branching: str = "auto",
    seed: Annotated[int, Parameter(negative="")] = 0,
    as_json: AsJson = False,
) -> None:
    """Cut item embeddings into semantic IDs, write them as Parquet and print their quality.

    Parameters
    ----------
    data
        The Dataset's folder.
    embeddings
        The folder with its item embeddings, as `resid encode` writes it.
    out
        The file of the IDs: a table with the columns item, c1, c2 and so on.
    method
        gaoq; hierarchical, the same tree with local numbers; rq-kmeans; rq-vae. The last two get one more level where
        items share codes.
    branching
        Clusters of a node, level by level, as 32,40; for hierarchical a single number is EAGER's tree; for rq-kmeans and
        rq-vae the sizes of the levels, which must be equal. auto makes about a fourteenth of the items leaves of a tree,
        and three levels of 256 codes for the others, or of a quarter of the items if those are fewer.
    seed
        Decides everything random.
    as_json
        Print the quality as JSON.
    """
    from resid.encode import ItemEmbeddings  # torch takes a second to import, which other commands need not wait
    from resid.quantize import quality
    from resid.quantize.methods import quantize as cut

    settings = _settings(method, _widths(branching), seed)
    _refuse_foreign_file(out)
    dataset, vectors = Dataset.load(data, verify=True), ItemEmbeddings.load(embeddings, check=True)
    if vectors.fingerprint != dataset.fingerprint:
        raise InputError(f"{embeddings}: these are embeddings of another Dataset than {data}; encode it.")
    progress = ConsoleProgress(errors)
    progress.step(f"Quantizing {len(vectors.vectors):,} vectors of {vectors.vectors.shape[1]} dimensions")
    training = out.with_name(f".{out.name}.training")  # of rq-vae, so that it continues if interrupted
    try:
        ids, raw = cut(method, settings, dataset, vectors, training, progress)
    except InputError as error:
        blamed = f"--branching {branching}" if "branching=" in str(error) or "n_clusters=" in str(error) else embeddings
        raise InputError(f"{blamed}: {error}") from error
    collisions = {} if raw.unique else quality(raw)
    ids.save(out)
    shutil.rmtree(training, ignore_errors=True)
    found = quality(ids, vectors.vectors, dataset)
    if as_json:
        print_json(
            {"ids_file": str(out), "method": method, "seed": seed, **found, "before_last_level": collisions or None}
        )
        return
    if collisions:
        output.print(f"Before the last level, which tells items apart: {_summary(collisions)}", highlight=False)
    _print(found)
    output.print(f"Wrote {escape(str(out))}", highlight=False, soft_wrap=True)


@app.command
def inspect(ids: Path, *, embeddings: Path | None = None, data: Path | None = None, as_json: AsJson = False) -> None:
    """Print how good semantic IDs are.

    Parameters
    ----------
    ids
        The file of the IDs, a saved model, or the folder of a run, whose embeddings and Dataset are then used too.
    embeddings
        The folder with the embeddings that they were made of: adds distortion, ambiguity, cosines and neighbours.
    data
        The Dataset's folder: adds the overlap of targets and histories.
    as_json
        Print the figures as JSON.
    """
    from resid.encode import ItemEmbeddings
    from resid.quantize import SemanticIds, quality

    model = _model_with_ids(ids)
    if ids.is_dir() and model is None:
        ids, embeddings, data = _of_run(ids, embeddings, data)
    known = _of_model(model) if model is not None else SemanticIds.load(ids)
    vectors = ItemEmbeddings.load(embeddings, check=True) if embeddings else None
    dataset = Dataset.load(data) if data else None
    if vectors and known.facts.get("vectors", vectors.digest) != vectors.digest:
        raise InputError(f"{ids}: these IDs were made of other embeddings than {embeddings}.")
    if dataset is not None:
        known.require_data(dataset, ids)
    found = quality(known, vectors.vectors if vectors else None, dataset)
    if as_json:
        print_json({"ids_file": str(ids), **known.facts, **found})
    else:
        _print(found)


def _model_with_ids(folder: Path) -> Path | None:
    """Return where a saved model is, if that is all there is: a folder of its own, or that of a generator trained alone."""
    run = read_run(folder) if folder.is_dir() else {}
    model = folder / "model" if run else folder
    return model if not run.get("stages") and (model / MANIFEST).exists() else None


def _of_model(folder: Path) -> Any:
    model = load(folder)
    if not hasattr(model, "ids_"):
        raise InputError(f"{folder}: a model of the kind '{model.name}' has no semantic IDs.")
    return model.ids_


def _of_run(folder: Path, embeddings: Path | None, data: Path | None) -> tuple[Path, Path | None, Path | None]:
    """Return where a run has its IDs, and its embeddings and Dataset unless others are given."""
    run = read_run(folder)
    stages = run.get("stages", {})
    if "quantizer" not in stages:
        reason = "its recipe makes none, or it was interrupted before" if run else "this is not the folder of a run"
        raise InputError(
            f"{folder}: there are no semantic IDs here, {reason}; name a file of IDs, or a run that has some."
        )
    known = Path(run["data"]) if run["data"] and Path(run["data"]).exists() else None
    if data is None and known is None:
        errors.print(
            "The Dataset of this run is not there any more; give it with --data to see overlaps", highlight=False
        )
    return folder / stages["quantizer"] / "ids.parquet", embeddings or folder / stages["encoder"], data or known


def _print(found: dict[str, Any]) -> None:
    output.print(_summary(found), highlight=False)
    output.print(ids_table(found["levels"]))


def _summary(found: dict[str, Any]) -> str:
    return (
        f"{found['items']:,} items, {found['ids']:,} different IDs, {found['unique']:.1%} of the items alone on theirs, "
        f"at most {found['largest_collision']} on one"
    )


def _refuse_foreign_file(out: Path) -> None:
    """Refuse to write over what are no IDs, or to where nothing can be written, before any work is done."""
    from resid.quantize import SemanticIds

    if out.is_dir():
        raise InputError(f"{out}: this is a folder; name a file for the IDs, such as {out / 'ids.parquet'}.")
    if out.exists():
        try:
            SemanticIds.load(out)
        except InputError as error:
            raise InputError(f"{out}: this file is there and holds no semantic IDs; choose another name.") from error
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        writable = os.access(out.parent, os.W_OK)
    except OSError:
        writable = False
    if not writable:
        raise InputError(f"{out.parent}: nothing can be written there; choose another folder.")


def _widths(branching: str) -> tuple[int, ...] | None:
    if branching == "auto":
        return None
    try:
        if widths := tuple(int(width) for width in names(branching)):
            return widths
    except ValueError:
        widths = ()
    raise InputError(f"--branching: '{branching}' must be numbers separated by commas, or auto.")


def _settings(method: str, widths: tuple[int, ...] | None, seed: int) -> Any:
    from resid.quantize.methods import ResidualSettings, TreeSettings

    if method in ("gaoq", "hierarchical"):
        single = method == "hierarchical" and widths is not None and len(widths) == 1
        return TreeSettings(branching=widths[0] if single and widths else widths or "auto", seed=seed)
    if widths and len(set(widths)) > 1:
        raise InputError(f"--branching: the levels of {method} have one size, not {widths}.")
    shape = {"levels": len(widths), "codes": widths[0]} if widths else {}
    return ResidualSettings(**shape, seed=seed)
