"""The protocol ``cold-items`` of a comparison: what is fitted, room for the new items, and the evaluation; see `resid.data.cold_items`."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from resid.comparison.results import CUTOFFS
from resid.comparison.rows import Row
from resid.core.errors import InputError
from resid.core.progress import Progress
from resid.data.cold_items import ColdItems, hide_newest
from resid.data.dataset import Dataset
from resid.methods.recipe import Recipe

if TYPE_CHECKING:
    from resid.evaluate.cold_items import ColdEvaluation, GrowingRanker


def leave_room(row: Row, cold: ColdItems) -> Row:
    """Return a row whose quantizers leave IDs free for the new items, unless its recipe says how many."""
    changes = {
        f"{section}.spare": round(max(2 * cold.share, 1.5 * cold.share / (1 - cold.share)), 2)
        for section, spec in row.recipe.parts.items()
        if spec.settings.to_dict().get("spare") == 0
    }
    return replace(row, recipe=row.recipe.replace(changes)) if changes else row


def prepare_cold(cold: ColdItems, folder: Path) -> Path:
    """Write the Dataset without the new items, unless it is there; return its folder."""
    try:
        there = Dataset.load(folder).fingerprint == cold.known.fingerprint
    except InputError:
        there = False
    if not there:
        cold.known.save(folder)
    cold.known.folder = folder
    return folder.resolve()


def check_growth(recipe: Recipe) -> None:
    """Raise an `InputError`, before anything is fitted, if a recipe's model cannot take new items."""
    from resid.generate.new_items import ENCODERS  # here, as torch takes a while to import

    embeds = next((section for section in ENCODERS if section in recipe.parts), None)
    for section, spec in recipe.parts.items():
        if spec.stage != "encoder" or section == embeds:
            spec.create().check_growth()


def evaluate_cold(model: "GrowingRanker", order: dict[str, Any], progress: Progress) -> "ColdEvaluation":
    """Add the new items to a model and evaluate it; `order` has the whole Dataset and the share of new items."""
    from resid.evaluate.cold_items import evaluate_cold_items

    return evaluate_cold_items(
        model, hide_newest(Dataset.load(order["data"]), order["share"]), max(CUTOFFS), progress=progress
    )
