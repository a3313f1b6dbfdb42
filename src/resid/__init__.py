"""The open library for semantic-ID recommendation: tables in, recommended items out."""

from resid.data.dataset import Dataset
from resid.errors import InputError
from resid.pipeline import fit
from resid.recipes import Recipe
from resid.recommender import Recommender, load

__version__ = "0.1.0"

__all__ = ["Dataset", "InputError", "Recipe", "Recommender", "__version__", "fit", "load"]
