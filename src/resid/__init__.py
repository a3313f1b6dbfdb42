"""The open library for semantic-ID recommendation: tables in, recommended items out."""

from resid.data.dataset import Dataset
from resid.core.errors import InputError
from resid.methods.fit import fit
from resid.methods.recipe import Recipe
from resid.recommend.base import Recommender, load

__version__ = "0.1.0"

__all__ = ["Dataset", "InputError", "Recipe", "Recommender", "__version__", "fit", "load"]
