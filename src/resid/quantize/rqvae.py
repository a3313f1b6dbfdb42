"""RQ-VAE, the tokenizer of TIGER: an autoencoder whose bottleneck is quantized level by level.

An encoder maps a vector to a latent vector; the nearest entry of the first codebook is subtracted from it, the residual is
quantized by the next codebook, and so on; a decoder reconstructs the vector from the sum of the entries.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
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
from resid.core.settings import Settings
from resid.data.batches import VectorBatch, VectorBatches
from resid.quantize.base import ResidualQuantizer
from resid.quantize.points import KnownRows, as_points, check_numbers
from resid.quantize.quality import entropy_bits
from resid.quantize.residual import RQKMeans
from resid.quantize.settings import RQVAESettings
from resid.train import TrainableModule, TrainSettings, train
from resid.train.weights import load_weights, weights_as_arrays

log = logging.getLogger(__name__)

_ROWS = 8_192  # vectors that are encoded at a time
_SAMPLE = 20_000  # vectors from which the codebooks are initialized
_IDLE = 8  # an entry is moved after this many vectors per code without being used
_COLLAPSED = 0.2  # a codebook of which a smaller share is effectively used has collapsed


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
    input_scale
        Factor of the input, which brings its mean square to 1.
    """

    input_scale: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        n_levels: int,
        codebook_size: int,
        commitment_weight: float,
        *,
        input_scale: float = 1.0,
    ) -> None:
        super().__init__()
        self.encoder = _mlp(widths)
        self.decoder = _mlp(widths[::-1])
        self.codebooks = nn.Parameter(torch.empty(n_levels, codebook_size, widths[-1]))
        self.commitment_weight = commitment_weight
        self.register_buffer("input_scale", torch.tensor(input_scale))
        self.idle = torch.zeros(n_levels, codebook_size)  # vectors since an entry was used

    def forward(self, batch: VectorBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the reconstruction and the quantization loss of a batch."""
        vectors = torch.from_numpy(batch.vectors).to(self.codebooks.device) * self.input_scale
        latent = self.encoder(vectors)
        self._restart_dead_codes(latent.detach(), rng)
        reconstructed, quantization = self.reconstruct(latent)
        reconstruction = _squared_error(vectors - reconstructed)
        return {
            "loss": reconstruction + quantization,
            "reconstruction": reconstruction,
            "quantization": quantization,
        }

    def reconstruct(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Return what the decoder makes of quantized latent vectors, shape (vectors, d), and the quantization loss."""
        codes = self.quantize(latent.detach())
        quantized, quantization = torch.zeros_like(latent), torch.zeros((), device=latent.device)
        for residual, entry in self.levels(latent, codes):
            commitment = self.commitment_weight * _squared_error(residual - entry.detach())
            quantization = quantization + _squared_error(residual.detach() - entry) + commitment
            quantized = quantized + entry
        return self.decoder(straight_through(latent, quantized)), quantization

    def levels(self, latent: Tensor, codes: Tensor) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield what is left of latent vectors before each level, and the entries of their codes.

        Both have the shape (vectors, latent_dim). No gradient of the residuals reaches the codebooks.
        """
        residual = latent
        for book, code in zip(self.codebooks, codes.T, strict=True):
            entry = book[code]
            yield residual, entry
            residual = residual - entry.detach()

    def encode(self, vectors: Tensor) -> Tensor:
        """Return the latent vectors of vectors that are not scaled yet."""
        latent: Tensor = self.encoder(vectors * self.input_scale)
        return latent

    @torch.no_grad()
    def initialize_codebooks(self, vectors: Tensor, seed: int) -> None:
        """Initialize the codebooks by residual k-means on the latent vectors of the untrained encoder."""
        levels, size, _ = self.codebooks.shape
        found = RQKMeans(levels, size, max_iter=20, random_state=seed).fit(self.encode(vectors))
        self.codebooks.copy_(torch.from_numpy(np.stack(found.codebooks_)))

    @torch.no_grad()
    def _restart_dead_codes(self, latent: Tensor, rng: torch.Generator) -> None:
        """Move entries that have not been used for long to random residuals of the batch.

        An entry that is no vector's nearest gets no gradient, so it would stay unused while the latent vectors move on.
        """
        residual, size = latent, self.codebooks.shape[1]
        self.idle = self.idle.to(latent.device)
        for book, idle in zip(self.codebooks, self.idle, strict=True):
            codes = torch.cdist(residual, book).argmin(dim=1)
            used = torch.bincount(codes, minlength=size) > 0
            idle.copy_(torch.where(used, 0, idle + len(latent)))
            entries = book[codes]
            dead = (idle > _IDLE * size).nonzero()[:, 0]
            rows = torch.randint(len(latent), (len(dead),), generator=rng)
            book[dead] = residual[rows.to(latent.device)].to(book.dtype)  # residuals may be of half precision
            idle[dead] = 0
            residual = residual - entries

    def extra_state(self) -> dict[str, Tensor]:
        """Return for how long entries have not been used."""
        return {"idle": self.idle}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """See `TrainableModule.load_extra_state`."""
        self.idle = state["idle"].to(self.codebooks.device)

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
        Losses, and what `codebook_usage` returns: the share of distinct codes, perplexity and dead codes of every level.
    n_iter_ : int
        Number of passes over the vectors.
    n_features_in_ : int

    Notes
    -----
    So that codebooks are used as a whole, they are initialized by k-means, vectors are scaled to a mean square of 1, and
    entries that no vector uses for long are moved to residuals of the batch. A codebook that collapses nevertheless is
    reported by a warning.
    """

    settings_class: ClassVar[type[Settings]] = RQVAESettings
    trainable_further = True
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
            self.model_ = self._network(size, input_scale=float(unit_scale(vectors)), **inputs)
        rows = np.random.default_rng([seed, 1]).permutation(len(vectors))[:_SAMPLE]
        self.model_.initialize_codebooks(vectors[torch.from_numpy(rows)].cpu(), seed)
        every, batch_size = min(self.evaluate_every, self.epochs), self._batch_size(len(vectors))
        settings = TrainSettings(
            epochs=-(-self.epochs // every),
            batch_size=batch_size,
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            patience=self.patience,
            seed=seed,
        )
        self.history_ = train(
            self.model_,
            VectorBatches(vectors.cpu().numpy(), batch_size, seed=seed, passes=every),
            settings,
            runtime,
            evaluate=lambda: codebook_usage(self._encode(vectors), size),
            monitor=self.monitor,
            monitor_title="share of distinct IDs",
            configuration=self._configuration(size),
        )
        self.codes_ = self._final_codes(vectors)
        self.level_sizes_ = (size,) * self.n_levels
        self.n_iter_ = len(self.history_) * every
        self._known = KnownRows(vectors)
        _warn_of_collapse(self.codes_, size)
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
        return RQVAEModel(self._widths(), self.n_levels, codebook_size, self.commitment_weight, **inputs)

    def _widths(self) -> tuple[int, ...]:
        return (self.n_features_in_, *self.hidden_layer_sizes, self.latent_dim)

    def _final_codes(self, vectors: Tensor) -> NDArray[np.int32]:
        """Return the codes of the fitted vectors."""
        return self._encode(vectors)

    @torch.no_grad()
    def _encode(self, vectors: Tensor) -> NDArray[np.int32]:
        model = self.model_
        device = model.codebooks.device
        parts = [model.quantize(model.encode(part.to(device))) for part in torch.split(vectors, _ROWS)]
        return torch.cat(parts).to(torch.int32).cpu().numpy()

    @torch.no_grad()
    def _last_distances(self, vectors: Tensor, codes: NDArray[np.int32]) -> NDArray[np.float32]:
        """See `ResidualQuantizer._last_distances`."""
        books = self.model_.codebooks
        residual = self.model_.encode(vectors.to(books.device))
        for level, book in enumerate(books[:-1]):
            residual = residual - book[torch.from_numpy(codes[:, level]).long()]
        return torch.cdist(residual, books[-1]).cpu().numpy()

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


def codebook_usage(codes: NDArray[np.int32], size: int) -> dict[str, float]:
    """Return how codes use their codebooks.

    Parameters
    ----------
    codes
        Shape (items, levels).
    size
        Number of codes of a level.

    Returns
    -------
    dict
        ``distinct``, the share of distinct rows; ``perplexity.L``, the number of codes that level L effectively uses, and
        ``dead.L``, the number of codes that it does not use at all.
    """
    found = {"distinct": len(np.unique(codes, axis=0)) / len(codes)}
    for level, column in enumerate(codes.T, 1):
        counts = np.bincount(column, minlength=size)
        found |= {f"perplexity.{level}": 2 ** entropy_bits(counts), f"dead.{level}": int((counts == 0).sum())}
    return found


def _warn_of_collapse(codes: NDArray[np.int32], size: int) -> None:
    """Log a warning for every level that effectively uses a small share of its codebook."""
    usage = codebook_usage(codes, size)
    for level in range(1, codes.shape[1] + 1):
        if usage[f"perplexity.{level}"] < _COLLAPSED * size:
            log.warning(
                "the codebook of level %d has collapsed: it effectively uses %.1f of %d codes, %d have no item; train for more "
                "epochs, use a smaller codebook_size, or quantizer.kind=rq-kmeans",
                level,
                usage[f"perplexity.{level}"],
                size,
                usage[f"dead.{level}"],
            )


def unit_scale(vectors: Tensor) -> Tensor:
    """Return the factor that brings the mean square of vectors to 1; 1 for zeros."""
    mean_square = vectors.square().mean()
    return torch.where(mean_square > 0, mean_square.rsqrt(), 1.0)
