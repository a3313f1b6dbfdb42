"""S3-Rec: SASRec after self-supervised, bidirectional pre-training on items, attributes and segments.

Zhou et al., "S³-Rec: Self-Supervised Learning for Sequential Recommendation with Mutual Information Maximization", CIKM 2020.
Pre-training masks the last item of a history and some others, and has four tasks, each with a linear map F of its own:

- AAP, associated attribute prediction: the attributes of items that are not masked;
- MIP, masked item prediction: the masked item against an item that is not in the history;
- MAP, masked attribute prediction: the attributes of masked items;
- SP, segment prediction: the masked segment against a segment from elsewhere.

Without fields there are no attributes, and MIP and SP remain. Both minimize −log σ(s⁺ − s⁻); the authors' code applies a
sigmoid to each score first (`nested_sigmoids`). An epoch visits every history once, up to a random item. Losses are summed
over positions, as in the authors' code, and divided by the number of histories.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from torch import Tensor, nn

from resid.core.registry import register
from resid.core.runtime import Runtime
from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.sequential.base import SequentialRecommender, whole_histories
from resid.sequential.sasrec import SASRecModel, initialize
from resid.sequential.settings import S3RecSettings
from resid.train import TrainableModule, train

WEIGHTS = {"aap": 0.2, "mip": 1.0, "map": 1.0, "sp": 0.5}  # of the four tasks
_MAX_DRAWS = 8  # attempts to draw an item that is not in the history


class Pretraining(TrainableModule):
    """The self-supervised tasks of S3-Rec's pre-training.

    Parameters
    ----------
    model
        The network; with fields, the field tables are the attribute embeddings.
    log
        The training parts of all histories, concatenated, from which negative segments are taken; shape (n,).
    settings
        The settings of the pre-training.
    """

    log: Tensor

    def __init__(self, model: SASRecModel, log: Tensor, settings: S3RecSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.register_buffer("log", log, persistent=False)
        width = settings.width
        self.mask = nn.Parameter(torch.empty(width))
        with_fields = len(model.field_sizes) > 1
        self.maps = nn.ModuleDict(
            {name: nn.Linear(width, width) for name in WEIGHTS if with_fields or name in ("mip", "sp")}
        )
        initialize(self.maps, self.mask)

    def forward(self, batch: SequenceBatch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the weighted sum of the losses and every loss."""
        items = self.cut(torch.from_numpy(batch.items).to(self.log.device), rng)
        masked = self.draw_masks(items, rng)
        terms = self.items_and_attributes(items, masked, rng) | {"sp": self.segments(items, rng)}
        weighted = [WEIGHTS[name] * term for name, term in terms.items()]
        return {"loss": torch.stack(weighted).sum(), **{f"loss.{name}": term for name, term in terms.items()}}

    def batch_weight(self, batch: SequenceBatch) -> float:
        """Return the number of histories, by which the losses are divided."""
        return float(len(batch))

    def cut(self, items: Tensor, rng: torch.Generator) -> Tensor:
        """Truncate every history after a random number of items, at least two; padding is on the right."""
        lengths = (items != PADDING).sum(dim=1)
        kept = 2 + (torch.rand(len(items), generator=rng).to(items.device) * (lengths - 1)).long()
        place = torch.arange(items.shape[1], device=items.device)
        return items.masked_fill(place >= kept[:, None], PADDING)[:, : int(kept.max())]

    def draw_masks(self, items: Tensor, rng: torch.Generator) -> Tensor:
        """Draw which items are masked, always including the last one; boolean, shape (histories, length)."""
        real = items != PADDING
        masked = real & (torch.rand(items.shape, generator=rng).to(items.device) < self.settings.mask_prob)
        masked[torch.arange(len(items), device=items.device), real.sum(dim=1) - 1] = True
        return masked

    def encode(self, items: Tensor, masked: Tensor, real: Tensor) -> Tensor:
        """Return the bidirectional states of items, shape (histories, length, width)."""
        tokens = torch.where(masked[..., None], self.mask, self.model.tables.vectors(items.clamp_min(0)))
        return self.model.encode(tokens * real[..., None], real)

    def items_and_attributes(self, items: Tensor, masked: Tensor, rng: torch.Generator) -> dict[str, Tensor]:
        """Return MIP and, with fields, AAP and MAP."""
        real = items != PADDING
        states = self.encode(items, masked, real)
        negatives, valid = self.draw_negatives(items, rng)
        queries = self.maps["mip"](states[masked])  # (masked, width)
        positive, negative = (self.model.tables.vectors(some[masked]) for some in (items, negatives))
        loss = self.pairwise_loss((queries * positive).sum(dim=1), (queries * negative).sum(dim=1))
        terms = {"mip": (loss * valid[masked]).sum() / len(items)}
        for name, where in (("aap", real & ~masked), ("map", masked)):
            if name in self.maps:
                queries = self.maps[name](states[where])
                terms[name] = self.attribute_loss(queries, items[where], rng) / len(items)
        return terms

    def draw_negatives(self, items: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an item that is not in the history for every position, and return where that succeeded."""
        count = len(self.model.tables.codes)
        negatives = torch.randint(count, items.shape, generator=rng).to(items.device)
        for _ in range(_MAX_DRAWS):
            within = (negatives[:, :, None] == items[:, None]).any(dim=2)
            if not within.any():
                break
            redrawn = torch.randint(count, items.shape, generator=rng).to(items.device)
            negatives = torch.where(within, redrawn, negatives)
        return negatives, (negatives[:, :, None] != items[:, None]).all(dim=2)

    def attribute_loss(self, queries: Tensor, items: Tensor, rng: torch.Generator) -> Tensor:
        """Return the summed binary cross-entropy of all attributes of items; missing values (code 0) are not attributes.

        Parameters
        ----------
        queries
            Shape (n, width).
        items
            Shape (n,).
        """
        total = queries.new_zeros(())
        codes, tables = self.model.tables.codes[items], self.model.tables.embeddings()
        sizes = [size - 1 for size in self.model.field_sizes[1:]]
        for field, (table, size) in enumerate(zip(tables[1:], sizes, strict=True), 1):
            if not size:  # missing for every item
                continue
            share = max(1, self.settings.n_sampled_attributes * size // sum(sizes))
            some = torch.arange(1, size + 1)
            if sum(sizes) > self.settings.n_sampled_attributes:
                some = torch.randint(1, size + 1, (share,), generator=rng)
            some = some.to(items.device)
            scores = queries @ table(some).T  # (n, attributes)
            absent, present = f.softplus(scores), queries.new_zeros(())
            for own in self.model.tables.values(field, codes).view(len(items), -1).T:  # each of several tags
                absent = absent.masked_fill(own[:, None] == some, 0.0)
                score = (queries * table(own)).sum(dim=1)
                present = present + (f.softplus(-score) * (own > 0)).sum()
            total = total + absent.sum() * (size / len(some)) + present
        return total

    def segments(self, items: Tensor, rng: torch.Generator) -> Tensor:
        """Return SP: match a history with a gap to the segment that was there, against a segment from elsewhere."""
        real = items != PADDING
        lengths = real.sum(dim=1)
        draws = torch.rand(3, len(items), generator=rng).to(items.device)
        size = 1 + (draws[0] * (lengths // 2)).long()  # 1 to ⌊length / 2⌋
        first = (draws[1] * (lengths - size + 1)).long()
        place = torch.arange(items.shape[1], device=items.device)
        gap = (place >= first[:, None]) & (place < (first + size)[:, None])
        begin = (draws[2] * (len(self.log) - size + 1)).long().clamp_min(0)
        elsewhere = self.log[(begin[:, None] + place - first[:, None]).clamp(0, len(self.log) - 1)]
        rows, last = torch.arange(len(items), device=items.device), lengths - 1
        context, inside, outside = (
            self.encode(some, masked, real)[rows, last]
            for some, masked in ((items, gap), (items, ~gap), (elsewhere, ~gap))
        )
        queries = self.maps["sp"](context)
        return self.pairwise_loss((queries * inside).sum(dim=1), (queries * outside).sum(dim=1)).mean()

    def pairwise_loss(self, positive: Tensor, negative: Tensor) -> Tensor:
        """Return −log σ(positive − negative) of scores, any shape."""
        if self.settings.nested_sigmoids:
            positive, negative = positive.sigmoid(), negative.sigmoid()
        return f.softplus(negative - positive)


@register("recommender", "s3rec")
class S3Rec(SequentialRecommender[S3RecSettings, SASRecModel]):
    """Self-supervised pre-training, then SASRec; with ``use_fields=True`` in the settings, S3-Rec*.

    Parameters
    ----------
    settings
        See `S3RecSettings`.
    """

    settings_class = S3RecSettings

    def _network(self, codes: NDArray[np.integer], field_sizes: Sequence[int]) -> SASRecModel:
        return SASRecModel(codes, field_sizes, self.settings, self.catalogue_.max_history + 1)

    def _batches(self, data: Dataset) -> SequenceBatches:
        return whole_histories(data, self.settings)

    def _train(self, data: Dataset, configuration: Mapping[str, Any], runtime: Runtime | None) -> None:
        runtime = runtime or Runtime()
        runtime.progress.step("Pre-training")
        settings = self.settings.replace(epochs=self.settings.pretrain_epochs, patience=0)
        training = data.in_training
        log = torch.from_numpy(np.asarray(data.sequence)[training].astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            tasks = Pretraining(self.model_, log, settings)
        self.pretraining_ = train(
            tasks,
            # Without evaluation targets that were added to training: pre-training also predicts the items before them.
            whole_histories(data, settings, data.train.take(training[data.train.end]), stride=None),
            settings,
            runtime.within("pretraining"),
            configuration={"model": f"{self.kind}, pre-training", **configuration},
        )
        runtime.progress.step("Fine-tuning")
        super()._train(data, configuration, runtime)
