"""Example users: their history, the next item, and what every model recommends."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.data.dataset import Dataset
from resid.evaluate import ranks_in_table
from resid.recommend import Recommender
from resid.report.tree import ItemLabels

_FOUND, _MISSED = 4, 2  # users whose next item is recommended, and users whose next item is not
_HISTORY = 8  # last items that are shown
_K = 10  # recommended items


def example_users(data: Dataset, ranks: pl.DataFrame | None) -> NDArray[np.int64]:
    """Return some test windows, drawn with a fixed seed: four whose target is in the top 10 and two whose target is not.

    Parameters
    ----------
    data
        The Dataset.
    ranks
        The table of an evaluation on its test split; without one, six windows are drawn from all.
    """
    rng, count = np.random.default_rng(0), len(data.test)
    drawn = rng.permutation(count)
    if ranks is None:
        return np.sort(drawn[: _FOUND + _MISSED])
    found = ranks_in_table(ranks)[drawn] < _K
    return np.concatenate([np.sort(drawn[found][:_FOUND]), np.sort(drawn[~found][:_MISSED])])


def example_content(
    models: Mapping[str, Recommender], data: Dataset, windows: NDArray[np.int64], labels: ItemLabels
) -> list[dict[str, Any]]:
    """Return the histories of some test windows and what the models recommend after them, ready for JSON.

    Parameters
    ----------
    models
        By the name of their run, fitted to the Dataset.
    data
        The Dataset.
    windows
        Positions in its test split.
    labels
        Collects the items.

    Returns
    -------
    list of dict
        For every window ``user``; ``length`` of the history; its last items, ``history``; ``target``; ``recommended``, by run
        the ``items``; and ``ids``, by run the semantic IDs of all these items, by their number.
    """
    histories = [data.item_ids.gather(data.test.window(int(window))[0].astype(int)).to_list() for window in windows]
    users = data.user_ids.gather(data.test.users[windows].astype(np.int64)).to_list()
    k = min(_K, data.n_items)
    recommended = {
        name: model.catalogue_.find(model.recommend(histories, k, users=users)[0].ravel()).reshape(len(windows), k)
        for name, model in models.items()
    }
    found = []
    for row, window in enumerate(windows):
        history, target = data.test.window(int(window))
        ids: dict[str, dict[int, list[int]]] = {}
        for name, model in models.items():
            if model.ids_ is not None:
                mentioned = [*history[-_HISTORY:], target, *recommended[name][row]]
                codes = model.ids_.codes
                ids[name] = {labels.number(item): codes[item].tolist() for item in mentioned if item >= 0}
        found.append(
            {
                "user": str(users[row]),
                "length": len(history),
                "history": [labels.number(item) for item in history[-_HISTORY:]],
                "target": labels.number(target),
                "seen": [labels.number(item) for item in np.unique(history) if _recommended(item, recommended, row)],
                "recommended": {
                    name: [labels.number(item) for item in items[row] if item >= 0]
                    for name, items in recommended.items()
                },
                "ids": ids,
            }
        )
    return found


def _recommended(item: int, recommended: Mapping[str, NDArray[np.int64]], row: int) -> bool:
    """Return whether some model recommends an item to a user."""
    return any((items[row] == item).any() for items in recommended.values())
