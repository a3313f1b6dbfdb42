"""`resid prepare`: create a Dataset folder from tables, from the Amazon reviews, or from the paper's published data."""

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, column_names, errors, names, output, print_json
from resid.cli.show import fields_table, print_notes, steps_table
from resid.core.files import refuse_foreign_folder

if TYPE_CHECKING:
    from resid.data.sources import Comparison, Source


def prepare(
    interactions: str,
    items: str | None = None,
    /,
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
    short_paths: Literal["repeat", "missing"] | None = None,
    bins: int = 10,
    category_root: Literal["keep", "drop"] | None = None,
    unlisted_items: Literal["error", "missing"] = "error",
    unseen_targets: Literal["keep", "drop", "train"] | None = None,
    split: Literal["leave-one-out", "time"] = "leave-one-out",
    validate_from: str | None = None,
    test_from: str | None = None,
    targets: Literal["first", "all"] = "first",
    duplicates: Literal["keep", "drop"] = "keep",
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    skip_bad_lines: bool = False,
    engine: Literal["polars", "spark"] = "polars",
    as_json: AsJson = False,
    add_unseen_targets: Annotated[bool, Parameter(show=False, negative="")] = False,
) -> None:
    """Create a Dataset folder from tables, from the Amazon reviews, or from the paper's published data.

    ``resid prepare interactions.parquet items.parquet --fields store,genres:tags,price:number --out data/mine``

    ``resid prepare interactions.parquet --split time --validate-from 0.8 --test-from 0.9 --out data/mine``

    ``resid prepare amazon-2023 Musical_Instruments --raw downloads --out data/mi``

    ``resid prepare resid-published Musical_Instruments --raw downloads --out data/mi``

    Parameters
    ----------
    interactions
        The interactions (.parquet, .csv, .tsv, .jsonl; text formats may end in .gz), or amazon-2023, amazon-2018,
        amazon-2014, or resid-published.
    items
        The item table, or the name of the data set as in the published files.
    out
        The folder to write; an existing Dataset is replaced.
    raw
        Public data sets: the folder with the downloaded files.
    fields
        Tables: the columns to use as item fields, separated by commas. A kind can follow a colon: category, path (a list
        that is split into levels), tags or number. By default the kind is guessed, and shown with the reason.
    columns
        Tables: column names, for example user=reviewer,item=asin,timestamp=time.
    keep
        Further columns of the item table to store, separated by commas. Default: title.
    k_core
        Remove users and items with fewer interactions, repeatedly, until all have at least this many.
    missing
        Drop items with missing fields, or keep them with "missing" as a value.
    min_interactions
        Remove users with fewer interactions after these filters.
    max_length
        Maximum number of items in a window, including its target.
    path_levels
        Number of levels of a category path to use as fields.
    qualify_paths
        Distinguish categories with the same name but different parents.
    short_paths
        Levels that a category path does not have: repeat its last level, or treat them as missing. Default: repeat; missing
        for Amazon, as in the paper.
    bins
        Number of bins of a field that is a number.
    category_root
        Amazon: keep or drop the first name of every category path. Default: drop for the ten data sets of the paper,
        where it is constant, keep otherwise.
    unlisted_items
        Tables: raise an error for items without a row in the item table, or treat their fields as missing.
    unseen_targets
        Evaluation targets that no training history contains: keep them in the evaluation, drop them from the evaluation
        and train on them instead, or train on them and evaluate them, which leaks test labels. Default: keep; drop for
        resid-published.
    split
        Leave-one-out takes the last two items of every history as validation and test targets; time divides the log at two
        points in time, so that nothing later is trained on. The filters and the catalogue use the whole log.
    validate_from
        Time split: where training ends and validation begins. A date (2026-01-31, UTC), a number on the scale of the timestamps,
        or a share of the interactions between 0 and 1.
    test_from
        Time split: where validation ends and the test begins.
    targets
        Time split: the first or all items of a user in the validation and test periods are targets.
    duplicates
        Keep or drop exact duplicates: the same user, item and timestamp. A duplicated last interaction makes the test target
        its own predecessor.
    separator
        CSV and TSV files: the separator, for example ";", or tab. Default: a comma, or a tab for .tsv; a file that has only the
        default separator in its header is read with it.
    encoding
        Text files: the encoding, for example utf-16 or latin-1. Default: UTF-8.
    timestamp_format
        Tables: the format of timestamps that are text, for example "%d/%m/%Y %H:%M".
    skip_bad_lines
        Skip and count invalid lines of JSON-lines files and, for resid-published, users whose rows contradict each other.
    engine
        The engine that reads and processes the tables.
    as_json
        Print the result as JSON.
    """
    from resid import ConsoleProgress, Dataset  # here, as these imports take a while
    from resid.data.dataset import MANIFEST
    from resid.data.sources import find_source

    if add_unseen_targets:
        raise InputError("--add-unseen-targets is now called --unseen-targets train.")
    refuse_foreign_folder(out, MANIFEST)
    options: dict[str, Any] = {  # those that were given
        name: value
        for name, value, default in (
            ("fields", None if fields is None else names(fields), None),
            ("columns", column_names(columns), {}),
            ("keep", None if keep is None else names(keep), None),
            ("k_core", k_core, 5),
            ("missing", missing, "drop"),
            ("min_interactions", min_interactions, 3),
            ("max_length", max_length, 32),
            ("path_levels", path_levels, 3),
            ("qualify_paths", qualify_paths, True),
            ("short_paths", short_paths, None),
            ("bins", bins, 10),
            ("category_root", category_root, None),
            ("unlisted_items", unlisted_items, "error"),
            ("unseen_targets", unseen_targets, None),
            ("split", split, "leave-one-out"),
            ("validate_from", validate_from, None),
            ("test_from", test_from, None),
            ("targets", targets, "first"),
            ("duplicates", duplicates, "keep"),
            ("separator", separator, None),
            ("encoding", encoding, None),
            ("timestamp_format", timestamp_format, None),
            ("skip_bad_lines", skip_bad_lines, False),
            ("engine", engine, "polars"),
        )
        if value != default
    }
    if engine == "spark":
        out.resolve().parent.mkdir(parents=True, exist_ok=True)
        options["scratch"] = out.resolve().parent
    progress = ConsoleProgress(errors)
    public, comparisons = find_source(interactions), {}
    if public is not None:
        name = _require_name(interactions, items, public, options)
        data = public.prepare(name, raw, progress=progress, **options)
        comparisons = dict(public.compare(name, data))
    elif category_root is not None:
        raise InputError("--category-root applies to the Amazon data sets only; leave it out.")
    else:
        data = Dataset.from_tables(interactions, items, progress=progress, **options)
    replaced = (out / MANIFEST).exists()
    data.save(out)
    if as_json:
        other = {title: {row: there for row, (_, there) in rows.items()} for title, rows in comparisons.items()}
        print_json(data.info() | {"folder": str(out), "paper": None} | other)
        return
    output.print(steps_table(data))
    if fields_info := data.info()["fields"]:
        output.print(fields_table(fields_info))
    print_notes(data)
    if comparisons:
        output.print(_comparison_table(comparisons))
    output.print(
        f"{'Replaced' if replaced else 'Wrote'} {escape(str(out))}. Inspect it with: "
        f"resid info {escape(shlex.quote(str(out)))}",
        highlight=False,
        soft_wrap=True,
    )


def _require_name(source: str, name: str | None, public: "Source", options: dict[str, Any]) -> str:
    """Return the name of a public data set; raise an `InputError` if it is missing or an option does not apply."""
    flags = {"qualify_paths": "no-qualify-paths"}  # the others are called as they are
    unused = [f"--{flags.get(option, option).replace('_', '-')}" for option in options if option not in public.options]
    if unused:
        raise InputError(f"{source}: {public.reason}; leave {', '.join(unused)} out.")
    if name is None:
        raise InputError(
            f"{source}: name the category, for example: resid prepare {source} Musical_Instruments --out data/mi"
        )
    return name


def _comparison_table(comparisons: "dict[str, Comparison]") -> Table:
    table = Table("", title="Comparison with the published counts", title_justify="left")
    for column in ("here", "published", "difference"):
        table.add_column(column, justify="right")
    for rows in comparisons.values():
        for name, (here, there) in rows.items():
            table.add_row(name, f"{here:,}", f"{there:,}", f"{here / there - 1:+.2%}" if there else "")
        table.add_section()
    return table
