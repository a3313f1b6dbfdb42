"""The registry of parts: the one place that maps a stage and a kind to a class.

A part registers itself with the decorator `register`. The modules of a stage's folder, and of ``methods/`` for parts that
belong to one method, are imported when the stage is first looked up, so a new part needs no entry anywhere else.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from resid.core.errors import InputError, nearest, shown

if TYPE_CHECKING:
    from resid.core.part import Part

_FOLDERS = {  # stage → the package with its parts
    "encoder": "resid.encode",
    "quantizer": "resid.quantize",
    "generator": "resid.generate",
    "recommender": "resid.sequential",
}
_METHODS = "resid.methods"
_PARTS: dict[tuple[str, str], "type[Part]"] = {}

_P = TypeVar("_P", bound="type[Part]")


def register(stage: str, kind: str) -> Callable[[_P], _P]:
    """Return a decorator that makes a class the part of this stage and kind.

    Parameters
    ----------
    stage
        ``"encoder"``, ``"quantizer"``, ``"generator"`` or ``"recommender"``.
    kind
        The name that recipes use.
    """
    _require_stage(stage)

    def add(cls: _P) -> _P:
        known = _PARTS.setdefault((stage, kind), cls)
        if known.__qualname__ != cls.__qualname__ or known.__module__ != cls.__module__:
            raise InputError(f"there are two parts of the kind '{kind}' for the stage '{stage}': {known} and {cls}.")
        _PARTS[stage, kind] = cls
        cls.stage, cls.kind = stage, kind
        return cls

    return add


def stage_of(section: str) -> str:
    """Return the stage of a recipe's section: ``encoder`` and ``text_encoder`` are both encoders."""
    stage = section.rpartition("_")[2]
    _require_stage(stage, section)
    return stage


def _require_stage(stage: str, section: str | None = None) -> None:
    if stage not in _FOLDERS:
        name = section or stage
        raise InputError(
            f"there is no stage '{name}'{nearest(name, _FOLDERS)}; available stages: {', '.join(_FOLDERS)}."
        )


def kinds(stage: str) -> tuple[str, ...]:
    """Return the kinds of a stage, sorted."""
    _require_stage(stage)
    import_parts(_FOLDERS[stage])
    import_parts(_METHODS)
    return tuple(sorted(kind for known, kind in _PARTS if known == stage))


def find_part(stage: str, kind: object) -> "type[Part]":
    """Return the class of a stage and kind, or raise an `InputError` that lists the kinds of the stage."""
    known = kinds(stage)
    if kind not in known:
        raise InputError(
            f"[{stage}] needs a kind, one of {', '.join(known)}, not {shown(kind)}{nearest(shown(kind), known)}."
        )
    return _PARTS[stage, str(kind)]


@cache
def import_parts(package: str) -> None:
    """Import all modules of a package, so that their parts register themselves."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
