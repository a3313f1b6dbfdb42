"""`resid similar`: the items nearest to an item."""

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from resid import InputError
from resid.cli.app import AsJson, output, print_json
from resid.cli.recommend import items_table


def similar(
    model: Path,
    *,
    item: str,
    k: Annotated[int, Parameter(name=["-k", "--count"])] = 10,
    as_json: AsJson = False,
) -> None:
    """Show the items whose vectors are nearest to those of an item.

    Example: ``resid similar runs/mine --item B000000000 -k 5``

    Parameters
    ----------
    model
        A run's folder, or a saved model. The vectors are those of its encoder, or else the model's own.
    item
        Item ids, separated by commas.
    k
        Number of items.
    as_json
        Print the items as JSON, by item under items.
    """
    from resid import load  # here, as this import takes a while
    from resid.data.catalogue import parse_ids
    from resid.data.where import split_values

    recommender = load(model)
    wanted = parse_ids(split_values(item), recommender.catalogue_.item_ids.dtype)
    if not wanted:
        raise InputError("--item: give one or more item ids, separated by commas.")
    found, cosines, shared = recommender.similar(wanted, k)
    rows: list[dict[str, Any]] = []
    for number, name in enumerate(wanted):
        there = [place for place in range(k) if found[number][place] is not None]
        row = {"item": name, "similar": [found[number][place] for place in there]}
        row["cosines"] = [float(cosines[number][place]) for place in there]
        rows.append(
            row if shared is None else {**row, "shared_prefix": [int(shared[number][place]) for place in there]}
        )
    if as_json:
        print_json({"items": rows})
        return
    for row in rows:
        more = {"cosine": [f"{value:.3f}" for value in row["cosines"]]}
        if "shared_prefix" in row:
            more["shared codes"] = [str(value) for value in row["shared_prefix"]]
        output.print(items_table(recommender, row["similar"], more, title=f"Similar to {row['item']}"))
