"""`resid recommend`: items for one history, or for a file of histories."""

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, column_names, errors, output, print_json
from resid.cli.evaluate import Decoding
from resid.core.errors import counted, one_line

if TYPE_CHECKING:
    import polars as pl

    from resid import Recommender

_COLUMN = 40  # characters shown of a column


def recommend(
    model: Path,
    *,
    history: str | None = None,
    user: str | None = None,
    histories: Path | None = None,
    columns: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    k: Annotated[int, Parameter(name=["-k", "--count"])] = 10,
    exclude_seen: Annotated[bool, Parameter(negative="")] = False,
    allow: Path | None = None,
    deny: Path | None = None,
    decoding: Decoding = "beam",
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Recommend items after a history.

    Example: ``resid recommend runs/mine --history B000000000,B001494E89 -k 5``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    history
        Item ids, oldest first, separated by commas: --history=B01,B02. Put an id that contains a comma in double quotes. An
        empty string is a user without a history.
    user
        The user id, for a model with user embeddings (HGN with user_embeddings).
    histories
        A table with the columns user, item and timestamp, as for `resid prepare`; one history per user.
    columns
        Other names of these columns, for example user=reviewer,item=asin,timestamp=time.
    separator
        Of a CSV or TSV file of histories, for example ";", or tab. Default: a comma, or a tab for .tsv.
    encoding
        Of a text file of histories, for example utf-16 or latin-1. Default: UTF-8.
    timestamp_format
        Of timestamps that are text, for example "%d/%m/%Y %H:%M".
    k
        Number of items.
    exclude_seen
        Exclude the items of the history.
    allow
        A text file with one item id per line: only these items are recommended.
    deny
        A text file with one item id per line: these items are not recommended.
    decoding
        Of a generator: beam search over the IDs of items; exact scoring of the whole catalogue; or free beam search, which may
        generate IDs that no item has.
    out
        With --histories: the file to write (.parquet, .csv, .jsonl or .ndjson), with the columns user, rank, item and score.
    as_json
        Print the items as JSON.
    """
    import polars as pl  # here, as these imports take a while

    from resid import ConsoleProgress, load
    from resid.core.tables import check_table_file, write_table
    from resid.data.catalogue import parse_ids

    if user is not None and history is None:
        raise InputError("--user needs --history; a file of histories has a user column.")
    if (history is None) == (histories is None):
        raise InputError("give either --history B01,B02 or --histories FILE.")
    if history is not None and (separator or encoding or timestamp_format):
        raise InputError("--separator, --encoding and --timestamp-format describe a file; use them with --histories.")
    if histories is not None and out is None:
        raise InputError("--histories needs --out FILE.")
    if history is not None and out is not None:
        raise InputError("--out works with --histories only; for one --history, use --json.")
    if out is not None:
        check_table_file(out)
    recommender = load(model)
    known = recommender.catalogue_.item_ids
    users, rows = (
        _read_histories(
            histories, column_names(columns), known.dtype, timestamp_format, separator=separator, encoding=encoding
        )
        if histories
        else ([user] if user is not None else None, [parse_ids(split_ids(history or ""), known.dtype)])
    )
    if user is not None and recommender.user_ids_ is None:
        raise InputError("--user: this model has no user embeddings; leave --user out.")
    items, scores = recommender.recommend(
        rows,
        k,
        exclude_seen=exclude_seen,
        allow=read_ids(allow, known.dtype),
        deny=read_ids(deny, known.dtype),
        users=parse_ids(users, recommender.user_ids_.dtype) if users and recommender.user_ids_ is not None else None,
        progress=ConsoleProgress(errors) if histories else None,
        **recommender.decoding_options(decoding),
    )
    if users is not None and out is not None:
        found = pl.DataFrame(
            {
                "user": pl.Series(users).gather([row for row in range(len(users)) for _ in range(k)]),
                "rank": list(range(1, k + 1)) * len(users),
                "item": pl.Series(items.ravel().tolist(), dtype=known.dtype),
                "score": scores.ravel(),
            }
        ).drop_nulls("item")
        write_table(out, found)
        if as_json:
            print_json({"file": str(out), "users": len(users), "rows": len(found)})
        else:
            text = f"Wrote {escape(str(out))}: {counted(len(found), 'row')} for {counted(len(users), 'user')}"
            output.print(text, highlight=False, soft_wrap=True)
    elif as_json:
        some = [(item, float(score)) for item, score in zip(items[0], scores[0], strict=True) if item is not None]
        print_json({"items": [item for item, _ in some], "scores": [score for _, score in some]})
    else:
        output.print(recommendations_table(recommender, items[0], scores[0]))


def recommendations_table(model: "Recommender", items: Any, scores: Any) -> Table:
    """Return a table of recommended items with their semantic IDs, if there are any, and their fields."""
    known = model.catalogue_
    ids = model.ids_
    columns = [name for name in known.items.columns if name != "item"]
    columns.sort(key=lambda name: name != "title")  # the title first, if there is one
    table = Table("", "item", *(["ID"] if ids is not None else []), "score", *columns[:3])
    for place, (item, score) in enumerate(zip(items, scores, strict=True), 1):
        if item is not None:
            index = int(known.find([item])[0])
            code = ["-".join(map(str, ids.codes[index]))] if ids is not None else []
            row = known.items.row(index, named=True)
            more = [escape(_cut(row[name])) for name in columns[:3]]
            table.add_row(str(place), escape(str(item)), *code, f"{score:.3f}", *more)
    return table


def _cut(value: Any) -> str:
    """Return a value of a field in at most `_COLUMN` characters; a list is cut after one of its values."""
    if value is None:
        return "–"
    if not isinstance(value, list):
        return one_line(str(value), _COLUMN)
    texts = [one_line(str(each), _COLUMN - 3) for each in value]
    n_shown = len(texts)
    while len(text := ", ".join(texts[:n_shown] + ["…"] * (n_shown < len(texts)))) > _COLUMN:
        n_shown -= 1
    return text


def read_ids(path: Path | None, dtype: "pl.DataType") -> list[Any] | None:
    """Read a text file with one item id per line; None for no file."""
    from resid.data.catalogue import parse_ids

    if path is None:
        return None
    try:
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}; give a text file with one item id per line.") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path}: not UTF-8 text; give a file with one item id per line.") from error
    return parse_ids([line.rstrip("\r") for line in lines if line.strip()], dtype)


def split_ids(text: str) -> list[str]:
    """Read comma-separated ids; an id that contains a comma is in double quotes."""
    (row,) = csv.reader([text], skipinitialspace=True)
    return [each.strip() for each in row if each.strip()]


def _read_histories(
    path: Path, columns: dict[str, str], dtype: "pl.DataType", timestamp_format: str | None, **options: Any
) -> tuple[list[Any], list[list[Any]]]:
    from resid.data.catalogue import parse_ids
    from resid.data.engines import ROW
    from resid.data.readers import open_table
    from resid.data.tables import checked_interactions

    columns = {name: name for name in ("user", "item", "timestamp")} | columns
    table = open_table(path, "histories", list(columns.values()), **options)
    table = checked_interactions(table, columns, timestamp_format)
    log = table.engine.collect(table.frame.sort("timestamp", ROW))
    grouped = log.group_by("user", maintain_order=True).agg("item").sort("user")
    return grouped["user"].to_list(), [parse_ids(row, dtype) for row in grouped["item"].to_list()]
