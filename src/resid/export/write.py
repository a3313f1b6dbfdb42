"""`export`: writes a model in one of the formats, with a model card, to a folder."""

import importlib
from pathlib import Path

from resid.core.errors import InputError, as_path, nearest
from resid.core.files import atomic_folder, refuse_file, refuse_ours
from resid.export.card import model_card
from resid.runs.run import load

FORMATS = ("parquet", "onnx", "transformers")
_CARD = "README.md"
_MARK = "<!-- written by resid export -->"  # by which a folder is known that may be replaced


def export(model: str | Path, format: str, out: str | Path) -> Path:
    """Export a model, with a model card, to a folder.

    Parameters
    ----------
    model
        A run's folder, or a saved model. The card of a run also has its Dataset, recipe and evaluations.
    format
        ``"parquet"``: IDs, item vectors and catalogue. ``"onnx"``: the networks of a one-pass or joint generator, and a decoder
        in NumPy. ``"transformers"``: a T5 as a folder of that library, with the tables of IDs.
    out
        The folder; an earlier export is replaced.

    Returns
    -------
    Path
        The folder.
    """
    source, folder = as_path(model), as_path(out)
    if format not in FORMATS:
        raise InputError(f"there is no format '{format}'{nearest(format, FORMATS)}; use {', '.join(FORMATS)}.")
    _refuse_other_folder(folder)
    recommender = load(source)
    write = getattr(importlib.import_module(f"resid.export.{format}"), f"write_{format}")
    with atomic_folder(folder) as partial:
        use = write(recommender, partial)
        (partial / _CARD).write_text(f"{model_card(recommender, source, use)}\n{_MARK}\n", encoding="utf-8")
    return folder


def _refuse_other_folder(folder: Path) -> None:
    """Raise an `InputError` unless a folder is absent, empty, or an earlier export."""
    refuse_file(folder)
    refuse_ours(folder)
    if not folder.exists() or not any(folder.iterdir()):
        return
    card = folder / _CARD
    if not card.is_file() or _MARK not in card.read_text(encoding="utf-8", errors="replace"):
        raise InputError(f"{folder}: the folder exists and is not an export of resid; choose another folder.")
