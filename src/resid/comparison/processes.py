"""Runs tasks in processes of their own, as many at a time as there are places, and stops them if the comparison is stopped."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from queue import Empty, Queue
from typing import IO, Any, Protocol

from resid.comparison.display import Display
from resid.comparison.results import Task
from resid.core.errors import InputError

_SECONDS_TO_STOP = 60.0  # in which a stopped training saves a checkpoint


@dataclass(frozen=True)
class Workplace:
    """Where and how tasks are carried out.

    Attributes
    ----------
    data : Path
        The Dataset, to which recipes are fitted.
    stages, logs : Path
        Folders for the shared stages, and for what the processes write to standard error.
    devices : tuple of str
        ``cpu``, ``cuda:0``, …, one for every task that runs at a time.
    precision : str
    cold_items : dict or None
        Protocol ``cold-items``: the folder of the whole Dataset, ``data``, and the ``share`` of new items.
    """

    data: Path
    stages: Path
    logs: Path
    devices: tuple[str, ...]
    precision: str
    cold_items: dict[str, Any] | None = None

    def environment(self, device: str) -> dict[str, str]:
        """Return the environment variables of a process: its device, and its share of the cores."""
        variables = dict(os.environ)
        kind, _, index = device.partition(":")
        if kind == "cuda":
            visible = [name for name in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
            number = int(index or 0)
            variables["CUDA_VISIBLE_DEVICES"] = visible[number] if number < len(visible) else str(number)
        if len(self.devices) > 1:
            variables.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // len(self.devices))))
        return variables


class Source(Protocol):
    """Where tasks come from."""

    def next_task(self) -> Task | None:
        """Return the next task; None if there is none for now."""

    def finished(self, task: Task, error: str | None) -> None:
        """Take note of the end of a task, and of the reason if it failed."""


class _Worker:
    """A process that carries out a task."""

    def __init__(self, task: Task, device: str, place: Workplace, messages: "Queue[tuple[_Worker, dict[str, Any]]]"):
        self.task, self.device = task, device
        self.log = place.logs / f"{task.folder.parent.name}-{task.folder.name}.log"
        self.log.parent.mkdir(parents=True, exist_ok=True)
        order = {
            "data": str(place.data),
            "name": task.recipe.name,
            "label": task.label,
            "toml": task.recipe.toml(),
            "folder": str(task.folder),
            "stages": str(place.stages),
            "split": task.split,
            "cold_items": place.cold_items,
            "accelerator": device.partition(":")[0],
            "precision": place.precision,
            "log": str(self.log),
        }
        with self.log.open("w", encoding="utf-8") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "resid.comparison.worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env=place.environment(device),
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C reaches the comparison alone, which stops its processes
            )
        with contextlib.suppress(BrokenPipeError):  # it ended at once; its exit code says more
            _stream(self.process.stdin).write(json.dumps(order) + "\n")
            _stream(self.process.stdin).flush()
        self.listener = threading.Thread(target=self._listen, args=(messages,), daemon=True)
        self.listener.start()

    def _listen(self, messages: "Queue[tuple[_Worker, dict[str, Any]]]") -> None:
        for line in _stream(self.process.stdout):
            messages.put((self, json.loads(line)))
        self.process.wait()
        messages.put((self, {"ended": self.process.returncode}))

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        self.listener.join()
        for stream in (self.process.stdin, self.process.stdout):
            _stream(stream).close()

    def why(self, code: int) -> str:
        """Return why the process ended with an exit code, if it did not say so."""
        if code >= 0:
            return f"the process ended with exit code {code}; see {self.log}."
        name = signal.Signals(-code).name
        guess = ", perhaps for lack of memory" if -code == signal.SIGKILL else ""
        return f"the process was ended by {name}{guess}; see {self.log}."


def run_tasks(source: Source, place: Workplace, display: Display) -> None:
    """Run the tasks of a source until there are none left; whatever ends it, its processes are stopped."""
    messages: Queue[tuple[_Worker, dict[str, Any]]] = Queue()
    free, running, errors = deque(place.devices), list[_Worker](), dict[_Worker, str | None]()
    try:
        while True:
            while free and (task := source.next_task()) is not None:
                running.append(_Worker(task, free.popleft(), place, messages))
                display.started(task)
            if not running:
                return
            try:
                worker, message = messages.get(timeout=1.0)
            except Empty:
                continue
            if "ended" not in message:
                if "error" in message or "done" in message:
                    errors[worker] = message.get("error")
                else:
                    display.reported(worker.task, message)
                continue
            running.remove(worker)
            worker.close()
            free.append(worker.device)
            error = errors.get(worker, worker.why(message["ended"]))
            source.finished(worker.task, error)
            display.finished(worker.task, error)
    finally:
        _stop(running)


def _stop(running: list[_Worker]) -> None:
    """Stop processes; their trainings save a checkpoint first."""
    try:
        for worker in running:
            worker.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            for worker in running:
                worker.process.wait(_SECONDS_TO_STOP)
    finally:  # also after a second Ctrl-C
        for worker in running:
            if worker.process.poll() is None:
                worker.process.kill()
                worker.process.wait()
            worker.close()


def check_devices(devices: tuple[str, ...], jobs: int | None) -> tuple[str, ...]:
    """Return the device of every task that runs at a time.

    Parameters
    ----------
    devices
        ``cpu``, ``mps``, ``cuda`` or ``cuda:1``.
    jobs
        Number of tasks that run at a time, spread over the devices; as many as devices by default.
    """
    for device in devices:
        kind, colon, index = device.partition(":")
        if kind not in ("cpu", "cuda", "mps") or (colon and not (kind == "cuda" and index.isdecimal())):
            raise InputError(f"there is no device '{device}'; use cpu, mps, cuda or cuda:0, cuda:1 and so on.")
    if not devices or (jobs is not None and jobs < 1):
        raise InputError("at least one process and one device are needed.")
    return tuple(devices[number % len(devices)] for number in range(jobs or len(devices)))


def _stream(stream: IO[str] | None) -> IO[str]:
    if stream is None:  # never, as all are pipes
        raise RuntimeError("the process has no pipe")
    return stream
