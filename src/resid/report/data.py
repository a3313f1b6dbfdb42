"""What a report and the commands say about a Dataset: notes of the preprocessing, and histograms."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import counted
from resid.data.dataset import Dataset
from resid.data.fields import WHOLE

_EDGES = (0, 4, 8, 16, 32, 64, 128)  # of histograms: every bin begins after one and ends with the next
_MORE_EDGES = (256, 512, 1_024, 4_096, 16_384)  # of counts, whose tail is long


def data_content(data: Dataset) -> dict[str, Any]:
    """Return what a report says about a Dataset, ready for JSON."""
    return {
        **data.info(),
        "name": data.folder.name if data.folder else "Dataset",
        "split": data.settings.split,
        "max_length": data.settings.max_length,
        "remarks": note_lines(data),
        "lengths": length_histogram(data),
        "popularity": popularity_histogram(data),
    }


def length_histogram(data: Dataset) -> list[tuple[str, int]]:
    """Return the number of users by the length of their history, in doubling bins without the empty ones."""
    return _histogram(np.diff(data.offsets), _EDGES)


def popularity_histogram(data: Dataset) -> list[tuple[str, int]]:
    """Return the number of items by how often they occur in training, in doubling bins without the empty ones."""
    return _histogram(data.training_counts, (-1, *_EDGES, *_MORE_EDGES))


def _histogram(values: NDArray[Any], edges: Sequence[int]) -> list[tuple[str, int]]:
    """Return the label and the count of every bin that is not empty; the last bin ends with the largest value."""
    ends = np.array([*edges, max(int(values.max()), edges[-1])])
    counts = np.histogram(values, bins=ends + 1)[0]
    return [
        (f"{low + 1:,}–{high:,}" if high > low + 1 else f"{high:,}", int(count))
        for low, high, count in zip(ends[:-1], ends[1:], counts, strict=True)
        if count
    ]


def _time_split_lines(data: Dataset, by_time: Mapping[str, Any]) -> list[str]:
    """Return the periods of a time split, and what is not evaluated."""
    counts, without = by_time["interactions"], by_time["targets_without_history"]
    which = "the first item of a user in a period is a target"
    if data.settings.targets == "all":
        which = "all items of a user in a period are targets"
    return [
        f"Time split: training before {by_time['validate_from']} ({counts['train']:,} interactions), validation until before "
        f"{by_time['test_from']} ({counts['validation']:,}), test from then on ({counts['test']:,}); {which}",
        f"Targets without an earlier item of their user (not evaluated): {without['validation']:,} validation, "
        f"{without['test']:,} test; {counted(by_time['users_without_training'], 'user')} without training items",
    ]


def note_lines(data: Dataset) -> list[str]:
    """Return the other counts of a preprocessing, a sentence each."""
    notes = data.notes
    validation, test = notes["unseen_validation_targets"], notes["unseen_test_targets"]
    treatment = {
        "keep": "evaluated, not in training",
        "drop": "moved to training, not evaluated",
        "train": "in training and evaluated",
    }[data.settings.unseen_targets]
    evaluated, lines = counted(data.n_users, "user"), list[str]()
    if by_time := notes.get("time_split"):
        evaluated, lines = f"{len(data.validation):,} and {len(data.test):,}", _time_split_lines(data, by_time)
        treatment = treatment.replace("moved to training, ", "")
    treatment = f" ({treatment})" if validation or test else ""
    lines.append(f"Targets that no training history contains: {validation:,} validation, {test:,} test{treatment}")
    if notes.get("tied_validation_targets") or notes.get("tied_test_targets"):
        validation, test = notes["tied_validation_targets"], notes["tied_test_targets"]
        lines.append(
            f"Targets with the timestamp of another item of the history: {validation:,} validation, {test:,} test "
            "(the order of the file decides)"
        )
    if notes.get("repeated_validation_targets") or notes.get("repeated_test_targets"):
        validation, test = (notes.get(f"repeated_{name}_targets", 0) for name in ("validation", "test"))
        lines.append(
            f"Targets that are a copy of the item before them: {validation:,} validation, {test:,} test "
            f"(of {evaluated})"
        )
    kept = "kept; --duplicates drop removes them" if notes.get("duplicates", "keep") == "keep" else "dropped"
    counts = {
        "duplicate_interactions": f"Duplicate interactions ({kept})",
        "skipped_lines": "Invalid lines (skipped)",
        "duplicate_rows": "Duplicate rows (ignored)",
        "skipped_users": "Users with contradictory rows (dropped)",
    }
    lines += [f"{text}: {notes[name]:,}" for name, text in counts.items() if notes.get(name)]
    for column, guess in notes.get("guessed_kinds", {}).items():
        kind, _, reason = guess.partition(": ")
        advice = f"--fields {column}:KIND chooses another kind"
        if reason.startswith(WHOLE):
            advice = f"use --fields {column}:number for a quantity"
        lines.append(f"Column '{column}' was taken as {kind}: {reason} ({advice})")
    for name, count in notes.get("reduced_tags", {}).items():
        lines.append(f"Items with too many tags in '{name}' (the rarest tags were left out): {count:,}")
    return lines
