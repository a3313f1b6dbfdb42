"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from resid.runs.run import Run, RunRecord, load, load_dataset, load_stage, read_evaluation, read_run, write_evaluation

__all__ = ["Run", "RunRecord", "load", "load_dataset", "load_stage", "read_evaluation", "read_run", "write_evaluation"]
