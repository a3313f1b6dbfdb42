"""The tokenizer of LETTER: an RQ-VAE whose codes also carry collaborative information and use the codebooks evenly.

Wang et al., "Learnable Item Tokenization for Generative Recommendation", CIKM 2024. To the losses of an RQ-VAE, it adds

- the collaborative loss: the quantized vector of an item must match the item's vector of a sequential recommender better than
  those of the other items of the batch;
- the diversity loss: the entries of a codebook are clustered once per pass over the items, and an entry is pulled towards
  another one of its cluster and pushed away from the rest.

In training, the last level is assigned by Sinkhorn's algorithm, so that a batch uses all codes. After training, items with
the same codes are separated at the last level, as far as possible.

The codebooks start as balanced clusters of the latent vectors. An untrained encoder of seven layers changes its output much
faster than codebooks can follow, and most codes are never used again; so the autoencoder is first trained without them.
"""

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor, nn

from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import VectorBatch
from resid.quantize.cluster_tree import members_of
from resid.quantize.ids import SemanticIds
from resid.quantize.kmeans import balanced_kmeans
from resid.quantize.points import LARGEST, as_points, check_numbers
from resid.quantize.rqvae import RQVAE, RQVAEModel, sample_of, straight_through
from resid.quantize.sinkhorn import sinkhorn_codes

_GROUP_STARTS, _GROUP_ITERATIONS = 10, 10  # of the clustering of a codebook
_REPAIR_ROUNDS = 20


class CodeGroups:
    """Clusters of the entries of every codebook, from which the diversity loss draws its positives.

    Parameters
    ----------
    labels
        The cluster of every entry, shape (levels, codebook_size); every cluster has at least two entries.
    """

    def __init__(self, labels: Tensor) -> None:
        self.labels = labels
        levels, size = labels.shape
        self.order = labels.argsort(dim=1, stable=True)  # entries by cluster
        counts = f.one_hot(labels).sum(dim=1)  # (levels, clusters)
        starts = counts.cumsum(dim=1) - counts
        self.others = counts.gather(1, labels) - 1  # how many other entries are in the cluster of an entry
        self.first = starts.gather(1, labels)  # where the cluster begins in `order`
        places = torch.arange(size, device=labels.device).expand(levels, -1)
        self.place = torch.empty_like(labels).scatter_(1, self.order, places) - self.first

    def positives(self, codes: Tensor, draws: Tensor) -> Tensor:
        """Return another entry of the cluster of each code, shape (vectors, levels).

        Parameters
        ----------
        codes
            Shape (vectors, levels).
        draws
            Numbers in [0, 1) that select among the other entries in ascending order, shape (vectors, levels).
        """
        others, first, place = (table.gather(1, codes.T) for table in (self.others, self.first, self.place))
        chosen = torch.minimum((draws.T * others).long(), others - 1)
        chosen = chosen + (chosen >= place)  # the code itself is skipped
        return self.order.gather(1, first + chosen).T


def group_codes(codebooks: Tensor, n_groups: int, seed: int) -> CodeGroups:
    """Cluster the entries of every codebook into groups of equal size; at most half as many groups as entries.

    Parameters
    ----------
    codebooks
        Shape (levels, codebook_size, latent_dim).
    n_groups
        Number of clusters.
    seed
        Of the initialization.
    """
    levels, size, _ = codebooks.shape
    points = codebooks.detach().float().repeat_interleave(_GROUP_STARTS, dim=0)
    seeds = [[seed, problem] for problem in range(len(points))]
    found = balanced_kmeans(points, min(n_groups, size // 2), seeds, max_iter=_GROUP_ITERATIONS)
    best = found.inertia.reshape(levels, _GROUP_STARTS).argmin(axis=1) + np.arange(levels) * _GROUP_STARTS
    return CodeGroups(torch.from_numpy(found.labels[best]).long().to(codebooks.device))


def collaborative_loss(quantized: Tensor, collaborative: Tensor, items: Tensor) -> Tensor:
    """Return the mean cross-entropy of an item's collaborative vector among those of the batch (InfoNCE).

    Parameters
    ----------
    quantized, collaborative
        Shape (batch, latent_dim); the score of a pair is its dot product.
    items
        The item of every row, shape (batch,): another row with the same item is not a negative.
    """
    same = (items[:, None] == items).fill_diagonal_(False)
    scores = (quantized @ collaborative.T).masked_fill(same, -torch.inf)
    return f.cross_entropy(scores, torch.arange(len(items), device=items.device))


def diversity_loss(book: Tensor, codes: Tensor, positives: Tensor) -> Tensor:
    """Return the mean cross-entropy of the positive among all other entries of a codebook, scored by dot products.

    Items with the same code share their scores, so these are computed once per entry and not once per item.

    Parameters
    ----------
    book
        Shape (codebook_size, latent_dim).
    codes, positives
        The code of every item, and another one of its cluster; shape (batch,).
    """
    own = torch.eye(len(book), dtype=torch.bool, device=book.device)
    log_probs = (book @ book.T).masked_fill(own, -torch.inf).log_softmax(dim=1)
    return -log_probs[codes, positives].mean()


class LETTERModel(RQVAEModel):
    """Encoder, codebooks and decoder; see `RQVAEModel` for the first parameters.

    Parameters
    ----------
    collaborative_weight, diversity_weight
        Of the two further losses.
    n_groups
        Number of clusters of a codebook.
    collaborative
        Collaborative vectors of all items, shape (items, latent_dim); None leaves the collaborative loss out.
    mean, scale
        The input is shifted and scaled to a mean of 0, shape (d,), and a mean square of 1.
    steps_per_pass
        Number of batches after which the codebooks are clustered again.
    warmup_steps
        Number of batches before the codebooks are initialized.
    sample
        The vectors from which they are initialized, shape (vectors, d).
    """

    mean: Tensor
    scale: Tensor
    collaborative: Tensor | None
    sample: Tensor

    def __init__(
        self,
        widths: Sequence[int],
        n_levels: int,
        codebook_size: int,
        commitment_weight: float,
        collaborative_weight: float,
        diversity_weight: float,
        n_groups: int,
        *,
        collaborative: Tensor | None = None,
        mean: Tensor | None = None,
        scale: float = 1.0,
        steps_per_pass: int = 1,
        warmup_steps: int = 0,
        sample: Tensor | None = None,
    ) -> None:
        super().__init__(widths, n_levels, codebook_size, commitment_weight)
        self.collaborative_weight, self.diversity_weight = collaborative_weight, diversity_weight
        self.n_groups, self.steps_per_pass, self.warmup_steps = n_groups, steps_per_pass, warmup_steps
        self.step, self.groups = 0, CodeGroups(torch.zeros(n_levels, codebook_size, dtype=torch.long))
        self.register_buffer("mean", torch.zeros(widths[0]) if mean is None else mean)
        self.register_buffer("scale", torch.tensor(scale))
        self.register_buffer("collaborative", collaborative, persistent=False)
        self.register_buffer("sample", sample, persistent=False)
        nn.init.zeros_(self.codebooks)
        for layer in (*self.encoder, *self.decoder):
            if isinstance(layer, nn.Linear):
                nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
                nn.init.zeros_(layer.bias)

    def encode(self, vectors: Tensor) -> Tensor:
        """Return the latent vectors of vectors."""
        return super().encode(self.standardize(vectors))

    def standardize(self, vectors: Tensor) -> Tensor:
        """Return vectors with a mean of 0 and a mean square of 1."""
        return (vectors - self.mean) * self.scale

    def forward(self, batch: VectorBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch and its terms, each before its weight; two of them before the codebooks are there."""
        device = self.codebooks.device
        self._begin_step(rng)
        vectors = torch.from_numpy(batch.vectors).to(device)
        latent = self.encode(vectors)
        terms, quantized = {}, latent
        if self.step > self.warmup_steps:
            codes = self.assign(latent.detach())
            residuals, entries = zip(*self.levels(latent, codes), strict=True)
            quantized = straight_through(latent, torch.stack(entries).sum(dim=0))
            terms["quantization"] = self._quantization(residuals, entries)
            terms["diversity"] = self._diversity(codes, rng)
        terms["reconstruction"] = f.mse_loss(self.decoder(quantized), self.standardize(vectors))
        if self.collaborative is not None:
            items = torch.from_numpy(batch.index).to(device)
            terms["collaborative"] = collaborative_loss(quantized, self.collaborative[items], items)
        weights = {"diversity": self.diversity_weight, "collaborative": self.collaborative_weight}
        loss = torch.stack([weights.get(name, 1.0) * term for name, term in terms.items()]).sum()
        return {"loss": loss, **terms}

    def _quantization(self, residuals: Sequence[Tensor], entries: Sequence[Tensor]) -> Tensor:
        """Return the mean over levels of the distance to the codebook entry and the commitment loss."""
        losses = [
            f.mse_loss(entry, residual.detach()) + self.commitment_weight * f.mse_loss(residual, entry.detach())
            for residual, entry in zip(residuals, entries, strict=True)
        ]
        return torch.stack(losses).mean()

    def _diversity(self, codes: Tensor, rng: torch.Generator) -> Tensor:
        """Return the mean over levels of the diversity loss; 0 for codebooks of one entry."""
        if self.codebooks.shape[1] < 2:
            return torch.zeros((), device=codes.device)
        positives = self.groups.positives(codes, torch.rand(codes.shape, generator=rng).to(codes.device))
        losses = [diversity_loss(*level) for level in zip(self.codebooks, codes.T, positives.T, strict=True)]
        return torch.stack(losses).mean()

    @torch.no_grad()
    def assign(self, latent: Tensor) -> Tensor:
        """Return the codes in training, shape (vectors, levels): the nearest entries, at the last level by Sinkhorn."""
        codes = self.quantize(latent)
        codes[:, -1] = sinkhorn_codes(self.last_distances(latent, codes)[None])[0]
        return codes

    @torch.no_grad()
    def last_distances(self, latent: Tensor, codes: Tensor) -> Tensor:
        """Return the squared distances to the entries of the last level, shape (vectors, codebook_size)."""
        *_, (residual, _) = self.levels(latent, codes)
        return torch.cdist(residual, self.codebooks[-1]).square()

    def _begin_step(self, rng: torch.Generator) -> None:
        """Initialize the codebooks after the warm-up, and cluster them at the beginning of every pass since then."""
        step = self.step - self.warmup_steps
        if step >= 0 and step % self.steps_per_pass == 0:
            seed = int(torch.randint(2**31, (), generator=rng))
            if step == 0 and self.sample is not None:
                self.initialize_codebooks(self.sample, seed, balanced=True)
            if self.codebooks.shape[1] > 1:
                self.groups = group_codes(self.codebooks, self.n_groups, seed)
        self.step += 1

    def extra_state(self) -> dict[str, Tensor]:
        """Return the clusters, which come from earlier weights, and the number of steps."""
        return {"groups": self.groups.labels, "step": torch.tensor(self.step)}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """See `TrainableModule.load_extra_state`."""
        self.groups, self.step = CodeGroups(state["groups"].to(self.codebooks.device)), int(state["step"])


@register("quantizer", "letter")
class LETTER(RQVAE):
    """Learnable tokenizer with collaborative and diversity losses.

    Parameters
    ----------
    n_levels : int, default=4
    codebook_size : int or "auto", default="auto"
        Number of codes of every level; ``"auto"`` is 256, or a quarter of the items if that is less.
    hidden_layer_sizes : tuple of int, default=(2048, 1024, 512, 256, 128, 64)
        Of the encoder; the decoder mirrors them.
    latent_dim : int, default=32
        Dimension of the latent vector, and of the collaborative vectors.
    commitment_weight : float, default=0.25
        Weight of the commitment loss.
    collaborative_weight : float, default=0.02
        Weight α of the collaborative loss.
    diversity_weight : float, default=1e-4
        Weight β of the diversity loss.
    n_groups : int, default=10
        Number of clusters of the entries of a codebook.
    collisions : {"keep", "deduplicate"}, default="keep"
        What happens to items that still have the same codes after repair. ``"keep"``: they share an ID.
        ``"deduplicate"`` adds a level to `semantic_ids_` that numbers them, so that IDs are unique.
    epochs : int, default=100
        Number of passes over the vectors, rounded up to a multiple of `evaluate_every`.
    warmup_epochs : int, default=20
        Number of these passes that train the autoencoder without codebooks, before these are initialized.
    evaluate_every : int, default=10
        Passes between two counts of the collisions.
    batch_size : int, default=1024
    learning_rate : float, default=1e-3
        Of AdamW, with cosine decay over all epochs.
    weight_decay : float, default=1e-4
        Of AdamW.
    random_state : int, RandomState instance or None, default=None

    Attributes
    ----------
    codes_ : ndarray of int32, shape (n_samples, n_levels)
    level_sizes_ : tuple of int
    model_ : LETTERModel
    history_ : list of dict
        Losses, and ``distinct``, the share of distinct codes among the items before repair.
    n_iter_ : int
        Number of passes over the vectors.
    n_features_in_ : int

    Notes
    -----
    Vectors are standardized and collaborative vectors scaled to a mean square of 1, so that the weights of the losses do not
    depend on the encoders.
    """

    monitor = ""  # the initial codebooks, balanced clusters of all items, have the fewest collisions
    further_inputs = ("collaborative",)
    model_: LETTERModel

    def __init__(
        self,
        n_levels: int = 4,
        codebook_size: int | Literal["auto"] = "auto",
        *,
        hidden_layer_sizes: tuple[int, ...] = (2048, 1024, 512, 256, 128, 64),
        latent_dim: int = 32,
        commitment_weight: float = 0.25,
        collaborative_weight: float = 0.02,
        diversity_weight: float = 1e-4,
        n_groups: int = 10,
        collisions: Literal["deduplicate", "keep"] = "keep",
        epochs: int = 100,
        warmup_epochs: int = 20,
        evaluate_every: int = 10,
        batch_size: int = 1024,
        learning_rate: float = 1e-3,
        weight_decay: float = 1e-4,
        random_state: Any = None,
    ) -> None:
        super().__init__(
            n_levels,
            codebook_size,
            hidden_layer_sizes=hidden_layer_sizes,
            latent_dim=latent_dim,
            commitment_weight=commitment_weight,
            collisions=collisions,
            epochs=epochs,
            evaluate_every=evaluate_every,
            batch_size=batch_size,
            learning_rate=learning_rate,
            weight_decay=weight_decay,
            random_state=random_state,
        )
        self.collaborative_weight = collaborative_weight
        self.diversity_weight = diversity_weight
        self.n_groups = n_groups
        self.warmup_epochs = warmup_epochs

    def fit(
        self,
        X: Any,  # noqa: N803 - scikit-learn's name
        y: None = None,
        *,
        collaborative: Any = None,
        runtime: Runtime | None = None,
    ) -> Self:
        """Train on X, shape (n_samples, n_features), and give every row its codes.

        Parameters
        ----------
        X
            The vectors.
        y
            Ignored.
        collaborative
            Item vectors of a recommender, shape (n_samples, latent_dim), in the order of X. Without them, the collaborative
            loss is left out. They are needed in training only.
        runtime
            Folder, devices, trackers and progress of the training.
        """
        vectors = as_points(self, X, reset=True)
        return self._fit(
            vectors,
            runtime,
            collaborative=None if collaborative is None else self._check_collaborative(collaborative, X, len(vectors)),
            mean=vectors.mean(dim=0).cpu(),
            scale=float(_unit_scale(vectors - vectors.mean(dim=0))),
            steps_per_pass=(steps := -(-len(vectors) // self.batch_size)),
            warmup_steps=min(self.warmup_epochs, self.epochs - 1) * steps,
        )

    def _initialize_codebooks(self, vectors: Tensor, seed: int) -> None:
        """Give the network what it initializes its codebooks from, after the warm-up."""
        self.model_.sample = sample_of(vectors, seed)

    def _check_collaborative(self, collaborative: Any, vectors: Any, n_items: int) -> Tensor:
        """Return the collaborative vectors, scaled; raise a ValueError if they do not match the vectors."""
        given, own = (getattr(each, "fingerprint", None) for each in (collaborative, vectors))
        if given is not None and own is not None and given != own:
            raise ValueError("collaborative has the vectors of another Dataset than X: encode both again.")
        found = check_array(np.asarray(collaborative), dtype=np.float32, input_name="collaborative")
        if np.abs(found).max() > LARGEST:
            raise ValueError(f"collaborative has values beyond {LARGEST:g}, whose squares overflow; scale it.")
        if len(found) != n_items:
            raise ValueError(f"collaborative has {len(found):,} rows for {n_items:,} items: give one vector per item.")
        if found.shape[1] != self.latent_dim:
            raise ValueError(
                f"collaborative has {found.shape[1]} dimensions and latent_dim={self.latent_dim}: they must be equal, set "
                "latent_dim or the width of the encoder."
            )
        dense = torch.from_numpy(found)
        return dense * _unit_scale(dense)

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, n_groups=1, warmup_epochs=0, collaborative_weight=0.0, diversity_weight=0.0)
        super()._check_items(n_items)

    def _network(self, codebook_size: int, **inputs: Any) -> LETTERModel:
        weights = (self.commitment_weight, self.collaborative_weight, self.diversity_weight)
        return LETTERModel(self._widths(), self.n_levels, codebook_size, *weights, self.n_groups, **inputs)

    def _configuration(self, codebook_size: int) -> dict[str, Any]:
        vectors = self.model_.collaborative
        return super()._configuration(codebook_size) | {
            "collaborative_weight": self.collaborative_weight,
            "diversity_weight": self.diversity_weight,
            "n_groups": self.n_groups,
            "warmup_steps": self.model_.warmup_steps,
            "collaborative": None if vectors is None else hashlib.sha256(vectors.cpu().numpy().data).hexdigest()[:16],
        }

    def transform(self, X: Any) -> NDArray[np.int32]:  # noqa: N803
        """Return the nearest codes, shape (n_samples, n_levels); fitted rows have their own, which may be repaired."""
        codes = super().transform(X)
        return self._own_codes(as_points(self, X, reset=False), codes)

    @torch.no_grad()
    def _final_codes(self, vectors: Tensor) -> NDArray[np.int32]:
        """Return the codes of the fitted vectors after repair.

        In each round, the last code of items with the same codes is assigned again, by Sinkhorn's algorithm within each group
        of such items. Equal vectors cannot be told apart, so their items may stay together.
        """
        codes, model = self._encode(vectors), self.model_
        device, size = model.codebooks.device, self._codebook_size(len(vectors))
        for _ in range(_REPAIR_ROUNDS):
            ids = SemanticIds(codes)
            nodes = ids.node_of(ids.levels)
            shared = np.flatnonzero(np.bincount(nodes) > 1)
            if not len(shared):
                break
            for _, members in members_of(nodes, shared, 4 * size):
                rows = torch.from_numpy(members).clamp_min(0).flatten()  # padding is row 0
                latent = model.encode(vectors[rows].to(device))
                distances = model.last_distances(latent, torch.from_numpy(codes[rows]).long().to(device))
                real = members >= 0
                problems = distances.view(*members.shape, -1)
                found = sinkhorn_codes(problems, torch.from_numpy(real).to(device)).cpu().numpy()
                codes[members[real], -1] = found[real]
        return codes


def _unit_scale(vectors: Tensor) -> Tensor:
    """Return the factor that brings the mean square of vectors to 1; 1 for zeros."""
    mean_square = vectors.square().mean()
    return torch.where(mean_square > 0, mean_square.rsqrt(), 1.0)
