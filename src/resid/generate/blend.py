"""The blend of several scores of items: a weighted sum whose weights are fitted on validation users.

Each score is a log-probability up to a constant per user, so the blend is a log-linear model of the next item, and the
cross-entropy of validation targets among candidates is convex in its weights. Fitted among all items, the weights would mostly
serve targets far down the ranking; fitted among the items that are re-ranked, they serve the top. Weights are not negative;
items of the history get a bias.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import minimize
from torch import Tensor

SEEN = "seen"  # the name of the bias of items of the history
BIAS = "bias"  # the name of the bias of all items of a blend
_RIDGE = 1e-3  # of the squared bias, which grows without bound if no target repeats an item of its history
_MOST_LOST = 0.015  # share of their Recall@10 that targets may lose to added items
_TOP, _LARGEST_BIAS, _STEPS = 10, 20.0, 20
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
    start = np.append(np.full(len(scores), 1 / len(scores)), 0.0)
    found = _minimize([*scores.values(), seen], targets, start)
    return Blend({name: float(value) for name, value in zip(scores, found[:-1], strict=True)}, float(found[-1]))


def fit_added_blend(scores: Mapping[str, Tensor], seen: Tensor, targets: Tensor, added: Tensor, blend: Blend) -> Blend:
    """Return the blend of added items, given that of the others: weights of their own, and a bias against or for them.

    What is known of an added item are its fields, so its scores say less than those of an item that was trained on. The weights
    minimize the cross-entropy of targets; the bias is at most that for which the other targets lose `_MOST_LOST` of their recall.

    Parameters
    ----------
    scores, seen, targets
        As for `fit_blend`.
    added
        Which candidates are scored as added items, boolean, shape (users, candidates).
    blend
        Of the other items; its bias of seen items applies to added ones, too.
    """
    mine = added.to(next(iter(scores.values())).dtype)
    fixed = torch.where(added, blend.seen_bias * seen, blend.combine(scores, seen))
    start = np.append([blend.weights[name] for name in scores], 0.0)
    found = _minimize([*(values * mine for values in scores.values()), mine], targets, start, fixed)
    weights = {name: float(value) for name, value in zip(scores, found[:-1], strict=True)}
    own = Blend(weights, blend.seen_bias).combine(scores, seen)
    bias = _largest_bias(own, blend.combine(scores, seen), targets, added)
    return Blend(weights, blend.seen_bias, min(float(found[-1]), bias))


def _largest_bias(own: Tensor, others: Tensor, targets: Tensor, added: Tensor) -> float:
    """Return the largest bias of added items at which the Recall@10 of other targets loses at most `_MOST_LOST`, by bisection.

    Parameters
    ----------
    own, others
        The blended scores of candidates as added items and as others, shape (users, candidates).
    targets, added
        As for `fit_added_blend`.
    """
    index = targets[:, None]
    is_other = ~added.gather(1, index)[:, 0]

    def found(bias: float) -> int:
        total = torch.where(added, own + bias, others)
        return int(((total > total.gather(1, index)).sum(dim=1) < _TOP)[is_other].sum())

    least, low, high = (1 - _MOST_LOST) * found(-torch.inf), -_LARGEST_BIAS, _LARGEST_BIAS
    for _ in range(_STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if found(middle) >= least else (low, middle)
    return low


def _minimize(
    features: Sequence[Tensor], targets: Tensor, start: np.ndarray, fixed: Tensor | None = None
) -> np.ndarray:
    """Return the weights of features that minimize the cross-entropy of targets; only the last may be negative.

    Parameters
    ----------
    features
        Each of shape (users, candidates).
    targets
        The position of the target among the candidates, shape (users,).
    start
        From where to search, shape (features,).
    fixed
        What is added to the weighted sum, shape (users, candidates).
    """
    n_users = len(targets)

    def loss(values: np.ndarray) -> tuple[float, np.ndarray]:
        gradient = np.zeros(len(values))
        total = _RIDGE * values[-1] ** 2
        gradient[-1] = 2 * _RIDGE * values[-1]
        for first in range(0, n_users, _USERS):
            some = slice(first, first + _USERS)
            # In double precision, as the noise of single precision would end the search early.
            own = [feature[some].double() for feature in features]
            index = targets[some, None]
            weighted = [float(value) * feature for value, feature in zip(values, own, strict=True)]
            weighted += [] if fixed is None else [fixed[some].double()]
            log_probs = torch.stack(weighted).sum(dim=0).log_softmax(dim=1)
            total -= float(log_probs.gather(1, index).sum()) / n_users
            probs = log_probs.exp_()
            for number, feature in enumerate(own):
                expected, observed = (probs * feature).sum(), feature.gather(1, index).sum()
                gradient[number] += float(expected - observed) / n_users
        return total, gradient

    bounds = [(0.0, None)] * (len(start) - 1) + [(None, None)]
    found: np.ndarray = minimize(loss, start, jac=True, method="L-BFGS-B", bounds=bounds, options={"maxiter": 50}).x
    return found


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
