"""What training further did to a recommender, and the split that it is trained on."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from resid.core.errors import counted
from resid.data.dataset import Dataset
from resid.data.growth import all_in_training

_HELD_OUT = 0.1  # share of the users with new interactions whose last one is held out if everything else is trained on


@dataclass(frozen=True)
class TrainedFurther:
    """What an update of the weights did.

    Attributes
    ----------
    new_targets, replayed_targets : int
        The training targets of an epoch that were new, and those of the fit that were trained on again.
    epochs : int
        The epochs whose weights were taken; 0 if they are no better than those before.
    share : float
        The share of these weights in the mean with those before; 0 if they are no better.
    before, after : dict
        Metrics on validation users with the old and with the new weights; empty if there are no validation users.
    """

    new_targets: int
    replayed_targets: int
    epochs: int
    share: float
    before: dict[str, float]
    after: dict[str, float]

    def __str__(self) -> str:
        targets = f"{counted(self.new_targets, 'new target')}, {self.replayed_targets:,} replayed"
        text = (
            f"Trained {counted(self.epochs, 'epoch')} on {targets}; {self.share:.0%} of the new weights were taken"
            if self.epochs
            else f"Training on {targets} did not help"
        )
        if self.before:
            values = (f"{metrics['ndcg@10']:.4f}" for metrics in (self.before, self.after))
            text += "; N@10 of validation users during training {} before, {} now".format(*values)
        return text


def split_of_grown(data: Dataset, earlier: Dataset | None, final: bool, seed: int) -> Dataset:
    """Return a grown Dataset as it is trained on.

    Parameters
    ----------
    data, earlier
        The grown Dataset, and the one from which it grew, if it is known.
    final
        Train on everything, also on what the Dataset holds out for validation and test, except for the last interactions of a tenth
        of the users with new ones, by which training is stopped.
    seed
        Which users these are.
    """
    if not final:
        return data
    lengths = np.diff(data.offsets)
    known = np.zeros_like(lengths)
    if earlier is not None:
        known[: earlier.n_users] = np.diff(earlier.offsets)
    users = np.flatnonzero((lengths > known) & (lengths > 1))
    held_out: NDArray[np.bool_] = np.zeros(len(lengths), dtype=bool)
    held_out[np.random.default_rng(seed).permutation(users)[: round(_HELD_OUT * len(users))]] = True
    return all_in_training(data, held_out)
