"""The tree of semantic IDs as a picture needs it: a bounded number of nodes with sizes, majority values and examples."""

import heapq
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import one_line
from resid.data.catalogue import item_label
from resid.data.dataset import Dataset
from resid.quantize import SemanticIds

_CHILDREN = 256  # of a node that are shown, the largest first
_EXAMPLES = 3  # items of a node, the most popular first
_LABEL = 80  # characters of a value


class ItemLabels:
    """The items that a report mentions, each stored once.

    Parameters
    ----------
    data
        The Dataset of the items.
    """

    def __init__(self, data: Dataset) -> None:
        self._data = data
        self._numbers: dict[int, int] = {}

    def number(self, item: int) -> int:
        """Return the number of an item index in the table of this report."""
        return self._numbers.setdefault(int(item), len(self._numbers))

    def table(self) -> list[tuple[str, str]]:
        """Return the id and the label of every item that was asked for, by number."""
        rows = self._data.item_table[list(self._numbers)]
        names = self._data.field_names
        return [(str(row["item"]), item_label(row, names)) for row in rows.iter_rows(named=True)]


def id_tree(ids: SemanticIds, data: Dataset, labels: ItemLabels, max_nodes: int) -> dict[str, Any]:
    """Return the largest nodes of the tree of prefixes.

    The children of the largest nodes are added first, all of a node or none, at most `_CHILDREN` of a node, as long as there
    are at most `max_nodes` nodes.

    Parameters
    ----------
    ids, data
        The IDs and the Dataset of the same items.
    labels
        Collects the example items.
    max_nodes
        The bound.

    Returns
    -------
    dict
        ``nodes``, columns by name, one value per node and the root first: ``parent``, ``depth``, ``code``, ``size``,
        ``children`` (how many there are) and ``examples`` (numbers of items); ``fields``, a list with the ``name`` of every
        field, whether it is a level of a ``path``, its ``values``, the most frequent first, the most common value of every node (``majority``, -1 for a missing
        value), the share of the node's items that have it (``share``), and the ``purity`` of every depth; ``complete``, whether
        all nodes are there; and the bounds.
    """
    of_depth = [ids.node_of(depth) for depth in range(ids.levels + 1)]  # the node of every item, depth by depth
    sizes = [np.bincount(nodes) for nodes in of_depth]
    chosen, complete = _choose(ids, sizes, max_nodes)
    parent, depth, node = np.array(chosen).T
    columns = {name: np.zeros(len(chosen), dtype=np.int64) for name in ("code", "size", "children")}
    examples: list[list[int]] = [[] for _ in chosen]
    for level in range(ids.levels + 1):
        here, some = np.flatnonzero(depth == level), node[depth == level]
        columns["size"][here] = sizes[level][some]
        if level:
            columns["code"][here] = ids.node_codes(level)[some]
        if level < ids.levels:
            columns["children"][here] = np.diff(ids.first_child(level))[some]
        for place, items in zip(here, _popular(of_depth[level], data.training_counts, some), strict=True):
            examples[place] = [labels.number(item) for item in items]
    fields = []
    for name, codes in _color_fields(data):
        majority, count = np.zeros((2, len(chosen)), dtype=np.int64)
        for level, nodes in enumerate(of_depth):
            found = _majority(nodes, codes)
            majority[depth == level], count[depth == level] = (column[node[depth == level]] for column in found)
        values, places = _by_frequency(data, name, codes, majority)
        shares = (count / columns["size"]).round(3).tolist()
        purity = _purity(of_depth, codes)
        is_path = data.field_kinds[name] == "path"
        field = {"name": name, "path": is_path, "values": values, "majority": places, "share": shares, "purity": purity}
        fields.append(field)
    return {
        "levels": ids.levels,
        "nodes": {
            "parent": parent.tolist(),
            "depth": depth.tolist(),
            **{name: column.tolist() for name, column in columns.items()},
            "examples": examples,
        },
        "fields": fields,
        "complete": complete,
        "max_nodes": max_nodes,
        "max_children": _CHILDREN,
    }


def _choose(
    ids: SemanticIds, sizes: list[NDArray[np.int64]], max_nodes: int
) -> tuple[list[tuple[int, int, int]], bool]:
    """Return parent, depth and node of the nodes that are shown, the root first, and whether these are all."""
    chosen, complete = [(-1, 0, 0)], True
    waiting = [(-len(ids), 0)]  # (−size, place in `chosen`): the largest node is expanded next
    while waiting:
        _, place = heapq.heappop(waiting)
        _, depth, node = chosen[place]
        if depth == ids.levels:
            continue
        children = ids.children(depth, node)[1]
        size = sizes[depth + 1][children]
        shown = np.sort(children[np.argsort(-size, kind="stable")[:_CHILDREN]])
        complete &= len(shown) == len(children)
        if len(chosen) + len(shown) > max_nodes:
            complete = False
            continue
        for child in shown.tolist():
            heapq.heappush(waiting, (-int(sizes[depth + 1][child]), len(chosen)))
            chosen.append((place, depth + 1, child))
    return chosen, complete


def _color_fields(data: Dataset) -> list[tuple[str, NDArray[np.int64]]]:
    """Return the name and the codes of every field with one value per item and at least two values, the fewest values first."""
    codes = data.fields.reshape(data.n_items, len(data.field_names), -1)[:, :, 0] if data.field_names else data.fields
    found = [
        (name, np.asarray(codes[:, column], dtype=np.int64))
        for column, name in enumerate(data.field_names)
        if data.field_kinds[name] != "tags" and data.field_sizes[column] > 2
    ]
    return sorted(found, key=lambda field: int(field[1].max()))


def _majority(nodes: NDArray[np.int64], codes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the most common code of every node, the smallest of equals, and how many of its items have it."""
    width = int(codes.max()) + 1
    pairs, counts = np.unique(nodes * width + codes, return_counts=True)
    order = np.lexsort((pairs, -counts, pairs // width))
    first = order[np.unique(pairs[order] // width, return_index=True)[1]]
    return pairs[first] % width, counts[first]


def _popular(nodes: NDArray[np.int64], counts: NDArray[np.int64], wanted: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Return the items of some nodes that occur most often in training."""
    order = np.lexsort((-counts, nodes))
    begin = np.searchsorted(nodes[order], wanted)
    end = np.minimum(np.searchsorted(nodes[order], wanted, side="right"), begin + _EXAMPLES)
    return [order[first:last] for first, last in zip(begin, end, strict=True)]


def _by_frequency(
    data: Dataset, name: str, codes: NDArray[np.int64], majority: NDArray[np.int64]
) -> tuple[list[str], list[int]]:
    """Return the values of a field that occur in `majority`, the most frequent of all items first, and their places in it."""
    vocabulary, counts = data.vocabulary(name), np.bincount(codes)
    present = sorted({int(code) for code in majority if code}, key=lambda code: (-counts[code], code))
    places = {code: place for place, code in enumerate(present)} | {0: -1}  # code 0 is a missing value
    return [one_line(str(vocabulary[code - 1]), _LABEL) for code in present], [places[int(code)] for code in majority]


def _purity(of_depth: list[NDArray[np.int64]], codes: NDArray[np.int64]) -> list[tuple[float, float]]:
    """Return the share of items with the most common value of their node, for every depth, and the same for shuffled items.

    Small nodes are pure by chance; the shuffle tells how pure.
    """
    shuffled = np.random.default_rng(0).permutation(codes)
    shares = [[float(_majority(nodes, some)[1].sum() / len(some)) for some in (codes, shuffled)] for nodes in of_depth]
    return [(real, chance) for real, chance in shares]
