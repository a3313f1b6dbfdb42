"""The training loop of every model, on Lightning Fabric.

All randomness in a step is seeded by the training seed and the step, so a checkpoint need not store the state of random
number generators, and a run that was killed and resumed ends with the same weights, bit for bit, as an uninterrupted one.
"""

import json
import logging
import math
import signal
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from resid.core.errors import InputError, TrainingError
from resid.core.files import METRICS, write_text
from resid.core.locks import exclusive
from resid.core.progress import Progress
from resid.core.runtime import Runtime
from resid.data.batches import EpochBatches
from resid.train.checkpoint import flat_optimizer, load_checkpoint, restore_optimizer, save_checkpoint
from resid.train.module import TrainableModule
from resid.train.optim import clip_gradients, extend_states, make_optimizers, set_learning_rates
from resid.train.process import deterministic, seed_generators, stop_signals
from resid.train.settings import TrainSettings
from resid.train.trackers import Tracker, open_trackers

if TYPE_CHECKING:
    from lightning_fabric import Fabric

log = logging.getLogger(__name__)

CHECKPOINT = "checkpoint.safetensors"
BEST = "best.safetensors"
_SMOOTHING = 0.05  # weight of the last step in the loss that is shown


@dataclass
class _State:
    """The position of a run."""

    step: int = 0
    epoch: int = 0  # finished epochs
    best: float = -math.inf
    best_epoch: int = 0
    loss_sums: dict[str, float] = field(default_factory=dict)  # of the current epoch
    finished: bool = False
    history: list[dict[str, Any]] = field(default_factory=list)  # the metrics of every finished epoch


def train(
    model: TrainableModule,
    batches: EpochBatches[Any],
    settings: TrainSettings,
    runtime: Runtime | None = None,
    *,
    evaluate: Callable[[], dict[str, float]] | None = None,
    monitor: str = "",
    monitor_title: str = "",
    configuration: dict[str, Any] | None = None,
    stop_after: int | None = None,
) -> list[dict[str, Any]]:
    """Train a model, or resume the run in the runtime's folder; the model has the best weights afterwards.

    With several processes, each takes its share of every batch, and the first one evaluates and writes files. Training in
    several phases is several calls, each with a folder of its own (`Runtime.within`).

    Parameters
    ----------
    model
        The network. Embedding tables with sparse gradients are updated row by row.
    batches
        What to train on.
    settings
        How to train.
    runtime
        Folder, devices, trackers and progress. The folder receives checkpoints, and the metrics of every epoch as JSON
        lines.
    evaluate
        Returns the metrics of the current weights; called after every epoch, or less often if the settings say so.
    monitor
        The metric, higher is better, that selects the best weights and stops training early. Without it, the last weights
        are the best.
    monitor_title
        How progress calls this metric; by default by its name.
    configuration
        What else identifies the run; a checkpoint with another configuration is refused.
    stop_after
        The number of epochs after which training ends, if that is before the horizon of the schedule, `settings.epochs`.

    Returns
    -------
    list of dict
        The metrics of every epoch.

    Raises
    ------
    TrainingError
        If the loss or the gradient is infinite or not a number.
    InputError
        If the folder holds a run with another configuration, or an incomplete checkpoint.
    """
    if not len(batches):
        raise InputError("there are no training windows: no history has two items to train on.")
    from lightning_fabric import Fabric  # takes seconds to import, and a trained model does not need it

    runtime = runtime or Runtime()
    fabric, progress = runtime.fabric or Fabric(accelerator="cpu", devices=1), runtime.progress
    with ExitStack() as stack:
        temporary = stack.enter_context(tempfile.TemporaryDirectory())
        folder = Path(fabric.broadcast(str(runtime.folder or temporary)))
        if fabric.global_rank == 0:
            stack.enter_context(exclusive(folder))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        identity = (configuration or {}) | ({"stop_after": stop_after} if stop_after is not None else {})
        run = _Training(model, batches, settings, folder, identity, fabric)
        run.last_epoch = min(settings.epochs, stop_after or settings.epochs)
        if resumed := run.resume():
            state = run.state
            progress.step("Already trained, skipping" if state.finished else f"Resuming after step {state.step:,}")
        stack.enter_context(run.track(runtime.trackers, resumed))
        stack.enter_context(deterministic(fabric.device.type == "cpu"))
        signals = stack.enter_context(stop_signals())
        while not run.state.finished:
            run.epoch(progress, signals)
            metrics = evaluate() if evaluate and run.writes and run.is_evaluation_due else {}
            run.end_epoch(fabric.broadcast(metrics), monitor)
            if monitor in metrics:
                passes, state = batches.passes, run.state
                best = f"best so far: epoch {passes * state.best_epoch} ({state.best:.4f})"
                progress.result(
                    f"Epoch {passes * state.epoch}: {monitor_title or monitor} {metrics[monitor]:.4f}, {best}"
                )
            run.stop_on_signal(signals)
        fabric.barrier()  # the first process writes before anyone reads
        run.load_best()
        model.eval()
        fabric.barrier()  # all have read before a temporary folder is removed
        history: list[dict[str, Any]] = fabric.broadcast(run.state.history)  # speeds differ between processes
        return history


def best_epoch(history: list[dict[str, Any]], monitor: str) -> int:
    """Return the epoch with the best weights: the first with the highest value of the monitored metric."""
    return int(max((record for record in history if monitor in record), key=lambda record: record[monitor])["epoch"])


class _Training:
    """A model in training, and its folder."""

    def __init__(
        self,
        model: TrainableModule,
        batches: EpochBatches[Any],
        settings: TrainSettings,
        folder: Path,
        configuration: dict[str, Any],
        fabric: "Fabric",
    ) -> None:
        self.model, self.batches, self.settings, self.folder, self.fabric = model, batches, settings, folder, fabric
        self.configuration = {
            "settings": settings.to_dict(),
            "data": batches.fingerprint,
            "processes": fabric.world_size,
            "precision": fabric._precision.precision,
            **configuration,
        }
        self.state = _State()
        self.last_epoch = settings.epochs
        self.trackers: list[Tracker] = []
        self.writes = fabric.global_rank == 0
        self.samples, self.seconds = 0, 0.0  # of the current epoch
        if fabric.world_size > 1 and fabric.device.type != "cpu":
            for module in model.modules():  # sparse gradients can only be averaged on CPUs
                if isinstance(module, nn.Embedding):
                    module.sparse = False
        self.wrapped, *self.optimizers = fabric.setup(model, *make_optimizers(model, settings))
        self.parameters = [p for o in self.optimizers for group in o.param_groups for p in group["params"]]
        self.trainable = _trainable(model)

    def resume(self) -> bool:
        """Load the last checkpoint; return whether there is one."""
        path = self.folder / CHECKPOINT
        if not path.exists():
            return False
        tensors, facts = load_checkpoint(path)
        ours, theirs = _flat(json.loads(json.dumps(self.configuration))), _flat(facts.get("configuration", {}))
        if other := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
            was, now = theirs.get(other[0]), ours.get(other[0])
            raise InputError(
                f"{path}: this run has another configuration, '{other[0]}' was {was!r} and is now {now!r}; choose another "
                f"folder, or remove {self.folder}."
            )
        self._load(tensors)
        for number, optimizer in enumerate(self.optimizers):
            restore_optimizer(optimizer, f"optimizer{number}", tensors, facts["optimizers"][number])
        self.batches.load_state_dict(facts["batches"])
        self.state = _State(**facts["state"])
        self._write_history()  # an interrupted run may have written more than it saved
        log.info("resuming after step %d, epoch %d", self.state.step, self.state.epoch)
        return True

    @contextmanager
    def track(self, names: tuple[str, ...], resumed: bool) -> Iterator[None]:
        """Open the trackers, and close them however the run ends."""
        if self.writes and not self.state.finished:
            settings = self.configuration["settings"]
            self.trackers = open_trackers(names, self.folder, settings, self.state.epoch, resumed)
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
        tensors, groups = self._tensors(), []
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

    def _tensors(self) -> dict[str, Tensor]:
        weights = {f"model.{name}": tensor for name, tensor in self.model.state_dict().items()}
        return weights | {f"extra.{name}": tensor for name, tensor in self.model.extra_state().items()}

    def _load(self, tensors: dict[str, Tensor]) -> None:
        self.model.load_extra_state(_with_prefix(tensors, "extra"))
        self.model.load_state_dict(_with_prefix(tensors, "model"))

    def epoch(self, progress: Progress, signals: list[int]) -> None:
        """Train to the end of the epoch; save and exit on a signal."""
        self._begin_epoch()
        self.model.train()
        state, passes = self.state, self.batches.passes
        last = passes * (state.epoch + 1)
        which = f"Epoch {last}" if passes == 1 else f"Epochs {last - passes + 1}–{last}"
        text = f"{which} of {passes * self.settings.epochs}"
        started, self.samples = time.monotonic(), 0
        first_step, total_steps, smoothed = state.step, self.settings.epochs * len(self.batches), math.nan
        with progress.bar(text, len(self.batches), done=self.batches.next_batch, unit="steps") as advance:
            for batch in self.batches:
                loss = self._step(batch)
                smoothed = loss if math.isnan(smoothed) else smoothed + _SMOOTHING * (loss - smoothed)
                self.samples += len(batch)
                self.seconds = time.monotonic() - started
                left = timedelta(seconds=round(self.seconds / (state.step - first_step) * (total_steps - state.step)))
                advance(1, f"loss {smoothed:.4f}, {self.samples / self.seconds:,.0f} samples/s, {left} left")
                self.stop_on_signal(signals)

    def _begin_epoch(self) -> None:
        """Call the model's hook; DDP exchanges gradients of the parameters that were trainable when it was set up."""
        self.model.begin_epoch(self.state.epoch)
        extend_states(self.optimizers)
        trainable = _trainable(self.model)
        if trainable != self.trainable and self.fabric.world_size > 1:
            self.wrapped, self.trainable = self.fabric.setup_module(self.model), trainable

    def stop_on_signal(self, signals: list[int]) -> None:
        """Save and exit if any process received a signal, so that all stop after the same step."""
        number = signals[0] if signals else 0
        if self.fabric.world_size > 1:
            number = int(torch.as_tensor(self.fabric.all_reduce(torch.tensor(float(number)), reduce_op="max")))
        if number:
            self.checkpoint()
            self.fabric.barrier()  # torchrun ends the others when one process exits, so the first one writes before that
            raise KeyboardInterrupt if number == signal.SIGINT else SystemExit(128 + number)

    def _mean_over_processes(self, values: dict[str, float]) -> dict[str, float]:
        means = torch.as_tensor(self.fabric.all_reduce(torch.tensor(list(values.values()), dtype=torch.float64)))
        return dict(zip(values, means.tolist(), strict=True))

    def _step(self, batch: Any) -> float:
        state = self.state
        seed = _mix(self.settings.seed, state.step, self.fabric.global_rank)
        seed_generators(seed, self.fabric.device)
        rng = torch.Generator().manual_seed(_mix(seed, 1))
        set_learning_rates(self.optimizers, state.step, self.settings.epochs * len(self.batches))
        ranks = self.fabric.world_size
        share = batch.share(self.fabric.global_rank, ranks)
        terms: dict[str, Tensor] = self.wrapped(share, rng)
        values = {name: float(term.detach()) for name, term in terms.items()}
        for name in sorted(values, key="loss".__eq__):  # the terms first: they are more specific than their sum
            self._require_finite(f"'{name}'", values[name])
        # Gradients are averaged over processes; for the mean over the batch, a share counts by its number of targets.
        weight = self.model.batch_weight
        share_weight = weight(share) * ranks / weight(batch) if len(share) < len(batch) else 1.0
        self.fabric.backward(terms["loss"] * share_weight)
        norm = clip_gradients(self.parameters, self.settings.max_grad_norm or math.inf)
        self._require_finite("the gradient norm", norm)
        for optimizer in self.optimizers:
            optimizer.step()
            optimizer.zero_grad()
        state.step += 1
        for name, value in values.items():
            state.loss_sums[name] = state.loss_sums.get(name, 0.0) + value * share_weight
        return values["loss"]

    def _require_finite(self, what: str, value: float) -> None:
        if math.isfinite(value):
            return
        path = self.folder / CHECKPOINT
        good = f"the last good checkpoint is {path}" if path.exists() else "there is no checkpoint yet"
        raise TrainingError(
            f"step {self.state.step + 1}, epoch {self.state.epoch + 1}: {what} is {value}; {good}; "
            "lower learning_rate or set max_grad_norm."
        )

    @property
    def is_evaluation_due(self) -> bool:
        """Whether the epoch that ends is evaluated."""
        epoch = self.state.epoch + 1
        return epoch % self.settings.evaluate_every == 0 or epoch == self.settings.epochs

    def end_epoch(self, metrics: dict[str, float], monitor: str) -> None:
        """Record the epoch, keep the best weights, decide whether to stop, and save."""
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
                save_checkpoint(self.folder / BEST, self._tensors(), {"epoch": state.epoch, **metrics})
        waited = (state.epoch - state.best_epoch) // self.settings.evaluate_every
        patience = self.settings.patience if monitor else 0
        state.finished = state.epoch >= self.last_epoch or bool(patience and waited >= patience)
        for tracker in self.trackers:
            tracker.log(record, state.epoch)
        state.history.append(record)
        self._write_history()
        self.checkpoint()
        log.info(" ".join(f"{name} {value:.5g}" for name, value in record.items()))

    def load_best(self) -> None:
        """Load the best weights."""
        self._load(load_checkpoint(self.folder / BEST)[0])

    def _write_history(self) -> None:
        """Write the metrics of every epoch for others to read; the run itself has them in its checkpoint."""
        if self.writes:
            write_text(self.folder / METRICS, "".join(json.dumps(record) + "\n" for record in self.state.history))


def _trainable(model: nn.Module) -> list[tuple[bool, torch.Size]]:
    """Return which parameters are trained, and their shapes; if these change, DDP is set up again."""
    return [(parameter.requires_grad, parameter.shape) for parameter in model.parameters()]


def _flat(values: dict[str, Any]) -> dict[str, Any]:
    """Merge the settings into the rest of a configuration."""
    return {**values, **values.get("settings", {})} | {"settings": None}


def _with_prefix(tensors: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(f"{prefix}."): t for name, t in tensors.items() if name.startswith(f"{prefix}.")}


def _mix(*numbers: int) -> int:
    """Combine numbers into one seed."""
    seed = 0
    for number in numbers:
        seed = (seed * 6_364_136_223_846_793_005 + number + 1_442_695_040_888_963_407) % 2**63
    return seed
