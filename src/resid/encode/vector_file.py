"""Files of item vectors from elsewhere, keyed by item: Parquet, or NumPy's .npz."""

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, first_line, shown

_ITEM, _VECTORS = "item", "vectors"


def read_vectors(path: str | Path, items: pl.Series) -> NDArray[np.float32]:
    """Read the vectors of items from a file, which may contain other items as well.

    Parameters
    ----------
    path
        A Parquet file with the column ``item`` and either one column of lists of numbers or one column of numbers per
        dimension; or an .npz file with the arrays ``item``, shape (n,), and ``vectors``, shape (n, d).
    items
        The item ids.

    Returns
    -------
    ndarray of float32, shape (items, d)

    Raises
    ------
    InputError
        If the file cannot be read, an item has no vector or two, vectors differ in length, or a value is not finite.
    """
    path = Path(path)
    readers = {".parquet": _read_parquet, ".npz": _read_npz}
    if path.suffix.lower() not in readers:
        raise InputError(
            f"{path}: item vectors are read from a .parquet file with the column 'item' and a column of lists, or from an "
            ".npz file with the arrays 'item' and 'vectors'."
        )
    try:
        listed, vectors = readers[path.suffix.lower()](path)
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, pl.exceptions.PolarsError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(f"{path}: the item vectors cannot be read ({first_line(error)}).") from error
    try:
        names = listed.cast(pl.String)
    except pl.exceptions.PolarsError as error:
        raise InputError(
            f"{path}: the item ids, of type {listed.dtype}, cannot be read as UTF-8 text; write them as text."
        ) from error
    if names.is_duplicated().any():
        twice = names.filter(names.is_duplicated())[0]
        raise InputError(f"{path}: the item {twice!r} has more than one vector; keep one row per item.")
    wanted = pl.DataFrame({_ITEM: items.cast(pl.String)})
    rows = wanted.join(pl.DataFrame({_ITEM: names}).with_row_index("row"), on=_ITEM, how="left", maintain_order="left")
    missing = rows.filter(pl.col("row").is_null())[_ITEM]
    if len(missing):
        raise InputError(
            f"{path}: there is no vector for {len(missing):,} of {len(items):,} items, first {missing[0]!r}; the ids must "
            "be those of the Dataset."
        )
    found = np.ascontiguousarray(vectors[rows["row"].to_numpy()], dtype=np.float32)
    finite = np.isfinite(found).all(axis=1)
    if not finite.all():
        wrong = items[int(np.argmin(finite))]
        raise InputError(f"{path}: the vector of the item {shown(wrong)} has NaN or infinite values; compute it again.")
    return found


def _read_parquet(path: Path) -> tuple[pl.Series, NDArray[Any]]:
    table = pl.read_parquet(path, glob=False)
    if _ITEM not in table.columns:
        raise InputError(f"{path}: there is no column 'item', it has {', '.join(table.columns)}; rename the id column.")
    if table.is_empty():
        raise InputError(f"{path}: there are no rows; write one per item.")
    listed, rest = table[_ITEM], table.drop(_ITEM)
    lists = [column for column in rest if isinstance(column.dtype, pl.List | pl.Array)]
    if len(lists) == 1:
        return listed, _stacked(lists[0], path)
    numbers = [column for column in rest if column.dtype.is_numeric()]
    if lists or len(numbers) < len(rest.columns) or not numbers:
        raise InputError(
            f"{path}: besides 'item' there must be one column of lists of numbers, or only columns of numbers, not "
            f"{', '.join(f'{name} ({dtype})' for name, dtype in list(rest.schema.items())[:5]) or 'none'}."
        )
    return listed, rest.cast(pl.Float32).fill_null(float("nan")).to_numpy()


def _stacked(lists: pl.Series, path: Path) -> NDArray[Any]:
    """Return lists of the same length as a matrix."""
    lists = lists.cast(pl.List(pl.Float32))
    lengths = lists.list.len().fill_null(0)
    if lengths.n_unique() != 1 or not lengths[0]:
        counts = sorted(lengths.unique().to_list())
        raise InputError(
            f"{path}: the vectors have {counts[0]} to {counts[-1]} values; all need the same number of them."
        )
    return lists.explode().fill_null(float("nan")).to_numpy().reshape(len(lists), -1)


def _read_npz(path: Path) -> tuple[pl.Series, NDArray[Any]]:
    with np.load(path, allow_pickle=False) as content:
        if not {_ITEM, _VECTORS} <= set(content.files):
            raise InputError(f"{path}: there must be the arrays 'item' and 'vectors', not {', '.join(content.files)}.")
        names, vectors = content[_ITEM], content[_VECTORS]
    if vectors.ndim != 2 or names.shape != vectors.shape[:1] or not vectors.shape[1]:
        raise InputError(
            f"{path}: 'item' has the shape {names.shape} and 'vectors' {vectors.shape}; use (n,) and (n, d)."
        )
    if vectors.dtype.kind not in "biuf":
        raise InputError(f"{path}: 'vectors' has the type {vectors.dtype}; write real numbers, such as float32.")
    return pl.Series(names), vectors
