"""How good item embeddings are before any code is made of them: Metric 1, Metric 2 and the bound of Proposition 1.

Metric 1 hides all fields of the target and asks for the item: what the history tells. Metric 2 hides the item-ID alone:
how well the fields tell items apart. Both compare h_T with the item-ID's embeddings; Metric 1 is also given for the sum
of the cosines with all fields' embeddings. The bound is Σ w_k H(f_k) − L ≤ Σ w_k I(h_T; f_k), with L the loss over whole
vocabularies and w_k the chance that field k is masked times its weight.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor

from resid.data.batches import Batches
from resid.data.splits import Split
from resid.encode.famae import FamaeModel

_SCORES = 2**24  # scores that are in memory at a time: windows times catalogue


@torch.no_grad()
def quality(model: FamaeModel, windows: Split, cutoffs: tuple[int, ...] = (5, 10)) -> dict[str, Any]:
    """Measure a FAMAE model on windows, those of validation or test.

    Parameters
    ----------
    model
        The model.
    windows
        Of the Dataset that it was trained on: `data.validation`, `data.test`, or a sample of them.
    cutoffs
        The K of Recall@K and NDCG@K; the whole catalogue is ranked and seen items are kept.

    Returns
    -------
    dict
        ``metric1``, ``metric1_all_fields`` and ``metric2`` with recall@K and ndcg@K; ``bound`` of Proposition 1 in nats
        with ``bound_fields``, the terms H(f_k) − L_k; ``norms``, the mean length of each field's embeddings.
    """
    was_training = model.training
    model.eval()
    everything = torch.ones(model.n_fields, dtype=torch.bool, device=model.codes.device)
    only_item = torch.zeros_like(everything)
    only_item[0] = True
    units = [f.normalize(table.weight, dim=1) for table in model.embeddings()]
    summed = torch.stack([unit[model.codes[:, field]] for field, unit in enumerate(units)]).sum(dim=0)
    by_item, by_all = target_ranks(model, windows, everything, (units[0], summed))
    (of_item,) = target_ranks(model, windows, only_item, (units[0],))
    information = field_information(model, windows)
    weights = [weight * (model.n_fields + 1) / (2 * model.n_fields) for weight in model.weights]
    norms = [float(table.weight.norm(dim=1).mean()) for table in model.embeddings()]
    found = {
        "metric1": ranking_metrics(by_item, cutoffs),
        "metric1_all_fields": ranking_metrics(by_all, cutoffs),
        "metric2": ranking_metrics(of_item, cutoffs),
        "bound": float(np.dot(weights, information)),
        "bound_fields": dict(zip(model.names, information, strict=True)),
        "norms": dict(zip(model.names, norms, strict=True)),
    }
    model.train(was_training)
    return found


def target_ranks(model: FamaeModel, windows: Split, masked: Tensor, candidates: Sequence[Tensor]) -> list[Tensor]:
    """Rank every window's target, when the fields `masked` are hidden, among the items.

    Parameters
    ----------
    model, windows
        The model and the windows.
    masked
        Boolean, shape (J,).
    candidates
        One or more vectors for every item, each of shape (items, width).

    Returns
    -------
    list of Tensor
        For each set of candidates the ranks, counted from 0, shape (windows,); ties go to the item that comes first.
    """
    ranks = [torch.empty(len(windows), dtype=torch.int64) for _ in candidates]
    for batch in _batches(model, windows):
        histories, targets = model.windows(batch)
        own = targets[:, :1]
        hidden = f.normalize(model.hidden(histories, targets, masked.expand(len(targets), -1)), dim=1)
        for vectors, found in zip(candidates, ranks, strict=True):
            scores = hidden @ vectors.T  # (windows, items)
            score = scores.gather(1, own)
            before = (scores == score) & (torch.arange(len(vectors), device=own.device) < own)
            found[torch.from_numpy(batch.index)] = ((scores > score) | before).sum(dim=1).cpu()
    return ranks


def ranking_metrics(ranks: Tensor, cutoffs: tuple[int, ...]) -> dict[str, float]:
    """Return Recall@K and NDCG@K of targets at these ranks, counted from 0."""
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
    for batch in _batches(model, windows):
        histories, targets = model.windows(batch)
        masked = model.draw_masks(len(targets), generator)
        hidden = model.hidden(histories, targets, masked)
        terms = model.loss(hidden, targets, masked, [None] * model.n_fields)
        losses += torch.stack([terms[f"loss.{name}"] for name in model.names]).double().cpu() * len(targets)
        counts += masked.sum(dim=0).cpu()
    values = model.codes.cpu().numpy()[windows.targets]
    entropies = [entropy(values[:, field]) for field in range(model.n_fields)]
    return [h - float(loss / count) if count else 0.0 for h, loss, count in zip(entropies, losses, counts, strict=True)]


def _batches(model: FamaeModel, windows: Split) -> Batches:
    """Return batches of at most 512 windows whose scores of a whole vocabulary stay small in memory."""
    return Batches(windows, max(1, min(512, _SCORES // max(model.sizes))), shuffle=False)


def entropy(values: np.ndarray[Any, Any]) -> float:
    """Return the entropy of the empirical distribution of values, in nats."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log(shares)).sum())
