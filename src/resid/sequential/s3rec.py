"""S3-Rec: SASRec whose network has first learnt, in both directions, how items, their fields and segments belong together.

Zhou et al., "S³-Rec: Self-Supervised Learning for Sequential Recommendation with Mutual Information Maximization", CIKM 2020.
Pre-training masks the last item of a history and some others, and asks four questions, each with a linear map F of its own:

- AAP, of items that are not masked: which attributes have they?
- MIP, of masked items: is it this item rather than one that is not in the history?
- MAP, of masked items: which attributes have they?
- SP: does this segment belong into the gap of this history, rather than one from elsewhere?

Without fields there are no attributes, and MIP and SP remain. These two lose −log σ(s⁺ − s⁻) on the scores of what is right and
what is not; the authors' code has a sigmoid around each score as well (`nested_sigmoids`). An epoch takes every history once,
up to a random item. Losses are summed over positions, as in the authors' code, and divided by the number of histories. Then
SASRec goes on from there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as f
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor, nn

from resid.data.batches import PADDING, SequenceBatch, SequenceBatches
from resid.data.dataset import Dataset
from resid.data.splits import in_training
from resid.sequential.base import VectorRecommender, whole_histories
from resid.sequential.sasrec import SASRecModel, initialize
from resid.sequential.settings import TransformerSettings
from resid.core.settings import checked
from resid.train import train

WEIGHTS = {"aap": 0.2, "mip": 1.0, "map": 1.0, "sp": 0.5}  # of the four losses
_DRAWS = 8  # attempts to draw an item that is not in the history


@checked
class S3RecSettings(TransformerSettings):
    """Settings of S3-Rec.

    Parameters
    ----------
    pretrain_epochs
        Passes over the histories before SASRec's training begins.
    nested_sigmoids
        Compare sigmoids of two scores, as the authors' code does, instead of the scores: where both are large, nothing is
        learnt any more.
    mask_share
        Chance of an item to be masked in pre-training; the last one always is.
    sampled_attributes
        Of more attributes than this, so many are drawn at random for each step, besides those that items have.
    width, layers, heads, hidden, dropout, fields, target, loss, similarity, negatives, share_negatives
        See `TransformerSettings`.
    full_softmax_up_to, validation_users
        See `TransformerSettings`.
    epochs, batch_size, learning_rate, weight_decay, warmup_steps, clip, evaluate_every, patience, seed
        See `TrainSettings`.
    """

    pretrain_epochs: Annotated[int, Field(ge=1)] = 20
    nested_sigmoids: bool = False
    mask_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    sampled_attributes: Annotated[int, Field(ge=1)] = 4_096


class Pretraining(nn.Module):
    """What S3-Rec's network is asked before SASRec's training.

    Parameters
    ----------
    model
        The network; with fields, their tables are those of the attributes.
    log
        The training parts of all histories one after the other, from which segments are taken; shape (n,).
    settings
        Those of pre-training.
    """

    log: Tensor

    def __init__(self, model: SASRecModel, log: Tensor, settings: S3RecSettings) -> None:
        super().__init__()
        self.model, self.settings = model, settings
        self.register_buffer("log", log, persistent=False)
        width = settings.width
        self.mask = nn.Parameter(torch.empty(width))
        with_fields = len(model.sizes) > 1
        self.maps = nn.ModuleDict(
            {name: nn.Linear(width, width) for name in WEIGHTS if with_fields or name in ("mip", "sp")}
        )
        initialize(self.maps, self.mask)

    def forward(self, batch: SequenceBatch, generator: torch.Generator) -> dict[str, Tensor]:
        """Return the weighted sum of the losses, and each of them."""
        items = self.cut(torch.from_numpy(batch.items).to(self.log.device), generator)
        masked = self.draw_masks(items, generator)
        terms = self.items_and_attributes(items, masked, generator) | {"sp": self.segments(items, generator)}
        weighted = [WEIGHTS[name] * term for name, term in terms.items()]
        return {"loss": torch.stack(weighted).sum(), **{f"loss.{name}": term for name, term in terms.items()}}

    def cut(self, items: Tensor, generator: torch.Generator) -> Tensor:
        """Keep of every history a random number of its first items, two at least; padding is on the right."""
        lengths = (items != PADDING).sum(dim=1)
        kept = 2 + (torch.rand(len(items), generator=generator).to(items.device) * (lengths - 1)).long()
        place = torch.arange(items.shape[1], device=items.device)
        return items.masked_fill(place >= kept[:, None], PADDING)[:, : int(kept.max())]

    def draw_masks(self, items: Tensor, generator: torch.Generator) -> Tensor:
        """Draw which items are masked, the last one always; boolean, shape (histories, length)."""
        real = items != PADDING
        masked = real & (torch.rand(items.shape, generator=generator).to(items.device) < self.settings.mask_share)
        masked[torch.arange(len(items), device=items.device), real.sum(dim=1) - 1] = True
        return masked

    def encode(self, items: Tensor, masked: Tensor, real: Tensor) -> Tensor:
        """Return the states of items, each of which sees all of its history; shape (histories, length, width)."""
        tokens = torch.where(masked[..., None], self.mask, self.model.tables.vectors(items.clamp_min(0)))
        return self.model.encode(tokens * real[..., None], real)

    def items_and_attributes(self, items: Tensor, masked: Tensor, generator: torch.Generator) -> dict[str, Tensor]:
        """Return MIP and, with fields, AAP and MAP."""
        real = items != PADDING
        states = self.encode(items, masked, real)
        others, apart = self.draw_others(items, generator)
        asked = self.maps["mip"](states[masked])  # (masked, width)
        own, other = (self.model.tables.vectors(some[masked]) for some in (items, others))
        wrong = self.disorder((asked * own).sum(dim=1), (asked * other).sum(dim=1))
        terms = {"mip": (wrong * apart[masked]).sum() / len(items)}
        for name, where in (("aap", real & ~masked), ("map", masked)):
            if name in self.maps:
                asked = self.maps[name](states[where])
                terms[name] = self.attributes(asked, items[where], generator) / len(items)
        return terms

    def draw_others(self, items: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Draw an item for every position that is not in its history, and tell where that was possible."""
        count = len(self.model.tables.codes)
        others = torch.randint(count, items.shape, generator=generator).to(items.device)
        for _ in range(_DRAWS):
            within = (others[:, :, None] == items[:, None]).any(dim=2)
            if not within.any():
                break
            fresh = torch.randint(count, items.shape, generator=generator).to(items.device)
            others = torch.where(within, fresh, others)
        return others, (others[:, :, None] != items[:, None]).all(dim=2)

    def attributes(self, asked: Tensor, items: Tensor, generator: torch.Generator) -> Tensor:
        """Return the binary cross-entropy of all attributes of items, summed; a missing value, code 0, is none.

        Parameters
        ----------
        asked
            What the states make of themselves, shape (n, width).
        items
            Shape (n,).
        """
        total = asked.new_zeros(())
        codes, tables = self.model.tables.codes[items], self.model.tables.embeddings()
        sizes = [size - 1 for size in self.model.sizes[1:]]
        for field, (table, size) in enumerate(zip(tables[1:], sizes, strict=True), 1):
            if not size:  # a field that no item has
                continue
            share = max(1, self.settings.sampled_attributes * size // sum(sizes))
            some = torch.arange(1, size + 1)
            if sum(sizes) > self.settings.sampled_attributes:
                some = torch.randint(1, size + 1, (share,), generator=generator)
            some = some.to(items.device)
            own, has = codes[:, field], codes[:, field] > 0
            scores = asked @ table(some).T  # (n, attributes)
            absent = f.softplus(scores).masked_fill(own[:, None] == some, 0.0).sum() * (size / len(some))
            score = (asked * table(own)).sum(dim=1)
            total = total + absent + (f.softplus(-score) * has).sum()
        return total

    def segments(self, items: Tensor, generator: torch.Generator) -> Tensor:
        """Return SP: a gap in a history, what stood there, and as many items from anywhere."""
        real = items != PADDING
        lengths = real.sum(dim=1)
        chance = torch.rand(3, len(items), generator=generator).to(items.device)
        size = 1 + (chance[0] * (lengths // 2)).long()  # 1 to ⌊length / 2⌋
        first = (chance[1] * (lengths - size + 1)).long()
        place = torch.arange(items.shape[1], device=items.device)
        gap = (place >= first[:, None]) & (place < (first + size)[:, None])
        begin = (chance[2] * (len(self.log) - size + 1)).long().clamp_min(0)
        elsewhere = self.log[(begin[:, None] + place - first[:, None]).clamp(0, len(self.log) - 1)]
        rows, last = torch.arange(len(items), device=items.device), lengths - 1
        context, inside, outside = (
            self.encode(some, masked, real)[rows, last]
            for some, masked in ((items, gap), (items, ~gap), (elsewhere, ~gap))
        )
        asked = self.maps["sp"](context)
        return self.disorder((asked * inside).sum(dim=1), (asked * outside).sum(dim=1)).mean()

    def disorder(self, right: Tensor, wrong: Tensor) -> Tensor:
        """Return the loss of scores of which the right ones should be above the wrong ones, any shape."""
        if self.settings.nested_sigmoids:
            right, wrong = right.sigmoid(), wrong.sigmoid()
        return f.softplus(wrong - right)


class S3Rec(VectorRecommender[S3RecSettings, SASRecModel]):
    """Self-supervised pre-training, then SASRec; with ``fields=True`` in the settings, S3-Rec*.

    Parameters
    ----------
    settings
        See `S3RecSettings`.
    """

    name = "s3rec"
    settings_class = S3RecSettings

    def _network(self, codes: NDArray[np.integer], sizes: Sequence[int]) -> SASRecModel:
        return SASRecModel(codes, sizes, self.settings, self.catalogue_.max_history + 1)

    def _batches(self, data: Dataset) -> SequenceBatches:
        return whole_histories(data, self.settings)

    def _train(self, data: Dataset, configuration: dict[str, Any], folder: str | Path | None, **how: Any) -> None:
        if progress := how.get("progress"):
            progress.step("Pre-training")
        settings = self.settings.changed(epochs=self.settings.pretrain_epochs, patience=0)
        training = in_training(data.sequence, data.offsets)
        log = torch.from_numpy(np.asarray(data.sequence)[training].astype(np.int64))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            questions = Pretraining(self.model_, log, settings)
        self.pretraining_ = train(
            questions,
            # Without the targets that were added: all of a history is asked for here, what comes before them too.
            whole_histories(data, settings, data.train.take(training[data.train.end]), stride=None),
            settings,
            Path(folder) / "pretraining" if folder is not None else None,
            configuration={"model": f"{self.name}, pre-training"} | configuration,
            **how,
        )
        if progress:
            progress.step("Fine-tuning")
        super()._train(data, configuration, folder, **how)
