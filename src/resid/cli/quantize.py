"""`resid quantize` and `resid inspect`: the Q-stage alone, from item embeddings to semantic IDs, and how good they are."""

from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape

from resid import Dataset, InputError
from resid.cli.app import AsJson, app, errors, names, output, print_json
from resid.cli.show import ids_table
from resid.progress import ConsoleProgress

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
        rq-vae the sizes of the levels, which must be equal.
    seed
        Decides everything random.
    as_json
        Print the quality as JSON.
    """
    from resid.encode import ItemEmbeddings  # torch takes a second to import, which other commands need not wait
    from resid.quantize import SemanticIds, quality

    if out.is_dir():
        raise InputError(f"{out}: this is a folder; name a file for the IDs, such as {out / 'ids.parquet'}.")
    widths = _widths(branching)
    dataset, vectors = Dataset.load(data), ItemEmbeddings.load(embeddings)
    if vectors.fingerprint != dataset.fingerprint:
        raise InputError(f"{embeddings}: these are embeddings of another Dataset than {data}; encode it.")
    progress = ConsoleProgress(errors)
    progress.step(f"Quantizing {len(vectors.vectors):,} vectors of {vectors.vectors.shape[1]} dimensions")
    quantizer = _make(method, widths, seed, progress)
    try:
        quantizer.fit(vectors.vectors)
    except ValueError as error:
        raise InputError(f"{embeddings}: {error}") from error
    ids = SemanticIds(quantizer.codes_, quantizer.level_sizes_, dataset.item_ids)
    if not ids.unique:
        ids = ids.deduplicated()
    ids.save(out)
    _show(quality(ids, vectors.vectors, dataset), as_json, {"ids_file": str(out), "method": method, "seed": seed})
    if not as_json:
        output.print(f"Wrote {escape(str(out))}", highlight=False, soft_wrap=True)


@app.command
def inspect(ids: Path, *, embeddings: Path | None = None, data: Path | None = None, as_json: AsJson = False) -> None:
    """Print how good semantic IDs are.

    Parameters
    ----------
    ids
        The file of the IDs.
    embeddings
        The folder with the embeddings that they were made of: adds distortion, ambiguity, cosines and neighbours.
    data
        The Dataset's folder: adds the overlap of targets and histories.
    as_json
        Print the figures as JSON.
    """
    from resid.encode import ItemEmbeddings
    from resid.quantize import SemanticIds, quality

    found = SemanticIds.load(ids)
    vectors = ItemEmbeddings.load(embeddings).vectors if embeddings else None
    dataset = Dataset.load(data) if data else None
    if dataset is not None and found.item_ids.cast(str).to_list() != [str(item) for item in dataset.item_ids]:
        raise InputError(f"{ids}: these are IDs of other items than those of {data}, or in another order.")
    _show(quality(found, vectors, dataset), as_json, {"ids_file": str(ids)})


def _show(found: dict[str, Any], as_json: bool, facts: dict[str, Any]) -> None:
    if as_json:
        print_json(facts | found)
        return
    output.print(
        f"{found['items']:,} items, {found['ids']:,} different IDs, {found['unique']:.1%} of the items alone on theirs, "
        f"at most {found['largest_collision']} on one",
        highlight=False,
    )
    output.print(ids_table(found["levels"]))


def _widths(branching: str) -> tuple[int, ...] | None:
    if branching == "auto":
        return None
    try:
        return tuple(int(width) for width in names(branching))
    except ValueError as error:
        raise InputError(f"--branching: '{branching}' must be numbers separated by commas, or auto.") from error


def _make(method: Method, widths: tuple[int, ...] | None, seed: int, progress: ConsoleProgress) -> Any:
    from resid.quantize import GAOQ, RQVAE, HierarchicalKMeans, RQKMeans

    if method == "gaoq":
        return GAOQ(widths or "auto", random_state=seed)
    if method == "hierarchical":
        single = widths is not None and len(widths) == 1
        return HierarchicalKMeans(widths[0] if single and widths else widths or "auto", random_state=seed)
    if widths and len(set(widths)) > 1:
        raise InputError(f"--branching: the levels of {method} have one size, not {widths}.")
    shape = (len(widths), widths[0]) if widths else (3, 256)
    if method == "rq-kmeans":
        return RQKMeans(*shape, random_state=seed)
    return RQVAE(*shape, progress=progress, random_state=seed)
