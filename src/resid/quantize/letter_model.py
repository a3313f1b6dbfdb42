"""The network of LETTER's tokenizer: an RQ-VAE with a collaborative and a diversity loss; see `resid.quantize.letter`."""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
import torch.nn.functional as f
from torch import Tensor

from resid.data.batches import VectorBatch
from resid.quantize.kmeans import balanced_kmeans
from resid.quantize.rqvae import RQVAEModel, straight_through
from resid.quantize.sinkhorn import sinkhorn_codes

_GROUP_STARTS, _GROUP_ITERATIONS = 10, 10  # of the clustering of a codebook


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
    scores, ordered = quantized @ collaborative.T, items.sort().values
    if (ordered[1:] == ordered[:-1]).any():
        scores = scores.masked_fill((items[:, None] == items).fill_diagonal_(False), -torch.inf)
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
    steps_per_pass
        Number of batches after which the codebooks are clustered again.
    """

    collaborative: Tensor | None

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
        input_scale: float = 1.0,
        collaborative: Tensor | None = None,
        steps_per_pass: int = 1,
    ) -> None:
        super().__init__(widths, n_levels, codebook_size, commitment_weight, input_scale=input_scale)
        self.collaborative_weight, self.diversity_weight = collaborative_weight, diversity_weight
        self.n_groups, self.steps_per_pass = n_groups, steps_per_pass
        self.step, self.groups = 0, CodeGroups(torch.zeros(n_levels, codebook_size, dtype=torch.long))
        self.register_buffer("collaborative", collaborative, persistent=False)

    def forward(self, batch: VectorBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch and its terms, each before its weight."""
        device = self.codebooks.device
        vectors = torch.from_numpy(batch.vectors).to(device) * self.input_scale
        latent = self.encoder(vectors)
        self._restart_dead_codes(latent.detach(), rng)
        self._begin_step(rng)
        codes = self.assign(latent.detach())
        residuals, entries = zip(*self.levels(latent, codes), strict=True)
        quantized = straight_through(latent, torch.stack(entries).sum(dim=0))
        terms = {
            "reconstruction": f.mse_loss(self.decoder(quantized), vectors),
            "quantization": self._quantization(residuals, entries),
            "diversity": self._diversity(codes, rng),
        }
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
        """Cluster the codebooks at the beginning of every pass."""
        if self.step % self.steps_per_pass == 0 and self.codebooks.shape[1] > 1:
            seed = int(torch.randint(2**31, (), generator=rng))
            self.groups = group_codes(self.codebooks, self.n_groups, seed)
        self.step += 1

    def extra_state(self) -> dict[str, Tensor]:
        """Return also the clusters, which come from earlier weights, and the number of steps."""
        return {**super().extra_state(), "groups": self.groups.labels, "step": torch.tensor(self.step)}

    def load_extra_state(self, state: Mapping[str, Tensor]) -> None:
        """See `TrainableModule.load_extra_state`."""
        super().load_extra_state(state)
        self.groups, self.step = CodeGroups(state["groups"].to(self.codebooks.device)), int(state["step"])
