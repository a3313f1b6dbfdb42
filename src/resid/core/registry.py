"""The registry of parts: the one place that maps a stage and a kind to a class.

A part registers itself with the decorator `register`, so a new part needs no entry anywhere else. When a part is looked up, the
module that is named like its kind is imported; if the part is not there, so are all modules of the stage's folder and of
``methods/``, for parts that belong to one method.

Settings that are declared in a folder's ``settings.py`` with `settings_for` are found without importing the part.
"""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING, TypeVar

from resid.core.errors import InputError, nearest, shown

if TYPE_CHECKING:
    from resid.core.part import Part
    from resid.core.settings import Settings

_FOLDERS = {  # stage → the package with its parts
    "encoder": "resid.encode",
    "quantizer": "resid.quantize",
    "generator": "resid.generate",
    "recommender": "resid.sequential",
}
_METHODS = "resid.methods"
_PARTS: dict[tuple[str, str], "type[Part]"] = {}
_SETTINGS: dict[tuple[str, str], "type[Settings]"] = {}

_P = TypeVar("_P", bound="type[Part]")
_S = TypeVar("_S", bound="type[Settings]")


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


def settings_for(stage: str, kind: str) -> Callable[[_S], _S]:
    """Return a decorator that makes a class the settings of a part, in the ``settings.py`` of the stage's folder."""
    _require_stage(stage)

    def add(cls: _S) -> _S:
        _SETTINGS[stage, kind] = cls
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


def is_known(stage: str, kind: object) -> bool:
    """Return whether there is a part of this stage and kind."""
    _require_stage(stage)
    if not isinstance(kind, str):
        return False
    for package in (_FOLDERS[stage], _METHODS):
        if (stage, kind) not in _PARTS:
            import_named_like(kind, package)
    return (stage, kind) in _PARTS or kind in kinds(stage)


def find_part(stage: str, kind: object) -> "type[Part]":
    """Return the class of a stage and kind, or raise an `InputError` that names the nearest kind or lists all of the stage."""
    if not is_known(stage, kind):
        known = kinds(stage)
        if not isinstance(kind, str):
            raise InputError(f"[{stage}] needs a kind, one of {', '.join(known)}, not {shown(kind)}.")
        hint = nearest(kind, known) or f"; available {stage}s: {', '.join(known)}"
        raise InputError(f"there is no {stage} {shown(kind)}{hint}.")
    return _PARTS[stage, str(kind)]


def find_settings(stage: str, kind: object) -> "type[Settings]":
    """Return the settings class of a stage and kind; imports the part only if its settings are declared beside it."""
    _require_stage(stage)
    importlib.import_module(f"{_FOLDERS[stage]}.settings")
    known = _SETTINGS.get((stage, kind)) if isinstance(kind, str) else None
    return known or find_part(stage, kind).settings_class


def import_named_like(name: str, package: str) -> None:
    """Import the module of a package that is named like a part or method, if there is one: ``rq-vae`` is in ``rqvae.py``."""
    plain = name.replace("-", "")
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        if module.name.replace("_", "") == plain:
            importlib.import_module(f"{package}.{module.name}")


@cache
def import_parts(package: str) -> None:
    """Import all modules of a package, so that their parts register themselves."""
    for module in pkgutil.iter_modules(importlib.import_module(package).__path__):
        importlib.import_module(f"{package}.{module.name}")
