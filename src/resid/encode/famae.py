"""FAMAE, the E-stage of ReSID: field embeddings learned by predicting masked fields of the next item from the history.

Section "Field-Aware Masked Auto-Encoding" of the paper. A token is the sum of an item's field embeddings and a position
embedding. The target is the last token; a random subset of its fields is replaced by mask embeddings, and the output h_T at
its position is compared with the embeddings of all candidate values by scaled cosine. The item ID is the first field.

For comparison, ``masking="random"`` masks several positions of the window, as BERT does.
"""

import logging
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal, Self

import numpy as np
import polars as pl
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.core.settings import validated
from resid.data.batches import PADDING, Batch, Batches
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.metrics import embedding_quality
from resid.nn import Dropout, EncoderLayer, FieldTables, check_heads, item_and_fields
from resid.nn.losses import sample_negatives, sampled_softmax_loss
from resid.train import TrainableModule, TrainSettings, best_epoch, train
from resid.train.weights import load_weights, weights_as_arrays

log = logging.getLogger(__name__)

MONITOR = "metric1.ndcg@10"  # selects the best epoch
_RANDOM_MASK_PROB = 0.2  # of positions, with masking="random", as in BERT4Rec
_SCORES_PER_EVALUATION = 5_000_000_000  # windows times items
_ROWS = 4096  # items whose unseen fields are predicted at a time


@validated
class FamaeSettings(TrainSettings):
    """Settings of FAMAE; the recipe ``resid-paper`` has the paper's.

    Parameters
    ----------
    width, layers, heads, ffn_width, dropout
        Of the Transformer.
    n_negatives
        Number of sampled negatives for a vocabulary above `full_softmax_limit`.
    negative_group_size
        Number of consecutive targets that share a set of negatives, so that a step touches few rows of a large table.
    full_softmax_limit
        The largest vocabulary with a full softmax. Larger tables get sparse gradients, so that the cost of a step does not
        grow with them.
    field_weights
        The weights α_k of the loss, the item ID first; all 1 by default.
    masking
        ``"last"`` masks fields of the target, as in the paper; ``"random"`` those of random positions, as in BERT.
    validation_windows
        Maximum number of windows that are evaluated after an epoch, always the same ones; fewer for a catalogue so large
        that it would take more than five billion scores, but at least a thousand.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, max_grad_norm, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    renamed: ClassVar[dict[str, str]] = {
        "hidden": "ffn_width",
        "negatives": "n_negatives",
        "share_negatives": "negative_group_size",
        "full_softmax_up_to": "full_softmax_limit",
    }

    width: Annotated[int, Field(ge=4)] = 128
    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    ffn_width: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    n_negatives: Annotated[int, Field(ge=1)] = 128
    negative_group_size: Annotated[int, Field(ge=1)] = 32
    full_softmax_limit: Annotated[int, Field(ge=1)] = 32_768
    field_weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    masking: Literal["last", "random"] = "last"
    validation_windows: Annotated[int, Field(ge=1)] = 50_000

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)


class FamaeModel(TrainableModule):
    """The network and its loss.

    Parameters
    ----------
    codes
        The field codes of every item, the item ID first, shape (items, J).
    field_sizes
        The vocabulary size of each field by name, the item ID first, length J.
    settings
        See `FamaeSettings`.
    max_length
        Maximum length of a window, including its target.
    """

    def __init__(
        self, codes: NDArray[np.integer], field_sizes: Mapping[str, int], settings: FamaeSettings, max_length: int = 32
    ) -> None:
        super().__init__()
        if settings.field_weights is not None and len(settings.field_weights) != len(field_sizes):
            raise InputError(
                f"field_weights has {len(settings.field_weights)} values; give one for each of {', '.join(field_sizes)}."
            )
        self.settings, self.field_names, self.field_sizes = settings, tuple(field_sizes), tuple(field_sizes.values())
        self.weights = settings.field_weights or (1.0,) * len(self.field_sizes)
        self.sampled = tuple(size > settings.full_softmax_limit for size in self.field_sizes)
        width = settings.width
        self.tables = FieldTables(codes, self.field_sizes, width, self.sampled)
        self.masks = nn.Parameter(torch.empty(len(self.field_sizes), width))  # m_j
        self.positions = nn.Parameter(torch.empty(max_length, width))
        self.dropout = Dropout(settings.dropout)
        self.layers = nn.ModuleList(
            EncoderLayer(width, settings.heads, settings.ffn_width, settings.dropout) for _ in range(settings.layers)
        )
        for parameter in (self.masks, self.positions):
            nn.init.normal_(parameter, std=0.02)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def embeddings(self) -> list[nn.Embedding]:
        """Return the embedding tables of the fields, the item ID first, each of shape (values, width)."""
        return self.tables.embeddings()

    @property
    def codes(self) -> Tensor:
        """The field codes of every item, shape (items, J)."""
        return self.tables.codes

    @property
    def n_fields(self) -> int:
        """J, including the item ID."""
        return len(self.field_sizes)

    def draw_masks(self, count: int, rng: torch.Generator) -> Tensor:
        """Draw the masked fields: K ~ U{1..J}, then a random K-subset. Boolean, shape (count, J)."""
        ranks = torch.rand(count, self.n_fields, generator=rng).argsort(dim=1).argsort(dim=1)
        masked = torch.randint(1, self.n_fields + 1, (count, 1), generator=rng)
        return (ranks < masked).to(self.codes.device)

    def windows(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the histories of a batch, shape (batch, length), and the field codes of its targets, (batch, J)."""
        device = self.codes.device
        return torch.from_numpy(batch.histories).to(device), self.codes[torch.from_numpy(batch.targets).to(device)]

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the loss of a batch and its term for each field; "loss.item" is the item ID."""
        histories, targets = self.windows(batch)
        if self.settings.masking == "random":
            hidden, targets, masked = self.hidden_at_random(histories, targets, rng)
        else:
            masked = self.draw_masks(len(targets), rng)
            hidden = self.hidden(histories, targets, masked)
        return self.loss(hidden, targets, masked, self.draw_negatives(len(targets), rng))

    def hidden(self, histories: Tensor, targets: Tensor, masked: Tensor) -> Tensor:
        """Return h_T, shape (batch, width).

        Parameters
        ----------
        histories
            Item indices, `PADDING` on the left, shape (batch, length).
        targets
            Field codes of the target, shape (batch, J); masked ones are not read.
        masked
            Which fields are masked, boolean, shape (batch, J).
        """
        tokens, attend = self.tokens(histories, targets, masked)
        for layer in self.layers[:-1]:
            tokens = layer(tokens, attend)
        last: Tensor = self.layers[-1](tokens, attend, last_only=True)
        return last[:, 0]

    def attention(self, histories: Tensor, targets: Tensor, masked: Tensor) -> list[Tensor]:
        """Return the target's attention weights in every layer, each of shape (batch, heads, length + 1)."""
        tokens, attend = self.tokens(histories, targets, masked)
        weights = []
        for layer in self.layers:
            weights.append(layer.attention_of_last(tokens, attend))  # type: ignore[operator]
            tokens = layer(tokens, attend)
        return weights

    def hidden_at_random(
        self, histories: Tensor, targets: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Mask fields at random positions, at least one per window.

        Returns
        -------
        hidden, codes, masked
            Of the masked positions: outputs, shape (positions, width), field codes and masked fields, shape (positions, J).
        """
        attend = f.pad(histories != PADDING, (0, 1), value=True)
        codes = torch.cat([self.codes[histories.clamp_min(0)], targets[:, None]], dim=1)  # (batch, length + 1, J)
        chosen = attend & (torch.rand(attend.shape, generator=rng) < _RANDOM_MASK_PROB).to(attend.device)
        chosen[:, -1] |= ~chosen.any(dim=1)
        masked = torch.zeros_like(codes, dtype=torch.bool)
        masked[chosen] = self.draw_masks(int(chosen.sum()), rng)
        tokens = self.add_positions(self.fuse(codes, masked))
        for layer in self.layers:
            tokens = layer(tokens, attend)
        return tokens[chosen], codes[chosen], masked[chosen]

    def tokens(self, histories: Tensor, targets: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
        """Return the input tokens, shape (batch, length + 1, width), and which of them are real."""
        real = histories != PADDING
        items, where = torch.unique(histories[real], return_inverse=True)  # each item is fused once
        vectors = self.tables.vectors(items)
        tokens = vectors.new_zeros(*histories.shape, vectors.shape[1])
        tokens[real] = vectors[where]
        tokens = torch.cat([tokens, self.fuse(targets, masked)[:, None]], dim=1)
        return self.add_positions(tokens), f.pad(real, (0, 1), value=True)

    def fuse(self, codes: Tensor, masked: Tensor) -> Tensor:
        """Return the sum of the field embeddings, with mask embeddings for masked fields; from (..., J) to (..., width)."""
        fused = self.masks.new_zeros(())
        for field, table in enumerate(self.embeddings()):
            hide = masked[..., field]
            vectors = table(codes[..., field].masked_fill(hide, 0))
            fused = fused + torch.where(hide[..., None], self.masks[field], vectors)
        return fused

    def add_positions(self, tokens: Tensor) -> Tensor:
        """Add position embeddings, aligned at the target; shape (batch, length, width)."""
        placed: Tensor = self.dropout(tokens + self.positions[-tokens.shape[1] :])
        return placed

    def draw_negatives(self, count: int, rng: torch.Generator) -> list[Tensor | None]:
        """Draw negatives for a number of targets; None for fields with a full softmax.

        Returns
        -------
        list
            For each field None, or negatives as `sample_negatives` returns them, shape (groups, n_negatives).
        """
        sizes = (self.settings.n_negatives, self.settings.negative_group_size)
        return [
            sample_negatives(count, size, *sizes, rng).to(self.codes.device) if sampled else None
            for size, sampled in zip(self.field_sizes, self.sampled, strict=True)
        ]

    def loss(
        self,
        hidden: Tensor,
        targets: Tensor,
        masked: Tensor,
        negatives: Sequence[Tensor | None],
        units: Sequence[Tensor] | None = None,
    ) -> dict[str, Tensor]:
        """Return Σ_{k masked} α_k · (−log q_k), the mean over the batch, and its terms.

        Parameters
        ----------
        hidden
            h_T, shape (batch, width).
        targets, masked
            Field codes and which are masked, shape (batch, J).
        negatives
            As `draw_negatives` returns them; negatives that equal the target are ignored.
        units
            The normalized rows of the tables, if they are available.
        """
        scale = hidden.shape[1] ** 0.5
        queries = f.normalize(hidden, dim=1) * scale  # the dot product with a unit vector is √d·cos
        terms: dict[str, Tensor] = {}
        for field, table in enumerate(self.embeddings()):
            rows, others = masked[:, field], negatives[field]
            if others is None:
                unit = units[field] if units else f.normalize(table.weight, dim=1)
                logits = queries[rows] @ unit.T
                summed = f.cross_entropy(logits, targets[rows, field], reduction="sum")
            else:
                own, vectors = (f.normalize(table(values), dim=-1) for values in (targets[:, field], others))
                summed = sampled_softmax_loss(queries, targets[:, field], own, vectors, others)[rows].sum()
            terms[f"loss.{self.field_names[field]}"] = summed / len(hidden)
        weighted = [weight * term for weight, term in zip(self.weights, terms.values(), strict=True)]
        return {"loss": torch.stack(weighted).sum(), **terms}


@register("encoder", "famae")
class FAMAE(Encoder):
    """Field-aware masked auto-encoding, the encoder of ReSID.

    Parameters
    ----------
    settings
        See `FamaeSettings`.
    """

    distributed = True
    settings_class = FamaeSettings

    def __init__(self, settings: FamaeSettings | None = None) -> None:
        self.settings = settings or FamaeSettings()

    def check(self, data: Dataset) -> None:
        """Raise an `InputError` if a field is missing for all items; log a warning for constant fields."""
        for column, name in enumerate(data.field_names):
            codes = data.fields[:, column]
            if not codes.any():
                raise InputError(f"the field '{name}' is missing for every item; leave it out.")
            if (codes == codes[0]).all():
                log.warning("the field '%s' has a single value and carries no information; leave it out", name)

    def fit(self, data: Dataset, *, runtime: Runtime | None = None) -> Self:
        """Train on the training windows; early stopping on the validation NDCG@10 of Metric 1.

        Parameters
        ----------
        data
            The Dataset.
        runtime
            Folder, devices, trackers and progress.
        """
        require_dataset(data)
        self.check(data)
        self._build(data.catalogue, *item_and_fields(data), data.train.occurring_items)
        affordable = max(1_000, _SCORES_PER_EVALUATION // data.n_items)
        windows = data.validation.sample(min(self.settings.validation_windows, affordable))
        self.history_ = train(
            self.model_,
            Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed),
            self.settings,
            runtime,
            evaluate=lambda: _flatten(embedding_quality(self.model_, windows)),
            monitor=MONITOR,
            configuration={"model": "famae"},
        )
        self.best_epoch_ = best_epoch(self.history_, MONITOR)
        return self

    def _build(
        self,
        catalogue: Catalogue,
        codes: NDArray[np.integer],
        field_sizes: Mapping[str, int],
        occurring: NDArray[np.bool_],
    ) -> None:
        """Build the network with the random initial weights of the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            self.model_ = FamaeModel(codes, field_sizes, self.settings, catalogue.settings.max_length)
        self.catalogue_ = catalogue
        self.occurring_ = occurring  # items that occur in a training window, shape (items,)

    def embed(self, data: Dataset, *, normalize: bool = False) -> ItemEmbeddings:
        """Return the concatenated field embeddings of every item, the item ID first.

        Values that training never saw have no trained embedding: an item in no training window, a store with such items
        only. They are replaced by the model's prediction from the item's other fields.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        normalize
            Normalize the embedding of every field.
        """
        self._require_data(data)
        vectors = self._represent(self.model_.codes, normalize)
        names, width = self.model_.field_names, self.settings.width
        columns = {name: (field * width, (field + 1) * width) for field, name in enumerate(names)}
        return ItemEmbeddings(vectors, columns, data.fingerprint)

    def embed_new(
        self, items: Any, *, item_column: str = "item", normalize: bool = False
    ) -> tuple[pl.Series, NDArray[np.float32]]:
        """Return embeddings of new items, from their fields; unknown values are predicted from the others.

        Parameters
        ----------
        items, item_column
            See `Encoder.embed_new`.
        normalize
            As for `embed`.
        """
        self._require_fit()
        ids, fields = self.catalogue_.encode_items(items, item_column=item_column)
        codes = torch.from_numpy(np.concatenate([np.full((len(ids), 1), -1), fields], axis=1))
        return ids, self._represent(codes.to(self.model_.codes.device), normalize)

    @torch.no_grad()
    def _represent(self, codes: Tensor, normalize: bool) -> NDArray[np.float32]:
        """Concatenate the embeddings of field codes, shape (items, J), and predict those that training never saw."""
        model = self.model_.eval()
        seen = model.codes[torch.from_numpy(self.occurring_)]
        fields = list(enumerate(model.embeddings()))
        unknown = torch.stack([~torch.isin(codes[:, field], seen[:, field]) for field, _ in fields], dim=1)
        codes = codes.masked_fill(unknown, 0)
        parts = torch.empty(*codes.shape, self.settings.width, device=codes.device)  # (items, J, width)
        for field, table in fields:
            parts[:, field] = table(codes[:, field])
        norms = torch.stack([table(seen[:, field]).norm(dim=1).mean() for field, table in fields])
        incomplete = unknown.any(dim=1).nonzero()[:, 0]
        for first in range(0, len(incomplete), _ROWS):
            rows = incomplete[first : first + _ROWS]
            no_history = torch.empty(len(rows), 0, dtype=torch.int64, device=codes.device)
            predicted = f.normalize(model.hidden(no_history, codes[rows], unknown[rows]), dim=1)
            filled = predicted[:, None] * norms[:, None]
            parts[rows] = torch.where(unknown[rows, :, None], filled, parts[rows])
        if normalize:
            parts /= parts.norm(dim=2, keepdim=True).clamp_min(1e-12)
        vectors: NDArray[np.float32] = parts.flatten(1).cpu().numpy()
        return vectors

    @property
    def ranks_items(self) -> bool:
        """FAMAE ranks items by the masked item ID of the target."""
        return True

    @torch.no_grad()
    def queries(self, histories: Tensor) -> Tensor:
        """See `Encoder.queries`: √d · h_T / ‖h_T‖ with all fields of the target masked."""
        model = self.model_.eval()
        recent = histories[:, -(len(model.positions) - 1) :].to(model.codes.device)
        targets = torch.zeros(len(recent), model.n_fields, dtype=torch.int64, device=recent.device)
        hidden = model.hidden(recent, targets, torch.ones_like(targets, dtype=torch.bool))
        queries: Tensor = f.normalize(hidden, dim=1) * hidden.shape[1] ** 0.5
        return queries

    @torch.no_grad()
    def candidates(self) -> Tensor:
        """See `Encoder.candidates`: the normalized item-ID embeddings."""
        return f.normalize(self.model_.embeddings()[0].weight, dim=1)

    def initial_tables(self) -> dict[str, NDArray[np.float32]]:
        """See `Encoder.initial_tables`."""
        tables = self.model_.embeddings()
        return {n: t.weight.detach().cpu().numpy() for n, t in zip(self.model_.field_names, tables, strict=True)}

    def metrics(self, data: Dataset, split: Literal["validation", "test"] = "test") -> dict[str, Any]:
        """Return Metric 1, Metric 2 and the bound of Proposition 1 on a split; see `embedding_quality`."""
        self._require_data(data)
        return embedding_quality(self.model_, data.windows(split))

    def attention(
        self, data: Dataset, split: Literal["validation", "test"], windows: NDArray[np.int64]
    ) -> list[Tensor]:
        """Return the attention weights of the target with all fields masked.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        split
            The split of the windows.
        windows
            Their indices, shape (windows,).

        Returns
        -------
        list of Tensor
            The weights of every layer, shape (windows, heads, longest history + 1), the target last.
        """
        self._require_data(data)
        batch = Batches(data.windows(split).take(windows), len(windows), shuffle=False).batch(np.arange(len(windows)))
        histories, targets = self.model_.windows(batch)
        with torch.no_grad():
            return self.model_.eval().attention(histories, targets, torch.ones_like(targets, dtype=torch.bool))

    def _pack(self) -> dict[str, Any]:
        self._require_fit()
        facts = {
            "settings": self.settings.to_dict(),
            "catalogue": self.catalogue_.facts(),
            "field_sizes": dict(zip(self.model_.field_names, self.model_.field_sizes, strict=True)),
            "history": self.history_,
            "best_epoch": self.best_epoch_,
        }
        arrays = {
            "codes": self.model_.codes.cpu().numpy().astype(np.int32),
            "counts": self.catalogue_.counts,
            "occurring": self.occurring_,
            **weights_as_arrays(self.model_),
        }
        return {"facts": facts, "arrays": arrays, "tables": {"items": self.catalogue_.items}}

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        facts, arrays = artifact.facts, artifact.arrays
        encoder = cls(FamaeSettings(**facts["settings"]))
        catalogue = Catalogue.from_facts(facts["catalogue"], artifact.tables["items"], arrays["counts"])
        encoder._build(catalogue, arrays["codes"], facts["field_sizes"], arrays["occurring"])
        load_weights(encoder.model_, arrays)
        encoder.history_, encoder.best_epoch_ = facts["history"], facts["best_epoch"]
        return encoder


def _flatten(metrics: dict[str, Any]) -> dict[str, float]:
    """Flatten nested metrics: metric1.recall@10."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
