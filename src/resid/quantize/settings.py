"""The settings of quantizers: the arguments of their constructors, with `seed` for `random_state`.

They are written out here so that recipes are read without scikit-learn and torch. A quantizer without an entry gets its settings
from its constructor; a test compares the two.
"""

from typing import ClassVar, Literal

from resid.core.registry import settings_for
from resid.core.settings import Seed, Settings, validated


@settings_for("quantizer", "gaoq")
@validated
class GAOQSettings(Settings):
    """Settings of `GAOQ`."""

    added: ClassVar[tuple[str, ...]] = ("spare",)

    branching: tuple[int, ...] | Literal["auto"] = "auto"
    anchors: tuple[int, ...] | None = None
    align_last: bool = True
    spare: float = 0.0
    max_iter: int = 100
    tol: float = 1e-4
    seed: Seed = 0


@settings_for("quantizer", "hierarchical")
@validated
class HierarchicalKMeansSettings(Settings):
    """Settings of `HierarchicalKMeans`."""

    added: ClassVar[tuple[str, ...]] = ("spare",)

    branching: tuple[int, ...] | int | Literal["k-ary", "auto"] = "auto"
    spare: float = 0.0
    max_iter: int = 100
    tol: float = 1e-4
    seed: Seed = 0


@settings_for("quantizer", "rq-kmeans")
@validated
class RQKMeansSettings(Settings):
    """Settings of `RQKMeans`."""

    renamed: ClassVar[dict[str, str]] = {"levels": "n_levels", "codes": "codebook_size", "n_clusters": "codebook_size"}

    n_levels: int = 3
    codebook_size: int | Literal["auto"] = "auto"
    balanced: bool = False
    collisions: Literal["deduplicate", "keep"] = "deduplicate"
    max_iter: int = 100
    seed: Seed = 0


@settings_for("quantizer", "rq-vae")
@validated
class RQVAESettings(Settings):
    """Settings of `RQVAE`."""

    renamed: ClassVar[dict[str, str]] = {
        "levels": "n_levels",
        "codes": "codebook_size",
        "n_clusters": "codebook_size",
        "hidden": "hidden_layer_sizes",
        "latent": "latent_dim",
        "beta": "commitment_weight",
        "check_every": "evaluate_every",
    }

    n_levels: int = 3
    codebook_size: int | Literal["auto"] = "auto"
    hidden_layer_sizes: tuple[int, ...] = (512, 256, 128)
    latent_dim: int = 32
    commitment_weight: float = 0.25
    collisions: Literal["deduplicate", "keep"] = "deduplicate"
    epochs: int = 1000
    evaluate_every: int = 20
    patience: int = 5
    batch_size: int = 2048
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    seed: Seed = 0


@settings_for("quantizer", "letter")
@validated
class LETTERSettings(Settings):
    """Settings of `LETTER`."""

    renamed: ClassVar[dict[str, str]] = RQVAESettings.renamed

    n_levels: int = 4
    codebook_size: int | Literal["auto"] = "auto"
    hidden_layer_sizes: tuple[int, ...] = (2048, 1024, 512, 256, 128, 64)
    latent_dim: int = 32
    commitment_weight: float = 0.25
    collaborative_weight: float = 0.02
    diversity_weight: float = 1e-4
    n_groups: int = 10
    collisions: Literal["deduplicate", "keep"] = "keep"
    epochs: int = 100
    evaluate_every: int = 10
    batch_size: int = 1024
    learning_rate: float = 1e-3
    weight_decay: float = 1e-4
    seed: Seed = 0
