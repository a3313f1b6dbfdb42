"""`resid items`: add items to a saved model, withdraw and restore them, and list what it has."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, output, print_json
from resid.cli.recommend import read_ids
from resid.cli.show import lineage_text
from resid.core.errors import counted

if TYPE_CHECKING:
    from resid import Recommender
    from resid.quantize.room import Room

items = App(
    name="items",
    help="Add items to a saved model, withdraw and restore them.\n\nExample: ``resid items list runs/mine``",
    result_action="return_value",
)
_BRANCHES = 10  # with the least room, that are shown


@items.command
def add(
    model: Path,
    new: Path,
    *,
    out: Path,
    item_column: str = "item",
    separator: str | None = None,
    encoding: str | None = None,
    as_json: AsJson = False,
) -> None:
    """Add new items to a model; they can be recommended at once, and no ID of another item changes.

    Example: ``resid items add runs/mine new-items.parquet --out models/today``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    new
        A table with the item ids and the columns that were given as fields to `resid prepare`.
    out
        The folder for the model with the new items; it may be the same as MODEL, which is then replaced.
    item_column
        The name of the id column.
    separator
        Of a CSV or TSV file, for example ";", or tab. Default: a comma, or a tab for .tsv.
    encoding
        Of a text file, for example utf-16 or latin-1. Default: UTF-8.
    as_json
        Print where the items went as JSON.
    """
    from resid.runs import change_model  # here, as these imports take a while

    with change_model(model, out) as recommender:
        report = recommender.add_items(new, item_column=item_column, separator=separator, encoding=encoding)
    if as_json:
        room = report.room.to_dict() if report.room is not None else None
        print_json({"model": str(out), "items": report.table.to_dicts(), "room": room})
        return
    output.print(str(report), highlight=False, markup=False, soft_wrap=True)
    if report.room is not None:
        _print_branches(report.room)
    output.print(f"Wrote {out}", highlight=False, markup=False, soft_wrap=True)


@items.command
def remove(
    model: Path, *, items: str | None = None, file: Path | None = None, out: Path, as_json: AsJson = False
) -> None:
    """Withdraw items: they are never recommended, but stay known in histories, and their IDs stay reserved.

    Example: ``resid items remove runs/mine --items B01,B02 --out models/today``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    items
        Item ids, separated by commas. Put an id that contains a comma in double quotes.
    file
        Instead of --items, a text file with one item id per line.
    out
        The folder for the changed model; it may be the same as MODEL, which is then replaced.
    as_json
        Print the counts as JSON.
    """
    _change("remove", model, items, file, out, as_json)


@items.command
def restore(
    model: Path, *, items: str | None = None, file: Path | None = None, out: Path, as_json: AsJson = False
) -> None:
    """Bring back items that were withdrawn.

    Example: ``resid items restore models/today --items B01 --out models/today``

    Parameters
    ----------
    model, items, file, out, as_json
        See `resid items remove`.
    """
    _change("restore", model, items, file, out, as_json)


def _change(action: str, model: Path, ids: str | None, file: Path | None, out: Path, as_json: bool) -> None:
    from resid.data.catalogue import parse_ids
    from resid.data.where import split_values
    from resid.runs import change_model

    if (ids is None) == (file is None):
        raise InputError("give either --items B01,B02 or --file FILE.")
    with change_model(model, out) as recommender:
        dtype = recommender.catalogue_.item_ids.dtype
        listed = parse_ids(split_values(ids), dtype) if ids is not None else read_ids(file, dtype)
        changed = getattr(recommender, f"{action}_items")(listed)
    if as_json:
        print_json({"model": str(out), "changed": changed, **_counts(recommender)})
        return
    words = {
        "remove": ("item was withdrawn", "items were withdrawn"),
        "restore": ("item was restored", "items were restored"),
    }
    text = f"{counted(changed, *words[action])}; {_counts_text(recommender)}. Wrote {out}"
    output.print(text, highlight=False, markup=False, soft_wrap=True)


@items.command(name="list")
def list_items(model: Path, *, as_json: AsJson = False) -> None:
    """Show how many items a model has, how many IDs are left for new ones, and how the items have changed.

    Example: ``resid items list models/today``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    as_json
        Print the counts, the ids of withdrawn items, the room and the lineage as JSON.
    """
    from resid import load

    recommender = load(model)
    room, catalogue = recommender.room(), recommender.catalogue_
    if as_json:
        withdrawn = catalogue.item_ids.gather(catalogue.withdrawn).to_list()
        content = {"room": room.to_dict() if room else None, "lineage": list(recommender.lineage_)}
        print_json({"model": str(model), **_counts(recommender), "withdrawn_items": withdrawn, **content})
        return
    output.print(_counts_text(recommender), highlight=False)
    if room is not None:
        output.print(f"Room for new items: {room}", highlight=False)
        _print_branches(room)
    if recommender.lineage_:
        output.print(lineage_text(recommender.lineage_), highlight=False, soft_wrap=True)


def _print_branches(room: "Room") -> None:
    table = Table("branch", title="Branches with the least room", title_justify="left")
    for column in ("taken", "free"):
        table.add_column(column, justify="right")
    for row in room.branches.sort("free", "c1").head(_BRANCHES).iter_rows(named=True):
        table.add_row(escape(str(row["c1"])), f"{row['taken']:,}", f"{row['free']:,.0f}")
    output.print(table)


def _counts(model: "Recommender") -> dict[str, Any]:
    catalogue = model.catalogue_
    return {"items": len(catalogue), "added": catalogue.added, "withdrawn": len(catalogue.withdrawn)}


def _counts_text(model: "Recommender") -> str:
    counts = _counts(model)
    return f"{counted(counts['items'], 'item')}, {counts['added']:,} of them added, {counts['withdrawn']:,} withdrawn"
