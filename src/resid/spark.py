"""Recommendations for a Spark DataFrame: a DataFrame in, a DataFrame out, computed on the executors in Arrow batches."""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from resid.core.errors import InputError, nearest, shown
from resid.data.catalogue import parse_ids
from resid.data.where import Where
from resid.recommend.base import Recommender
from resid.runs import load

if TYPE_CHECKING:
    import pyarrow
    from pyspark.sql import DataFrame as SparkFrame

_COLUMNS = ("user", "item", "timestamp", "items")


def recommend(
    frame: "SparkFrame",
    model: str,
    k: int = 10,
    *,
    columns: Mapping[str, str] | None = None,
    exclude_seen: bool = False,
    allow: Iterable[Any] | None = None,
    deny: Iterable[Any] | None = None,
    where: Where | None = None,
    **options: Any,
) -> "SparkFrame":
    """Recommend items to all users of a Spark DataFrame.

    Every Python process of an executor loads the model once, from a folder that all of them can read.

    Parameters
    ----------
    frame
        A log with the columns user, item and timestamp, or one history per row with the columns user and items, an array of
        item ids, oldest first.
    model
        The folder of a run or of a saved model.
    columns
        Other names of these columns, for example ``{"user": "reviewer", "items": "history"}``.
    k, exclude_seen, allow, deny, where, options
        See `Recommender.recommend`.

    Returns
    -------
    DataFrame
        The columns user, rank, item and score; one row per user and item.
    """
    from pyspark.sql import types as t

    names = {name: name for name in _COLUMNS} | dict(columns or {})
    recommender = load(model)  # here, so that mistakes are found before the job starts
    recommender.check_request(k, options)
    recommender.allowed_mask(_listed(allow), _listed(deny), where)
    grouped = _histories(frame, names)
    item_type = t.LongType() if recommender.catalogue_.item_ids.dtype.is_integer() else t.StringType()
    schema = t.StructType(
        [
            grouped.schema["user"],
            t.StructField("rank", t.LongType(), False),
            t.StructField("item", item_type, False),
            t.StructField("score", t.FloatType(), False),
        ]
    )
    request = {
        "k": k,
        "exclude_seen": exclude_seen,
        "allow": _listed(allow),
        "deny": _listed(deny),
        "where": where if where is None or isinstance(where, (str, Mapping)) else list(where),
        **options,
    }

    def of_batches(batches: "Iterable[pyarrow.RecordBatch]") -> "Iterator[pyarrow.RecordBatch]":
        for batch in batches:
            yield from _recommend_batch(_load_once(str(model)), batch, request)

    return grouped.mapInArrow(of_batches, schema)


def _listed(ids: Iterable[Any] | None) -> list[Any] | None:
    return None if ids is None else list(ids)


def _histories(frame: "SparkFrame", names: Mapping[str, str]) -> "SparkFrame":
    """Return the columns user and items of a log or of a table of histories."""
    from pyspark.sql import functions as f
    from pyspark.sql import types as t

    is_log = names["item"] in frame.columns or names["items"] not in frame.columns
    for name in ("user", "item", "timestamp") if is_log else ("user", "items"):
        if names[name] not in frame.columns:
            hint = nearest(names[name], frame.columns)
            raise InputError(f"the DataFrame has no column '{names[name]}'{hint}; pass its name with columns.")
    if is_log:
        row = f.struct(f.col(names["timestamp"]).alias("at"), f.col(names["item"]).alias("item"))
        listed = frame.groupBy(f.col(names["user"]).alias("user")).agg(f.sort_array(f.collect_list(row)).alias("rows"))
        return listed.select("user", f.col("rows.item").alias("items"))
    if not isinstance(frame.schema[names["items"]].dataType, t.ArrayType):
        given = frame.schema[names["items"]].dataType.simpleString()
        raise InputError(f"the column '{names['items']}' must be an array of item ids, not {shown(given)}.")
    return frame.select(f.col(names["user"]).alias("user"), f.col(names["items"]).alias("items"))


@lru_cache(maxsize=1)
def _load_once(folder: str) -> Recommender:
    """Load a model in a Python process of an executor; the last one is kept."""
    return load(folder)


def _recommend_batch(
    model: Recommender, batch: "pyarrow.RecordBatch", request: Mapping[str, Any]
) -> "Iterator[pyarrow.RecordBatch]":
    """Yield the recommendations for the users of a batch."""
    table = pl.DataFrame(batch)
    if not len(table):
        return
    k, item_type = request["k"], model.catalogue_.item_ids.dtype
    more: dict[str, Any] = {}
    if model.user_ids_ is not None:
        more["users"] = parse_ids(table["user"], model.user_ids_.dtype)
    rows = [parse_ids(row or [], item_type) for row in table["items"].to_list()]
    items, scores = model.recommend(rows, **request, **more)
    found = pl.DataFrame(
        {
            "user": table["user"].gather([row for row in range(len(rows)) for _ in range(k)]),
            "rank": list(range(1, k + 1)) * len(rows),
            "item": pl.Series(items.ravel().tolist(), dtype=item_type),
            "score": scores.ravel(),
        }
    ).drop_nulls("item")
    if item_type.is_integer():
        found = found.with_columns(pl.col("item").cast(pl.Int64))  # Spark has no unsigned integers
    yield from found.to_arrow(compat_level=pl.CompatLevel.oldest()).to_batches()
