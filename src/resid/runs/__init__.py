"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from typing import TYPE_CHECKING

from resid.core.lazy import lazy_names

if TYPE_CHECKING:
    from resid.runs.change import change_model
    from resid.runs.cost import Cost, measured, read_cost
    from resid.runs.evaluation import evaluations, read_evaluation, read_metrics, write_evaluation
    from resid.runs.run import (
        Run,
        RunRecord,
        StageRecord,
        evaluation_folder,
        final_folder,
        has_model,
        load,
        load_dataset,
        load_stage,
        model_folder,
        new_ids_path,
        read_run,
        read_settings,
        read_stages,
        stage_key,
        write_new_ids,
    )

__all__ = [
    "Cost",
    "Run",
    "RunRecord",
    "StageRecord",
    "change_model",
    "evaluation_folder",
    "evaluations",
    "final_folder",
    "has_model",
    "load",
    "load_dataset",
    "load_stage",
    "measured",
    "model_folder",
    "new_ids_path",
    "read_cost",
    "read_evaluation",
    "read_metrics",
    "read_run",
    "read_settings",
    "read_stages",
    "stage_key",
    "write_evaluation",
    "write_new_ids",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "change": "change_model",
        "cost": "Cost measured read_cost",
        "evaluation": "evaluations read_evaluation read_metrics write_evaluation",
        "run": (
            "Run RunRecord StageRecord evaluation_folder final_folder has_model load load_dataset load_stage model_folder "
            "new_ids_path read_run read_settings read_stages stage_key write_new_ids"
        ),
    },
)
