"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.runs.change import change_model
    from resid.runs.run import (
        Run,
        RunRecord,
        load,
        load_dataset,
        load_stage,
        read_evaluation,
        read_run,
        write_evaluation,
    )

__all__ = [
    "Run",
    "RunRecord",
    "change_model",
    "load",
    "load_dataset",
    "load_stage",
    "read_evaluation",
    "read_run",
    "write_evaluation",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "change": "change_model",
        "run": "Run RunRecord load load_dataset load_stage read_evaluation read_run write_evaluation",
    },
)
