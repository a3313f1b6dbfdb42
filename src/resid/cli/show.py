"""Tables that more than one command shows: Datasets, and the quality of encoders and IDs."""

from collections.abc import Sequence
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
    from resid.data.fields import WHOLE  # here, as this import takes a while

    notes = data.notes
    validation, test = notes["unseen_validation_targets"], notes["unseen_test_targets"]
    treatment = {
        "keep": "evaluated, not in training",
        "drop": "moved to training, not evaluated",
        "train": "in training and evaluated",
    }[data.settings.unseen_targets]
    lines = [f"Targets that no training history contains: {validation:,} validation, {test:,} test"]
    lines[0] += f" ({treatment})" if validation or test else ""
    if notes.get("tied_validation_targets") or notes.get("tied_test_targets"):
        validation, test = notes["tied_validation_targets"], notes["tied_test_targets"]
        lines.append(
            f"Targets with the timestamp of another item of the history: {validation:,} validation, {test:,} test "
            "(the order of the file decides)"
        )
    if notes.get("repeated_validation_targets") or notes.get("repeated_test_targets"):
        validation, test = (notes.get(f"repeated_{name}_targets", 0) for name in ("validation", "test"))
        lines.append(
            f"Targets that are a copy of the item before them: {validation:,} validation, {test:,} test "
            f"(of {counted(data.n_users, 'user')})"
        )
    kept = "kept; --duplicates drop removes them" if notes.get("duplicates", "keep") == "keep" else "dropped"
    counts = {
        "duplicate_interactions": f"Duplicate interactions ({kept})",
        "skipped_lines": "Invalid lines (skipped)",
        "duplicate_rows": "Duplicate rows (ignored)",
        "skipped_users": "Users with contradictory rows (dropped)",
    }
    lines += [f"{text}: {notes[name]:,}" for name, text in counts.items() if notes.get(name)]
    for column, guess in notes.get("guessed_kinds", {}).items():
        kind, _, reason = guess.partition(": ")
        advice = f"--fields {column}:KIND chooses another kind"
        if reason.startswith(WHOLE):
            advice = f"use --fields {column}:number for a quantity"
        lines.append(f"Column '{column}' was taken as {kind}: {reason} ({advice})")
    for name, count in notes.get("reduced_tags", {}).items():
        lines.append(f"Items with too many tags in '{name}' (the rarest tags were left out): {count:,}")
    output.print("\n".join(lines), highlight=False, soft_wrap=True)


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
    import numpy as np

    lengths = np.diff(data.offsets)
    edges = [0, 4, 8, 16, 32, 64, 128, int(max(lengths.max(), 128))]
    table = Table.grid(padding=(0, 1))
    counts = np.histogram(lengths, bins=np.array(edges) + 1)[0]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        if count:
            label = f"{low + 1}–{high}" if high > low + 1 else str(high)
            table.add_row(f"{label:>9}", "█" * max(1, round(40 * count / counts.max())), f"{count / len(lengths):.1%}")
    return table


def epochs_table(history: Sequence[dict[str, Any]], best: int) -> Table:
    """Return the losses and the Recall and NDCG at 10 of every evaluated epoch; the best one is marked."""
    columns = sorted({name for record in history for name in record if name.endswith(("recall@10", "ndcg@10"))})
    table = Table("epoch", "loss", *columns, title="Validation", title_justify="left")
    for record in (record for record in history if any(name in record for name in columns)):
        is_best = record["epoch"] == best
        values = (f"{record[name]:.4f}" if name in record else "–" for name in columns)
        cells = (f"{record['epoch']}{' ← best' if is_best else ''}", f"{record['loss']:.3f}", *values)
        table.add_row(*cells, style="bold" if is_best else None)
    return table


def quality_table(found: dict[str, dict[str, Any]]) -> Table:
    """Return the quality of an encoder on some splits."""
    table = Table("", "R@5", "N@5", "R@10", "N@10", title="Quality of the embeddings", title_justify="left")
    for split, values in found.items():
        for metric, name in (("metric1", "Metric 1: all fields masked"), ("metric2", "Metric 2: item ID masked")):
            columns = ("recall@5", "ndcg@5", "recall@10", "ndcg@10")
            table.add_row(f"{split}, {name}", *(f"{values[metric][column]:.4f}" for column in columns))
    return table


def lineage_text(lineage: Sequence[dict[str, Any]]) -> str:
    """Return the changes of a model's items, oldest first, one line each."""
    words = {"add": "added", "remove": "withdrawn", "restore": "restored"}
    lines = [
        f"  {each['time']}  {counted(each['items'], 'item')} {words[each['action']]}, by resid {each['version']}, to model "
        f"{each['parent'][:12]}"
        for each in lineage
    ]
    return "\n".join(["Changes since the fit:", *lines])


_ID_ROWS = (
    ("codes", "size", "{:,}"),
    ("  unused", "dead", "{:,}"),
    ("entropy, bits", "entropy", "{:.3f}"),
    ("perplexity", "perplexity", "{:,.1f}"),
    ("Gini coefficient", "gini", "{:.3f}"),
    ("entropy given the prefix, bits", "conditional_entropy", "{:.3f}"),
    ("variance left given prefix and code", "distortion", "{:.1%}"),
    ("variance left given the code alone", "distortion_code", "{:.1%}"),
    ("  ambiguity, bits per dimension", "ambiguity", "{:.3f}"),
    ("step explained by prefix and code", "step_explained", "{:.1%}"),
    ("step explained by the code alone", "step_explained_code", "{:.1%}"),
    ("  ambiguity of the step, bits per dimension", "step_ambiguity", "{:.3f}"),
    ("cosine of steps with the same code", "cosine", "{:.4f}"),
    ("  under different parents", "cosine_between", "{:.4f}"),
    ("10 nearest neighbors with the same prefix", "neighbors", "{:.1%}"),
    ("  by chance", "neighbors_chance", "{:.2%}"),
    ("items of the history with the target's code", "overlap", "{:.4f}"),
    ("  by chance", "overlap_chance", "{:.4f}"),
)


def ids_text(quality: dict[str, Any]) -> str:
    """Return the counts of semantic IDs as one sentence."""
    return (
        f"{counted(quality['items'], 'item')}, {counted(quality['ids'], 'distinct ID')}, {quality['unique']:.1%} of the items "
        f"with a unique ID, at most {counted(quality['largest_collision'], 'item')} per ID"
    )


def ids_table(levels: list[dict[str, Any]]) -> Table:
    """Return the quality of semantic IDs by level, without the rows that were not measured."""
    table = Table("", title="Quality of the IDs", title_justify="left")
    for level in levels:
        table.add_column(f"level {level['level']}", justify="right")
    for text, name, shape in _ID_ROWS:
        values = [level.get(name) for level in levels]
        if any(value is not None for value in values):
            table.add_row(text, *("–" if value is None else shape.format(value) for value in values))
    return table
