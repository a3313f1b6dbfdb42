"""Public data sets by name: a loader registers itself, so that `resid prepare NAME` finds it without another entry."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from resid.core.errors import InputError, nearest
from resid.core.registry import import_parts
from resid.data.dataset import Dataset

Comparison = Mapping[str, tuple[int, int]]  # what is counted → the number here and elsewhere


@dataclass(frozen=True)
class Source:
    """A public data set, or a family of them.

    Attributes
    ----------
    prepare : callable
        Takes the name of a data set, the folder of its files, and keyword options of `Dataset.from_tables`; returns a Dataset.
    options : tuple of str
        The options that apply, in addition to ``progress``.
    reason : str
        Why the others do not apply.
    compare : callable
        Takes the name and the Dataset; returns comparisons by title, for example with the counts of a paper.
    """

    prepare: Callable[..., Dataset]
    options: tuple[str, ...]
    reason: str
    compare: Callable[[str, Dataset], Mapping[str, Comparison]] = lambda name, data: {}


_SOURCES: dict[str, Source] = {}


def add_source(name: str, source: Source) -> None:
    """Register a source under a name."""
    _SOURCES[name] = source


def find_source(name: str) -> Source | None:
    """Return the source of a name; None if it is the path of a table.

    Raises
    ------
    InputError
        If the name looks like a source but is neither a known one nor a path.
    """
    import_parts("resid.data")
    families = {known.partition("-")[0] for known in _SOURCES}
    if name not in _SOURCES and name.partition("-")[0] in families and not Path(name).exists():
        known = ", ".join(_SOURCES)
        raise InputError(f"unknown data set '{name}'{nearest(name, _SOURCES)}; choose from {known}.")
    return _SOURCES.get(name)
