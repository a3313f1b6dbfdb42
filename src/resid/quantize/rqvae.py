"""RQ-VAE, the tokenizer of TIGER: an auto-encoder whose bottleneck is quantized level by level.

An encoder maps a vector to a short latent one; the nearest entry of a codebook is taken from it, what is left goes to the
next codebook, and so on; a decoder restores the vector from the sum of the entries.
"""

from collections.abc import Sequence
from itertools import pairwise
from numbers import Integral
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from resid.data.batches import VectorBatch, VectorBatches
from resid.core.progress import Progress
from resid.quantize.base import Quantizer
from resid.quantize.points import as_points, check_numbers
from resid.quantize.residual import RQKMeans

_ROWS = 8_192  # vectors that are encoded at a time
_SAMPLE = 20_000  # vectors on which the codebooks are begun


class RQVAEModel(nn.Module):
    """Encoder, codebooks, decoder.

    Parameters
    ----------
    widths
        Of the input, of the hidden layers and of the latent vector.
    n_levels, n_clusters
        How many codebooks, and their entries.
    beta
        Weight of the commitment, which keeps the latent vectors near their entries.
    """

    def __init__(self, widths: Sequence[int], n_levels: int, n_clusters: int, beta: float) -> None:
        super().__init__()
        self.encoder = _perceptron(widths)
        self.decoder = _perceptron(widths[::-1])
        self.codebooks = nn.Parameter(torch.empty(n_levels, n_clusters, widths[-1]))
        self.beta = beta

    def forward(self, batch: VectorBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch: what is not restored, and the distances between residuals and entries."""
        vectors = torch.from_numpy(batch.vectors).to(self.codebooks.device)
        latent = self.encoder(vectors)
        codes = self.quantize(latent.detach())
        residual, restored = latent, torch.zeros_like(latent)
        distance = torch.zeros((), device=latent.device)
        for book, code in zip(self.codebooks, codes.T, strict=True):
            entry = book[code]
            distance = distance + _square(residual.detach() - entry) + self.beta * _square(residual - entry.detach())
            residual, restored = residual - entry.detach(), restored + entry
        through = latent + (restored - latent).detach()  # straight through: the gradient passes as if nothing happened
        reconstruction = _square(vectors - self.decoder(through))
        return {"loss": reconstruction + distance, "reconstruction": reconstruction, "quantization": distance}

    @torch.no_grad()
    def quantize(self, latent: Tensor) -> Tensor:
        """Return the codes of latent vectors, shape (vectors, levels): the nearest entry of what each level leaves."""
        codes = []
        for book in self.codebooks:
            codes.append(torch.cdist(latent, book).argmin(dim=1))
            latent = latent - book[codes[-1]]
        return torch.stack(codes, dim=1)


def _perceptron(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _square(difference: Tensor) -> Tensor:
    return difference.square().sum(dim=1).mean()


class RQVAE(Quantizer):
    """Residual-quantized variational auto-encoder.

    Several items may have the same codes; `SemanticIds.deduplicated` adds a level that tells them apart.

    Parameters
    ----------
    n_levels : int, default=3
    n_clusters : int, default=256
        Codes of every level.
    hidden : sequence of int, default=(512, 256, 128)
        Widths of the encoder's hidden layers; the decoder mirrors them.
    latent : int, default=32
        Width of the latent vector.
    beta : float, default=0.25
        Weight of the commitment.
    epochs : int, default=1000
        At most so many passes over the vectors, rounded up to a multiple of `check_every`.
    check_every : int, default=20
        After so many passes, collisions are counted; the weights with the fewest are kept.
    patience : int, default=5
        It has converged when so many counts in a row were no better.
    batch_size : int, default=2048
    learning_rate, weight_decay : float
        Of AdamW; cosine over all epochs.
    folder : path or None, default=None
        Where checkpoints and metrics go; a run that was interrupted there continues. None takes a temporary folder.
    progress : Progress or None, default=None
        Shows epochs and steps.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
    level_sizes_ : tuple of int
    model_ : RQVAEModel
    history_ : list of dict
        Losses and ``distinct``, the share of different IDs among the items, count by count.
    n_iter_ : int
        Passes over the vectors.
    n_features_in_ : int
    """

    def __init__(
        self,
        n_levels: int = 3,
        n_clusters: int = 256,
        *,
        hidden: Sequence[int] = (512, 256, 128),
        latent: int = 32,
        beta: float = 0.25,
        epochs: int = 1000,
        check_every: int = 20,
        patience: int = 5,
        batch_size: int = 2048,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        folder: str | Path | None = None,
        progress: Progress | None = None,
        random_state: Any = None,
    ) -> None:
        self.n_levels = n_levels
        self.n_clusters = n_clusters
        self.hidden = hidden
        self.latent = latent
        self.beta = beta
        self.epochs = epochs
        self.check_every = check_every
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.folder = folder
        self.progress = progress
        self.random_state = random_state

    def fit(self, X: Any, y: None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Train on X, shape (n_samples, n_features), and give every row its codes."""
        from resid.train import TrainSettings, train  # a second and 100 MB that other quantizers do without

        vectors = as_points(self, X, reset=True)
        self._check(len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            widths = (vectors.shape[1], *self.hidden, self.latent)
            self.model_ = RQVAEModel(widths, self.n_levels, self.n_clusters, self.beta)
        self._begin_codebooks(vectors, seed)
        every = min(self.check_every, self.epochs)
        batches = VectorBatches(vectors.cpu().numpy(), self.batch_size, seed=seed, passes=every)
        settings = TrainSettings(
            epochs=-(-self.epochs // every),
            batch_size=self.batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=self.patience,
            seed=seed,
        )
        self.history_ = train(
            self.model_,
            batches,
            settings,
            self.folder,
            evaluate=lambda: {"distinct": _distinct_share(self._encode(vectors))},
            monitor="distinct",
            configuration={
                "model": "rqvae",
                "widths": list(widths),
                "codebooks": [self.n_levels, self.n_clusters],
                "beta": self.beta,
            },
            progress=self.progress,
        )
        self.codes_ = self._encode(vectors)
        self.level_sizes_ = (self.n_clusters,) * self.n_levels
        self.n_iter_ = len(self.history_) * every
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the codes of vectors, shape (n_samples, n_levels)."""
        check_is_fitted(self)
        return self._encode(as_points(self, X, reset=False))

    def _check(self, items: int) -> None:
        check_numbers(self, n_levels=1, n_clusters=1, latent=1, epochs=1, check_every=1, patience=1, batch_size=1)
        check_numbers(self, beta=0.0, learning_rate=1e-30, weight_decay=0.0)
        widths = self.hidden if isinstance(self.hidden, Sequence | np.ndarray) else (0,)
        if any(not isinstance(width, Integral) or width < 1 for width in widths):
            raise ValueError(f"hidden={self.hidden!r} cannot be used; it must be whole numbers of at least 1.")
        if items < self.n_clusters:
            raise ValueError(f"n_samples={items} should be >= n_clusters={self.n_clusters}: ask for fewer.")

    @torch.no_grad()
    def _begin_codebooks(self, vectors: Tensor, seed: int) -> None:
        """Take the first codebooks from k-means of what the untrained encoder makes of a sample."""
        rows = np.random.default_rng([seed, 1]).permutation(len(vectors))[:_SAMPLE]
        latent = self.model_.encoder(vectors[torch.from_numpy(rows)].cpu())
        found = RQKMeans(self.n_levels, self.n_clusters, max_iter=20, random_state=seed).fit(latent)
        self.model_.codebooks.copy_(torch.from_numpy(np.stack(found.codebooks_)))

    @torch.no_grad()
    def _encode(self, vectors: Tensor) -> NDArray[np.int32]:
        model = self.model_
        device = model.codebooks.device
        parts = [model.quantize(model.encoder(part.to(device))) for part in torch.split(vectors, _ROWS)]
        return torch.cat(parts).to(torch.int32).cpu().numpy()


def _distinct_share(codes: NDArray[np.int32]) -> float:
    """Return the share of different IDs among the items."""
    return len(np.unique(codes, axis=0)) / len(codes)
