"""AdamW for large embedding tables: it updates only the rows that a step used."""

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor


class RowwiseAdamW(torch.optim.Optimizer):
    """AdamW on sparse gradients, whose cost does not grow with the table.

    When a row is used again, its moments and weight decay catch up with the steps in between, so that they equal those of
    dense AdamW (exactly for a constant learning rate). The momentum updates of unused rows are skipped. Rows that every step
    uses, and the first use of any row, are the same as with dense AdamW.

    Parameters
    ----------
    parameters
        Embedding tables, shape (rows, d), whose gradients are sparse.
    lr, betas, eps, weight_decay
        As in `torch.optim.AdamW`.
    """

    def __init__(
        self,
        parameters: Iterable[Tensor] | Iterable[dict[str, Any]],
        lr: float = 1e-3,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 1e-2,
    ) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "eps": eps, "weight_decay": weight_decay})

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state; step counts, which PyTorch converts to floats, become integers again."""
        super().load_state_dict(state_dict)
        for state in self.state.values():
            for name, kind in (("step", torch.int64), ("last", torch.int32)):
                state[name] = state[name].to(kind)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Update the rows that have a gradient."""
        for group in self.param_groups:
            for table in group["params"]:
                if table.grad is None:
                    continue
                state = self.state[table]
                if not state:
                    state["step"] = torch.tensor(0)
                    state["last"] = torch.zeros(len(table), dtype=torch.int32, device=table.device)
                    state["mean"] = torch.zeros_like(table)
                    state["square"] = torch.zeros_like(table)
                gradient = table.grad.coalesce() if table.grad.is_sparse else table.grad.to_sparse(1)
                self._update(table, gradient.indices()[0], gradient.values(), state, group)

    @staticmethod
    def _update(table: Tensor, rows: Tensor, values: Tensor, state: dict[str, Any], group: dict[str, Any]) -> None:
        rate, (beta1, beta2) = group["lr"], group["betas"]
        state["step"] += 1
        step = int(state["step"])
        missed = (step - state["last"][rows]).to(values.dtype).unsqueeze(1)  # steps since the last use, at least 1
        state["last"][rows] = step
        mean = state["mean"][rows] * beta1**missed + values * (1 - beta1)
        square = state["square"][rows] * beta2**missed + values.square() * (1 - beta2)
        state["mean"][rows] = mean
        state["square"][rows] = square
        denominator = (square / (1 - beta2**step)).sqrt_().add_(group["eps"])
        decayed = table[rows] * (1 - rate * group["weight_decay"]) ** missed
        table[rows] = decayed - mean / denominator * (rate / (1 - beta1**step))
