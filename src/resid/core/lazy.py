"""Packages whose names are imported on first use, so that a command imports only what it needs.

Torch, scikit-learn and Lightning take seconds to import. The ``__init__.py`` of a package imports its names for type checkers
only, and says here in which module each of them is::

    if TYPE_CHECKING:
        from resid.encode.base import Encoder

    __all__ = ["Encoder"]
    __getattr__, __dir__ = lazy_names(__name__, {"base": "Encoder"})
"""

from __future__ import annotations

import importlib

TYPE_CHECKING = False  # as in resid/__init__.py
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any


def lazy_names(package: str, names: Mapping[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the functions `__getattr__` and `__dir__` of a package.

    Parameters
    ----------
    package
        Its name.
    names
        Module of the package, relative to it → the names that are imported from it, separated by spaces.
    """
    module_of = {name: f"{package}.{module}" for module, listed in names.items() for name in listed.split()}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module '{package}' has no attribute '{name}'")
        return getattr(importlib.import_module(module_of[name]), name)

    return get, lambda: sorted(module_of)
