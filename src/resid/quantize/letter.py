"""The tokenizer of LETTER: an RQ-VAE whose codes also carry collaborative information and use the codebooks evenly.

Wang et al., "Learnable Item Tokenization for Generative Recommendation", CIKM 2024. To the losses of an RQ-VAE, it adds

- the collaborative loss: the quantized vector of an item must match the item's vector of a sequential recommender better than
  those of the other items of the batch;
- the diversity loss: the entries of a codebook are clustered once per pass over the items, and an entry is pulled towards
  another one of its cluster and pushed away from the rest.

In training, the last level is assigned by Sinkhorn's algorithm, so that a batch uses all codes. After training, items with
the same codes are separated at the last level, as far as possible.
"""

import hashlib
from typing import Any, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_array
from torch import Tensor

from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.quantize.cluster_tree import members_of
from resid.quantize.ids import SemanticIds
from resid.quantize.letter_model import LETTERModel
from resid.quantize.points import LARGEST, as_points, check_numbers
from resid.quantize.rqvae import RQVAE, unit_scale
from resid.quantize.settings import LETTERSettings
from resid.quantize.sinkhorn import sinkhorn_codes

_REPAIR_ROUNDS = 20


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
        Losses, and what `codebook_usage` returns for the codes before repair.
    n_iter_ : int
        Number of passes over the vectors.
    n_features_in_ : int

    Notes
    -----
    Vectors and collaborative vectors are scaled to a mean square of 1, so that the weights of the losses do not depend on the
    encoders. As in `RQVAE`, entries that no vector uses for long are moved, and a codebook that collapses is reported.
    """

    settings_class = LETTERSettings
    monitor = ""  # repair removes most collisions, so their number does not select the weights
    further_inputs = ("collaborative",)
    trainable_further = False  # repair gives some items codes that are not the nearest
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
        self._check_items(len(vectors))
        return self._fit(
            vectors,
            runtime,
            collaborative=None if collaborative is None else self._check_collaborative(collaborative, X, len(vectors)),
            steps_per_pass=round(len(vectors) / self._batch_size(len(vectors))),
        )

    def _batch_size(self, n_items: int) -> int:
        """Return the number of items in a batch; they differ, but at the boundary of two passes."""
        return min(self.batch_size, n_items)

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
        return dense * unit_scale(dense)

    def _check_items(self, n_items: int) -> None:
        check_numbers(self, n_groups=1, collaborative_weight=0.0, diversity_weight=0.0)
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
