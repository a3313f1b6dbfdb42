"""FAMAE, the E-stage of ReSID: field embeddings learned by predicting masked fields of the next item from the history.

The network and its loss are in `resid.encode.famae_model`.
"""

import logging
from collections.abc import Mapping
from typing import Any, Literal, Self

import numpy as np
import polars as pl
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor

from resid.core.artifact import Artifact
from resid.core.errors import InputError
from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import PADDING, Batches, SequenceBatches, long_pieces
from resid.data.catalogue import Catalogue
from resid.data.dataset import Dataset, require_dataset
from resid.data.new_items import NewItems
from resid.encode.base import Encoder
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.famae_model import FamaeModel
from resid.encode.metrics import embedding_quality
from resid.encode.settings import FamaeSettings
from resid.nn import is_value, item_and_fields, with_item_ids
from resid.train import best_epoch, train
from resid.train.weights import load_weights, weight_name, weights_as_arrays

log = logging.getLogger(__name__)

MONITOR = "metric1.ndcg@10"  # selects the best epoch
_SCORES_PER_EVALUATION = 5_000_000_000  # windows times items
_ROWS = 4096  # items whose unseen fields are predicted at a time
_SIMILAR_LENGTHS = 64  # histories, sorted by length, that are encoded at a time


@register("encoder", "famae")
class FAMAE(Encoder):
    """Field-aware masked auto-encoding, the encoder of ReSID.

    Parameters
    ----------
    settings
        See `FamaeSettings`.
    """

    distributed = True
    has_metrics = True
    settings_class = FamaeSettings
    settings: FamaeSettings

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
        batches = self.batches(data)
        rate = self.settings.learning_rate_for(batches.batch_size)
        warmup = min(self.settings.warmup_steps, self.settings.epochs * len(batches) // 10)
        self.history_ = train(
            self.model_,
            batches,
            self.settings.replace(learning_rate=rate, warmup_steps=warmup),
            runtime,
            evaluate=lambda: _flatten(embedding_quality(self.model_, windows)),
            monitor=MONITOR,
            monitor_title="validation NDCG@10 with all fields masked",
            configuration={"model": "famae"},
        )
        self.best_epoch_ = best_epoch(self.history_, MONITOR)
        return self

    def batches(self, data: Dataset) -> Batches | SequenceBatches:
        """Return what the network is trained on: whole histories, or windows if attention is bidirectional."""
        size, seed = self.settings.batch_size_for(len(data.train)), self.settings.seed
        if self.settings.attention == "bidirectional":
            return Batches(data.train, size, seed=seed)
        return long_pieces(data.train, size, data.settings.max_length, seed)

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
        vectors = self.item_vectors(normalize=normalize)[: data.n_items]  # without those that were added
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
        return ids, self._embed_fields(fields, normalize)

    def _embed_fields(self, fields: NDArray[np.int64], normalize: bool = False) -> NDArray[np.float32]:
        codes = torch.from_numpy(with_item_ids(np.full(len(fields), -1), fields))
        return self._represent(codes.to(self.model_.codes.device), normalize)

    def embed_listed(self, new: NewItems) -> NDArray[np.float32]:
        """See `Encoder.embed_listed`."""
        return self._embed_fields(new.codes)

    def item_vectors(self, *, normalize: bool = False) -> NDArray[np.float32]:
        """See `Encoder.item_vectors`."""
        self._require_fit()
        return self._represent(self.model_.codes, normalize)

    def grow(self, new: NewItems, vectors: NDArray[np.float32]) -> Artifact:
        """See `Encoder.grow`: an item ID gets the embedding that is predicted from the fields."""
        artifact, sizes = self.to_artifact(), dict(self.to_artifact().facts["field_sizes"])
        sizes[self.model_.field_names[0]] += len(new)
        table = weight_name(self.model_, self.model_.embeddings()[0].weight)
        return new.grow(
            artifact,
            appended={table: vectors[:, : self.settings.width], "occurring": np.zeros(len(new), dtype=bool)},
            arrays={"codes": new.append_codes(artifact.arrays["codes"])},
            facts={"field_sizes": sizes},
        )

    @torch.no_grad()
    def _represent(self, codes: Tensor, normalize: bool) -> NDArray[np.float32]:
        """Concatenate the embeddings of field codes, shape (items, J), and predict those that training never saw.

        Of tags, those that training saw count; if there are none, the field is predicted.
        """
        model = self.model_.eval()
        tables, fields = model.tables, range(model.n_fields)
        seen = model.codes[torch.from_numpy(self.occurring_)]
        if codes.ndim == 2:
            known = torch.stack([torch.isin(codes[:, field], seen[:, field]) for field in fields], dim=1)
            codes = codes.masked_fill(~known, 0)
        else:
            values = [seen[:, field][is_value(seen[:, field])] for field in fields]
            which = torch.stack([torch.isin(codes[:, field], values[field]) for field in fields], dim=1) & is_value(
                codes
            )
            # Those that are known come first; the order of tags does not matter.
            codes, known = codes.masked_fill(~which, 0).sort(dim=2, descending=True).values, which.any(dim=2)
        unknown = ~known
        parts = torch.empty(*unknown.shape, self.settings.width, device=codes.device)  # (items, J, width)
        for field in fields:
            parts[:, field] = tables.part(field, codes)
        norms = torch.stack([tables.part(field, seen).norm(dim=1).mean() for field in fields])
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
        recent = histories[:, -(model.max_length - 1) :].to(model.codes.device)
        lengths = (recent != PADDING).sum(dim=1)
        queries = torch.empty(len(recent), self.settings.width, device=recent.device)
        for rows in torch.split(lengths.argsort(stable=True), _SIMILAR_LENGTHS):  # so that little padding is encoded
            some = recent[rows, recent.shape[1] - int(lengths[rows[-1]]) :]
            not_read = model.codes.new_zeros(len(some), *model.codes.shape[1:])
            hidden = model.hidden(some, not_read, model.all_masked(len(some)))
            queries[rows] = f.normalize(hidden, dim=1) * hidden.shape[1] ** 0.5
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
            return self.model_.eval().attention(histories, targets, self.model_.all_masked(len(targets)))

    def _pack(self) -> dict[str, Any]:
        sizes = dict(zip(self.model_.field_names, self.model_.field_sizes, strict=True))
        codes = self.model_.codes.cpu().numpy().astype(np.int32)
        arrays = {"codes": codes, "occurring": self.occurring_, **weights_as_arrays(self.model_)}
        return self._packed({"field_sizes": sizes}, arrays)

    @classmethod
    def _unpack(cls, artifact: Artifact) -> Self:
        encoder, arrays = cls._unpacked(artifact), artifact.arrays
        encoder._build(encoder.catalogue_, arrays["codes"], artifact.facts["field_sizes"], arrays["occurring"])
        load_weights(encoder.model_, arrays)
        return encoder


def _flatten(metrics: dict[str, Any]) -> dict[str, float]:
    """Flatten nested metrics: metric1.recall@10."""
    flat: dict[str, float] = {}
    for name, value in metrics.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
