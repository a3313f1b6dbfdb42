"""Data: from tables to a Dataset. Reads and validates tables, preprocesses them, splits histories and builds batches."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.data.batches import (
        PADDING,
        Batch,
        Batches,
        EpochBatches,
        SequenceBatch,
        SequenceBatches,
        VectorBatch,
        VectorBatches,
    )
    from resid.data.cold_items import ColdItems, hide_newest
    from resid.data.dataset import Dataset
    from resid.data.settings import PrepareSettings
    from resid.data.splits import Split
    from resid.data.synthetic import SyntheticShop, synthetic_shop

__all__ = [
    "PADDING",
    "Batch",
    "Batches",
    "ColdItems",
    "Dataset",
    "EpochBatches",
    "PrepareSettings",
    "SequenceBatch",
    "SequenceBatches",
    "Split",
    "SyntheticShop",
    "VectorBatch",
    "VectorBatches",
    "hide_newest",
    "synthetic_shop",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "batches": "PADDING Batch Batches EpochBatches SequenceBatch SequenceBatches VectorBatch VectorBatches",
        "cold_items": "ColdItems hide_newest",
        "dataset": "Dataset",
        "settings": "PrepareSettings",
        "splits": "Split",
        "synthetic": "SyntheticShop synthetic_shop",
    },
)
