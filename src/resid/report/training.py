"""Training curves: the metrics of every epoch of every stage, as charts in which the runs are overlaid."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from resid.core.part import Part
from resid.recommend import Recommender
from resid.runs import read_stages

_RECOMMENDING = ("generator", "recommender")  # stages whose validation metrics are comparable
_SHOWN = {  # metric → how a chart calls it
    "ndcg@10": "Validation NDCG@10",
    "recall@10": "Validation Recall@10",
    "metric1.ndcg@10": "Metric 1 (all fields masked), NDCG@10",
    "metric2.ndcg@10": "Metric 2 (item ID masked), NDCG@10",
    "distinct": "Share of distinct IDs",
}


def training_content(runs: Mapping[str, tuple[Path, Recommender]]) -> dict[str, Any]:
    """Return the training curves of runs.

    Parameters
    ----------
    runs
        The folder and the model of every run by name.

    Returns
    -------
    dict
        ``stages``, a row per training with its epochs and speed; ``charts``, each with a title and ``series`` of points (epoch,
        value). Losses of different kinds of parts are on different charts, as their scales differ.
    """
    stages: list[dict[str, Any]] = []
    charts: dict[tuple[str, ...], dict[str, Any]] = {}
    for number, (name, (folder, model)) in enumerate(runs.items()):
        for stage in read_stages(folder):
            part = model if stage.name in _RECOMMENDING else model.parts_.get(stage.name)
            kind = part.kind if part is not None else stage.name
            phases = dict(stage.training) or _own_history(part)
            finished = stage.finished.isoformat(timespec="seconds") if stage.finished else None
            best = part.best_epoch_ if part is not None and len(phases) == 1 else 0
            row = {"run": name, "stage": stage.name, "kind": kind, "finished": finished}
            stages += [
                row | _facts(records, phase, best if not phase else 0)
                for phase, records in (phases or {"": []}).items()
            ]
            for phase, records in phases.items():
                place = (kind, phase) if phase else (kind,)
                title = f"Loss of the {stage.name} ({', '.join(place)})"
                terms = _terms(records) if len(runs) == 1 else []
                _add(charts, ("loss", *place), title, "total" if terms else name, number, records, "loss", best)
                for color, term in enumerate(terms, 1):
                    text = term.removeprefix("loss.")
                    text = f"code {text}" if text.isdigit() else text
                    _add(charts, ("loss", *place), title, text, color, records, term, 0)
                for metric, text in _SHOWN.items():
                    shared = "generator or recommender" if stage.name in _RECOMMENDING else stage.name
                    _add(charts, (metric, shared, phase), text, name, number, records, metric, best)
    return {"stages": stages, "charts": list(charts.values())}


def _terms(records: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the terms of a loss."""
    return sorted({term for record in records for term in record if term.startswith("loss.")})


def _own_history(part: Part | None) -> dict[str, Sequence[Mapping[str, Any]]]:
    """Return the metrics that a fitted part contains itself, for a run without its training folders."""
    return {"": part.history_} if part is not None and part.history_ else {}


def _facts(records: Sequence[Mapping[str, Any]], phase: str, best: int) -> dict[str, Any]:
    """Return the number of epochs, the best one, and the mean speed of a training."""
    speeds = [record["samples_per_second"] for record in records if record.get("samples_per_second")]
    speed = len(speeds) / sum(1 / value for value in speeds) if speeds else None
    return {"phase": phase, "epochs": len(records), "best": best or None, "samples_per_second": speed}


def _add(
    charts: dict[tuple[str, ...], dict[str, Any]],
    key: tuple[str, ...],
    title: str,
    name: str,
    color: int,
    records: Sequence[Mapping[str, Any]],
    metric: str,
    best: int,
) -> None:
    """Add a curve to a chart, which is made if it is not there; nothing if no epoch has the metric."""
    points = [(record["epoch"], record[metric]) for record in records if metric in record]
    if points:
        chart = charts.setdefault(key, {"title": title, "series": []})
        chart["series"].append({"name": name, "color": color, "points": points, "best": best or None})
