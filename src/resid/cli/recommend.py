"""`resid recommend`: items for one history, for users of the Dataset, or for a file of histories."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from cyclopts import Parameter
from rich.markup import escape
from rich.table import Table

from resid import InputError
from resid.cli.app import AsJson, column_names, errors, output, print_json
from resid.cli.evaluate import Decoding
from resid.core.errors import counted, nearest, one_line

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
    data: Path | None = None,
    columns: str | None = None,
    separator: str | None = None,
    encoding: str | None = None,
    timestamp_format: str | None = None,
    k: Annotated[int, Parameter(name=["-k", "--count"])] = 10,
    exclude_seen: Annotated[bool, Parameter(negative="")] = False,
    allow: Path | None = None,
    deny: Path | None = None,
    where: Annotated[list[str] | None, Parameter(negative="")] = None,
    why: Annotated[bool, Parameter(negative="")] = False,
    decoding: Decoding = "beam",
    out: Path | None = None,
    as_json: AsJson = False,
) -> None:
    """Recommend items after a history, to users of the Dataset, or to all users of a file.

    Example: ``resid recommend runs/mine --history B000000000,B001494E89 -k 5``

    Parameters
    ----------
    model
        A run's folder, or a saved model.
    history
        Item ids, oldest first, separated by commas: --history=B01,B02. Put an id that contains a comma in double quotes. An
        empty string is a user without a history.
    user
        Ids of users of the run's Dataset, separated by commas: their whole history is read from there. Together with
        --history, the id of one user, for a model with user embeddings (HGN with user_embeddings).
    histories
        A table of any length: the columns user, item and timestamp, as for `resid prepare`, or one history per row in the columns
        user and items. A job that was stopped continues when it is started again.
    data
        With --user: the Dataset's folder; by default the Dataset of the run.
    columns
        Other names of these columns, for example user=reviewer,item=asin,timestamp=time or items=history.
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
    where
        A condition on a field: --where store=Fjord, --where "cat1=Kitchen,Garden" for any of them, --where "price<20". Several
        of them must all be fulfilled.
    why
        Show the items of the history that are nearest to each item, the shared part of their IDs, and what each score adds.
    decoding
        Of a generator: beam search over the IDs of items; exact scoring of the whole catalogue; or free beam search, which may
        generate IDs that no item has.
    out
        With --histories: the file to write (.parquet, .csv, .jsonl or .ndjson), with the columns user, rank, item and score.
    as_json
        Print the items as JSON; those of several users by user under users.
    """
    from resid import ConsoleProgress, load  # here, as these imports take a while
    from resid.core.tables import check_table_file
    from resid.data.catalogue import parse_ids
    from resid.data.where import split_values

    if histories is not None and user is not None:
        raise InputError("--user needs --history or the Dataset; a file of histories has a user column.")
    if (history is None and user is None) == (histories is None):
        raise InputError("give either --history B01,B02 or --histories FILE, or --user ID.")
    if histories is None and (separator or encoding or timestamp_format or columns):
        raise InputError(
            "--columns, --separator, --encoding and --timestamp-format describe a file; use them with --histories."
        )
    if histories is not None and out is None:
        raise InputError("--histories needs --out FILE.")
    if histories is not None and why:
        raise InputError("--why works with --history and --user only.")
    if histories is None and out is not None:
        raise InputError("--out works with --histories only; for one --history, use --json.")
    if data is not None and (user is None or history is not None):
        raise InputError("--data is the Dataset of --user; use it with --user alone.")
    if out is not None:
        check_table_file(out)
    recommender = load(model)
    known = recommender.catalogue_.item_ids
    options: dict[str, Any] = {
        "exclude_seen": exclude_seen,
        "allow": read_ids(allow, known.dtype),
        "deny": read_ids(deny, known.dtype),
        "where": where,
        **recommender.decoding_options(decoding),
    }
    if histories is not None and out is not None:
        from resid.recommend import recommend_file

        options |= {"separator": separator, "encoding": encoding, "timestamp_format": timestamp_format}
        progress = ConsoleProgress(errors)
        written = recommend_file(
            recommender, histories, out, k, columns=column_names(columns), progress=progress, **options
        )
        if as_json:
            print_json({"file": str(out), "users": written.users, "rows": written.rows})
        else:
            text = f"Wrote {escape(str(out))}: {counted(written.rows, 'row')} for {counted(written.users, 'user')}"
            output.print(text, highlight=False, soft_wrap=True)
        return
    if history is None:
        users, rows = _of_users(model, data, split_values(user or ""))
    else:
        users, rows = [user] if user is not None else [], [parse_ids(split_values(history), known.dtype)]
        if user is not None and recommender.user_ids_ is None:
            raise InputError("--user: this model has no user embeddings; leave --user out.")
    if users and recommender.user_ids_ is not None:
        options["users"] = parse_ids(users, recommender.user_ids_.dtype)
    items, scores = recommender.recommend(rows, k, **options)
    answers = [_answer(recommender, *row, why) for row in zip(rows, items, scores, strict=True)]
    if as_json:
        several = history is None and len(users) > 1
        by_user = [{"user": name, **answer} for name, answer in zip(users, answers, strict=True)] if several else []
        print_json({"users": by_user} if several else answers[0])
        return
    for number, answer in enumerate(answers):
        if history is None:
            output.print(f"User {escape(str(users[number]))}: {counted(len(rows[number]), 'item')} in the history")
        output.print(recommendations_table(recommender, items[number], scores[number]))
        if why:
            output.print(_why_table(answer["why"]))


def _of_users(model: Path, data: Path | None, users: list[str]) -> tuple[list[Any], list[list[Any]]]:
    """Return user ids of a run's Dataset and their whole histories."""
    from resid.data.catalogue import parse_ids
    from resid.runs import load_dataset

    if not users:
        raise InputError("--user: give one or more user ids, separated by commas.")
    dataset = load_dataset(model, data)
    ids = parse_ids(users, dataset.user_ids.dtype)
    if unknown := [user for user, index in zip(ids, dataset.user_indices(ids), strict=True) if index < 0]:
        hint = nearest(str(unknown[0]), map(str, dataset.user_ids))
        raise InputError(f"--user: '{unknown[0]}' is not a user of the Dataset{hint}; give a --history instead.")
    return ids, [dataset.history(user).to_list() for user in ids]


def _answer(model: "Recommender", history: list[Any], items: Any, scores: Any, why: bool) -> dict[str, Any]:
    """Return the items of one user as JSON values."""
    some = [(item, float(score)) for item, score in zip(items, scores, strict=True) if item is not None]
    answer: dict[str, Any] = {"items": [item for item, _ in some], "scores": [score for _, score in some]}
    if why:
        answer["why"] = [each.to_dict() for each in model.explain(history, answer["items"])]
    return answer


def _why_table(explanations: list[dict[str, Any]]) -> Table:
    """Return a table of explanations: the nearest items of the history, and what the scores add."""
    scores = any(each["contributions"] for each in explanations)
    table = Table(title="Why", title_justify="left")
    for column in ("item", "shared ID", "nearest in the history", "cosine", "codes", *(["score"] if scores else [])):
        table.add_column(column, no_wrap=column in ("item", "nearest in the history"))
    for each in explanations:
        near = each["nearest"]
        added = [f"{value:+.2f} {name}" for name, value in each["contributions"].items()]
        cells = [
            "-".join(map(str, each["prefix"])) or "–",
            escape("\n".join(str(neighbor["item"]) for neighbor in near) or "–"),
            "\n".join("–" if n["similarity"] is None else f"{n['similarity']:.2f}" for n in near),
            "\n".join("–" if n["shared_prefix"] is None else str(n["shared_prefix"]) for n in near),
        ]
        table.add_row(escape(str(each["item"])), *cells, *(["\n".join(added)] if scores else []))
    return table


def recommendations_table(model: "Recommender", items: Any, scores: Any) -> Table:
    """Return a table of recommended items with their semantic IDs, if there are any, and their fields."""
    some = [(item, score) for item, score in zip(items, scores, strict=True) if item is not None]
    return items_table(model, [item for item, _ in some], {"score": [f"{score:.3f}" for _, score in some]})


def items_table(model: "Recommender", items: list[Any], more: dict[str, list[str]], title: str | None = None) -> Table:
    """Return a table of items with their semantic IDs, if there are any, more columns, and their fields."""
    known = model.catalogue_
    ids = model.ids_
    columns = [name for name in known.items.columns if name != "item"]
    columns.sort(key=lambda name: name != "title")  # the title first, if there is one
    header = ("", "item", *(["ID"] if ids is not None else []), *more, *columns[:3])
    table = Table(title=escape(title) if title else None, title_justify="left")
    for name in header:
        table.add_column(name, no_wrap=name == "item")
    for place, (index, item) in enumerate(zip(known.find(items), items, strict=True)):
        code = ["-".join(map(str, ids.codes[index]))] if ids is not None else []
        row = known.items.row(int(index), named=True)
        fields = [escape(_cut(row[name])) for name in columns[:3]]
        table.add_row(str(place + 1), escape(str(item)), *code, *(values[place] for values in more.values()), *fields)
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
