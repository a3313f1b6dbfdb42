"""Filters by field: which items of a catalogue have ``store=Fjord`` or ``price<20``."""

import csv
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from resid.core.errors import InputError, nearest, one_line, shown
from resid.data.catalogue import Catalogue, as_list

_CONDITION = re.compile(r"\s*(.+?)\s*(<=|>=|=|<|>)(.*)", re.DOTALL)
_COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_TRUTH = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}

Where = Mapping[str, Any] | Iterable[str] | str


@dataclass(frozen=True)
class Condition:
    """A condition on one column of the item table.

    Attributes
    ----------
    field : str
        A field or a kept column.
    operator : str
        ``=`` for any of the values, or ``<``, ``<=``, ``>``, ``>=`` for one number.
    values : tuple
    """

    field: str
    operator: str
    values: tuple[Any, ...]

    def __str__(self) -> str:
        return f"{self.field}{self.operator}{','.join(map(str, self.values))}"


def matching_items(catalogue: Catalogue, where: Where) -> NDArray[np.bool_]:
    """Return which items fulfil all conditions, shape (n_items,).

    Parameters
    ----------
    catalogue
        The items. Its fields and the columns that were kept with them can be used.
    where
        A mapping such as ``{"store": "Fjord", "cat1": ["Kitchen", "Garden"], "price": {">=": 5, "<": 20}}``, or conditions as
        text: ``["store=Fjord", "cat1=Kitchen,Garden", "price>=5", "price<20"]``. Several values mean any of them; an item has
        a value of a field with tags if one of its tags is that value. Items without a value do not match.

    Raises
    ------
    InputError
        If there is no such field, no item with such a value, or a condition cannot be read.
    """
    found = np.ones(len(catalogue), dtype=bool)
    for condition in read_conditions(where):
        found &= _mask(catalogue, condition)
    return found


def read_conditions(where: Where) -> list[Condition]:
    """Return the conditions of a mapping, or of text."""
    if isinstance(where, Mapping):
        return [condition for field, value in where.items() for condition in _of_value(field, value)]
    texts = [where] if isinstance(where, str) else as_list(where)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise InputError(
            f"'where' is a mapping such as {{'store': 'Fjord'}}, or text 'store=Fjord', not {shown(where)}."
        )
    return [_of_text(text) for text in texts]


def split_values(text: str) -> list[str]:
    """Split comma-separated values; one that contains a comma is in double quotes."""
    (row,) = csv.reader([text], skipinitialspace=True) if text.strip() else ([],)
    return [value.strip() for value in row if value.strip()]


def _of_text(text: str) -> Condition:
    parts = _CONDITION.fullmatch(text)
    values = split_values(parts[3]) if parts else []
    if parts is None or not values:
        raise InputError(f"where: {shown(text)} is not a condition such as store=Fjord or price<20.")
    if parts[2] != "=" and len(values) > 1:
        raise InputError(f"where: {shown(text)} compares with several values; give one number.")
    return Condition(parts[1], parts[2], tuple(values))


def _of_value(field: Any, value: Any) -> list[Condition]:
    if not isinstance(field, str):
        raise InputError(f"where: {shown(field)} is not the name of a field.")
    if isinstance(value, Mapping):
        if not value or (unknown := [name for name in value if name not in ("=", *_COMPARISONS)]):
            wrong = shown(unknown[0]) if value else "an empty mapping"
            raise InputError(f"where: '{field}' has {wrong}; use one of =, <, <=, > and >=, as in {{'<': 20}}.")
        pairs = list(value.items())
    else:
        pairs = [("=", value)]
    conditions = []
    for name, given in pairs:
        listed = list(given) if isinstance(given, (set, frozenset)) else as_list(given)
        values = (given,) if listed is None else tuple(listed)
        if not values or (name != "=" and len(values) > 1) or any(each is None for each in values):
            raise InputError(
                f"where: '{field}' {name} {shown(given)} needs {'a value' if name == '=' else 'one number'}."
            )
        conditions.append(Condition(field, name, values))
    return conditions


def _mask(catalogue: Catalogue, condition: Condition) -> NDArray[np.bool_]:
    """Return which items fulfil a condition, shape (n_items,)."""
    table, field = catalogue.items, condition.field
    if field not in table.columns:
        listed = one_line(", ".join(table.columns))
        raise InputError(f"where: there is no field '{field}'{nearest(field, table.columns)}; the fields are {listed}.")
    column = table[field]
    type_ = column.dtype
    if type_ == pl.Boolean:
        found = column.is_in([_truth(condition, value) for value in _equal_only(condition)])
    elif type_.is_numeric():
        numbers = [_number(condition, value) for value in condition.values]
        if condition.operator == "=":
            found = column.cast(pl.Float64).is_in(numbers)
        else:
            found = _COMPARISONS[condition.operator](column, numbers[0])
    elif isinstance(type_, pl.List) or type_ == pl.String:
        texts = [str(value) for value in _equal_only(condition)]
        known = (column.explode() if isinstance(type_, pl.List) else column).cast(pl.String)
        for text in texts:
            if not (known == text).any():
                hint = nearest(text, known.drop_nulls().unique().to_list())
                raise InputError(f"where: no item has {field}={text}{hint}; use a value of the item table.")
        if isinstance(type_, pl.List):
            tags = column.cast(pl.List(pl.String))
            found = pl.select(pl.any_horizontal([pl.lit(tags).list.contains(text) for text in texts])).to_series()
        else:
            found = column.is_in(texts)
    else:
        raise InputError(f"where: the column '{field}' is {type_}; use one with text, tags, numbers or booleans.")
    mask: NDArray[np.bool_] = found.fill_null(False).to_numpy().astype(bool)
    return mask


def _equal_only(condition: Condition) -> tuple[Any, ...]:
    if condition.operator != "=":
        raise InputError(f"where: '{condition.field}' is not a number, so {condition} cannot be compared; use =.")
    return condition.values


def _number(condition: Condition, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"where: '{condition.field}' is a number, so {shown(value)} cannot be compared with it."
        ) from error


def _truth(condition: Condition, value: Any) -> bool:
    if (found := _TRUTH.get(str(value).lower())) is None:
        raise InputError(f"where: '{condition.field}' is true or false, not {shown(value)}.")
    return found
