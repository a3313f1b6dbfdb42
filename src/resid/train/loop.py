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
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
from lightning_fabric import Fabric
from torch import Tensor, nn

from resid.data.batches import EpochBatches
from resid.core.errors import InputError, TrainingError, explain_full_disk
from resid.core.progress import Progress, Silent
from resid.train.checkpoint import flat_optimizer, load_checkpoint, restore_optimizer, save_checkpoint
from resid.train.process import deterministic, exclusive, stop_signals
from resid.train.rowwise import RowwiseAdamW
from resid.train.settings import TrainSettings
from resid.train.trackers import Tracker, open_trackers

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
METRICS = "metrics.jsonl"


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
    batches: EpochBatches[Any],
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
        Its `forward(batch, generator)` takes a batch and a seeded generator and returns a dictionary of scalars, means over
        the batch, with the key ``"loss"``. Parameters that an `nn.Embedding` with sparse gradients owns are updated row by
        row.
    batches
        What to train on: windows of histories, or rows of a matrix.
    settings
        How to train.
    folder
        Receives the checkpoints, and the metrics of every epoch as JSON lines. None takes a temporary one.
    evaluate
        Returns metrics of the model as it is; called after every epoch, or as the settings say.
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
    if not len(batches):
        raise InputError("there are no training windows: every history has three items or fewer.")
    fabric = fabric or Fabric(accelerator="cpu", devices=1)
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        place = Path(fabric.broadcast(str(folder or temporary)))
        if fabric.global_rank == 0:
            stack.enter_context(exclusive(place))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        run = _Run(model, batches, settings, place, configuration or {}, fabric)
        continued = run.resume()
        progress = progress or Silent()
        if continued:
            state = run.state
            progress.step("Finished already" if state.finished else f"Continuing after step {state.step:,}")
        stack.enter_context(run.follow(trackers, continued))
        stack.enter_context(deterministic(fabric.device.type == "cpu"))
        stopped = stack.enter_context(stop_signals())
        while not run.state.finished:
            run.epoch(progress, stopped)
            metrics = evaluate() if evaluate and run.writes and run.due else {}
            run.end_epoch(fabric.broadcast(metrics), monitor)
            if monitor in metrics:
                best = f"epoch {run.state.best_epoch} is the best, {run.state.best:.4f}"
                progress.result(f"Epoch {run.state.epoch}: {monitor} {metrics[monitor]:.4f}; {best}")
            run.leave_if_told(stopped)
        fabric.barrier()  # nobody reads before the first process has written
        run.load_best()
        model.eval()
        history = run.history()
        fabric.barrier()  # nor removes the folder before all have read
        return history


def best_epoch(history: list[dict[str, Any]], monitor: str) -> int:
    """Return the epoch whose weights were kept: the first with the highest value of what was monitored."""
    return int(max((record for record in history if monitor in record), key=lambda record: record[monitor])["epoch"])


class _Run:
    """A model under training, and its folder."""

    def __init__(
        self,
        model: nn.Module,
        batches: EpochBatches[Any],
        settings: TrainSettings,
        folder: Path,
        configuration: dict[str, Any],
        fabric: Fabric,
    ) -> None:
        self.model, self.batches, self.settings, self.folder, self.fabric = model, batches, settings, folder, fabric
        self.configuration = {
            "settings": settings.plain(),
            "data": batches.fingerprint,
            "processes": fabric.world_size,
            "precision": fabric._precision.precision,
            **configuration,
        }
        self.state = _State()
        self.trackers: list[Tracker] = []
        self.writes = fabric.global_rank == 0
        self.samples, self.seconds = 0, 0.0  # of the epoch under way
        if fabric.world_size > 1 and fabric.device.type != "cpu":
            for module in model.modules():  # sparse gradients can be averaged over CPUs only
                if isinstance(module, nn.Embedding):
                    module.sparse = False
        self.wrapped, *self.optimizers = fabric.setup(model, *make_optimizers(model, settings))

    def resume(self) -> bool:
        """Take up the last checkpoint; return whether there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            self._trim_history()
            return False
        tensors, facts = load_checkpoint(path)
        ours, theirs = _flat(json.loads(json.dumps(self.configuration))), _flat(facts.get("configuration", {}))
        if other := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
            was, now = theirs.get(other[0]), ours.get(other[0])
            raise InputError(
                f"{path}: this is a run of another configuration, '{other[0]}' was {was!r} and is {now!r}; choose another "
                f"folder, or remove {self.folder}."
            )
        self.model.load_state_dict(_part(tensors, "model"))
        for number, optimizer in enumerate(self.optimizers):
            restore_optimizer(optimizer, f"optimizer{number}", tensors, facts["optimizers"][number])
        self.batches.load_state_dict(facts["batches"])
        self.state = _State(**facts["state"])
        self._trim_history()
        log.info("continuing after step %d, epoch %d", self.state.step, self.state.epoch)
        return True

    @contextmanager
    def follow(self, names: Sequence[str], continued: bool) -> Iterator[None]:
        """Let trackers follow the run from where it is, and close their records however it ends."""
        if self.writes and not self.state.finished:
            settings = self.configuration["settings"]
            self.trackers = open_trackers(names, self.folder, settings, self.state.epoch, continued)
        try:
            yield
        finally:
            for tracker in self.trackers:
                tracker.close(self.state.finished)

    def checkpoint(self) -> None:
        """Save everything that the rest of the run depends on."""
        sums = self._mean_over_processes(self.state.loss_sums)
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
            "state": asdict(self.state) | {"loss_sums": sums},
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
                self.leave_if_told(stopped)

    def leave_if_told(self, stopped: list[int]) -> None:
        """Save and leave if any of the processes got a signal, so that all stop after the same step."""
        number = stopped[0] if stopped else 0
        if self.fabric.world_size > 1:
            number = int(torch.as_tensor(self.fabric.all_reduce(torch.tensor(float(number)), reduce_op="max")))
        if number:
            self.checkpoint()
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _mean_over_processes(self, values: dict[str, float]) -> dict[str, float]:
        means = torch.as_tensor(self.fabric.all_reduce(torch.tensor(list(values.values()), dtype=torch.float64)))
        return dict(zip(values, means.tolist(), strict=True))

    def _step(self, batch: Any) -> float:
        state = self.state
        seed = _mix(self.settings.seed, state.step, self.fabric.global_rank)
        torch.manual_seed(seed)
        generator = torch.Generator().manual_seed(_mix(seed, 1))
        for optimizer in self.optimizers:
            for group in optimizer.param_groups:
                group["lr"] = self.settings.learning_rate * self._rate(state.step)
        ranks = self.fabric.world_size
        share = batch.share(self.fabric.global_rank, ranks)
        terms: dict[str, Tensor] = self.wrapped(share, generator)
        values = {name: float(term.detach()) for name, term in terms.items()}
        for name in sorted(values, key="loss".__eq__):  # the terms first, which tell more than their sum
            self._require_finite(f"'{name}'", values[name])
        # The processes' gradients are averaged; the mean over the batch weighs each share by its size.
        share_weight = len(share) * ranks / len(batch) if len(share) < len(batch) else 1.0
        self.fabric.backward(terms["loss"] * share_weight)
        norm = clip_gradients(list(self.model.parameters()), self.settings.clip or math.inf)
        self._require_finite("the gradient's norm", norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        for name, value in values.items():
            state.loss_sums[name] = state.loss_sums.get(name, 0.0) + value
        return values["loss"]

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        path = self.folder / CHECKPOINT
        good = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"
        raise TrainingError(
            f"step {self.state.step + 1}, epoch {self.state.epoch + 1}: {what} is {value}; {good}; "
            "lower the learning rate or clip the gradient."
        )

    def _rate(self, step: int) -> float:
        """Cosine over all epochs, after a linear warm-up."""
        settings = self.settings
        if step < settings.warmup_steps:
            return (step + 1) / settings.warmup_steps
        total = max(1, settings.epochs * len(self.batches) - settings.warmup_steps)
        return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - settings.warmup_steps) / total)))

    @property
    def due(self) -> bool:
        """Whether the epoch that ends is to be evaluated."""
        epoch = self.state.epoch + 1
        return epoch % self.settings.evaluate_every == 0 or epoch == self.settings.epochs

    def end_epoch(self, metrics: dict[str, float], monitor: str) -> None:
        """Record the epoch, keep the best weights, decide whether to go on, and save."""
        state = self.state
        state.epoch += 1
        sums = self._mean_over_processes(state.loss_sums)
        losses = {name: total / len(self.batches) for name, total in sums.items()}
        state.loss_sums = {}
        record = {
            "epoch": state.epoch,
            "step": state.step,
            **losses,
            **metrics,
            "samples_per_second": round(self.samples / max(self.seconds, 1e-9), 1),
        }
        value = metrics.get(monitor, -math.inf) if monitor else float(state.epoch)
        if value > state.best:
            state.best, state.best_epoch = value, state.epoch
            if self.writes:
                save_checkpoint(self.folder / BEST, dict(self.model.state_dict()), {"epoch": state.epoch, **metrics})
        waited = (state.epoch - state.best_epoch) // self.settings.evaluate_every
        patience = self.settings.patience if monitor else 0
        state.finished = state.epoch >= self.settings.epochs or bool(patience and waited >= patience)
        for tracker in self.trackers:
            tracker.log(record, state.epoch)
        if self.writes:
            with explain_full_disk(self.folder), (self.folder / METRICS).open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")
        self.checkpoint()
        log.info(" ".join(f"{name} {value:.5g}" for name, value in record.items()))

    def load_best(self) -> None:
        """Give the model its best weights."""
        tensors, _ = load_checkpoint(self.folder / BEST)
        self.model.load_state_dict(tensors)

    def history(self) -> list[dict[str, Any]]:
        """Return the metrics of every epoch."""
        path = self.folder / METRICS
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True) if path.exists() else []
        return [json.loads(line) for line in lines if line.endswith("\n")]  # a kill may have cut the last one off

    def _trim_history(self) -> None:
        """Forget the lines that were written after the checkpoint from which the run goes on."""
        path = self.folder / METRICS
        if path.exists() and self.writes:
            kept = [record for record in self.history() if record["epoch"] <= self.state.epoch]
            partial = path.with_name(f".{path.name}.partial")
            with explain_full_disk(self.folder):
                partial.write_text("".join(json.dumps(record) + "\n" for record in kept), encoding="utf-8")
                os.replace(partial, path)


def make_optimizers(model: nn.Module, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Return AdamW for the dense parameters and `RowwiseAdamW` for embedding tables with sparse gradients."""
    sparse = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.sparse}
    options: dict[str, Any] = {"lr": settings.learning_rate, "weight_decay": settings.weight_decay}
    rows = [parameter for parameter in model.parameters() if id(parameter) in sparse]
    dense = [parameter for parameter in model.parameters() if id(parameter) not in sparse]
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(dense, fused=True, **options)] if dense else []
    return optimizers + ([RowwiseAdamW(rows, **options)] if rows else [])


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


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Lift the settings to the level of the rest."""
    return {**values, **values.get("settings", {})} | {"settings": None}


def _part(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _mix(*numbers: int) -> int:
    """Make one seed of several numbers."""
    seed = 0
    for number in numbers:
        seed = (seed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**63
    return seed
