"""How good item embeddings are before any code is made of them: Metric 1, Metric 2 and the bound of Proposition 1.

Metric 1 hides all fields of the target and asks for the item: what the history tells. Metric 2 hides the item-ID alone:
how well the fields tell items apart. The bound is Σ w_k H(f_k) − L ≤ Σ w_k I(h_T; f_k), with L the loss over whole
vocabularies and w_k the chance that field k is masked times its weight.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor

from resid.data.batches import Batches
from resid.data.dataset import Dataset
from resid.data.splits import Split
from resid.encode.famae import FamaeModel

_ROWS = 512  # windows scored against the whole catalogue at a time


@torch.no_grad()
def quality(
    model: FamaeModel, data: Dataset, split: str = "test", cutoffs: tuple[int, ...] = (5, 10)
) -> dict[str, Any]:
    """Measure a FAMAE model on validation or test.

    Parameters
    ----------
    model
        The model.
    data
        The Dataset that it was trained on.
    split
        ``"validation"`` or ``"test"``.
    cutoffs
        The K of Recall@K and NDCG@K; the whole catalogue is ranked and seen items are kept.

    Returns
    -------
    dict
        ``metric1`` and ``metric2`` with recall@K and ndcg@K; ``bound`` of Proposition 1 in nats with ``bound_fields``,
        the terms H(f_k) − L_k; ``norms``, the mean length of each field's embeddings.
    """
    was_training = model.training
    model.eval()
    windows: Split = getattr(data, split)
    everything = torch.ones(model.n_fields, dtype=torch.bool)
    only_item = torch.zeros(model.n_fields, dtype=torch.bool)
    only_item[0] = True
    names = ("item", *data.field_names)
    information = field_information(model, windows)
    weights = [weight * (model.n_fields + 1) / (2 * model.n_fields) for weight in model.weights]
    found = {
        "metric1": ranking_metrics(target_ranks(model, windows, everything), cutoffs),
        "metric2": ranking_metrics(target_ranks(model, windows, only_item), cutoffs),
        "bound": float(np.dot(weights, information)),
        "bound_fields": dict(zip(names, map(float, information), strict=True)),
        "norms": {name: float(t.weight.norm(dim=1).mean()) for name, t in zip(names, model.embeddings(), strict=True)},
    }
    model.train(was_training)
    return found


def target_ranks(model: FamaeModel, windows: Split, masked: Tensor) -> Tensor:
    """Return the rank of every window's target, from 0, when the fields `masked` are hidden; shape (windows,)."""
    candidates = f.normalize(model.embeddings()[0].weight, dim=1)
    ranks = torch.empty(len(windows), dtype=torch.int64)
    for batch in Batches(windows, _ROWS, shuffle=False):
        targets = model.codes[torch.from_numpy(batch.targets)]
        hidden = model.hidden(torch.from_numpy(batch.histories), targets, masked.expand(len(targets), -1))
        scores = f.normalize(hidden, dim=1) @ candidates.T  # (windows, items)
        own = scores.gather(1, targets[:, :1])
        before = (scores > own).sum(dim=1) + ((scores == own) & (torch.arange(len(candidates)) < targets[:, :1])).sum(
            dim=1
        )
        ranks[torch.from_numpy(batch.index)] = before
    return ranks


def ranking_metrics(ranks: Tensor, cutoffs: tuple[int, ...]) -> dict[str, float]:
    """Return Recall@K and NDCG@K of targets at these ranks, counted from 0; ties go to the item that comes first."""
    gains = 1 / torch.log2(ranks.double() + 2)
    metrics = {f"recall@{k}": float((ranks < k).double().mean()) for k in cutoffs}
    return metrics | {f"ndcg@{k}": float(torch.where(ranks < k, gains, 0.0).mean()) for k in cutoffs}


def field_information(model: FamaeModel, windows: Split, seed: int = 0) -> list[float]:
    """Return H(f_k) − L_k for every field, in nats: a lower bound on what h_T tells of it.

    H is the entropy of the targets' values, L_k the mean −log q_k over whole vocabularies where field k is masked, with
    masks drawn as in training.
    """
    generator = torch.Generator().manual_seed(seed)
    losses, counts = torch.zeros(model.n_fields, dtype=torch.float64), torch.zeros(model.n_fields, dtype=torch.float64)
    for batch in Batches(windows, _ROWS, shuffle=False):
        targets = model.codes[torch.from_numpy(batch.targets)]
        masked = model.draw_masks(len(targets), generator)
        hidden = model.hidden(torch.from_numpy(batch.histories), targets, masked)
        terms = model.loss(hidden, targets, masked, [None] * model.n_fields)
        losses += torch.stack([terms[f"loss_{field}"] for field in range(model.n_fields)]).double() * len(targets)
        counts += masked.sum(dim=0)
    values = model.codes[torch.from_numpy(windows.targets.astype(np.int64))].numpy()
    entropies = [entropy(values[:, field]) for field in range(model.n_fields)]
    return [h - float(loss / count) if count else 0.0 for h, loss, count in zip(entropies, losses, counts, strict=True)]


def entropy(values: np.ndarray[Any, Any]) -> float:
    """Return the entropy of the empirical distribution of values, in nats."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log(shares)).sum())
