"""The open library for semantic-ID recommendation: tables in, recommended items out."""

from resid.core.lazy import lazy_names

# True for type checkers; importing it takes time in which the command does not handle interrupts yet.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from resid.comparison.comparison import compare
    from resid.core.errors import InputError
    from resid.core.progress import ConsoleProgress
    from resid.core.runtime import Runtime
    from resid.data.dataset import Dataset
    from resid.methods.fit import fit
    from resid.methods.recipe import Recipe
    from resid.methods.update import update
    from resid.recommend.base import Recommender
    from resid.runs.run import load

__version__ = "0.2.0"

__all__ = [
    "ConsoleProgress",
    "Dataset",
    "InputError",
    "Recipe",
    "Recommender",
    "Runtime",
    "__version__",
    "compare",
    "fit",
    "load",
    "update",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "comparison.comparison": "compare",
        "core.errors": "InputError",
        "core.progress": "ConsoleProgress",
        "core.runtime": "Runtime",
        "data.dataset": "Dataset",
        "methods.fit": "fit",
        "methods.recipe": "Recipe",
        "methods.update": "update",
        "recommend.base": "Recommender",
        "runs.run": "load",
    },
)
