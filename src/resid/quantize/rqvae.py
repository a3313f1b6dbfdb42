"""RQ-VAE, the tokenizer of TIGER: an autoencoder whose bottleneck is quantized level by level.

An encoder maps a vector to a latent vector; the nearest entry of the first codebook is subtracted from it, the residual is
quantized by the next codebook, and so on; a decoder reconstructs the vector from the sum of the entries.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from numbers import Integral
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import VectorBatch, VectorBatches
from resid.quantize.base import ResidualQuantizer
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.residual import RQKMeans
from resid.train import TrainableModule, TrainSettings, train
from resid.train.weights import load_weights, weights_as_arrays

_ROWS = 8_192  # vectors that are encoded at a time
_SAMPLE = 20_000  # vectors from which the codebooks are initialized


class RQVAEModel(TrainableModule):
    """Encoder, codebooks and decoder.

    Parameters
    ----------
    widths
        Of the input, the hidden layers and the latent vector.
    n_levels, codebook_size
        Number and size of the codebooks.
    commitment_weight
        Weight β of the commitment loss, which keeps latent vectors close to their codebook entries.
    """

    def __init__(self, widths: Sequence[int], n_levels: int, codebook_size: int, commitment_weight: float) -> None:
        super().__init__()
        self.encoder = _mlp(widths)
        self.decoder = _mlp(widths[::-1])
        self.codebooks = nn.Parameter(torch.empty(n_levels, codebook_size, widths[-1]))
        self.commitment_weight = commitment_weight

    def forward(self, batch: VectorBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the reconstruction and the quantization loss of a batch."""
        vectors = torch.from_numpy(batch.vectors).to(self.codebooks.device)
        latent = self.encode(vectors)
        quantized, quantization = torch.zeros_like(latent), torch.zeros((), device=latent.device)
        for residual, entry in self.levels(latent, self.quantize(latent.detach())):
            commitment = self.commitment_weight * _squared_error(residual - entry.detach())
            quantization = quantization + _squared_error(residual.detach() - entry) + commitment
            quantized = quantized + entry
        reconstruction = _squared_error(vectors - self.decoder(straight_through(latent, quantized)))
        return {
            "loss": reconstruction + quantization,
            "reconstruction": reconstruction,
            "quantization": quantization,
        }

    def encode(self, vectors: Tensor) -> Tensor:
        """Return the latent vectors of vectors."""
        latent: Tensor = self.encoder(vectors)
        return latent

    def levels(self, latent: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is left of latent vectors before each level, and the entries of their codes.

        Both have the shape (vectors, latent_dim). No gradient of the residuals reaches the codebooks.
        """
        residual = latent
        for book, code in zip(self.codebooks, codes.T, strict=True):
            entry = book[code]
            yield residual, entry
            residual = residual - entry.detach()

    @torch.no_grad()
    def initialize_codebooks(self, vectors: Tensor, seed: int, *, balanced: bool = False) -> None:
        """Initialize the codebooks by residual k-means, plain or with balanced clusters, on the latent vectors of vectors."""
        levels, size, _ = self.codebooks.shape
        latent = self.encode(vectors.to(self.codebooks.device)).float().cpu()
        found = RQKMeans(levels, size, balanced=balanced, max_iter=20, random_state=seed).fit(latent)
        self.codebooks.copy_(torch.from_numpy(np.stack(found.codebooks_)))

    @torch.no_grad()
    def quantize(self, latent: Tensor) -> Tensor:
        """Return the codes of latent vectors, shape (vectors, levels): the nearest entry to the residual of each level."""
        codes = []
        for book in self.codebooks:
            codes.append(torch.cdist(latent, book).argmin(dim=1))
            latent = latent - book[codes[-1]]
        return torch.stack(codes, dim=1)


def straight_through(latent: Tensor, quantized: Tensor) -> Tensor:
    """Return quantized vectors whose gradient goes to the latent vectors."""
    return latent + (quantized - latent).detach()


def sample_of(vectors: Tensor, seed: int) -> Tensor:
    """Return the vectors from which codebooks are initialized, in random order."""
    rows = np.random.default_rng([seed, 1]).permutation(len(vectors))[:_SAMPLE]
    return vectors[torch.from_numpy(rows)].cpu()


def _mlp(widths: Sequence[int]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for first, second in pairwise(widths):
        layers += [nn.Linear(first, second), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _squared_error(difference: Tensor) -> Tensor:
    return difference.square().sum(dim=1).mean()


@register("quantizer", "rq-vae")
class RQVAE(ResidualQuantizer):
    """Residual-quantized variational autoencoder.

    Parameters
    ----------
    n_levels : int, default=3
    codebook_size : int or "auto", default="auto"
        Number of codes of every level; ``"auto"`` is 256, or a quarter of the items if that is less.
    hidden_layer_sizes : tuple of int, default=(512, 256, 128)
        Of the encoder; the decoder mirrors them.
    latent_dim : int, default=32
        Dimension of the latent vector.
    commitment_weight : float, default=0.25
        Weight β of the commitment loss.
    collisions : {"deduplicate", "keep"}, default="deduplicate"
        ``"deduplicate"`` adds a level to `semantic_ids_` that numbers the items with the same codes, so that IDs are unique.
    epochs : int, default=1000
        Maximum number of passes over the vectors, rounded up to a multiple of `evaluate_every`.
    evaluate_every : int, default=20
        Passes between two counts of the collisions; the weights with the fewest collisions are kept.
    patience : int, default=5
        Number of counts without improvement after which training stops.
    batch_size : int, default=2048
    learning_rate : float, default=1e-3
        Of AdamW, with cosine decay over all epochs.
    weight_decay : float, default=1e-4
        Of AdamW.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
    level_sizes_ : tuple of int
    model_ : RQVAEModel
    history_ : list of dict
        Losses, and ``distinct``, the share of distinct codes among the items.
    n_iter_ : int
        Number of passes over the vectors.
    n_features_in_ : int
    """

    renamed: ClassVar[dict[str, str]] = {
        "levels": "n_levels",
        "codes": "codebook_size",
        "n_clusters": "codebook_size",
        "hidden": "hidden_layer_sizes",
        "latent": "latent_dim",
        "beta": "commitment_weight",
        "check_every": "evaluate_every",
    }

    monitor: ClassVar[str] = "distinct"  # selects the weights that are kept; without it, the last ones are

    def __init__(
        self,
        n_levels: int = 3,
        codebook_size: int | Literal["auto"] = "auto",
        *,
        hidden_layer_sizes: tuple[int, ...] = (512, 256, 128),
        latent_dim: int = 32,
        commitment_weight: float = 0.25,
        collisions: Literal["deduplicate", "keep"] = "deduplicate",
        epochs: int = 1000,
        evaluate_every: int = 20,
        patience: int = 5,
        batch_size: int = 2048,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        self.n_levels = n_levels
        self.codebook_size = codebook_size
        self.hidden_layer_sizes = hidden_layer_sizes
        self.latent_dim = latent_dim
        self.commitment_weight = commitment_weight
        self.collisions = collisions
        self.epochs = epochs
        self.evaluate_every = evaluate_every
        self.patience = patience
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.random_state = random_state

    def fit(self, X: Any, y: None = None, *, runtime: Runtime | None = None) -> Self:  # noqa: N803 - scikit-learn's name
        """Train on X, shape (n_samples, n_features), and give every row its codes.

        Parameters
        ----------
        X
            The vectors.
        y
            Ignored.
        runtime
            Folder, devices, trackers and progress of the training.
        """
        return self._fit(as_points(self, X, reset=True), runtime)

    def _fit(self, vectors: Tensor, runtime: Runtime | None, **inputs: Any) -> Self:
        """Train on vectors; `inputs` are what the network of a subclass reads besides them."""
        self._check_items(len(vectors))
        size = self._codebook_size(len(vectors))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            self.model_ = self._network(size, **inputs)
        self._initialize_codebooks(vectors, seed)
        every = min(self.evaluate_every, self.epochs)
        settings = TrainSettings(
            epochs=-(-self.epochs // every),
            batch_size=self._batch_size(len(vectors)),
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=self.patience,
            seed=seed,
        )
        self.history_ = train(
            self.model_,
            VectorBatches(vectors.cpu().numpy(), settings.batch_size, seed=seed, passes=every),
            settings,
            runtime,
            evaluate=lambda: {"distinct": _distinct_share(self._encode(vectors))},
            monitor=self.monitor,
            configuration=self._configuration(size),
        )
        self.codes_ = self._final_codes(vectors)
        self.level_sizes_ = (size,) * self.n_levels
        self.n_iter_ = len(self.history_) * every
        self._known = KnownRows(vectors)
        return self

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the codes of vectors, shape (n_samples, n_levels)."""
        check_is_fitted(self)
        return self._encode(as_points(self, X, reset=False))

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, n_levels=1, latent_dim=1, epochs=1, evaluate_every=1, patience=1, batch_size=1)
        check_numbers(self, commitment_weight=0.0, learning_rate=1e-30, weight_decay=0.0)
        sizes = self.hidden_layer_sizes if isinstance(self.hidden_layer_sizes, Sequence | np.ndarray) else (0,)
        if any(not isinstance(width, Integral) or width < 1 for width in sizes):
            raise ValueError(f"hidden_layer_sizes={self.hidden_layer_sizes!r} is invalid; use positive integers.")
        super()._check_items(n_items)

    def _batch_size(self, n_items: int) -> int:
        """Return the number of vectors in a batch."""
        return self.batch_size

    def _configuration(self, codebook_size: int) -> dict[str, Any]:
        """Return what identifies a training besides the vectors and the settings of the loop."""
        return {
            "model": self.kind,
            "hidden_layer_sizes": list(self.hidden_layer_sizes),
            "latent_dim": self.latent_dim,
            "codebooks": [self.n_levels, codebook_size],
            "commitment_weight": self.commitment_weight,
        }

    def _network(self, codebook_size: int, **inputs: Any) -> RQVAEModel:
        return RQVAEModel(self._widths(), self.n_levels, codebook_size, self.commitment_weight)

    def _widths(self) -> tuple[int, ...]:
        return (self.n_features_in_, *self.hidden_layer_sizes, self.latent_dim)

    def _initialize_codebooks(self, vectors: Tensor, seed: int) -> None:
        """Initialize the codebooks before training."""
        self.model_.initialize_codebooks(sample_of(vectors, seed), seed)

    def _final_codes(self, vectors: Tensor) -> NDArray[np.int32]:
        """Return the codes of the fitted vectors."""
        return self._encode(vectors)

    @torch.no_grad()
    def _encode(self, vectors: Tensor) -> NDArray[np.int32]:
        model = self.model_
        device = model.codebooks.device
        parts = [model.quantize(model.encode(part.to(device))) for part in torch.split(vectors, _ROWS)]
        return torch.cat(parts).to(torch.int32).cpu().numpy()

    def _pack(self) -> dict[str, Any]:
        content = super()._pack()
        facts = {**content["facts"], "history": self.history_}
        return {"facts": facts, "arrays": {**content["arrays"], **weights_as_arrays(self.model_)}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        quantizer = super()._unpack(artifact)
        quantizer.history_ = artifact.facts["history"]
        quantizer.model_ = quantizer._network(quantizer.level_sizes_[0])
        load_weights(quantizer.model_, artifact.arrays)
        return quantizer


def _distinct_share(codes: NDArray[np.int32]) -> float:
    """Return the share of distinct rows."""
    return len(np.unique(codes, axis=0)) / len(codes)
