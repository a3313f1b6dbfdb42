"""What the diagnostic of IDs that predicts Recall@10 best thinks of given IDs, in a sentence.

`resid analyse diagnostics` measures over many runs which diagnostic ranks IDs as their generators do, and writes the best one with its
values to ``diagnostics.json``; ``measured.json`` beside this file is such a record. It names no diagnostic if none was shown to
predict anything.
"""

import json
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

_MEASURED = Path(__file__).with_name("measured.json")
_LEVELS = 2  # later levels mostly number the items of a leaf
_SHOWN = {  # metric of a level → what it is called in figures and sentences
    "gini": "Gini coefficient",
    "conditional_entropy": "entropy given the prefix",
    "distortion": "variance left given prefix and code",
    "distortion_code": "variance left given the code",
    "ambiguity": "ambiguity",
    "step_explained": "step explained by prefix and code",
    "step_explained_code": "step explained by the code",
    "step_ambiguity": "ambiguity of the step",
    "cosine": "cosine of steps",
    "cosine_between": "cosine of steps, different parents",
    "neighbors": "neighbors with the same prefix",
    "overlap_lift": "overlap over chance",  # the overlap itself falls with the number of codes
    "usage": "perplexity over codes",
}


def diagnostics_of(quality: Mapping[str, Any]) -> dict[str, float]:
    """Return the diagnostics of IDs by name, from what `resid.quantize.id_quality` measured; ``overlap 2`` is of the second level."""
    found = {"unique": float(quality["unique"])}
    for level in quality["levels"][:_LEVELS]:
        values = dict(level) | {"usage": level["perplexity"] / level["size"]}
        if level.get("overlap_chance"):
            values["overlap_lift"] = level["overlap"] / level["overlap_chance"]
        for name in _SHOWN:
            if values.get(name) is not None:
                found[f"{name} {level['level']}"] = float(values[name])
    return found


def in_words(diagnostic: str) -> str:
    """Return what a diagnostic is called in figures and sentences."""
    name, _, level = diagnostic.rpartition(" ")
    return f"{_SHOWN[name]}, code {level}" if name else "share of unique IDs"


def verdict(quality: Mapping[str, Any], measured: Mapping[str, Any] | None = None) -> str | None:
    """Return what the winning diagnostic thinks of IDs.

    Parameters
    ----------
    quality
        What `resid.quantize.id_quality` measured.
    measured
        A record of `resid analyse diagnostics`; by default the one that comes with the library.

    Returns
    -------
    str or None
        A sentence; None if no diagnostic was shown to predict Recall@10, or the quality does not include it.
    """
    record = measured if measured is not None else _measured()
    name = record.get("diagnostic")
    value = diagnostics_of(quality).get(name) if name else None
    if value is None or name is None:
        return None
    below = sum(other < value for other in record["values"]) / len(record["values"])
    more = "higher" if record["spearman"] > 0 else "lower"
    low, high = record["interval"]
    return (
        f"{in_words(name)}: {value:.4g}, above {below:.0%} of {record['runs']} runs on {record['data']} "
        f"({min(record['values']):.4g} to {max(record['values']):.4g}), among which IDs with {more} values reached a higher Recall@10 "
        f"with the same generator (rank correlation {record['spearman']:+.2f}, 95% interval {low:+.2f} to {high:+.2f})."
    )


@cache
def _measured() -> dict[str, Any]:
    found: dict[str, Any] = json.loads(_MEASURED.read_text(encoding="utf-8"))
    return found
