"""Floating-point operations of the three stages: the paper's complexity section, with constants.

A multiply-add counts as two operations. Only matrix products are counted, as in the paper: normalization, softmax, losses and
lookups are left out. A training step costs about three forward passes.
"""

from collections.abc import Sequence

import numpy as np


def attention_flops(queries: int, keys: int, width: int, *, projected_keys: int | None = None) -> int:
    """Return the operations of an attention layer: projections of queries, keys, values and output; scores and sums.

    Parameters
    ----------
    queries, keys
        Number of query and key positions.
    width
        Of the model, and of all heads together.
    projected_keys
        Number of positions whose keys and values are computed; all by default.
    """
    projections = 2 * queries + 2 * (keys if projected_keys is None else projected_keys)
    return 2 * projections * width**2 + 4 * queries * keys * width


def feed_forward_flops(positions: int, width: int, hidden: int) -> int:
    """Return the operations of the two linear layers after an attention layer."""
    return 4 * positions * width * hidden


def encoder_flops(length: int, width: int, hidden: int, layers: int, *, last_only: bool = False) -> int:
    """Return the operations of a Transformer encoder for one sequence, O(L (T² d + T d²)).

    Parameters
    ----------
    length, width, hidden, layers
        T, d, the width of the feed-forward part, L.
    last_only
        The last layer computes only its last position, as in FAMAE.
    """
    whole = attention_flops(length, length, width) + feed_forward_flops(length, width, hidden)
    if not last_only:
        return layers * whole
    return (layers - 1) * whole + attention_flops(1, length, width) + feed_forward_flops(1, width, hidden)


def famae_flops(
    length: int, fields: int, width: int = 128, hidden: int = 512, layers: int = 2, *, last_only: bool = True
) -> int:
    """Return the operations of FAMAE's forward pass for one window, O(T J d + L (T² d + T d²)).

    Parameters
    ----------
    length
        T, history and target.
    fields
        J, including the item ID.
    width, hidden, layers
        Of the Transformer.
    last_only
        Whether the last layer computes one position, as in this library, or all.
    """
    return length * fields * width + encoder_flops(length, width, hidden, layers, last_only=last_only)


def gaoq_flops(
    items: int, d: int, branching: Sequence[int], steps: Sequence[float], anchors: Sequence[int] | None = None
) -> dict[str, int]:
    """Return the operations of GAOQ, part by part.

    Parameters
    ----------
    items, d
        N and d_q.
    branching
        b_l of every level, including the last, which numbers the items of a leaf.
    steps
        I_l, Lloyd iterations of every clustered level: one fewer than levels.
    anchors
        g_l from the second level on; by default the number of children.

    Returns
    -------
    dict
        ``clustering`` Σ I_l N b_l d, ``centering`` Σ P_{l−1} b_l d, ``anchors`` Σ d g_l², ``cosines`` Σ P_{l−1} b_l g_l d
        and ``matching`` Σ P_{l−1} b_l³.
    """
    anchors = tuple(branching[1:]) if anchors is None else tuple(anchors)
    parents = np.cumprod([1, *branching[:-1]]).tolist()
    aligned = list(zip(parents[1:], branching[1:], anchors, strict=True))
    return {
        "clustering": round(sum(2 * i * items * b * d for i, b in zip(steps, branching[:-1], strict=True))),
        "centering": sum(p * b * d for p, b, _ in aligned),
        "anchors": sum(2 * d * g**2 for _, _, g in aligned),
        "cosines": sum(2 * p * b * g * d for p, b, g in aligned),
        "matching": sum(p * b**3 for p, b, _ in aligned),
    }


def t5_flops(
    history: int,
    target: int,
    width: int = 128,
    hidden: int = 512,
    layers: tuple[int, int] = (4, 4),
    vocabulary: int = 0,
) -> int:
    """Return the operations of a T5's forward pass for one sample.

    Parameters
    ----------
    history, target
        Number of tokens of the encoder and of the decoder.
    width, hidden
        Of the model and of its feed-forward part.
    layers
        Of encoder and decoder.
    vocabulary
        Number of tokens that every decoder position scores; the paper leaves this out.
    """
    decoder = (
        attention_flops(target, target, width)
        + attention_flops(target, history, width)
        + feed_forward_flops(target, width, hidden)
    )
    return encoder_flops(history, width, hidden, layers[0]) + layers[1] * decoder + 2 * target * width * vocabulary
