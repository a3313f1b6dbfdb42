"""Training: one loop for every model, with early stopping, checkpoints and exact resume."""

from resid.train.devices import open_fabric
from resid.train.loop import TrainingError, train
from resid.train.rowwise import RowwiseAdamW
from resid.train.settings import TrainSettings

__all__ = ["RowwiseAdamW", "TrainSettings", "TrainingError", "open_fabric", "train"]
