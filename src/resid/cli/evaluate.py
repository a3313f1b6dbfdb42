"""`resid evaluate`: Recall and NDCG of a recommender on a split."""

from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, app, errors, names, output, print_json
from resid.core.files import refuse_file
from resid.core.progress import ConsoleProgress
from resid.data.dataset import MANIFEST as DATASET

Decoding = Literal["beam", "exact", "free"]


@app.command
def evaluate(
    model: Path,
    *,
    data: Path | None = None,
    split: Literal["test", "validation"] = "test",
    cutoffs: str = "5,10",
    decoding: Decoding = "beam",
    against: Path | None = None,
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Compute Recall and NDCG over the whole catalogue, and write the rank of every user's target.

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    data
        The Dataset's folder; by default the Dataset of the run.
    split
        Which targets to rank.
    cutoffs
        The K of Recall@K and NDCG@K, separated by commas.
    decoding
        Of a generator: beam search over the IDs of items; exact scoring of the whole catalogue; or free beam search, which may
        generate IDs that no item has, as in the paper.
    against
        A run that was evaluated on the same split; shows the difference to it with a paired bootstrap over users.
    out
        Receives the metrics (JSON) and the ranks (Parquet); by default evaluation/ in the run's folder.
    as_json
        Print the metrics as JSON.
    """
    from resid import load  # torch takes a second to import
    from resid.evaluate import evaluate as evaluate_model
    from resid.generate import Generator
    from resid.runs import load_dataset, read_evaluation, write_evaluation

    wanted = _cutoffs(cutoffs)
    if out is not None:
        refuse_file(out)
        if (out / DATASET).exists():
            raise InputError(f"{out} is a Dataset; choose another folder for the metrics.")
    name = split if decoding == "beam" else f"{split}-{decoding}"
    other = read_evaluation(against, name, split, max(wanted)) if against is not None else None
    recommender, dataset = load(model), load_dataset(model, data)
    options = recommender.decoding_options(decoding)
    evaluation = evaluate_model(recommender, dataset, split, max(wanted), progress=ConsoleProgress(errors), **options)
    metrics = evaluation.metrics(wanted)
    if isinstance(recommender, Generator):
        metrics = {"decoding": decoding, **metrics, "invalid_free_beams": recommender.invalid_share(evaluation.windows)}
    if other is not None:
        metrics["against"] = {"model": str(against), **evaluation.against(other, wanted)}
    written = write_evaluation(model, name, metrics, evaluation.table(), out)
    if as_json:
        print_json(metrics)
        return
    _print(metrics)
    if written is not None:
        output.print(f"Wrote {escape(str(written))}.json and .parquet", highlight=False, soft_wrap=True)


def _cutoffs(text: str) -> tuple[int, ...]:
    try:
        cutoffs = tuple(sorted({int(part) for part in names(text)}))
    except ValueError:
        cutoffs = ()
    if not cutoffs or cutoffs[0] < 1:
        raise InputError(f"--cutoffs: '{text}' must be positive integers separated by commas, for example 5,10.")
    return cutoffs


def _print(metrics: dict[str, Any]) -> None:
    columns = sorted((name for name in metrics["seen_kept"] if "@" in name), key=lambda name: int(name.split("@")[1]))
    short = [name.replace("recall@", "R@").replace("ndcg@", "N@") for name in columns]
    title = f"{metrics['split'].capitalize()}, {metrics['users']:,} users, whole catalogue, with 95% intervals"
    table = Table(title=title, title_justify="left")
    for column in ("", *short):
        table.add_column(column, overflow="fold")  # do not cut off a bound in a narrow terminal
    gap = "\n" if len(columns) > 4 else ""  # fit more columns into a narrow terminal
    for name, text in (("seen_kept", "seen kept"), ("seen_dropped", "dropped*")):
        values = metrics[name]
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
        "* items of the history are dropped from the ranking; a target among them counts as missed", highlight=False
    )
    if "against" in metrics:
        differences = Table(
            "", *short, title=f"Difference to {escape(metrics['against']['model'])}", title_justify="left"
        )
        for name, text in (("seen_kept", "seen kept"), ("seen_dropped", "dropped*")):
            values = [metrics["against"][name][column] for column in columns]
            differences.add_row(
                text,
                *(
                    f"{v['difference']:+.4f}\n[dim]{v['interval'][0]:+.4f} to {v['interval'][1]:+.4f}[/dim]"
                    for v in values
                ),
            )
        output.print(differences)
    parts = Table("slice", "users", *short, title="Slices of users, seen items kept", title_justify="left")
    for name, values in metrics["slices"].items():
        parts.add_row(name, f"{values['users']:,}", *(f"{values[column]:.4f}" for column in columns))
    output.print(parts)
    if "invalid_free_beams" in metrics:
        output.print(
            f"Free beams that end at an ID without an item: {metrics['invalid_free_beams']:.1%}", highlight=False
        )


def _short(value: float) -> str:
    """Format a share without its leading zero, so that two fit into a narrow column."""
    return f"{value:.4f}".removeprefix("0")
