"""The evaluation results of a run: metrics, ranks and recommended lists, in files that belong together."""

import json
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import polars as pl

from resid.core.checksums import manifest_text, pop_checksum, sha256_of_file
from resid.core.errors import InputError
from resid.core.files import atomic_file
from resid.runs.run import evaluation_folder, read_run


def write_evaluation(
    folder: str | Path,
    name: str,
    metrics: Mapping[str, Any],
    ranks: pl.DataFrame,
    out: Path | None = None,
    *,
    lists: pl.DataFrame | None = None,
) -> Path | None:
    """Write the metrics and ranks of a model, and its recommended lists; those of the same name are replaced.

    Parameters
    ----------
    folder
        The run's folder, or a saved model.
    name
        Of the files: the split, and how it was decoded.
    metrics, ranks
        What was measured, and one row per target.
    out
        Where to write; by default to the run's folder. Nothing is written for a saved model without it.
    lists
        One row per recommended item, written to ``NAME-lists.parquet``. Without it, earlier lists are removed, as they may be
        those of other ranks.

    Returns
    -------
    Path or None
        The files without their suffix.
    """
    place = out or (evaluation_folder(folder) if read_run(folder) else None)
    if place is None:
        return None
    # All are written before any is replaced, so that a full disk does not separate them.
    with ExitStack() as files:
        written, table = (files.enter_context(atomic_file(place / f"{name}{end}")) for end in (".json", ".parquet"))
        ranks.write_parquet(table)
        content = {**metrics, "ranks_sha256": sha256_of_file(table)}
        if lists is not None:
            items = files.enter_context(atomic_file(place / f"{name}-lists.parquet"))
            lists.write_parquet(items)
            content["lists_sha256"] = sha256_of_file(items)
        written.write_text(manifest_text(content), encoding="utf-8")
    if lists is None:
        (place / f"{name}-lists.parquet").unlink(missing_ok=True)
    return place / name


def read_evaluation(folder: str | Path, name: str, otherwise: str, cutoff: int) -> pl.DataFrame:
    """Return the ranks that `write_evaluation` wrote to a run's folder, or to the folder given as `out`.

    Parameters
    ----------
    folder
        The run's folder, or the other one.
    name, otherwise
        Of the files, and of those that are read if there are none of this name: a model without semantic IDs has one decoding.
    cutoff
        Up to which the ranks must be known.
    """
    place, content = _found(folder, (name, otherwise), otherwise)
    known = max(_cutoffs(content))
    if known < cutoff:
        raise InputError(
            f"{place}: ranks are known up to {known}, not {cutoff}; run 'resid evaluate' with --cutoffs {cutoff}."
        )
    return pl.read_parquet(place.with_suffix(".parquet"))


def read_metrics(folder: str | Path, name: str = "test") -> dict[str, Any]:
    """Return the metrics that `write_evaluation` wrote to the folder of a run or a stage, or to the folder given as `out`."""
    return _found(folder, (name,), name)[1]


def evaluations(folder: str | Path) -> list[str]:
    """Return the names of the evaluations of a run."""
    tables = evaluation_folder(folder).glob("*.parquet")
    return sorted(path.stem for path in tables if path.with_suffix(".json").is_file())  # lists have no metrics


def _found(folder: str | Path, names: tuple[str, ...], split: str) -> tuple[Path, dict[str, Any]]:
    """Return the files of the first evaluation that is there, without their suffix, and its metrics, checked."""
    places = [place / each for each in names for place in (evaluation_folder(folder), Path(folder))]
    place = next((place for place in places if place.with_suffix(".parquet").is_file()), None)
    if place is None:
        option = "" if split == "test" else f" --split {split}"
        raise InputError(
            f"{folder} was not evaluated on the {split} split; run 'resid evaluate {folder}{option}' first."
        )
    try:
        content: dict[str, Any] = json.loads(place.with_suffix(".json").read_text(encoding="utf-8"))
        if pop_checksum(content) is False or not _cutoffs(content):  # an earlier version wrote none
            raise ValueError("there are no metrics, or they are damaged")
        if content["ranks_sha256"] != sha256_of_file(place.with_suffix(".parquet")):
            raise ValueError("its checksum does not match")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(
            f"{place}: the evaluation is damaged or of an earlier version; run 'resid evaluate' again."
        ) from error
    return place, content


def _cutoffs(content: dict[str, Any]) -> set[int]:
    """Return the cutoffs of the metrics."""
    values = {metric: float(value) for metric, value in content["seen_kept"].items() if "@" in metric}
    return {int(metric.split("@")[1]) for metric in values}
