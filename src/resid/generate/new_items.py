"""New items of generators: the parts that make their IDs, and vectors as those that the generator was fitted with."""

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import InputError
from resid.core.part import Part
from resid.encode.base import Encoder
from resid.recommend.base import Recommender

if TYPE_CHECKING:
    from resid.quantize.base import Quantizer

ENCODERS = ("encoder", "text_encoder")  # the names of the part that made the vectors of the IDs
_ROWS = 65_536  # whose products are summed at a time
_RANK = 1e-9  # eigenvalues below this share of the largest one count as zero


def id_parts(model: Recommender) -> "tuple[str, Encoder, Quantizer]":
    """Return the name of the encoder that made the vectors of the IDs, the encoder, and a copy of the quantizer.

    Raises
    ------
    InputError
        If the model was saved without them, or its IDs were made in another way.
    """
    from resid.quantize.base import Quantizer  # here, as scikit-learn and numba take seconds to import

    name = next((name for name in ENCODERS if name in model.parts_), None)
    if name is None or "quantizer" not in model.parts_:
        if any(part.endswith("_quantizer") for part in model.parts_):
            raise two_ids(model)
        raise InputError(
            "the model was saved without its encoder and quantizer, which give IDs to new items; use the model of the run, or "
            "save it with parts=True."
        )
    encoder, quantizer = model.parts_[name], Part.from_artifact(model.parts_["quantizer"].to_artifact())
    if not isinstance(encoder, Encoder) or not isinstance(quantizer, Quantizer):
        raise InputError(f"the parts '{name}' and 'quantizer' of this model are not an encoder and a quantizer.")
    known = quantizer.semantic_ids_.codes
    if model.ids_ is None or not np.array_equal(known, model.ids_.codes):
        raise InputError("the IDs of this model are not those of its quantizer, so it cannot give IDs to new items.")
    return name, encoder, quantizer


def two_ids(model: Recommender) -> InputError:
    """Return why a model with two IDs per item cannot take new items."""
    return InputError(f"this {type(model).__name__} has two IDs per item and cannot take new items; fit it again.")


def same_map(
    inputs: NDArray[np.float32], outputs: NDArray[np.float32], others: NDArray[np.float32]
) -> NDArray[np.float32]:
    """Apply the affine map that led from some vectors to others, found by least squares, to further vectors.

    A generator keeps its item vectors as their principal components (`reduce_vectors`), but not the components themselves.

    Parameters
    ----------
    inputs, outputs
        The same items before and after the map, shapes (items, d) and (items, e).
    others
        Shape (further items, d).

    Returns
    -------
    ndarray of float32
        Shape (further items, e).
    """
    center, shift = inputs.mean(axis=0, dtype=np.float64), outputs.mean(axis=0, dtype=np.float64)
    gram: NDArray[Any] = np.zeros((inputs.shape[1], inputs.shape[1]))
    moments: NDArray[Any] = np.zeros((inputs.shape[1], outputs.shape[1]))
    for first in range(0, len(inputs), _ROWS):
        rows = inputs[first : first + _ROWS] - center
        gram += rows.T @ rows
        moments += rows.T @ (outputs[first : first + _ROWS] - shift)
    mapped: NDArray[Any] = (others - center) @ (np.linalg.pinv(gram, rcond=_RANK, hermitian=True) @ moments) + shift
    return mapped.astype(np.float32)
