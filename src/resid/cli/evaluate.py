"""`resid evaluate`: how well a recommender finds what users took next."""

import json
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from resid import Dataset, InputError, Recommender, load
from resid.cli.app import AsJson, app, errors, names, output, print_json
from resid.core.errors import explain_full_disk
from resid.core.files import refuse_file
from resid.core.progress import ConsoleProgress
from resid.data.batches import Batches
from resid.data.dataset import MANIFEST as DATASET
from resid.evaluate import evaluate as measure
from resid.methods.fit import EVALUATION, read_run

Decoding = Literal["beam", "exact", "free"]
_FREE_USERS = 2_000  # whose free beams are looked at for IDs that no item has


@app.command
def evaluate(
    model: Path,
    *,
    data: Path | None = None,
    split: Literal["test", "validation"] = "test",
    cutoffs: str = "5,10",
    decoding: Decoding = "beam",
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Measure Recall and NDCG over the whole catalogue, and write the rank of every user's target.

    Parameters
    ----------
    model
        The run's folder, or a saved model.
    data
        The Dataset's folder; by default the one that the run was fitted to.
    split
        Which targets to look for.
    cutoffs
        The K of Recall@K and NDCG@K, separated by commas.
    decoding
        Of a generator: beams over the IDs that items have; exact, which scores the whole catalogue; or free beams, which
        may write IDs that no item has, the paper's way.
    out
        Where the figures (JSON) and the ranks (Parquet) go; by default evaluation/ in the run's folder.
    as_json
        Print the figures as JSON.
    """
    wanted = _cutoffs(cutoffs)
    if out is not None:
        refuse_file(out)
        if (out / DATASET).exists():
            raise InputError(f"{out}: this is a Dataset; name another folder for the figures.")
    recommender, dataset = load(model), _dataset(model, data)
    options = decoding_options(recommender, decoding)
    generator = hasattr(recommender, "invalid_share")
    progress = ConsoleProgress(errors)
    found = measure(recommender, dataset, split, max(wanted), progress=progress, **options)
    figures: dict[str, Any] = {"decoding": decoding} if generator else {}
    figures |= found.figures(wanted)
    if generator:
        some = Batches(found.windows.sample(_FREE_USERS), 256, shuffle=False)
        shares = [(len(batch), recommender.invalid_share(batch.histories)) for batch in some]  # type: ignore[attr-defined]
        figures["invalid_free_beams"] = sum(n * share for n, share in shares) / sum(n for n, _ in shares)
    folder = out or (model / EVALUATION if read_run(model) else None)  # figures of the same split are replaced
    if folder is not None:
        name = split if decoding == "beam" else f"{split}-{decoding}"
        with explain_full_disk(folder):
            folder.mkdir(parents=True, exist_ok=True)
            found.table().write_parquet(folder / f"{name}.parquet")
            (folder / f"{name}.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    if as_json:
        print_json(figures)
        return
    _print(figures, wanted)
    if folder is not None:
        output.print(f"Wrote {escape(str(folder / name))}.json and .parquet", highlight=False, soft_wrap=True)


def decoding_options(model: Recommender, decoding: Decoding) -> dict[str, Any]:
    """Return the options of `top` for a way of decoding, which only generators have."""
    if decoding != "beam" and not hasattr(model, "invalid_share"):
        raise InputError(f"--decoding {decoding}: a {type(model).__name__} is no generator, it always ranks all items.")
    return {"exact": {"exact": True}, "free": {"constrained": False}, "beam": {}}[decoding]


def _cutoffs(text: str) -> tuple[int, ...]:
    try:
        cutoffs = tuple(sorted({int(part) for part in names(text)}))
    except ValueError:
        cutoffs = ()
    if not cutoffs or cutoffs[0] < 1:
        raise InputError(f"--cutoffs: '{text}' must be whole numbers from 1, separated by commas, as 5,10.")
    return cutoffs


def _dataset(model: Path, data: Path | None) -> Dataset:
    known = read_run(model).get("data")
    if data is None and known is None:
        raise InputError(f"{model}: it is not known to which Dataset this was fitted; give it with --data.")
    if data is None and not Path(str(known)).exists():
        raise InputError(f"{known}: the Dataset that {model} was fitted to is not there any more; give it with --data.")
    return Dataset.load(data or Path(str(known)), verify=True)


def _print(figures: dict[str, Any], cutoffs: tuple[int, ...]) -> None:
    columns = [f"{name}@{k}" for k in cutoffs for name in ("recall", "ndcg")]
    short = [f"{name}@{k}" for k in cutoffs for name in ("R", "N")]
    title = f"{figures['split'].capitalize()}, {figures['users']:,} users, whole catalogue, with 95% intervals"
    table = Table(title=title, title_justify="left")
    for column in ("", *short):
        table.add_column(column, overflow="fold")  # a narrow terminal must not hide a bound
    gap = "\n" if len(columns) > 4 else ""  # so that more columns fit into a narrow terminal
    for name, text in (("seen_kept", "seen kept"), ("seen_dropped", "dropped*")):
        values = figures[name]
        bounds = [values["intervals"][column] for column in columns]
        table.add_row(
            text,
            *(
                f"{values[c]:.4f}\n[dim]{_short(low)}–{gap}{_short(high)}[/dim]"
                for c, (low, high) in zip(columns, bounds, strict=True)
            ),
        )
    output.print(table)
    output.print(
        "* items of the history are not recommended; a target that is one of them counts as missed", highlight=False
    )
    parts = Table("part", "users", *short, title="Parts of the users, seen items kept", title_justify="left")
    for name, values in figures["slices"].items():
        parts.add_row(name, f"{values['users']:,}", *(f"{values[column]:.4f}" for column in columns))
    output.print(parts)
    if "invalid_free_beams" in figures:
        output.print(f"IDs that no item has, among free beams: {figures['invalid_free_beams']:.1%}", highlight=False)


def _short(value: float) -> str:
    """Write a share without its zero, so that two fit into a narrow column."""
    return f"{value:.4f}".removeprefix("0")
