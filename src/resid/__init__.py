"""The open library for semantic-ID recommendation: tables in, recommended items out."""

from resid.data.dataset import Dataset
from resid.errors import InputError

__version__ = "0.1.0"

__all__ = ["Dataset", "InputError", "__version__"]
