"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.runs.run import (
        Run,
        RunRecord,
        StageRecord,
        load,
        load_dataset,
        load_stage,
        read_evaluation,
        read_run,
        read_settings,
        read_stages,
        write_evaluation,
    )

__all__ = [
    "Run",
    "RunRecord",
    "StageRecord",
    "load",
    "load_dataset",
    "load_stage",
    "read_evaluation",
    "read_run",
    "read_settings",
    "read_stages",
    "write_evaluation",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "run": (
            "Run RunRecord StageRecord load load_dataset load_stage read_evaluation read_run read_settings read_stages "
            "write_evaluation"
        ),
    },
)
