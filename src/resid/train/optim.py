"""Optimizers and schedules: AdamW by parameter group, row-wise for sparse embedding tables."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from resid.train.module import TrainableModule
from resid.train.rowwise import RowwiseAdamW
from resid.train.settings import TrainSettings


def make_optimizers(model: TrainableModule, settings: TrainSettings) -> list[torch.optim.Optimizer]:
    """Return AdamW for dense parameters and `RowwiseAdamW` for embedding tables with sparse gradients.

    Every group of an optimizer also holds its `base_lr`, `warmup_steps` and `schedule`.
    """
    sparse = {id(m.weight) for m in model.modules() if isinstance(m, nn.Embedding) and m.sparse}
    dense_groups: list[dict[str, Any]] = []
    sparse_groups: list[dict[str, Any]] = []
    for group in model.parameter_groups():
        rate = settings.learning_rate if group.learning_rate is None else group.learning_rate
        options = {
            "lr": rate,
            "base_lr": rate,
            "weight_decay": settings.weight_decay if group.weight_decay is None else group.weight_decay,
            "warmup_steps": settings.warmup_steps if group.warmup_steps is None else group.warmup_steps,
            "schedule": group.schedule,
        }
        for groups, wanted in ((dense_groups, False), (sparse_groups, True)):
            if chosen := [parameter for parameter in group.parameters if (id(parameter) in sparse) == wanted]:
                groups.append({"params": chosen, **options})
    optimizers: list[torch.optim.Optimizer] = [torch.optim.AdamW(dense_groups, fused=True)] if dense_groups else []
    return optimizers + ([RowwiseAdamW(sparse_groups)] if sparse_groups else [])


def set_learning_rates(optimizers: list[Any], step: int, total_steps: int) -> None:
    """Set the learning rate of every group for a step: linear warm-up, then cosine decay to zero or a constant."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * _schedule(group["schedule"], step, group["warmup_steps"], total_steps)


def _schedule(schedule: str, step: int, warmup_steps: int, total_steps: int) -> float:
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    if schedule == "constant":
        return 1.0
    decay_steps = max(1, total_steps - warmup_steps)
    return 0.5 * (1 + math.cos(math.pi * min(1.0, (step - warmup_steps) / decay_steps)))


def extend_states(optimizers: list[Any]) -> None:
    """Give rows that a model added to its tables the state of rows that were never used: zeros."""
    for optimizer in optimizers:
        for parameter, state in getattr(optimizer, "optimizer", optimizer).state.items():
            for name, moments in state.items():
                if moments.ndim and len(moments) < len(parameter):
                    rows = moments.new_zeros(len(parameter) - len(moments), *moments.shape[1:])
                    state[name] = torch.cat([moments, rows])


def clip_gradients(parameters: list[Tensor], max_norm: float) -> float:
    """Scale all gradients, dense and sparse, to a joint norm of at most `max_norm`; return the norm before scaling."""
    values = []
    for parameter in parameters:
        if parameter.grad is not None:
            if parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
            values.append(parameter.grad._values() if parameter.grad.is_sparse else parameter.grad)
    norm = float(torch.linalg.vector_norm(torch.stack([torch.linalg.vector_norm(value) for value in values])))
    if norm > max_norm:
        for value in values:
            value.mul_(max_norm / norm)
    return norm
