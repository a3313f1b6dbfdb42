"""`resid prepare`: tables, or a category of the Amazon reviews, become a Dataset folder."""

import shlex
from pathlib import Path
from typing import Any, Literal

from rich.markup import escape
from rich.table import Table

from resid import Dataset, InputError
from resid.cli.app import AsJson, app, column_names, errors, names, output, print_json
from resid.cli.show import print_notes, steps_table
from resid.data.amazon import RELEASES, compare_with_paper, find_release, prepare_amazon
from resid.data.dataset import MANIFEST
from resid.core.files import refuse_foreign_folder
from resid.core.progress import ConsoleProgress


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
    as_json: AsJson = False,
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
            keep=("title",) if keep is None else names(keep),
            **shared,
        )
        paper = compare_with_paper(source, second, data)
    else:
        data = Dataset.from_tables(
            source,
            second,
            None if fields is None else names(fields),
            columns=column_names(columns),
            keep=None if keep is None else names(keep),
            unlisted_items=unlisted_items,
            **shared,
        )
    replaced = (out / MANIFEST).exists()
    data.save(out)
    if as_json:
        counts = {name: there for name, (_, there) in paper.items()} if paper else None
        print_json(data.info() | {"folder": str(out), "paper": counts})
        return
    output.print(steps_table(data))
    print_notes(data)
    if paper:
        output.print(_paper_table(paper))
    output.print(
        f"Wrote {escape(str(out))}{' in place of the Dataset that was there' if replaced else ''}. Look at it with: resid info {escape(shlex.quote(str(out)))}",
        highlight=False,
        soft_wrap=True,
    )


def _paper_table(paper: dict[str, tuple[int, int]]) -> Table:
    table = Table("", title="Beside the paper", title_justify="left")
    for column in ("here", "paper", "difference"):
        table.add_column(column, justify="right")
    for name, (here, there) in paper.items():
        table.add_row(name, f"{here:,}", f"{there:,}", f"{here / there - 1:+.2%}")
    return table
