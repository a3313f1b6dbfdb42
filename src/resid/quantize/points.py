"""Vectors as all estimators of the Q-stage take them: an array, or a tensor on any device."""

import warnings
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

_LARGEST = 1e15  # the squares of longer vectors would overflow


def as_points(estimator: BaseEstimator, vectors: Any, *, reset: bool) -> Tensor:
    """Return vectors as a tensor of float32, shape (n_samples, n_features).

    Parameters
    ----------
    estimator
        Learns the number of features, or compares with what it learned.
    vectors
        What scikit-learn takes, or a `torch.Tensor`, which stays on its device.
    reset
        True in `fit`.

    Raises
    ------
    ValueError
        If there are NaN, infinite or huge values, no rows, or not two dimensions.
    """
    if isinstance(vectors, Tensor):
        if vectors.ndim != 2 or not len(vectors):
            raise ValueError(f"Expected a two-dimensional tensor with rows, got shape {tuple(vectors.shape)}.")
        if not torch.isfinite(vectors).all():
            raise ValueError("Input X contains NaN or infinity.")
        validate_data(estimator, np.zeros((1, vectors.shape[1]), dtype=np.float32), reset=reset)
        points = vectors.detach().to(torch.float32).contiguous()
    else:
        checked = validate_data(estimator, vectors, dtype=np.float32, order="C", reset=reset)
        with warnings.catch_warnings():  # vectors that are memory-mapped cannot be written, and are not
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            points = torch.from_numpy(checked)
    least, largest = points.aminmax()
    if max(-float(least), float(largest)) > _LARGEST:
        raise ValueError(f"Input X has values beyond {_LARGEST:g}, whose squares do not fit; scale it.")
    return points
