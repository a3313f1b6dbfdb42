"""The open library for semantic-ID recommendation: tables in, recommended items out."""

import importlib
from typing import TYPE_CHECKING, Any

from resid.core.errors import InputError
from resid.core.progress import ConsoleProgress
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset

if TYPE_CHECKING:
    from resid.methods import Recipe, fit
    from resid.recommend import Recommender
    from resid.runs import load

__version__ = "0.2.0"

__all__ = [
    "ConsoleProgress",
    "Dataset",
    "InputError",
    "Recipe",
    "Recommender",
    "Runtime",
    "__version__",
    "fit",
    "load",
]

# Imported on first use: they need torch, which takes a second to import.
_LAZY = {"Recipe": "resid.methods", "fit": "resid.methods", "Recommender": "resid.recommend", "load": "resid.runs"}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'resid' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
