"""The model card of an export: data, protocol, figures, settings and versions, as Markdown."""

import importlib.metadata
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from resid.core.errors import one_line
from resid.recommend.base import Recommender
from resid.runs import evaluations, read_metrics, read_run

_VERSIONS = ("torch", "polars", "numpy", "onnx", "transformers")


def model_card(model: Recommender, source: Path, use: str) -> str:
    """Return the card.

    Parameters
    ----------
    model
        The recommender.
    source
        The run's folder, or the saved model, that it was loaded from.
    use
        What the format says about its files.
    """
    run, catalogue = read_run(source), model.catalogue_
    name = (run.recipe if run else None) or model.kind
    ids = f", semantic IDs with levels of {', '.join(map(str, model.ids_.level_sizes))} codes" if model.ids_ else ""
    sections = {
        "Model": f"{type(model).__name__} ({model.stage} `{model.kind}`), best epoch {model.best_epoch_}{ids}.",
        "Use": use,
        "Data": "\n".join(
            [
                f"- {len(catalogue):,} items, {int(catalogue.counts.sum()):,} interactions in training",
                f"- fields: {', '.join(catalogue.field_names) or 'none'}",
                f"- Dataset: fingerprint `{catalogue.fingerprint[:16]}`"
                + (f", `{Path(run.data).name}`" if run and run.data else ""),
                f"- preprocessing: {_settings(catalogue.settings.to_dict())}",
                "- licence of the data: unknown. Item ids, titles and fields in this folder come from the data; check their "
                "licence before you publish them.",
            ]
        ),
        "Protocol": "Leave-one-out: the last item of every user is the test target, the one before it the validation target, "
        "and the rest is training. Targets are ranked in the whole catalogue.",
        "Figures": _measured(model.measured_) or (_figures(source) if run else _NO_FIGURES),
        "Settings": f"```json\n{json.dumps(model.settings.to_dict(), indent=1)}\n```",
        "Versions": "\n".join(f"- {package} {version}" for package, version in _versions()),
    }
    body = "\n\n".join(f"## {title}\n\n{text.strip()}" for title, text in sections.items())
    return f"# {name}\n\nExported by resid, an open library for semantic-ID recommendation.\n\n{body}\n"


_NO_FIGURES = "Unknown: the model was exported without its run. `resid evaluate` measures it on its Dataset."


def _measured(measured: Mapping[str, Any] | None) -> str:
    """Return the figures of the model that was measured, if this one was trained on all interactions."""
    if measured is None:
        return ""
    rows = [
        f"| {part.replace('_', ' ')} | {name} | {value:.4f} |"
        for part, values in measured.items()
        if isinstance(values, Mapping)
        for name, value in values.items()
        if "@" in name and isinstance(value, float)
    ]
    head = (
        "This model was trained on all interactions, so no honest figure exists for it. The same method without the held-out "
        f"interactions (model `{measured['checksum'][:12]}`) was measured:"
    )
    return "\n".join([head, "", "| split | metric | value |\n|---|---|---|", *rows])


def _figures(folder: Path) -> str:
    """Return the metrics that `resid evaluate` wrote to a run, as a table."""
    rows: list[str] = []
    for split in evaluations(folder):
        content = read_metrics(folder, split)
        if "users" not in content:  # of the model with the new items of a comparison, not of this one
            continue
        for ranking, text in (("seen_kept", "kept"), ("seen_dropped", "dropped")):
            values: dict[str, Any] = content[ranking]
            metrics = [(name, value, values["intervals"][name]) for name, value in values.items() if "@" in name]
            rows += [
                f"| {split} | {text} | {name} | {value:.4f} | {low:.4f} to {high:.4f} | {content['users']:,} |"
                for name, value, (low, high) in metrics
            ]
    if not rows:
        return "None yet: `resid evaluate` measures the model on its Dataset."
    header = "| split | seen items | metric | value | 95% interval | users |\n|---|---|---|---|---|---|"
    return "\n".join([header, *rows])


def _settings(values: dict[str, Any]) -> str:
    return one_line(", ".join(f"{name} {value}" for name, value in values.items() if value is not None), 400)


def _versions() -> list[tuple[str, str]]:
    found = []
    for package in ("resid", *_VERSIONS):
        try:
            found.append((package, importlib.metadata.version(package)))
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
