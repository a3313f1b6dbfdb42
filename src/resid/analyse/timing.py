"""Time of the Q-stage: GAOQ against the tokenizers of TIGER (RQ-VAE) and LETTER, on the same vectors in one process.

GAOQ runs to its end, before and after the others. The other two are trained for a few passes over the vectors; the median time
of a pass is multiplied by the number of passes that is stated for each of them, and the time of the rest, initialization and
counts of collisions, is added.
"""

import time
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from resid.core.part import PartSpec
from resid.core.registry import find_part
from resid.quantize import GAOQ, SemanticIds, id_quality

PASSES = {"rq-vae": (300, 20_000), "letter": (200, 20_000)}  # where resid's converge, or by default; and as published
COUNTS = ("default", "published")
PAPER_MINUTES = {  # GAOQ (ReSID), RQ-VAE (TIGER), LETTER
    "Arts Crafts & Sewing": (27.38, 224.29, 3356.64),
    "Health & Household": (71.89, 371.71, 6537.30),
    "Beauty & Personal Care": (95.96, 423.89, 7379.83),
}

_R = TypeVar("_R")


def timed(work: Callable[[], _R]) -> tuple[float, _R]:
    """Return the seconds that a function takes, and its result."""
    begin = time.perf_counter()
    result = work()
    return time.perf_counter() - begin, result


def compile_gaoq() -> None:
    """Fit GAOQ to random vectors, so that no measured time includes compilation."""
    GAOQ((32, 32), random_state=0).fit(np.random.default_rng(0).standard_normal((9_000, 32)))


def seconds_per_pass(kind: str, vectors: NDArray[Any], passes: int) -> dict[str, Any]:
    """Train a tokenizer for a number of passes; return the time of a pass by its training log, and that of the rest."""
    settings = find_part("quantizer", kind).settings_class(epochs=passes, evaluate_every=1, seed=0)  # type: ignore[call-arg]
    tokenizer: Any = PartSpec("quantizer", kind, settings).create()
    seconds, model = timed(lambda: tokenizer.fit(vectors))
    history = model.history_
    each = len(vectors) / float(np.median([record["samples_per_second"] for record in history]))
    quality = id_quality(SemanticIds(model.codes_, model.level_sizes_))
    usage = [{name: level[name] for name in ("perplexity", "dead")} for level in quality["levels"]]
    rest = max(0.0, seconds - each * len(history))
    return {"per_pass": each, "once": rest, "measured_passes": len(history), "levels": usage}


def compare_tokenizers(name: str, vectors: NDArray[Any], branching: Any, passes: int) -> dict[str, Any]:
    """Time all tokenizers.

    Parameters
    ----------
    name
        Of the vectors.
    vectors
        Shape (items, d).
    branching
        Of GAOQ.
    passes
        Number of measured passes of the other tokenizers.

    Returns
    -------
    dict
        ``gaoq`` with its ``seconds``; the others with the time ``per_pass``, and for the numbers of passes ``default`` and
        ``published`` the ``seconds`` and their ``ratio`` to GAOQ's.
    """
    row: dict[str, Any] = {"vectors": name, "items": len(vectors), "dimensions": vectors.shape[1]}
    before, tree = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    row["gaoq"] = {"level_sizes": tree.level_sizes_}
    for kind, counts in PASSES.items():
        row[kind] = seconds_per_pass(kind, vectors, passes)
        for wanted, count in zip(COUNTS, counts, strict=True):
            row[kind][wanted] = {"passes": count, "seconds": row[kind]["once"] + count * row[kind]["per_pass"]}
    after, _ = timed(lambda: GAOQ(branching, random_state=0).fit(vectors))
    row["gaoq"] |= {"seconds": (before + after) / 2, "runs": [before, after]}
    for kind in PASSES:
        for wanted in COUNTS:
            row[kind][wanted]["ratio"] = row[kind][wanted]["seconds"] / row["gaoq"]["seconds"]
    return row


def in_words(row: dict[str, Any]) -> str:
    """Return what `compare_tokenizers` found in a line."""
    parts = [f"GAOQ {row['gaoq']['seconds']:.1f} s"]
    for kind in PASSES:
        times = (f"{row[kind][w]['passes']:,} passes {row[kind][w]['ratio']:.0f}x" for w in COUNTS)
        parts.append(f"{kind} {row[kind]['per_pass']:.2f} s per pass, {', '.join(times)}")
    return "; ".join(parts)
