"""Training: one loop for every model, with early stopping, checkpoints and exact resume."""

from typing import TYPE_CHECKING

from resid.core.errors import TrainingError
from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.train.devices import open_fabric
    from resid.train.loop import best_epoch, train
    from resid.train.module import ParameterGroup, TrainableModule
    from resid.train.rowwise import RowwiseAdamW
    from resid.train.settings import TrainSettings

__all__ = [
    "ParameterGroup",
    "RowwiseAdamW",
    "TrainSettings",
    "TrainableModule",
    "TrainingError",
    "best_epoch",
    "open_fabric",
    "train",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "devices": "open_fabric",
        "loop": "best_epoch train",
        "module": "ParameterGroup TrainableModule",
        "rowwise": "RowwiseAdamW",
        "settings": "TrainSettings",
    },
)
