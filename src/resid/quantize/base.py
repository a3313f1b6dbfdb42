"""What all quantizers have in common: scikit-learn's conventions, and codes."""

from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from resid.quantize.ids import SemanticIds


class Quantizer(ClassNamePrefixFeaturesOutMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Base of the quantizers: `fit` gives every row codes, `transform` gives them to further rows.

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
        The code of every item, level by level.
    level_sizes_ : tuple of int
        How many codes each level has.
    """

    codes_: NDArray[np.int32]
    level_sizes_: tuple[int, ...]

    @property
    def semantic_ids_(self) -> SemanticIds:
        """The codes as IDs, with the tables to go from one to the other."""
        check_is_fitted(self)
        return SemanticIds(self.codes_, self.level_sizes_)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.transformer_tags.preserves_dtype = []  # codes are integers
        return tags

    @property
    def _n_features_out(self) -> int:
        return len(self.level_sizes_)
