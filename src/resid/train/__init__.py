"""Training: one loop for every model, with early stopping, checkpoints and exact resume."""

from resid.core.errors import TrainingError
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
