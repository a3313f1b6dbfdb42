"""The blend of several scores of items: a weighted sum whose weights are fitted on validation users.

Each score is a log-probability up to a constant per user, so the blend is a log-linear model of the next item, and the
cross-entropy of validation targets among candidates is convex in its weights. Fitted among all items, the weights would mostly
serve targets far down the ranking; fitted among the items that are re-ranked, they serve the top. Weights are not negative;
items of the history get a bias.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

SEEN = "seen"  # the name of the bias of items of the history
BIAS = "bias"  # the name of the bias of all items of a blend
_RIDGE = 1e-3  # of the squared bias, which grows without bound if no target repeats an item of its history
_MOST_LOST = 0.01  # share of their Recall@10 that validation targets may lose to added items
_LARGEST_BIAS, _STEPS = 20.0, 20
TOP = 10  # items that are recommended
_USERS = 512  # whose scores are combined at a time


@dataclass(frozen=True)
class Blend:
    """Weights of scores.

    Attributes
    ----------
    weights : dict
        The weight of every score by name.
    seen_bias : float
        Added to the blended score of items of the history.
    bias : float
        Added to every blended score; it matters where other items have other weights.
    """

    weights: Mapping[str, float]
    seen_bias: float = 0.0
    bias: float = 0.0

    def combine(self, scores: Mapping[str, Tensor], seen: Tensor) -> Tensor:
        """Return the blended scores; a score that is missing is left out.

        Parameters
        ----------
        scores
            By name, each of shape (users, items).
        seen
            Which items are in the history, boolean, shape (users, items).
        """
        total = self.seen_bias * seen.to(next(iter(scores.values())).dtype)
        for name, values in scores.items():
            total = total + self.weights.get(name, 0.0) * values
        return total + self.bias if self.bias else total

    def to_dict(self) -> dict[str, float]:
        """Return weights and biases as a dictionary of JSON values."""
        return {**self.weights, SEEN: self.seen_bias, **({BIAS: self.bias} if self.bias else {})}

    @classmethod
    def from_dict(cls, values: Mapping[str, float]) -> "Blend":
        """Undo `to_dict`."""
        weights = {name: value for name, value in values.items() if name not in (SEEN, BIAS)}
        return cls(weights, values[SEEN], values.get(BIAS, 0.0))


def fit_blend(scores: Mapping[str, Tensor], seen: Tensor, targets: Tensor) -> Blend:
    """Minimize the cross-entropy of targets among candidates.

    Parameters
    ----------
    scores
        By name, each of shape (users, candidates).
    seen
        Which candidates are in the history, boolean, shape (users, candidates).
    targets
        The position of the target among the candidates, shape (users,).
    """
    names, n_users = list(scores), len(targets)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = np.zeros(len(values))
        total = _RIDGE * values[-1] ** 2
        gradient[-1] = 2 * _RIDGE * values[-1]
        for first in range(0, n_users, _USERS):
            some = slice(first, first + _USERS)
            # In double precision, as the noise of single precision would end the search early.
            features = [*(scores[name][some].double() for name in names), seen[some].double()]
            index = targets[some, None]
            weighted = [float(value) * feature for value, feature in zip(values, features, strict=True)]
            log_probs = torch.stack(weighted).sum(dim=0).log_softmax(dim=1)
            total -= float(log_probs.gather(1, index).sum()) / n_users
            probs = log_probs.exp_()
            for number, feature in enumerate(features):
                expected, observed = (probs * feature).sum(), feature.gather(1, index).sum()
                gradient[number] += float(expected - observed) / n_users
        return total, gradient

    start = np.append(np.full(len(names), 1 / len(names)), 0.0)
    bounds = [(0.0, None)] * len(names) + [(None, None)]
    found = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50}).x
    return Blend({name: float(value) for name, value in zip(names, found[:-1], strict=True)}, float(found[-1]))


def largest_bias(targets: Tensor, above: Tensor, added: Tensor, n_known: int) -> float:
    """Return the largest bias of added items at which the Recall@10 of other targets loses at most 1%, by bisection.

    Added items can also help others, as a part of histories, so the loss is that against a model that does not have them; but if
    they only make histories worse, or nothing is found without them, it is that against the same histories.

    Parameters
    ----------
    targets
        The blended score of every target that is among the ten best of the other items, shape (users,).
    above
        How many of the others are above it, shape (users,).
    added
        The ten highest scores of added items without a bias, shape (users, n).
    n_known
        How many targets are among the ten best of the other items if histories are without the added ones.
    """
    reference = min(n_known or len(targets), len(targets))
    least, low, high = (1 - _MOST_LOST) * reference, -_LARGEST_BIAS, _LARGEST_BIAS
    for _ in range(_STEPS):
        bias = (low + high) / 2
        found = int((above + (added + bias > targets[:, None]).sum(dim=1) < TOP).sum())
        low, high = (bias, high) if found >= least else (low, bias)
    return low


def seen_items(histories: Tensor, items: Tensor) -> Tensor:
    """Return which items are in the history of their user.

    Parameters
    ----------
    histories
        Item indices, `PADDING` on the left, shape (users, length).
    items
        Shape (users, n).

    Returns
    -------
    Tensor
        Boolean, shape (users, n).
    """
    ordered = histories.sort(dim=1).values.contiguous()
    place = torch.searchsorted(ordered, items.contiguous()).clamp_max_(histories.shape[1] - 1)
    return ordered.gather(1, place) == items
