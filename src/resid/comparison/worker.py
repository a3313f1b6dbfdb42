"""The process that fits and evaluates one recipe of a comparison: ``python -m resid.comparison.worker``.

It reads one line of JSON, the order, and writes its progress, and why it failed, as lines of JSON. A process per recipe makes
peak memory that of the recipe, and a crash its own.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast

from resid.comparison.cold import check_growth, evaluate_cold
from resid.comparison.results import COLD_ITEMS, CUTOFFS, Task, fitted_record, stage_costs
from resid.core.errors import InputError, TrainingError, first_line
from resid.core.progress import Advance
from resid.core.runtime import Runtime
from resid.data.dataset import Dataset
from resid.methods.recipe import Recipe

if TYPE_CHECKING:
    from lightning_fabric import Fabric

    from resid.evaluate.cold_items import ColdEvaluation
    from resid.evaluate.evaluation import Evaluation
    from resid.generate import Generator

_SECONDS_BETWEEN_REPORTS = 0.5


class Reports:
    """Progress that is written as lines of JSON.

    Parameters
    ----------
    channel
        Where to.
    """

    def __init__(self, channel: TextIO) -> None:
        self.channel = channel

    def send(self, **content: Any) -> None:
        """Write a line."""
        self.channel.write(json.dumps(content) + "\n")
        self.channel.flush()

    def step(self, text: str) -> None:
        """Report the step."""
        self.send(step=text)

    def result(self, text: str) -> None:
        """Report the result."""
        self.send(result=text)

    @contextlib.contextmanager
    def bar(self, text: str, total: int, *, done: int = 0, unit: str = "") -> Iterator[Advance]:
        """Report the position from time to time."""
        position, last = done, 0.0

        def advance(amount: int, note: str = "") -> None:
            nonlocal position, last
            position += amount
            if time.monotonic() - last >= _SECONDS_BETWEEN_REPORTS:
                last = time.monotonic()
                self.send(bar=text, share=position / max(total, 1), note=note)

        yield advance


def main() -> int:
    """Carry out the order on standard input; return the exit code."""
    order = json.loads(sys.stdin.readline())
    threading.Thread(target=_end_with_parent, daemon=True).start()
    reports = Reports(os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8"))
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what libraries print does not get among the reports
    try:
        carry_out(order, reports)
    except (InputError, TrainingError) as error:
        reports.send(error=str(error))
        return 2
    except Exception as error:
        traceback.print_exc()
        reports.send(error=f"{type(error).__name__}: {first_line(error)}; see {order['log']}.")
        return 1
    reports.send(done=True)
    return 0


def carry_out(order: dict[str, Any], reports: Reports) -> None:
    """Fit the recipe of an order, unless its model is there, and evaluate it."""
    from resid.comparison.environment import describe_environment
    from resid.evaluate import evaluate
    from resid.methods.fit import fit
    from resid.runs import evaluation_folder, has_model, load, measured, write_evaluation

    data, recipe = Dataset.load(order["data"]), Recipe.parse(order["name"], order["toml"])
    task = Task(order["name"], order["label"], recipe, Path(order["folder"]), order["split"])
    fabric = _fabric(order["accelerator"], order["precision"])
    if task.split == COLD_ITEMS:
        check_growth(recipe)
    if fitted_record(task, data) is not None and has_model(task.folder):
        model = load(task.folder)
    else:
        runtime = Runtime(fabric=fabric, progress=reports)
        model = fit(data, recipe, task.folder, runtime=runtime, stages=order["stages"])
    about: dict[str, Any] = {"environment": describe_environment(order["accelerator"], order["precision"])}
    with measured(evaluation_folder(task.folder), fabric.device if fabric is not None else None):
        if task.split == COLD_ITEMS:
            reports.step("Evaluation of new and old targets")
            found: Evaluation | ColdEvaluation = evaluate_cold(load(task.folder), order["cold_items"], reports)
        else:
            reports.step(f"Evaluation on the {task.split} split")
            found = evaluate(model, data, task.split, max(CUTOFFS), lists=True, progress=reports)
    if model.decodings:
        share = cast("Generator[Any, Any]", model).invalid_share(
            data.windows("test" if task.split == COLD_ITEMS else task.split)
        )
        about |= {"decoding": "beam", "invalid_free_beams": share}
    if (record := fitted_record(task, data)) is not None:
        about["stages"] = stage_costs(task, record)
    write_evaluation(task.folder, task.split, {**found.metrics(CUTOFFS), **about}, found.table())


def _fabric(accelerator: str, precision: Any) -> "Fabric | None":
    """Return the device; None is one CPU process, for which a recommender without a network need not import torch."""
    if (accelerator, precision) == ("cpu", "32-true"):
        return None
    from resid.train import open_fabric

    return open_fabric(accelerator, 1, precision)


def _end_with_parent() -> None:
    """Stop this process, as Ctrl-C would, when the one that started it has ended: its end of the pipe is closed then."""
    os.read(sys.stdin.fileno(), 1)
    os.kill(os.getpid(), signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(main())
