"""The `resid` command: each subcommand is a thin layer over a function of the library.

Bad input ends with one sentence on standard error and exit code 2. Results go to standard output, progress to
standard error; `--json` prints results for programs.
"""

import dataclasses
import io
import json
import os
import signal
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from cyclopts import App, CycloptsError, MissingArgumentError, Parameter
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from resid import Dataset, InputError, __version__
from resid.data.amazon import RELEASES, compare_with_paper, find_release, prepare_amazon
from resid.data.dataset import MANIFEST
from resid.data.download import download as fetch
from resid.data.folder import refuse_foreign_folder
from resid.data.synthetic import synthetic_shop
from resid.progress import ConsoleProgress

app = App(
    name="resid",
    version=__version__,
    help="Semantic-ID recommendation: tables in, recommended items out.",
    result_action="return_value",
    suppress_keyboard_interrupt=False,
)
output = Console()
errors = Console(stderr=True)


def _names(value: str) -> tuple[str, ...]:
    """Split a list that is written with commas."""
    return tuple(name.strip() for name in value.split(",") if name.strip())


@app.command
def prepare(
    source: str,
    second: str | None = None,
    *,
    out: Path,
    raw: Path = Path("downloads"),
    fields: str | None = None,
    columns: str | None = None,
    keep: str | None = None,
    k_core: int = 5,
    missing: Literal["drop", "keep"] = "drop",
    min_interactions: int = 3,
    max_length: int = 32,
    path_levels: int = 3,
    qualify_paths: bool = True,
    category_root: Literal["keep", "drop"] = "keep",
    unlisted_items: Literal["error", "missing"] = "error",
    add_unseen_targets: bool = False,
    skip_bad_lines: bool = False,
    engine: Literal["polars", "spark"] = "polars",
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Turn tables, or a category of the Amazon reviews, into a Dataset folder.

    ``resid prepare interactions.parquet items.parquet --fields store,cat1,cat2 --out data/mine``

    ``resid prepare amazon-2023 Musical_Instruments --raw downloads --out data/mi``

    Parameters
    ----------
    source
        The interactions (.parquet, .csv, .tsv, .jsonl, the last three also .gz), or amazon-2023, amazon-2018,
        amazon-2014.
    second
        The item table; or the category, as the Amazon files call it.
    out
        The folder to write. A Dataset that is there already is replaced.
    raw
        Amazon: the folder with the downloaded files.
    fields
        Tables: the columns that describe an item, separated by commas. A list column (a category path) is cut into
        levels.
    columns
        Tables: other names for the columns, for example user=reviewer,item=asin,timestamp=time.
    keep
        Further columns of the item table to carry along. Default: title.
    k_core
        Remove users and items with fewer interactions, again and again, until all that are left have as many.
    missing
        Drop items that lack a field, or keep them with "missing" as a value.
    min_interactions
        Remove users with fewer interactions after that.
    max_length
        Items in a window, the target included.
    path_levels
        Levels of a category path that become fields.
    qualify_paths
        Tell categories of one name under two parents apart.
    category_root
        Amazon: keep or drop the first name of every category path.
    unlisted_items
        Tables: refuse items of the log without a row in the item table, or treat their fields as missing.
    add_unseen_targets
        Train on evaluation targets that no training history contains. Shows the model test labels.
    skip_bad_lines
        Leave out, and count, lines of a JSON-lines file that are not JSON.
    engine
        What reads the tables and works on them.
    as_json
        Print the result as JSON.
    """
    refuse_foreign_folder(out, MANIFEST)
    progress = ConsoleProgress(errors)
    shared: dict[str, Any] = {
        "k_core": k_core,
        "missing": missing,
        "min_interactions": min_interactions,
        "max_length": max_length,
        "path_levels": path_levels,
        "qualify_paths": qualify_paths,
        "add_unseen_targets": add_unseen_targets,
        "skip_bad_lines": skip_bad_lines,
        "engine": engine,
        "scratch": out.resolve().parent if engine == "spark" else None,
        "progress": progress,
    }
    if engine == "spark":
        out.resolve().parent.mkdir(parents=True, exist_ok=True)
    paper = None
    if source in RELEASES or (source.startswith("amazon-") and not Path(source).exists()):
        find_release(source)
        if fields or columns or unlisted_items != "error":
            raise InputError(
                f"{source}: the Amazon files are known; leave --fields, --columns and --unlisted-items out."
            )
        if second is None:
            raise InputError(
                f"{source}: name the category, for example: resid prepare {source} Musical_Instruments --out …"
            )
        data = prepare_amazon(
            source,
            second,
            raw,
            category_root=category_root,
            keep=("title",) if keep is None else _names(keep),
            **shared,
        )
        paper = compare_with_paper(source, second, data)
    else:
        data = Dataset.from_tables(
            source,
            second,
            None if fields is None else _names(fields),
            columns=_column_names(columns),
            keep=None if keep is None else _names(keep),
            unlisted_items=unlisted_items,
            **shared,
        )
    data.save(out)
    if as_json:
        counts = {name: there for name, (_, there) in paper.items()} if paper else None
        _print_json(data.info() | {"folder": str(out), "paper": counts})
        return
    output.print(_steps_table(data))
    _print_notes(data)
    if paper:
        output.print(_paper_table(paper))
    output.print(
        f"Wrote {escape(str(out))}. Look at it with: resid info {escape(str(out))}",
        highlight=False,
        soft_wrap=True,
    )


def _column_names(columns: str | None) -> dict[str, str]:
    """Read user=reviewer,item=asin."""
    pairs = [pair.partition("=") for pair in _names(columns or "")]
    if bad := [name for name, _, value in pairs if not value]:
        raise InputError(f"--columns: '{bad[0]}' is not of the form name=column, for example user=reviewer,item=asin.")
    return {name.strip(): value.strip() for name, _, value in pairs}


@app.command
def download(
    release: str,
    name: str,
    *,
    raw: Path = Path("downloads"),
    five_core: bool = False,
    mirror: str | None = None,
) -> None:
    """Fetch the public files of a category of the Amazon reviews; a second call continues the first.

    Parameters
    ----------
    release
        amazon-2023, amazon-2018 or amazon-2014.
    name
        The category as the files call it, for example Musical_Instruments.
    raw
        The folder to put them in.
    five_core
        Fetch the published 5-core interactions instead of the raw reviews; they are far smaller.
    mirror
        Another address under which the same files lie.
    """
    for address in find_release(release).addresses(name, five_core, mirror):
        path = fetch(address, raw, progress=ConsoleProgress(errors))
        output.print(f"{escape(str(path))} ({path.stat().st_size:,} bytes)", highlight=False, soft_wrap=True)
    output.print(
        f"Next: resid prepare {release} {name} --raw {escape(str(raw))} --out data/{name}",
        highlight=False,
        soft_wrap=True,
    )


@app.command
def info(data: Path, *, as_json: Annotated[bool, Parameter(name="--json", negative="")] = False) -> None:
    """Show what is in a Dataset: counts, fields, history lengths.

    Parameters
    ----------
    data
        The Dataset's folder.
    as_json
        Print it as JSON.
    """
    dataset = Dataset.load(data)
    if as_json:
        _print_json(dataset.info())
    else:
        _print_info(dataset)


@app.command
def encode(
    data: Path,
    *,
    out: Path,
    recipe: Literal["default", "paper"] = "default",
    epochs: int | None = None,
    seed: int = 0,
    as_json: Annotated[bool, Parameter(name="--json", negative="")] = False,
) -> None:
    """Train FAMAE on a Dataset and write its item embeddings; a second call continues an interrupted first.

    Parameters
    ----------
    data
        The Dataset's folder.
    out
        The run's folder: checkpoints, metrics of every epoch, the encoder and its embeddings.
    recipe
        The library's settings, or the paper's.
    epochs
        At most so many epochs; also the horizon of the learning rate.
    seed
        Decides everything random.
    as_json
        Print the result as JSON.
    """
    from resid.encode import FAMAE, FamaeSettings  # torch takes a second to import, which other commands need not wait

    dataset = Dataset.load(data)
    settings = FamaeSettings.paper(seed) if recipe == "paper" else FamaeSettings(seed=seed)
    if epochs is not None:
        settings = dataclasses.replace(settings, epochs=epochs)
    encoder = FAMAE(settings).fit(dataset, out / "training", progress=ConsoleProgress(errors))
    encoder.save(out, dataset)
    encoder.embed(dataset).save(out / "embeddings")
    found = {split: encoder.quality(dataset, split) for split in ("validation", "test")}
    if as_json:
        _print_json({"epochs": len(encoder.history_), **found})
        return
    output.print(_epochs_table(encoder.history_))
    output.print(_quality_table(found))
    output.print(
        f"Wrote {escape(str(out))}: the encoder, and its embeddings in embeddings/", highlight=False, soft_wrap=True
    )


def _epochs_table(history: list[dict[str, Any]]) -> Table:
    table = Table(
        "epoch", "loss", "Metric 1 R@10", "N@10", "Metric 2 R@10", title="On validation", title_justify="left"
    )
    for record in history:
        values = [record[f"metric{n}"] for n in ("1.recall@10", "1.ndcg@10", "2.recall@10")]
        table.add_row(str(record["epoch"]), f"{record['loss']:.3f}", *(f"{value:.4f}" for value in values))
    return table


def _quality_table(found: dict[str, dict[str, Any]]) -> Table:
    table = Table("", "R@5", "N@5", "R@10", "N@10", title="Quality of the encoder", title_justify="left")
    for split, values in found.items():
        for metric, name in (("metric1", "all fields masked"), ("metric2", "item-ID masked")):
            columns = ("recall@5", "ndcg@5", "recall@10", "ndcg@10")
            table.add_row(f"{split}, {name}", *(f"{values[metric][column]:.4f}" for column in columns))
    return table


@app.command
def demo(*, out: Path = Path("demo-shop")) -> None:
    """Make a synthetic shop, prepare it and train an encoder on it; no download.

    Parameters
    ----------
    out
        The Dataset folder to write.
    """
    refuse_foreign_folder(out, MANIFEST)
    errors.print("A synthetic shop: 6,000 users, 2,000 items, 60,000 interactions.", highlight=False)
    shop = synthetic_shop(users=6_000, items=2_000, interactions=60_000, seed=0)
    data = Dataset.from_tables(
        shop.interaction_table, shop.item_table, ["store", "categories"], progress=ConsoleProgress(errors)
    )
    data.save(out)
    output.print(_steps_table(data))
    _print_info(data)
    history, target = data.test.window(0)
    titles = data.item_table["title"]
    output.print(
        f"\nThe last items of user {escape(str(data.user_ids[0]))}, oldest first:",
        highlight=False,
        soft_wrap=True,
    )
    for item in history[-5:]:
        output.print(f"  {escape(titles[int(item)])}", highlight=False)
    output.print(
        f"  [bold]{escape(titles[target])}[/bold]  ← the test target, which a model has to find",
        highlight=False,
    )
    from resid.encode import FAMAE, FamaeSettings

    errors.print("\nFAMAE learns item embeddings by predicting masked fields of the next item.", highlight=False)
    settings = FamaeSettings(width=64, hidden=128, epochs=8, learning_rate=3e-3, patience=0)
    encoder = FAMAE(settings).fit(data, progress=ConsoleProgress(errors))
    output.print(_epochs_table(encoder.history_))
    output.print(_quality_table({"test": encoder.quality(data, "test")}))
    output.print(
        f"\nWrote {escape(str(out))}. Try your own tables: resid prepare --help",
        highlight=False,
        soft_wrap=True,
    )


def _steps_table(data: Dataset) -> Table:
    table = Table("step", title="Preparation", title_justify="left")
    for column in ("users", "items", "interactions"):
        table.add_column(column, justify="right")
    for step in data.steps:
        table.add_row(step["step"], *(f"{step[column]:,}" for column in ("users", "items", "interactions")))
    return table


def _paper_table(paper: dict[str, tuple[int, int]]) -> Table:
    table = Table("", title="Beside the paper", title_justify="left")
    for column in ("here", "paper", "difference"):
        table.add_column(column, justify="right")
    for name, (here, there) in paper.items():
        table.add_row(name, f"{here:,}", f"{there:,}", f"{here / there - 1:+.2%}")
    return table


def _print_notes(data: Dataset) -> None:
    notes = data.notes
    targets = notes["unseen_validation_targets"] + notes["unseen_test_targets"]
    added = "added to training" if data.settings.add_unseen_targets else "in the catalogue, not in training"
    lines = [f"Evaluation targets that occur in no training history: {targets:,} ({added})"]
    if notes["duplicate_interactions"]:
        lines.append(f"Duplicate interactions, read and kept: {notes['duplicate_interactions']:,}")
    if notes["skipped_lines"]:
        lines.append(f"Bad lines, skipped: {notes['skipped_lines']:,}")
    output.print("\n".join(lines), highlight=False, soft_wrap=True)


def _print_info(data: Dataset) -> None:
    facts = data.info()
    windows = facts["windows"]
    output.print(
        f"[bold]{facts['users']:,}[/bold] users, [bold]{facts['items']:,}[/bold] items, "
        f"[bold]{facts['interactions']:,}[/bold] interactions (density {facts['density']:.3%})\n"
        f"windows: {windows['train']:,} train, {windows['validation']:,} validation, {windows['test']:,} test",
        highlight=False,
    )
    if facts["fields"]:
        table = Table("field", title="Fields", title_justify="left")
        table.add_column("values", justify="right")
        table.add_column("missing", justify="right")
        for field in facts["fields"]:
            table.add_row(escape(field["name"]), f"{field['values']:,}", f"{field['missing']:.1%}")
        output.print(table)
    lengths = facts["history_lengths"]
    output.print(
        f"History lengths: mean {lengths['mean']:.1f}, median {lengths['median']:.0f}, "
        f"95% at most {lengths['q95']:.0f}, longest {lengths['max']:.0f}",
        highlight=False,
    )
    output.print(_length_histogram(data))
    _print_notes(data)
    output.print(f"fingerprint {facts['fingerprint'][:16]}", style="dim", highlight=False)


def _length_histogram(data: Dataset) -> Table:
    """Draw the share of users by history length, in classes that double."""
    lengths = np.diff(data.offsets)
    edges = [0, 4, 8, 16, 32, 64, 128, int(max(lengths.max(), 128))]
    table = Table.grid(padding=(0, 1))
    counts = np.histogram(lengths, bins=np.array(edges) + 1)[0]
    for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True):
        if count:
            label = f"{low + 1}–{high}" if high > low + 1 else str(high)
            table.add_row(f"{label:>9}", "█" * max(1, round(40 * count / counts.max())), f"{count / len(lengths):.1%}")
    return table


def _print_json(value: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False) + "\n")


def _fail(sentence: str) -> int:
    errors.print(Text.assemble(("Error: ", "red"), sentence), soft_wrap=True)
    return 2


def main(arguments: list[str] | None = None) -> int:
    """Run the command and return its exit code: 0, or 2 for input that cannot be used."""
    # Being told to stop is an exception like an interrupt, so that what was begun is cleared away.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    for stream in (sys.stdout, sys.stderr):  # what a terminal cannot show becomes a question mark
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    try:
        app(arguments, exit_on_error=False, print_error=False)
        sys.stdout.flush()  # here, where a closed pipe or a full disk can still be told
    except BrokenPipeError:  # whoever read the output has left, so there is nobody to tell
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except OSError as error:
        return _fail(f"{error.filename or 'resid'}: {error.strerror or error}.")
    except MissingArgumentError as error:
        missing = error.argument.name if error.argument else "an argument"
        return _fail(f"{missing} is missing; see resid --help.")
    except (InputError, CycloptsError) as error:
        return _fail(str(error))
    except KeyboardInterrupt:
        errors.print("Interrupted; what was there before is untouched.")
        return 130
    return 0
