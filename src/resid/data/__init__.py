"""Data: tables → Dataset. Read and check tables, prepare them, split histories, make batches."""

from resid.data.batches import PADDING, Batch, Batches
from resid.data.dataset import Dataset
from resid.data.settings import PrepareSettings
from resid.data.splits import Split

__all__ = ["PADDING", "Batch", "Batches", "Dataset", "PrepareSettings", "Split"]
