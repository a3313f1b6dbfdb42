"""DIN, the behavior encoder of EAGER: item embeddings learned by scoring the next item with a deep interest network.

Zhou et al., "Deep Interest Network for Click-Through Rate Prediction", KDD 2018. An attention unit compares a candidate with
every item of the history; the weighted items are summed in windows, from the oldest to the most recent, and a multilayer
perceptron scores the candidate. The embedding of an item is its row in the item table.

`DINNetwork` scores candidates given any item vectors; `DINModel` trains it with a table of its own, and a subclass may make the
vectors in another way (`item_vectors`).
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import PADDING, Batch, Batches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.splits import Split
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.settings import DINSettings
from resid.evaluate.metrics import ranking_metrics
from resid.nn import Dropout
from resid.nn.losses import sample_negatives
from resid.train import TrainableModule, best_epoch, train
from resid.train.weights import load_weights, weights_as_arrays

MONITOR = "ndcg@10"  # selects the best epoch
_SPARSE_ITEMS = 32_768  # a larger item table has sparse gradients
_MAX_PAIRS = 2**18  # of candidates and history items, scored at a time in validation


class Dice(nn.Module):
    """The activation of DIN: a leaky ReLU whose kink is smooth and lies at the mean of the batch; shape (rows, width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(width, affine=False)
        self.slope = nn.Parameter(torch.zeros(width))

    def forward(self, values: Tensor) -> Tensor:
        """Return ``gate · values + (1 - gate) · slope · values``, where the gate is the sigmoid of the normalized values."""
        activated: Tensor = _Gate.apply(values, self.norm(values), self.slope)  # type: ignore[no-untyped-call]
        return activated


class _Gate(torch.autograd.Function):
    """The gate of Dice with a hand-written gradient: most of a step's time is passes over these values."""

    @staticmethod
    def forward(context: Any, values: Tensor, normed: Tensor, slope: Tensor) -> Tensor:
        gate = normed.sigmoid()
        context.save_for_backward(values, gate, slope)
        return torch.addcmul(slope, gate, 1 - slope).mul_(values)

    @staticmethod
    @once_differentiable
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        values, gate, slope = context.saved_tensors
        closed = (gradients[0] * values).mul_(1 - gate)
        slope_grad = closed.sum(dim=0)
        normed_grad = closed.mul_(gate).mul_(1 - slope)
        return torch.addcmul(slope, gate, 1 - slope).mul_(gradients[0]), normed_grad, slope_grad


class DINNetwork(nn.Module):
    """Scores candidates after histories, both given as vectors.

    Parameters
    ----------
    item_width
        Dimension d of the item vectors.
    settings
        See `DINSettings`.
    max_history
        Maximum length of a history.

    Notes
    -----
    The first layer of the attention unit reads [q, b, q - b, q ⊙ b] of candidate q and history item b. Its four blocks of
    weights are applied to q, b and their product, so that the first two cost nothing per pair. The first layer of the
    perceptron is linear in the windows' sums, and is applied to the history items before they are weighted and summed.
    """

    window_of_slot: Tensor

    def __init__(self, item_width: int, settings: DINSettings, max_history: int) -> None:
        super().__init__()
        attention, mlp = (*settings.attention_widths, 1), (*settings.mlp_widths, 1)
        windows = len(settings.windows)
        self.attention_input = nn.Linear(4 * item_width, attention[0])
        self.attention = _hidden_layers(attention, 0.0)
        self.mlp_input = nn.Linear((windows + 1) * item_width, mlp[0])
        self.mlp = _hidden_layers(mlp, settings.dropout)
        slots = np.repeat(np.arange(windows), settings.windows)[-max_history:]
        slots = np.pad(slots, (max_history - len(slots), 0), mode="edge")  # older items belong to the first window
        self.register_buffer("window_of_slot", torch.from_numpy(slots), persistent=False)

    def forward(self, candidates: Tensor, history: Tensor, real: Tensor) -> Tensor:
        """Return the scores of candidates.

        Parameters
        ----------
        candidates
            Vectors, shape (users, candidates, d).
        history
            Vectors of the history, most recent last, shape (users, length, d).
        real
            False where the history is padding, shape (users, length).

        Returns
        -------
        Tensor
            Shape (users, candidates).
        """
        weights = self.attention_weights(candidates, history, real)  # (users, length, candidates)
        weight, width = self.mlp_input.weight, history.shape[2]
        blocks = weight.view(len(weight), -1, width)  # (hidden, windows and candidate, d)
        by_slot = blocks[:, self.window_of_slot[-history.shape[1] :]].movedim(0, 2)  # (length, d, hidden)
        projected = (history.transpose(0, 1) @ by_slot).transpose(0, 1)  # (users, length, hidden)
        hidden = weights.mT @ projected + f.linear(candidates, blocks[:, -1], self.mlp_input.bias)
        scores: Tensor = self.mlp(hidden.flatten(0, 1))
        return scores.view(hidden.shape[:2])

    def attention_weights(self, candidates: Tensor, history: Tensor, real: Tensor) -> Tensor:
        """Return the weight of every history item for every candidate, 0 for padding; shape (users, length, candidates)."""
        weight = self.attention_input.weight
        query, item, difference, product = weight.view(len(weight), 4, -1).unbind(dim=1)  # (hidden, d) each
        by_item = (history[:, :, None] * product).flatten(1, 2)  # (users, length · hidden, d)
        hidden = candidates @ by_item.mT
        hidden = hidden.view(*hidden.shape[:2], history.shape[1], -1)  # (users, candidates, length, hidden)
        hidden = hidden + f.linear(candidates, query + difference)[:, :, None]
        hidden = hidden + f.linear(history, item - difference, self.attention_input.bias)[:, None]
        rows = hidden.transpose(1, 2)[real]  # without padding, which must not count in the statistics of Dice
        values: Tensor = self.attention(rows.flatten(0, 1)).view(rows.shape[:2])
        weights = values.new_zeros(*real.shape, candidates.shape[1])
        weights[real] = values
        return weights


def _hidden_layers(widths: Sequence[int], dropout: float) -> nn.Sequential:
    """Return activations and linear layers from the first width, which another layer returns, to the last; shape (rows, width)."""
    layers: list[nn.Module] = []
    for width, following in pairwise(widths):
        layers += [Dice(width), Dropout(dropout), nn.Linear(width, following)]
    return nn.Sequential(*layers)


class DINModel(TrainableModule):
    """A table of item vectors, `DINNetwork`, and the loss of the next item; a subclass may define other `item_vectors`.

    Parameters
    ----------
    n_items
        Size of the catalogue.
    settings
        See `DINSettings`.
    max_history
        Maximum length of a history.
    item_width
        Dimension of what `item_vectors` returns; by default that of the table.
    """

    def __init__(self, n_items: int, settings: DINSettings, max_history: int, item_width: int | None = None) -> None:
        super().__init__()
        self.settings, self.n_items = settings, n_items
        self.table = nn.Embedding(n_items, settings.width, sparse=n_items > _SPARSE_ITEMS)
        nn.init.normal_(self.table.weight, std=settings.width**-0.5)
        self.network = DINNetwork(item_width or settings.width, settings, max_history)

    def item_vectors(self, items: Tensor) -> Tensor:
        """Return the vectors of different items, shape (items,) to (items, d)."""
        vectors: Tensor = self.table(items)
        return vectors

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the mean sampled-softmax loss of the targets."""
        device = self.table.weight.device
        histories, targets = (torch.from_numpy(part).to(device) for part in (batch.histories, batch.targets))
        negatives = sample_negatives(len(targets), self.n_items, self.settings.n_negatives, 1, rng).to(device)
        scores = self.scores(histories, torch.cat([targets[:, None], negatives], dim=1))
        return {"loss": corrected_loss(scores, targets, negatives, self.n_items).mean()}

    def scores(self, histories: Tensor, candidates: Tensor) -> Tensor:
        """Return the scores of candidates, shape (users, candidates), after histories with `PADDING`, shape (users, length)."""
        items, place = torch.unique(torch.cat([histories.clamp_min(0), candidates], dim=1), return_inverse=True)
        vectors = f.embedding(place, self.item_vectors(items))  # every item is made, and its gradient summed, once
        length = histories.shape[1]
        found: Tensor = self.network(vectors[:, length:], vectors[:, :length], histories != PADDING)
        return found


def corrected_loss(scores: Tensor, targets: Tensor, negatives: Tensor, n_items: int) -> Tensor:
    """Return the cross-entropy of every target among itself and its uniform negatives with log-Q correction, shape (users,).

    The expected number of draws of an item, n_negatives / n_items, divides its share in the softmax: its logarithm is
    subtracted from the scores of negatives, so that the denominator estimates that of the full softmax without bias. The target
    is there with certainty. Negatives that are the target do not count.

    Parameters
    ----------
    scores
        Of the target, then of the negatives; shape (users, 1 + n_negatives).
    targets, negatives
        Item indices, shapes (users,) and (users, n_negatives).
    n_items
        Size of the catalogue.
    """
    log_expected = math.log(negatives.shape[1] / n_items)
    others = (scores[:, 1:] - log_expected).masked_fill(negatives == targets[:, None], -torch.inf)
    return torch.cat([scores[:, :1], others], dim=1).logsumexp(dim=1) - scores[:, 0]


@torch.inference_mode()
def validation_metrics(model: DINModel, windows: Split) -> dict[str, float]:
    """Return the ranking metrics of the targets of windows among the settings' `validation_candidates`."""
    model.eval()
    device, count = model.table.weight.device, min(model.n_items, model.settings.validation_candidates)
    chosen = np.random.default_rng(0).choice(model.n_items, count, replace=False)
    shared, ranks = torch.from_numpy(chosen).to(device), []
    longest = max(1, int((windows.end - windows.begin).max(initial=1)))
    for batch in Batches(windows, max(1, _MAX_PAIRS // (count * longest)), shuffle=False):
        histories, targets = (torch.from_numpy(part).to(device) for part in (batch.histories, batch.targets))
        scores = model.scores(histories, torch.cat([targets[:, None], shared.expand(len(targets), -1)], dim=1))
        better = (scores[:, 1:] > scores[:, :1]) & (shared != targets[:, None])
        ranks.append(better.sum(dim=1).cpu().numpy())
    return ranking_metrics(np.concatenate(ranks))


def train_din(
    model: DINModel, data: Dataset, settings: DINSettings, runtime: Runtime | None, configuration: dict[str, Any]
) -> list[dict[str, Any]]:
    """Train on the training windows; early stopping on `validation_metrics`. Return the metrics of every epoch."""
    windows = data.validation.sample(settings.validation_users)
    return train(
        model,
        Batches(data.train, settings.batch_size_for(len(data.train)), seed=settings.seed),
        settings,
        runtime,
        evaluate=lambda: validation_metrics(model, windows),
        monitor=MONITOR,
        monitor_title="validation NDCG@10",
        configuration=configuration,
    )


@register("encoder", "din")
class DINEncoder(Encoder):
    """The item table of a deep interest network, the behavior vectors of EAGER.

    Parameters
    ----------
    settings
        See `DINSettings`.
    """

    distributed = True
    settings_class = DINSettings
    settings: DINSettings

    def __init__(self, settings: DINSettings | None = None) -> None:
        self.settings = settings or DINSettings()

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Train on the training windows; early stopping on the NDCG@10 of validation users among sampled candidates."""
        require_dataset(data)
        self._build(data.catalogue)
        self.history_ = train_din(self.model_, data, self.settings, runtime, {"model": self.kind})
        self.best_epoch_ = best_epoch(self.history_, MONITOR)
        return self

    def _build(self, catalogue: Catalogue) -> None:
        """Build the network with the random initial weights of the seed."""
        self.catalogue_ = catalogue
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            self.model_ = DINModel(len(catalogue), self.settings, catalogue.max_history)

    def embed(self, data: Dataset) -> ItemEmbeddings:
        """See `Encoder.embed`: the rows of the item table."""
        self._require_data(data)
        return ItemEmbeddings(self.item_vectors(), {"item": (0, self.settings.width)}, data.fingerprint)

    def item_vectors(self) -> NDArray[np.float32]:
        """See `Encoder.item_vectors`."""
        vectors: NDArray[np.float32] = self.model_.table.weight.detach().cpu().numpy()
        return vectors

    def _pack(self) -> dict[str, Any]:
        return self._packed(arrays=weights_as_arrays(self.model_))

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        encoder = cls._unpacked(artifact)
        encoder._build(encoder.catalogue_)
        load_weights(encoder.model_, artifact.arrays)
        return encoder
