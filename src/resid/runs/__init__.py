"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.runs.change import change_model
    from resid.runs.cost import Cost, measured, read_cost
    from resid.runs.run import (
        Run,
        RunRecord,
        StageRecord,
        load,
        load_dataset,
        load_stage,
        model_folder,
        read_evaluation,
        read_run,
        read_settings,
        read_stages,
        stage_key,
        write_evaluation,
    )

__all__ = [
    "Cost",
    "Run",
    "RunRecord",
    "StageRecord",
    "change_model",
    "load",
    "load_dataset",
    "load_stage",
    "measured",
    "model_folder",
    "read_cost",
    "read_evaluation",
    "read_run",
    "read_settings",
    "read_stages",
    "stage_key",
    "write_evaluation",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "change": "change_model",
        "cost": "Cost measured read_cost",
        "run": (
            "Run RunRecord StageRecord load load_dataset load_stage model_folder read_evaluation read_run read_settings read_stages "
            "stage_key write_evaluation"
        ),
    },
)
