"""`resid evaluate`: accuracy of a recommender on a split, and what its recommended lists are like."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, cast

from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, errors, names, output, print_json
from resid.core.errors import counted
from resid.core.files import refuse_file

if TYPE_CHECKING:
    from resid.generate import Generator

Decoding = Literal["beam", "exact", "free"]

_BEYOND_ACCURACY = {  # metric → its name and format in the table
    "mrr": ("MRR", "{:.4f}"),
    "coverage": ("cover", "{:.1%}"),
    "gini": ("Gini", "{:.3f}"),
    "novelty": ("novel", "{:.2f}"),
    "diversity": ("diverse", "{:.3f}"),
    "long_tail": ("tail", "{:.1%}"),
    "popularity_lift": ("lift", "{:+.2f}"),
}


def evaluate(
    model: Path,
    *others: Path,
    data: Path | None = None,
    split: Literal["test", "validation"] = "test",
    cutoffs: str = "5,10",
    decoding: Decoding = "beam",
    against: Path | None = None,
    out: Path | None = None,
    lists: bool = False,
    as_json: AsJson = False,
) -> None:
    """Rank the whole catalogue, compute metrics of the ranks and the recommended lists, and write the rank of every target.

    Example: ``resid evaluate runs/mine runs/sasrec --against runs/cooccurrence``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    others
        More of them, fitted to the same Dataset, to compare in one table.
    data
        The Dataset's folder; by default the Dataset of the run.
    split
        Which targets to rank.
    cutoffs
        The K of Recall@K, NDCG@K and the other metrics, separated by commas.
    decoding
        Of a generator: beam search over the IDs of items; exact scoring of the whole catalogue; or free beam search, which may
        generate IDs that no item has, as in the paper. Other models ignore it if there are several.
    against
        A run that was evaluated on the same split; shows the difference to it with a paired bootstrap over users.
    out
        Receives the metrics (JSON) and the ranks (Parquet); by default evaluation/ in the run's folder. For one model.
    lists
        Also write the recommended items of every target (Parquet), beside the ranks.
    as_json
        Print the metrics as JSON; those of several models by their folder.
    """
    from resid import ConsoleProgress, load  # here, as these imports take a second
    from resid.data.dataset import MANIFEST as DATASET
    from resid.evaluate import evaluate as evaluate_model
    from resid.runs import load_dataset, read_evaluation, write_evaluation

    wanted, folders = _cutoffs(cutoffs), (model, *others)
    if out is not None:
        if others:
            raise InputError("--out takes the results of one model; leave it out to write each to its run's folder.")
        refuse_file(out)
        if (out / DATASET).exists():
            raise InputError(f"{out} is a Dataset; choose another folder for the metrics.")
    name = split if decoding == "beam" else f"{split}-{decoding}"
    other = read_evaluation(against, name, split, max(wanted)) if against is not None else None
    models = {folder: (load(folder), load_dataset(folder, data)) for folder in folders}
    first = models[model][1].fingerprint
    if strange := [folder for folder in folders if models[folder][1].fingerprint != first]:
        raise InputError(f"{strange[0]}: this model has another Dataset than {model}; evaluate them one by one.")
    found, written = dict[str, dict[str, Any]](), list[Path | None]()
    for folder, (recommender, dataset) in models.items():
        chosen = decoding if recommender.decodings or not others else "beam"
        options = recommender.decoding_options(chosen)
        evaluation = evaluate_model(
            recommender, dataset, split, max(wanted), lists=True, progress=ConsoleProgress(errors), **options
        )
        metrics = evaluation.metrics(wanted)
        if recommender.decodings:
            share = cast("Generator[Any, Any]", recommender).invalid_share(evaluation.windows)
            metrics = {"decoding": decoding, **metrics, "invalid_free_beams": share}
        if other is not None:
            metrics["against"] = {"model": str(against), **evaluation.against(other, wanted)}
        place = name if chosen == decoding else split
        recommended = evaluation.lists() if lists else None
        written.append(write_evaluation(folder, place, metrics, evaluation.table(), out, lists=recommended))
        found[str(folder)] = metrics
    if as_json:
        print_json({"models": found} if others else found[str(model)])
        return
    _print(found)
    for files in written:
        if files is not None:
            names_written = f"{escape(str(files))}.json and .parquet{', and -lists.parquet' if lists else ''}"
            output.print(f"Wrote {names_written}", highlight=False, soft_wrap=True)


def _cutoffs(text: str) -> tuple[int, ...]:
    try:
        cutoffs = tuple(sorted({int(part) for part in names(text)}))
    except ValueError:
        cutoffs = ()
    if not cutoffs or cutoffs[0] < 1:
        raise InputError(f"--cutoffs: '{text}' must be positive integers separated by commas, for example 5,10.")
    return cutoffs


def _print(found: dict[str, dict[str, Any]]) -> None:
    """Print one table of all models, and for a single model the results of user groups."""
    metrics = next(iter(found.values()))
    columns = sorted((name for name in metrics["seen_kept"] if "@" in name), key=lambda name: int(name.split("@")[1]))
    short = [name.replace("recall@", "R@").replace("ndcg@", "N@") for name in columns]
    title = f"{metrics['split'].capitalize()} set: how often the next item is in the top K, of {_counts(metrics)}"
    table = Table(title=title, title_justify="left")
    for column in ("", *short):
        table.add_column(column, overflow="fold")  # do not cut off a bound in a narrow terminal
    gap = "\n" if len(columns) > 4 else ""  # fit more columns into a narrow terminal
    for ranking, label, values in _rows(found):
        cells = ((values[ranking][c], *values[ranking]["intervals"][c]) for c in columns)
        table.add_row(label, *(f"{v:.4f}\n[dim]{_short(low)}–{gap}{_short(high)}[/dim]" for v, low, high in cells))
    output.print(table)
    output.print(
        "With 95% intervals. * items of the history are dropped from the ranking; a target among them counts as missed\n"
        f"All {metrics['protocol']['n_items']:,} items are ranked; {_split_text(metrics['protocol'])}",
        highlight=False,
    )
    output.print(_beyond_accuracy_table(found))
    output.print(
        "cover: share of the catalogue in the lists; Gini: 0 if all items are recommended equally often; novel: self-information "
        "in bits; diverse: share of differing fields; tail: share of the long tail; lift: popularity compared with the histories",
        highlight=False,
    )
    if "against" in metrics:
        title = f"Difference to {escape(metrics['against']['model'])}"
        differences = Table("", *short, title=title, title_justify="left")
        for ranking, label, values in _rows(found):
            cells = ((d["difference"], *d["interval"]) for d in (values["against"][ranking][c] for c in columns))
            differences.add_row(label, *(f"{v:+.4f}\n[dim]{low:+.4f} to {high:+.4f}[/dim]" for v, low, high in cells))
        output.print(differences)
    if len(found) > 1:
        return
    groups = Table("group", "targets", *short, title="Results by group, seen items kept", title_justify="left")
    for name, values in metrics["slices"].items():
        groups.add_row(name, f"{values['targets']:,}", *(f"{values[column]:.4f}" for column in columns))
    output.print(groups)
    if "invalid_free_beams" in metrics:
        output.print(
            f"Free beams that end at an ID without an item: {metrics['invalid_free_beams']:.1%}", highlight=False
        )


def _counts(metrics: dict[str, Any]) -> str:
    """Return the number of users, and that of targets if users have several."""
    users = counted(metrics["users"], "user")
    return users if metrics["targets"] == metrics["users"] else f"{counted(metrics['targets'], 'target')} of {users}"


def _split_text(protocol: dict[str, Any]) -> str:
    """Describe which targets a split has."""
    if protocol["split"] != "time":
        return "leave-one-out split"
    periods = f"trained before {protocol['validate_from']}, validation until before {protocol['test_from']}, then test"
    return f"time split: {periods}, {protocol['targets']}"


def _beyond_accuracy_table(found: dict[str, dict[str, Any]]) -> Table:
    """Return the metrics of the recommended lists at the largest cutoff."""
    named = next(iter(found.values()))["beyond_accuracy"]["seen_kept"]
    k = max(int(name.split("@")[1]) for name in named)
    columns = [name for name in _BEYOND_ACCURACY if f"{name}@{k}" in named]
    table = Table(title=f"The top {k} beyond accuracy", title_justify="left")
    table.add_column("", overflow="fold")
    for name in columns:
        table.add_column(_BEYOND_ACCURACY[name][0], no_wrap=True)
    for ranking, label, values in _rows(found):
        cells = values["beyond_accuracy"][ranking]
        table.add_row(
            label, *(_BEYOND_ACCURACY[name][1].format(cells.get(f"{name}@{k}", float("nan"))) for name in columns)
        )
    return table


def _rows(found: dict[str, dict[str, Any]]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the rows of a table: both rankings of every model, under the names of the models if there are several."""
    for ranking, text in (("seen_kept", "seen kept"), ("seen_dropped", "dropped*")):
        for folder, metrics in found.items():
            yield ranking, f"{escape(folder)}, {text}" if len(found) > 1 else text, metrics


def _short(value: float) -> str:
    """Format a share without its leading zero, so that two fit into a narrow column."""
    return f"{value:.4f}".removeprefix("0")
