"""The training loop of every model, on Lightning Fabric.

A model is a module whose `forward` takes a batch and returns its loss terms. Everything random in a step is seeded by
the run's seed and the number of the step, so the position is all that a checkpoint has to remember of chance, and a run
that was killed and continued ends with the same weights, bit for bit, as one that was not.
"""

import json
import logging
import math
import os
import signal
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from resid.data.batches import Batch, Batches
from resid.errors import InputError
from resid.progress import Progress, Silent
from resid.train.checkpoint import flat_optimizer, load_checkpoint, restore_optimizer, save_checkpoint
from resid.train.process import deterministic, stop_signals
from resid.train.rowwise import RowwiseAdamW
from resid.train.settings import TrainSettings
from resid.train.trackers import Tracker, open_trackers

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"


class TrainingError(RuntimeError):
    """Training cannot go on: the loss is no longer a number."""


@dataclass
class _State:
    """Where a run is."""

    step: int = 0
    epoch: int = 0  # epochs finished
    best: float = -math.inf
    best_epoch: int = 0
    loss_sums: dict[str, float] = field(default_factory=dict)  # of the epoch under way
    finished: bool = False


def train(
    model: nn.Module,
    batches: Batches,
    settings: TrainSettings,
    folder: str | Path | None = None,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    monitor: str = "",
    configuration: dict[str, Any] | None = None,
    fabric: Fabric | None = None,
    trackers: Sequence[str] = (),
    progress: Progress | None = None,
) -> list[dict[str, Any]]:
    """Train a model, or continue where the run in `folder` stopped; the best weights are in it afterwards.

    Under several processes, each takes its share of every batch, and the first one evaluates and writes.

    Parameters
    ----------
    model
        Its `forward(batch, generator)` takes a `Batch` and a seeded generator and returns a dictionary of scalars, means
        over the batch, with the key ``"loss"``. Parameters that an `nn.Embedding` with sparse gradients owns are updated row by row.
    batches
        The training windows.
    settings
        How to train.
    folder
        Receives the checkpoints, and the metrics of every epoch as JSON lines. None takes a temporary one.
    evaluate
        Returns metrics of the model as it is; called after every epoch.
    monitor
        The metric, the higher the better, that decides which weights are best and when to stop. Without it, the last
        weights are best.
    configuration
        What the run is; a checkpoint of another configuration is refused.
    fabric
        Devices and precision, see `open_fabric`; by default one CPU.
    trackers
        Where else the metrics go: ``"tensorboard"``, ``"mlflow"``, ``"wandb"``, from the extra ``track``.
    progress
        Shows epoch, steps, loss, speed and the time that is left.

    Returns
    -------
    list of dict
        The metrics of every epoch.

    Raises
    ------
    TrainingError
        If the loss becomes infinite or not a number.
    InputError
        If the folder holds a run of another configuration, or a checkpoint that is not whole.
    """
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    with tempfile.TemporaryDirectory() as temporary:
        place = Path(fabric.broadcast(str(folder or temporary)))
        run = _Run(model, batches, settings, place, configuration or {}, fabric)
        run.resume()
        run.open_trackers(trackers)
        with stop_signals() as stopped, deterministic(fabric.device.type == "cpu"):
            while not run.state.finished:
                run.epoch(progress or Silent(), stopped)
                metrics = evaluate() if evaluate and fabric.global_rank == 0 else {}
                run.end_epoch(fabric.broadcast(metrics), monitor)
        fabric.barrier()  # nobody reads before the first process has written
        run.load_best()
        history = run.history()
        fabric.barrier()  # nor removes the folder before all have read
        return history


class _Run:
    """A model under training, and its folder."""

    def __init__(
        self,
        model: nn.Module,
        batches: Batches,
        settings: TrainSettings,
        folder: Path,
        configuration: dict[str, Any],
        fabric: Fabric,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.model, self.batches, self.settings, self.folder, self.fabric = model, batches, settings, folder, fabric
        self.configuration = {"settings": settings.plain(), "data": batches.split.fingerprint, **configuration}
        self.state = _State()
        self.trackers: list[Tracker] = []
        self.writes = fabric.global_rank == 0
        sparse = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.sparse}
        options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
        rows = [parameter for parameter in model.parameters() if id(parameter) in sparse]
        dense = [parameter for parameter in model.parameters() if id(parameter) not in sparse]
        optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(dense, fused=True, **options)] if dense else []
        optimizers += [RowwiseAdamW(rows, **options)] if rows else []
        self.wrapped, *self.optimizers = fabric.setup(model, *optimizers)

    def resume(self) -> None:
        """Take up the last checkpoint, if there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            self._trim_history()
            return
        tensors, facts = load_checkpoint(path)
        if facts.get("configuration") != json.loads(json.dumps(self.configuration)):
            raise InputError(f"{path}: this is a run of another configuration; choose another folder, or remove it.")
        self.model.load_state_dict(_part(tensors, "model"))
        for number, optimizer in enumerate(self.optimizers):
            restore_optimizer(optimizer, f"optimizer{number}", tensors, facts["optimizers"][number])
        self.batches.load_state_dict(facts["batches"])
        self.state = _State(**facts["state"])
        self._trim_history()
        log.info("continuing after step %d, epoch %d", self.state.step, self.state.epoch)

    def open_trackers(self, names: Sequence[str]) -> None:
        """Let trackers follow the run, from where it is."""
        if self.writes and not self.state.finished:
            self.trackers = open_trackers(names, self.folder, self.configuration["settings"], self.state.epoch)

    def checkpoint(self) -> None:
        """Save everything that the rest of the run depends on."""
        if not self.writes:
            return
        tensors = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        groups = []
        for number, optimizer in enumerate(self.optimizers):
            more, group = flat_optimizer(getattr(optimizer, "optimizer", optimizer), f"optimizer{number}")
            tensors |= more
            groups.append(group)
        facts = {
            "configuration": self.configuration,
            "optimizers": groups,
            "batches": self.batches.state_dict(),
            "state": asdict(self.state),
        }
        save_checkpoint(self.folder / CHECKPOINT, tensors, facts)

    def epoch(self, progress: Progress, stopped: list[int]) -> None:
        """Train to the end of the epoch; on a signal, save and leave."""
        self.model.train()
        state, text = self.state, f"Epoch {self.state.epoch + 1} of {self.settings.epochs}"
        started, self.samples = time.monotonic(), 0
        first_step, total_steps = state.step, self.settings.epochs * len(self.batches)
        with progress.bar(text, len(self.batches), done=self.batches.next_batch, unit="steps") as advance:
            for batch in self.batches:
                loss = self._step(batch)
                self.samples += len(batch)
                self.seconds = time.monotonic() - started
                left = timedelta(seconds=round(self.seconds / (state.step - first_step) * (total_steps - state.step)))
                advance(1, f"loss {loss:.4f}, {self.samples / self.seconds:,.0f} samples/s, all epochs in {left}")
                if number := self._stop(stopped):
                    self.checkpoint()
                    raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _stop(self, stopped: list[int]) -> int:
        """Return the signal that any of the processes got, so that all stop after the same step; 0 for none."""
        number = stopped[0] if stopped else 0
        if self.fabric.world_size == 1:
            return number
        return int(torch.as_tensor(self.fabric.all_gather(torch.tensor(number))).max())

    def _step(self, batch: Batch) -> float:
        state = self.state
        seed = _mix(self.settings.seed, state.step, self.fabric.global_rank)
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(seed)
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * self._rate(state.step)
        ranks = self.fabric.world_size
        share = batch.share(self.fabric.global_rank, ranks)
        terms: dict[str, Tensor] = self.wrapped(share, generator)
        values = {name: float(term.detach()) for name, term in terms.items()}
        if bad := sorted((name for name, value in values.items() if not math.isfinite(value)), key="loss".__eq__):
            path = self.folder / CHECKPOINT
            good = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"
            raise TrainingError(
                f"step {state.step + 1}, epoch {state.epoch + 1}: '{bad[0]}' is {values[bad[0]]}; {good}; "
                "lower the learning rate or clip the gradient."
            )
        # The processes' gradients are averaged; the mean over the batch weighs each share by its size.
        whole = len(share) * ranks / len(batch) if len(share) < len(batch) else 1.0
        self.fabric.backward(terms["loss"] * whole)
        if self.settings.clip:
            clip_gradients(list(self.model.parameters()), self.settings.clip)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        for name, value in values.items():
            state.loss_sums[name] = state.loss_sums.get(name, 0.0) + value
        return values["loss"]

    def _rate(self, step: int) -> float:
        """Cosine over all epochs, after a linear warm-up."""
        settings = self.settings
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        total = max(1, settings.epochs * len(self.batches) - settings.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - settings.warmup_steps) / total)))

    def end_epoch(self, metrics: dict[str, float], monitor: str) -> None:
        """Record the epoch, keep the best weights, decide whether to go on, and save."""
        state = self.state
        state.epoch += 1
        means = torch.tensor([total / len(self.batches) for total in state.loss_sums.values()], dtype=torch.float64)
        reduced = self.fabric.all_reduce(means)  # the mean over the processes
        losses = dict(zip(state.loss_sums, torch.as_tensor(reduced).tolist(), strict=True))
        state.loss_sums = {}
        record = {
            "epoch": state.epoch,
            "step": state.step,
            **losses,
            **metrics,
            "samples_per_second": round(self.samples / self.seconds, 1),
        }
        value = metrics[monitor] if monitor else float(state.epoch)
        if value > state.best:
            state.best, state.best_epoch = value, state.epoch
            if self.writes:
                save_checkpoint(self.folder / BEST, dict(self.model.state_dict()), {"epoch": state.epoch, **metrics})
        waited = state.epoch - state.best_epoch
        patience = self.settings.patience if monitor else 0
        state.finished = state.epoch >= self.settings.epochs or bool(patience and waited >= patience)
        if self.writes:
            with (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.checkpoint()
        for tracker in self.trackers:
            tracker.log(record, state.epoch)
            if state.finished:
                tracker.finish()
        log.info(" ".join(f"{name} {value:.5g}" for name, value in record.items()))

    def load_best(self) -> None:
        """Give the model its best weights."""
        tensors, _ = load_checkpoint(self.folder / BEST)
        self.model.load_state_dict(tensors)

    def history(self) -> list[dict[str, Any]]:
        """Return the metrics of every epoch."""
        path = self.folder / METRICS
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def _trim_history(self) -> None:
        """Forget the lines that were written after the checkpoint from which the run goes on."""
        path = self.folder / METRICS
        if path.exists() and self.writes:
            kept = [record for record in self.history() if record["epoch"] <= self.state.epoch]
            partial = path.with_name(f".{path.name}.partial")
            partial.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
            os.replace(partial, path)


def clip_gradients(parameters: list[Tensor], limit: float) -> float:
    """Scale all gradients, sparse ones too, so that their common norm is at most `limit`; return the norm before."""
    values = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    norm = float(torch.stack([value.square().sum() for value in values]).sum().sqrt())
    if norm > limit:
        for value in values:
            value.mul_(limit / norm)
    return norm


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _mix(*numbers: int) -> int:
    """Make one seed of several numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**63
    return seed
