"""Methods: how stages are composed, one short file each, and their recipes."""

from resid.methods.fit import fit
from resid.methods.method import Method, method
from resid.methods.recipe import Recipe

__all__ = ["Method", "Recipe", "fit", "method"]
