"""Runs: folders in which the stages of a method are fitted, reused and continued."""

from resid.runs.run import EVALUATION, Run, RunRecord, load, load_stage, read_run

__all__ = ["EVALUATION", "Run", "RunRecord", "load", "load_stage", "read_run"]
