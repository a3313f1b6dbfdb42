"""Input of the quantizers: vectors as arrays or tensors, known rows, and checks of numeric arguments."""

import math
import warnings
from numbers import Integral, Real
from typing import Any, cast

import numba
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator
from sklearn.utils.validation import validate_data
from torch import Tensor

LARGEST = 1e15  # the squares of larger values overflow in float32


def as_points(estimator: BaseEstimator, vectors: Any, *, reset: bool) -> Tensor:
    """Return vectors as a tensor of float32, shape (n_samples, n_features).

    Parameters
    ----------
    estimator
        Stores the number of features, or is compared with it.
    vectors
        Anything that scikit-learn accepts, or a `torch.Tensor`, which stays on its device.
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
        if hasattr(vectors, "__array__") and not hasattr(vectors, "shape"):  # item embeddings
            vectors = np.asarray(vectors)
        checked = validate_data(estimator, vectors, dtype=np.float32, order="C", reset=reset)
        with warnings.catch_warnings():  # memory-mapped vectors are read-only, and are only read
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
            points = torch.from_numpy(checked)
    least, largest = points.aminmax()
    if max(-float(least), float(largest)) > LARGEST:
        raise ValueError(f"Input X has values beyond {LARGEST:g}, whose squares overflow; scale it.")
    return points


def check_numbers(estimator: BaseEstimator, **least: float) -> None:
    """Raise a ValueError unless arguments are numbers of at least these bounds; integers where the bound is an int."""
    for name, bound in least.items():
        value = getattr(estimator, name)
        whole = isinstance(bound, int)
        fits = isinstance(value, Integral if whole else Real) and not isinstance(value, bool | np.bool_)
        if not fits or not math.isfinite(value) or value < bound:
            kind = "an integer" if whole else "a number"
            raise ValueError(f"{name}={value!r} is invalid; it must be {kind} of at least {bound:g}.")


class KnownRows:
    """Finds rows among known rows by their hash; equal rows are found one after the other.

    Parameters
    ----------
    vectors
        The known rows, shape (rows, d), float32.
    keys
        Their hashes, if they are known already; shape (rows,).

    Attributes
    ----------
    keys : ndarray of uint64, shape (rows,)
    """

    def __init__(self, vectors: Tensor | None = None, *, keys: NDArray[np.uint64] | None = None) -> None:
        self.keys = _row_keys(cast(Tensor, vectors)) if keys is None else keys

    def add(self, vectors: Tensor) -> None:
        """Append rows."""
        self.keys = np.concatenate([self.keys, _row_keys(vectors)])

    def find(self, vectors: Tensor) -> NDArray[np.int64]:
        """Return the index of each row among the known rows, -1 if it is new; shape (rows,)."""
        places: dict[int, list[int]] = {}
        for row in range(len(self.keys) - 1, -1, -1):
            places.setdefault(int(self.keys[row]), []).append(row)
        found = np.full(len(vectors), -1, dtype=np.int64)
        for row, key in enumerate(_row_keys(vectors).tolist()):
            if same := places.get(key):
                found[row] = same.pop()
        return found


def _row_keys(vectors: Tensor) -> NDArray[np.uint64]:
    """Return a 64-bit hash of every row."""
    words = vectors.cpu().numpy().view(np.uint32)
    factors = np.atleast_1d(np.random.default_rng(0).bit_generator.random_raw(words.shape[1])) | np.uint64(1)
    keys: NDArray[np.uint64] = _hash(words, factors)
    return keys


@numba.njit(nogil=True, cache=True)
def _hash(words, factors):  # type: ignore[no-untyped-def]
    keys = np.zeros(len(words), np.uint64)
    for row in range(len(words)):
        for column in range(words.shape[1]):
            word = np.uint64(words[row, column])
            if word == np.uint64(0x80000000):  # minus zero equals zero
                word = np.uint64(0)
            mixed = (word + factors[column]) * np.uint64(0xBF58476D1CE4E5B9)  # modulo 2^64
            keys[row] += (mixed ^ (mixed >> np.uint64(31))) * factors[column]
    return keys
