"""Quality of item embeddings before quantization: Metric 1, Metric 2 and the bound of Proposition 1.

Metric 1 masks all fields of the target and ranks the items: what the history predicts. Metric 2 masks only the item ID: how
well fields discriminate items. Both compare h_T with the item-ID embeddings; Metric 1 is also reported for the sum of the
cosines with all field embeddings. The bound is Σ w_k H(f_k) − L ≤ Σ w_k I(h_T; f_k), with L the full-softmax loss and w_k the
probability that field k is masked times its weight.

All ranks are those of items. Where a field has tags, the cosine is the mean over the item's tags, and f_k is one of the target's
tags, drawn at random: its expected −log q is the loss of the field, so the bound holds with the entropy of such tags.
"""

from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor

from resid.data.batches import Batches
from resid.data.splits import Split
from resid.evaluate.metrics import ranking_metrics
from resid.nn import mean_rows, value_weights

if TYPE_CHECKING:
    from resid.encode.famae_model import FamaeModel

_MAX_SCORES = 2**24  # in memory at a time: windows times items


@torch.no_grad()
def embedding_quality(
    model: "FamaeModel", windows: Split, cutoffs: tuple[int, ...] = (5, 10), seed: int = 0
) -> dict[str, Any]:
    """Evaluate a FAMAE model on windows.

    Parameters
    ----------
    model
        The model.
    windows
        `data.validation`, `data.test` or a sample of them, of the Dataset that the model was trained on.
    cutoffs
        The K of Recall@K and NDCG@K; the whole catalogue is ranked, seen items included.
    seed
        Of the masks of the bound, which are drawn as in training.

    Returns
    -------
    dict
        ``metric1``, ``metric1_all_fields`` and ``metric2`` with recall@K and ndcg@K; ``bound`` of Proposition 1 in nats
        with ``bound_fields``, the terms H(f_k) − L_k; ``norms``, the mean norm of each field's embeddings.
    """
    was_training = model.training
    model.eval()
    units = [f.normalize(table.weight, dim=1) for table in model.embeddings()]
    summed = units[0].clone()  # one field at a time: each is as large as the catalogue
    for field in range(1, model.n_fields):
        values = model.tables.values(field, model.codes)
        summed += mean_rows(units[field], values) if model.tables.has_tags[field] else units[field][values]
    everything = model.all_masked(1)
    only_item = torch.zeros_like(everything)
    only_item[:, 0] = True
    rng = torch.Generator().manual_seed(seed)
    ranks = {
        name: torch.empty(len(windows), dtype=torch.int64) for name in ("metric1", "metric1_all_fields", "metric2")
    }
    losses, counts = torch.zeros(2, model.n_fields, dtype=torch.float64)
    for batch in Batches(windows, max(1, min(512, _MAX_SCORES // max(model.field_sizes))), shuffle=False):
        histories, targets = model.windows(batch)
        index, own, count = torch.from_numpy(batch.index), model.tables.values(0, targets), len(targets)
        hidden = model.hidden(histories, targets, everything.expand(count, -1))
        ranks["metric1"][index] = target_ranks(hidden, own, units[0])
        ranks["metric1_all_fields"][index] = target_ranks(hidden, own, summed)
        hidden = model.hidden(histories, targets, only_item.expand(count, -1))
        ranks["metric2"][index] = target_ranks(hidden, own, units[0])
        masked = model.draw_masks(count, rng)
        hidden = model.hidden(histories, targets, masked)
        terms = model.loss(hidden, targets, masked, [None] * model.n_fields, units)
        losses += torch.stack([terms[f"loss.{name}"] for name in model.field_names]).double().cpu() * count
        counts += masked.sum(dim=0).cpu()
    codes = model.codes.cpu()[torch.from_numpy(windows.targets).long()]
    entropies = [
        field_entropy(model.tables.values(k, codes), has_tags) for k, has_tags in enumerate(model.tables.has_tags)
    ]
    information = np.array(entropies) - (losses / counts).numpy()
    information[counts.numpy() == 0] = 0  # never masked: there are too few windows
    mask_prob = (model.n_fields + 1) / (2 * model.n_fields)  # of a field
    norms = [float(table.weight.norm(dim=1).mean()) for table in model.embeddings()]
    model.train(was_training)
    return {
        **{name: ranking_metrics(found, cutoffs) for name, found in ranks.items()},
        "bound": float(np.dot(model.weights, information) * mask_prob),
        "bound_fields": dict(zip(model.field_names, information.tolist(), strict=True)),
        "norms": dict(zip(model.field_names, norms, strict=True)),
    }


def target_ranks(hidden: Tensor, targets: Tensor, candidates: Tensor) -> Tensor:
    """Rank targets among all candidates by the dot product with h_T.

    Parameters
    ----------
    hidden
        h_T, shape (windows, width).
    targets
        The index of the target, shape (windows,).
    candidates
        Shape (items, width).

    Returns
    -------
    Tensor
        Ranks from 0, shape (windows,), on the CPU; ties are ranked in index order.
    """
    scores = hidden @ candidates.T  # (windows, items)
    own = scores.gather(1, targets[:, None])
    first = torch.arange(len(candidates), device=targets.device) < targets[:, None]
    return ((scores > own) | ((scores == own) & first)).sum(dim=1).cpu()


def entropy(values: np.ndarray[Any, Any]) -> float:
    """Return the entropy of the empirical distribution of values, in nats."""
    shares = np.unique(values, return_counts=True)[1] / len(values)
    return float(-(shares * np.log(shares)).sum())


def field_entropy(codes: Tensor, has_tags: bool) -> float:
    """Return the entropy of a field's values, shape (targets,), or of a random tag of each target, (targets, values)."""
    if not has_tags:
        return entropy(codes.numpy())
    shares = np.bincount(codes.flatten().numpy(), value_weights(codes).flatten().numpy()) / len(codes)
    shares = shares[shares > 0]
    return float(-(shares * np.log(shares)).sum())
