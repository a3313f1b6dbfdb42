"""Field values as codes: code 0 is missing, the values of a field count from 1 in their sorted order.

The values of a category, or of a level of a path, are the distinct values of the column; those of tags are the distinct tags.
The values of a number are bins between quantiles, whose edges are stored, so that new items are binned alike.
"""

import itertools
from collections.abc import Sequence

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.data.settings import FieldKind

MAX_TAGS = 64  # of an item; codes are padded to the longest list, which should not be an outlier


def values_in_order(values: pl.Series, kind: FieldKind, edges: Sequence[float] = ()) -> pl.Series:
    """Return the values of a field in the order of their codes, those of a number as text such as "5 to 10"."""
    if kind != "number":
        return (values.explode() if kind == "tags" else values).drop_nulls().unique().sort()
    shown = [f"{edge:.12g}" for edge in edges]
    between = [f"{low} to {high}" for low, high in itertools.pairwise(shown)]
    texts = [f"below {shown[0]}", *between, f"{shown[-1]} and more"] if shown else ["any number"]
    return pl.Series(values.name, texts)


def column_codes(values: pl.Series, kind: FieldKind, edges: Sequence[float] = ()) -> NDArray[np.int32]:
    """Return the codes of a column whose values are all known, shape (items,), or (items, tags) for tags."""
    if kind == "number":
        return bin_codes(values, edges)
    if kind == "tags":
        return pad_codes(values, _ranks(values.drop_nulls().explode()))
    return _ranks(values)


def _ranks(values: pl.Series) -> NDArray[np.int32]:
    return values.rank("dense").fill_null(0).cast(pl.Int32).to_numpy()


def quantile_edges(values: pl.Series, bins: int) -> tuple[float, ...]:
    """Return the edges between bins with about equally many values each.

    Edges are values, and equal quantiles give one edge, so no bin is empty, and there are fewer bins if values repeat. There is
    no edge for fewer than two distinct values.
    """
    known = values.drop_nulls().to_numpy()
    if not len(known):
        return ()
    edges = np.unique(np.quantile(known, np.arange(1, bins) / bins, method="inverted_cdf"))
    return tuple(edges[edges > known.min()].tolist())


def bin_codes(values: pl.Series, edges: Sequence[float]) -> NDArray[np.int32]:
    """Return the bins of numbers, counted from 1, 0 for null; an edge belongs to the bin above it."""
    bins = 1 + np.searchsorted(np.asarray(edges, dtype=np.float64), values.fill_null(0.0).to_numpy(), side="right")
    return np.where(values.is_null().to_numpy(), 0, bins).astype(np.int32)


def pad_codes(lists: pl.Series, flat: NDArray[np.integer]) -> NDArray[np.int32]:
    """Return the codes of lists as a matrix, padded with zeros on the right.

    Parameters
    ----------
    lists
        Lists without null, or null for an empty one.
    flat
        The codes of all of their values, one list after another.
    """
    lengths = lists.list.len().fill_null(0).to_numpy().astype(np.int64)
    rows = np.repeat(np.arange(len(lengths)), lengths)
    places = np.arange(len(flat)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    codes = np.zeros((len(lengths), max(1, lengths.max(initial=1))), dtype=np.int32)
    codes[rows, places] = flat
    return codes


def stack_codes(columns: Sequence[NDArray[np.integer]], n_items: int) -> NDArray[np.int32]:
    """Return the codes of all fields, as in `Dataset.fields`.

    Parameters
    ----------
    columns
        The codes of every field, shape (items,), or (items, tags) for tags.
    n_items
        The number of items.

    Returns
    -------
    ndarray of int32
        Shape (items, fields), or (items, fields, values) if there are tags, padded with zeros.
    """
    if all(column.ndim == 1 for column in columns):
        codes = np.zeros((n_items, len(columns)), dtype=np.int32)
        for field, column in enumerate(columns):
            codes[:, field] = column
        return codes
    longest = max(column.shape[1] for column in columns if column.ndim == 2)
    codes = np.zeros((n_items, len(columns), longest), dtype=np.int32)
    for field, column in enumerate(columns):
        matrix = column.reshape(n_items, -1)
        codes[:, field, : matrix.shape[1]] = matrix
    return codes


def keep_frequent_tags(tags: pl.Series) -> tuple[pl.Series, int]:
    """Reduce longer lists to their `MAX_TAGS` most frequent tags; return the lists, and how many were reduced."""
    long = (tags.list.len() > MAX_TAGS).fill_null(False)
    if not long.any():
        return tags, 0
    flat = pl.DataFrame({"item": pl.int_range(len(tags), eager=True), "tag": tags}).explode("tag").drop_nulls()
    ranked = flat.with_columns(count=pl.len().over("tag")).sort("item", "count", "tag", descending=[False, True, False])
    kept = ranked.group_by("item", maintain_order=True).agg(pl.col("tag").head(MAX_TAGS).sort())
    everyone = pl.DataFrame({"item": pl.int_range(len(tags), eager=True)})
    return everyone.join(kept, on="item", how="left", maintain_order="left")["tag"].alias(tags.name), int(long.sum())
