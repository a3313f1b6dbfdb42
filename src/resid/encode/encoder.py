"""FAMAE as an encoder: fit it to a Dataset, take its item embeddings."""

import dataclasses
import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
import polars as pl
import torch
import torch.nn.functional as f
from lightning_fabric import Fabric
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from resid.data.batches import Batches
from resid.data.dataset import Dataset, require_dataset
from resid.encode.embeddings import ItemEmbeddings
from resid.encode.famae import FamaeModel
from resid.encode.metrics import quality
from resid.core.errors import InputError
from resid.nn import item_and_fields
from resid.core.progress import Progress
from resid.core.settings import checked
from resid.train import TrainSettings, best_epoch, check_heads, train
from resid.train.checkpoint import load_checkpoint, save_checkpoint

log = logging.getLogger(__name__)

_MONITOR = "metric1.ndcg@10"  # decides which epoch is best
_SCORES_PER_EVALUATION = 5_000_000_000  # windows times items
_ROWS = 4096  # items whose missing parts are predicted at a time


@checked
class FamaeSettings(TrainSettings):
    """Settings of FAMAE; the defaults are chosen for good results, the recipe ``resid-paper`` has the paper's.

    Parameters
    ----------
    width, layers, heads, hidden, dropout
        Of the Transformer.
    negatives
        Candidates drawn for a vocabulary that is not scored whole.
    share_negatives
        So many targets share their candidates, so that a step touches few rows of a large table.
    full_softmax_up_to
        The largest vocabulary that is scored whole.
    field_weights
        The α_k of the loss, the item-ID's first; all 1 by default.
    masking
        ``"last"`` masks fields of the target, as the paper does; ``"random"`` those of random positions, as BERT does.
    validation_windows
        At most so many windows are measured after every epoch, always the same ones; fewer where the catalogue is so
        large that it would take more than five billion scores, but a thousand at least.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    width: Annotated[int, Field(ge=4)] = 128
    layers: Annotated[int, Field(ge=1)] = 2
    heads: Annotated[int, Field(ge=1)] = 4
    hidden: Annotated[int, Field(ge=1)] = 512
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.1
    negatives: Annotated[int, Field(ge=1)] = 128
    share_negatives: Annotated[int, Field(ge=1)] = 32
    full_softmax_up_to: Annotated[int, Field(ge=1)] = 32_768
    field_weights: tuple[Annotated[float, Field(ge=0)], ...] | None = None
    masking: Literal["last", "random"] = "last"
    validation_windows: Annotated[int, Field(ge=1)] = 50_000

    def __post_init__(self) -> None:
        check_heads(self.width, self.heads)


class FAMAE:
    """Field-aware masked auto-encoding, the encoder of ReSID.

    Parameters
    ----------
    settings
        See `FamaeSettings`.
    """

    def __init__(self, settings: FamaeSettings | None = None) -> None:
        self.settings = settings or FamaeSettings()

    def fit(
        self,
        data: Dataset,
        folder: str | Path | None = None,
        *,
        fabric: Fabric | None = None,
        trackers: Sequence[str] = (),
        progress: Progress | None = None,
    ) -> Self:
        """Train on the training windows; stop early by the validation NDCG@10 of Metric 1.

        Constant fields are logged as a warning.

        Parameters
        ----------
        data
            The Dataset.
        folder
            Where checkpoints and metrics go; a run that was interrupted there continues. None takes a temporary folder.
        fabric
            Devices and precision, see `resid.train.open_fabric`.
        trackers
            Where else the metrics go, see `resid.train.train`.
        progress
            Shows epochs and steps.
        """
        require_dataset(data)
        _check_fields(data)
        self.model_, self.fingerprint_ = build_model(data, self.settings), data.fingerprint
        affordable = max(1_000, _SCORES_PER_EVALUATION // data.n_items)
        watched = data.validation.sample(min(self.settings.validation_windows, affordable))
        self.history_ = train(
            self.model_,
            Batches(data.train, self.settings.batch_size_for(len(data.train)), seed=self.settings.seed),
            self.settings,
            folder,
            evaluate=lambda: _flat(quality(self.model_, watched)),
            monitor=_MONITOR,
            configuration={"model": "famae"},
            fabric=fabric,
            trackers=trackers,
            progress=progress,
        )
        self.best_epoch_ = best_epoch(self.history_, _MONITOR)
        return self

    def embed(self, data: Dataset, *, normalize: bool = False) -> ItemEmbeddings:
        """Return, for every item, its field embeddings side by side, the item-ID first.

        What training never saw has no embedding: an item that occurs in no training window, a store with such items
        alone. Its place is taken by what the model predicts there from the item's other fields.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        normalize
            Give every field's part length 1.
        """
        self._require_fit(data)
        vectors = self._represent(data, self.model_.codes, normalize)
        names, width = self.model_.names, self.settings.width
        columns = {name: (field * width, (field + 1) * width) for field, name in enumerate(names)}
        return ItemEmbeddings(vectors, columns, data.fingerprint)

    def embed_new(
        self, data: Dataset, items: Any, *, item_column: str = "item", normalize: bool = False
    ) -> tuple[pl.Series, NDArray[np.float32]]:
        """Return vectors for items that are not in the Dataset, from their fields alone.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        items
            A path or a frame with the column of the ids and the columns that were given as fields. A value that the
            Dataset does not know is predicted from the others.
        item_column
            How the column of the ids is called.
        normalize
            As for `embed`.

        Returns
        -------
        ids, vectors
            The items' ids, and their vectors, shape (items, fields × width), with the columns of `embed`.
        """
        self._require_fit(data)
        ids, fields = data.catalogue.encode_items(items, item_column=item_column)
        codes = torch.from_numpy(np.concatenate([np.full((len(ids), 1), -1), fields], axis=1))
        return ids, self._represent(data, codes.to(self.model_.codes.device), normalize)

    @torch.no_grad()
    def _represent(self, data: Dataset, codes: Tensor, normalize: bool) -> NDArray[np.float32]:
        """Concatenate the embeddings of codes, shape (items, J), and predict those that training never saw."""
        model = self.model_.eval()
        seen = model.codes[torch.from_numpy(data.train.occurring_items)]
        fields = list(enumerate(model.embeddings()))
        unknown = torch.stack([~torch.isin(codes[:, field], seen[:, field]) for field, _ in fields], dim=1)
        codes = codes.masked_fill(unknown, 0)
        parts = torch.empty(*codes.shape, self.settings.width, device=codes.device)  # (items, J, width)
        for field, table in fields:
            parts[:, field] = table(codes[:, field])
        lengths = torch.stack([table(seen[:, field]).norm(dim=1).mean() for field, table in fields])
        incomplete = unknown.any(dim=1).nonzero()[:, 0]
        for first in range(0, len(incomplete), _ROWS):
            rows = incomplete[first : first + _ROWS]
            nothing = torch.empty(len(rows), 0, dtype=torch.int64, device=codes.device)
            predicted = f.normalize(model.hidden(nothing, codes[rows], unknown[rows]), dim=1)
            filled = predicted[:, None] * lengths[:, None]
            parts[rows] = torch.where(unknown[rows, :, None], filled, parts[rows])
        if normalize:
            parts /= parts.norm(dim=2, keepdim=True).clamp_min(1e-12)
        vectors: NDArray[np.float32] = parts.flatten(1).cpu().numpy()
        return vectors

    def quality(self, data: Dataset, split: Literal["validation", "test"] = "test") -> dict[str, Any]:
        """Measure the encoder on a split; see `resid.encode.quality`."""
        self._require_fit(data)
        return quality(self.model_, data.windows(split))

    def attention(
        self, data: Dataset, split: Literal["validation", "test"], windows: NDArray[np.int64]
    ) -> list[Tensor]:
        """Return the attention weights of the target, all of its fields masked.

        Parameters
        ----------
        data
            The Dataset that it was fitted to.
        split
            Where the windows are taken from.
        windows
            Their numbers, shape (windows,).

        Returns
        -------
        list of Tensor
            For every layer the weights, shape (windows, heads, longest history + 1), the target last.
        """
        self._require_fit(data)
        some = data.windows(split)
        some = dataclasses.replace(some, begin=some.begin[windows], end=some.end[windows], users=some.users[windows])
        batch = Batches(some, len(windows), shuffle=False).batch(np.arange(len(windows)))
        histories, targets = self.model_.windows(batch)
        with torch.no_grad():
            return self.model_.eval().attention(histories, targets, torch.ones_like(targets, dtype=torch.bool))

    def save(self, folder: str | Path) -> None:
        """Write weights and settings into a folder, in one file."""
        self._require_fit()
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        facts = {"settings": self.settings.plain(), "fingerprint": self.fingerprint_}
        save_checkpoint(folder / "famae.safetensors", dict(self.model_.state_dict()), facts)

    @classmethod
    def load(cls, folder: str | Path, data: Dataset) -> Self:
        """Read what `save` wrote; the Dataset must be the one that it was fitted to."""
        path = Path(folder) / "famae.safetensors"
        tensors, facts = load_checkpoint(path)
        if facts["fingerprint"] != data.fingerprint:
            raise InputError(f"{path}: this encoder was fitted to another Dataset; fit it again.")
        encoder = cls(FamaeSettings(**facts["settings"]))
        encoder.model_, encoder.fingerprint_ = build_model(data, encoder.settings), data.fingerprint
        encoder.model_.load_state_dict(tensors)
        encoder.model_.eval()
        return encoder

    def _require_fit(self, data: Dataset | None = None) -> None:
        if not hasattr(self, "model_"):
            raise InputError("the encoder is not fitted yet; call fit first.")
        if data is not None and self.fingerprint_ != data.fingerprint:
            raise InputError("the encoder was fitted to another Dataset; fit it again.")


def build_model(data: Dataset, settings: FamaeSettings) -> FamaeModel:
    """Build the network for a Dataset, its weights drawn by the seed."""
    if settings.field_weights is not None and len(settings.field_weights) != 1 + len(data.field_names):
        raise InputError(
            f"field_weights has {len(settings.field_weights)} numbers; give one for the item-ID and one for each of the "
            f"fields {', '.join(data.field_names)}."
        )
    codes, sizes = item_and_fields(data)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        return FamaeModel(
            codes,
            sizes,
            max_length=data.settings.max_length,
            width=settings.width,
            layers=settings.layers,
            heads=settings.heads,
            hidden=settings.hidden,
            dropout=settings.dropout,
            weights=settings.field_weights,
            negatives=settings.negatives,
            share_negatives=settings.share_negatives,
            full_softmax_up_to=settings.full_softmax_up_to,
            masking=settings.masking,
        )


def _check_fields(data: Dataset) -> None:
    for column, name in enumerate(data.field_names):
        codes = data.fields[:, column]
        if not codes.any():
            raise InputError(
                f"the field '{name}' is missing for every item, so there is nothing to learn; leave it out."
            )
        if (codes == codes[0]).all():
            log.warning("the field '%s' has one value only, so it tells nothing of an item; better leave it out", name)


def _flat(found: dict[str, Any]) -> dict[str, float]:
    """Name nested figures by the way to them: metric1.recall@10."""
    flat: dict[str, float] = {}
    for name, value in found.items():
        flat |= {f"{name}.{key}": v for key, v in value.items()} if isinstance(value, dict) else {name: value}
    return flat
