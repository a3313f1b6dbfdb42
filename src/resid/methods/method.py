"""Methods by name: functions that compose the stages of a run into a recommender."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from resid.core.errors import InputError, nearest, shown
from resid.core.part import PartSpec
from resid.core.registry import import_named_like, import_parts
from resid.data.dataset import Dataset
from resid.recommend import Recommender
from resid.runs import Run

Compose = Callable[[Run, Mapping[str, PartSpec], Dataset], Recommender]


@dataclass(frozen=True)
class Method:
    """A way to compose stages.

    Attributes
    ----------
    name : str
    sections : tuple of str
        The sections that its recipes have; each is the name of a stage, optionally with a prefix, as ``text_encoder``.
    compose : callable
        Takes a run, the parts by section and a Dataset; returns the fitted recommender.
    """

    name: str
    sections: tuple[str, ...]
    compose: Compose


_METHODS: dict[str, Method] = {}


def method(name: str, *sections: str) -> Callable[[Compose], Compose]:
    """Return a decorator that registers a function as a method."""

    def add(compose: Compose) -> Compose:
        _METHODS[name] = Method(name, sections, compose)
        return compose

    return add


def find_method(name: Any, sections: tuple[str, ...]) -> Method:
    """Return the method of a name, or without a name the method with these sections."""
    if isinstance(name, str):
        import_named_like(name, "resid.methods")
    if not isinstance(name, str) or name not in _METHODS:
        import_parts("resid.methods")
    methods = [_METHODS[each] for each in sorted(_METHODS)]  # not in the order in which they were imported
    if not sections:
        raise InputError("the recipe has no sections; start from one that 'resid recipes show resid' prints.")
    if name is None:
        found = [known for known in methods if set(known.sections) == set(sections)]
        if len(found) == 1:
            return found[0]
        if found:
            known = " or ".join(f'method = "{each.name}"' for each in found)
            raise InputError(f"several methods have the sections {', '.join(sections)}; add {known}.")
        shapes = " or ".join(" + ".join(known.sections) for known in methods)
        raise InputError(f"a recipe must have the sections {shapes}; this one has {', '.join(sections)}.")
    if not isinstance(name, str) or name not in _METHODS:
        known = ", ".join(each.name for each in methods)
        raise InputError(
            f"there is no method {shown(name)}{nearest(shown(name), _METHODS)}; available methods: {known}."
        )
    chosen = _METHODS[name]
    if set(chosen.sections) != set(sections):
        raise InputError(
            f"the method '{name}' needs the sections {', '.join(chosen.sections)}, not {', '.join(sections)}."
        )
    return chosen
