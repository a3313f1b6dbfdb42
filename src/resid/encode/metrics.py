"""How good item embeddings are before any code is made of them: Metric 1, Metric 2 and the bound of Proposition 1.

Metric 1 hides all fields of the target and asks for the item: what the history tells. Metric 2 hides the item-ID alone:
how well the fields tell items apart. Both compare h_T with the item-ID's embeddings; Metric 1 is also given for the sum
of the cosines with all fields' embeddings. The bound is Σ w_k H(f_k) − L ≤ Σ w_k I(h_T; f_k), with L the loss over whole
vocabularies and w_k the chance that field k is masked times its weight.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor

from resid.data.batches import Batches
from resid.data.splits import Split
from resid.encode.famae import FamaeModel
from resid.evaluate import ranking_metrics

_SCORES = 2**24  # scores that are in memory at a time: windows times catalogue


@torch.no_grad()
def quality(model: FamaeModel, windows: Split, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0) -> dict[str, Any]:
    """Measure a FAMAE model on windows, those of validation or test.

    Parameters
    ----------
    model
        The model.
    windows
        Of the Dataset that it was trained on: `data.validation`, `data.test`, or a sample of them.
    cutoffs
        The K of Recall@K and NDCG@K; the whole catalogue is ranked and seen items are kept.
    seed
        Draws the masks of the bound, as in training.

    Returns
    -------
    dict
        ``metric1``, ``metric1_all_fields`` and ``metric2`` with recall@K and ndcg@K; ``bound`` of Proposition 1 in nats
        with ``bound_fields``, the terms H(f_k) − L_k; ``norms``, the mean length of each field's embeddings.
    """
    was_training = model.training
    model.eval()
    units = [f.normalize(table.weight, dim=1) for table in model.embeddings()]
    summed = units[0].clone()  # as long as the catalogue, so the fields are added one by one
    for field in range(1, model.n_fields):
        summed += units[field][model.codes[:, field]]
    everything = torch.ones(model.n_fields, dtype=torch.bool, device=model.codes.device)
    only_item = torch.zeros_like(everything)
    only_item[0] = True
    generator = torch.Generator().manual_seed(seed)
    ranks = {
        name: torch.empty(len(windows), dtype=torch.int64) for name in ("metric1", "metric1_all_fields", "metric2")
    }
    losses, counts = torch.zeros(2, model.n_fields, dtype=torch.float64)
    for batch in Batches(windows, max(1, min(512, _SCORES // max(model.sizes))), shuffle=False):
        histories, targets = model.windows(batch)
        index, own, count = torch.from_numpy(batch.index), targets[:, 0], len(targets)
        hidden = model.hidden(histories, targets, everything.expand(count, -1))
        ranks["metric1"][index] = target_ranks(hidden, own, units[0])
        ranks["metric1_all_fields"][index] = target_ranks(hidden, own, summed)
        hidden = model.hidden(histories, targets, only_item.expand(count, -1))
        ranks["metric2"][index] = target_ranks(hidden, own, units[0])
        masked = model.draw_masks(count, generator)
        hidden = model.hidden(histories, targets, masked)
        terms = model.loss(hidden, targets, masked, [None] * model.n_fields, units)
        losses += torch.stack([terms[f"loss.{name}"] for name in model.names]).double().cpu() * count
        counts += masked.sum(dim=0).cpu()
    values = model.codes.cpu().numpy()[windows.targets]
    information = np.array([entropy(values[:, k]) for k in range(model.n_fields)]) - (losses / counts).numpy()
    information[counts.numpy() == 0] = 0  # so few windows that the field was never masked
    chance = (model.n_fields + 1) / (2 * model.n_fields)  # of a field to be masked
    norms = [float(table.weight.norm(dim=1).mean()) for table in model.embeddings()]
    model.train(was_training)
    return {
        **{name: ranking_metrics(found, cutoffs) for name, found in ranks.items()},
        "bound": float(np.dot(model.weights, information) * chance),
        "bound_fields": dict(zip(model.names, information.tolist(), strict=True)),
        "norms": dict(zip(model.names, norms, strict=True)),
    }


def target_ranks(hidden: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
    """Rank targets among all candidates by the product with h_T.

    Parameters
    ----------
    hidden
        h_T, shape (windows, width).
    targets
        Which candidate is the target, shape (windows,).
    candidates
        Shape (items, width).

    Returns
    -------
    Tensor
        Ranks counted from 0, shape (windows,), on the CPU; ties go to the candidate that comes first.
    """
    scores = hidden @ candidates.T  # (windows, items)
    own = scores.gather(1, targets[:, None])
    first = torch.arange(len(candidates), device=targets.device) < targets[:, None]
    return ((scores > own) | ((scores == own) & first)).sum(dim=1).cpu()


def entropy(values: np.ndarray[Any, Any]) -> float:
    """Return the entropy of the empirical distribution of values, in nats."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log(shares)).sum())
