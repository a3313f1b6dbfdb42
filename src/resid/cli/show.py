"""Tables that more than one command shows: Datasets, and the quality of encoders and IDs."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from resid.cli.app import output
from resid.core.errors import counted

if TYPE_CHECKING:
    from resid import Dataset


def steps_table(data: "Dataset") -> Table:
    """Return the number of users, items and interactions after every preprocessing step."""
    table = Table("step", title="Preprocessing", title_justify="left")
    for column in ("users", "items", "interactions"):
        table.add_column(column, justify="right")
    for step in data.steps:
        table.add_row(step["step"], *(f"{step[column]:,}" for column in ("users", "items", "interactions")))
    return table


def fields_table(fields: Sequence[dict[str, Any]]) -> Table:
    """Return the kinds and the number of values of fields, as `Dataset.info` describes them."""
    table = Table("field", "kind", title="Fields", title_justify="left")
    table.add_column("values", justify="right")
    table.add_column("missing", justify="right")
    for field in fields:
        words = {"tags": f", {field.get('mean_tags', 0):.1f} per item", "number": ", in bins"}
        kind = field["kind"] + words.get(field["kind"], "")
        table.add_row(escape(field["name"]), kind, f"{field['values']:,}", f"{field['missing']:.1%}")
    return table


def print_notes(data: "Dataset") -> None:
    """Print the other counts of a preprocessing."""
    from resid.report.data import note_lines  # here, as this import takes a while

    output.print("\n".join(note_lines(data)), highlight=False, soft_wrap=True)


def print_info(data: "Dataset") -> None:
    """Print the counts, fields and history lengths of a Dataset."""
    facts = data.info()
    windows = facts["windows"]
    output.print(
        f"{', '.join(counted(facts[f'{noun}s'], noun) for noun in ('user', 'item', 'interaction'))} (density {facts['density']:.3%})\n"
        f"windows: {windows['train']:,} train, {windows['validation']:,} validation, {windows['test']:,} test",
        highlight=False,
    )
    if facts["fields"]:
        output.print(fields_table(facts["fields"]))
    lengths = facts["history_lengths"]
    output.print(
        f"History lengths: mean {lengths['mean']:.1f}, median {lengths['median']:.0f}, "
        f"95% at most {lengths['q95']:.0f}, longest {lengths['max']:.0f}; "
        f"{lengths['longer_than_window']:,} of {counted(facts['users'], 'history', 'histories')} "
        f"{'is' if lengths['longer_than_window'] == 1 else 'are'} longer than the window of {data.settings.max_length} items",
        highlight=False,
        soft_wrap=True,
    )
    output.print(_length_histogram(data))
    print_notes(data)
    output.print(f"fingerprint {facts['fingerprint'][:16]}", style="dim", highlight=False)


def _length_histogram(data: "Dataset") -> Table:
    """Return a histogram of the history lengths with doubling bins."""
    from resid.report.data import length_histogram

    table = Table.grid(padding=(0, 1))
    bins = length_histogram(data)
    most = max(count for _, count in bins)
    for label, count in bins:
        table.add_row(f"{label:>9}", "█" * max(1, round(40 * count / most)), f"{count / data.n_users:.1%}")
    return table


def epochs_table(history: Sequence[dict[str, Any]], best: int) -> Table:
    """Return the losses and the Recall and NDCG at 10 of every evaluated epoch; the best one is marked."""
    columns = sorted({name for record in history for name in record if name.endswith(("recall@10", "ndcg@10"))})
    table = Table("epoch", "loss", *columns, title="Validation during training, seen items kept", title_justify="left")
    for record in (record for record in history if any(name in record for name in columns)):
        is_best = record["epoch"] == best
        values = (f"{record[name]:.4f}" if name in record else "–" for name in columns)
        cells = (f"{record['epoch']}{' ← best' if is_best else ''}", f"{record['loss']:.3f}", *values)
        table.add_row(*cells, style="bold" if is_best else None)
    return table


def quality_table(found: dict[str, dict[str, Any]]) -> Table:
    """Return the quality of an encoder on some splits."""
    table = Table(
        "", "R@5", "N@5", "R@10", "N@10", title="Quality of the embeddings, seen items kept", title_justify="left"
    )
    for split, values in found.items():
        for metric, name in (("metric1", "Metric 1: all fields masked"), ("metric2", "Metric 2: item ID masked")):
            columns = ("recall@5", "ndcg@5", "recall@10", "ndcg@10")
            table.add_row(f"{split}, {name}", *(f"{values[metric][column]:.4f}" for column in columns))
    return table


def lineage_text(lineage: Sequence[dict[str, Any]]) -> str:
    """Return the changes of a model, oldest first, one line each."""
    words = {"add": "added", "remove": "withdrawn", "restore": "restored"}

    def what(each: dict[str, Any]) -> str:
        if each["action"] == "update":
            return f"updated with {counted(each['interactions'], 'interaction')}, {counted(each['epochs'], 'epoch')}"
        return f"{counted(each['items'], 'item')} {words[each['action']]}"

    lines = [
        f"  {each['time']}  {what(each)}, by resid {each['version']}, to model {each['parent'][:12]}"
        for each in lineage
    ]
    return "\n".join(["Changes since the fit:", *lines])


def measured_text(measured: Mapping[str, Any]) -> str:
    """Return what is known of a model that was trained on all interactions, see `Recommender.measured_`."""
    figures = [
        f"R@10 {values['recall@10']:.4f}, N@10 {values['ndcg@10']:.4f} {text}"
        for name, text in (
            ("test", "on test users"),
            ("validation", "on validation users"),
        )
        if "recall@10" in (values := measured.get(name, {}))
    ]
    return (
        "Trained on all interactions, so no honest figure exists for this model. The model that was measured, "
        f"{measured['checksum'][:12]}, had {'; '.join(figures) or 'no figures'} (seen items kept)."
    )


def ids_table(levels: list[dict[str, Any]]) -> Table:
    """Return the quality of semantic IDs by level, without the rows that were not measured."""
    from resid.report.ids import quality_rows  # here, as this import takes a while

    table = Table("", title="Quality of the IDs", title_justify="left")
    for level in levels:
        table.add_column(f"level {level['level']}", justify="right")
    for text, values in quality_rows(levels):
        table.add_row(text, *values)
    return table
