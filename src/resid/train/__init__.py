"""Training: one loop for every model, with early stopping, checkpoints and exact resume."""

from resid.core.errors import TrainingError
from resid.train.devices import open_fabric
from resid.train.loop import best_epoch, make_optimizers, train
from resid.train.rowwise import RowwiseAdamW
from resid.train.settings import RecommenderSettings, TrainSettings, check_heads

__all__ = [
    "RecommenderSettings",
    "RowwiseAdamW",
    "TrainSettings",
    "TrainingError",
    "best_epoch",
    "check_heads",
    "make_optimizers",
    "open_fabric",
    "train",
]
