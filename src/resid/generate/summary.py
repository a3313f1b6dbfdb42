"""A T5 with a summary token: after the codes, one more token whose state is compared with the item's vector.

The IDs of a generator lose what the quantizer drops. The global contrastive task of EAGER, and the distillation of UNGER, put it
back: a summary token follows the last code, and its state is trained to be closest to the vector from which the item's ID was
made (InfoNCE). The token is read in training alone; decoding is that of T5.
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.data.batches import Batch
from resid.generate.settings import SummarySettings
from resid.generate.t5 import T5Model
from resid.nn import normalize
from resid.nn.losses import sample_negatives, sampled_softmax_loss
from resid.nn.t5 import Memory, T5Encoder


class SummaryT5Model(T5Model):
    """The network: T5 whose decoder reads the start token, all codes and the summary token.

    Parameters
    ----------
    codes, level_sizes, max_length, vectors, encoder
        See `T5Model`.
    settings
        See `SummarySettings`.
    target_width
        Dimension d of the item vectors.
    targets
        The item vectors that summaries are compared with, shape (items, d); None if the network is not trained.
    """

    targets: Tensor | None

    def __init__(
        self,
        codes: Tensor,
        level_sizes: Sequence[int],
        settings: SummarySettings,
        max_length: int,
        target_width: int,
        targets: Tensor | None = None,
        *,
        vectors: Tensor | None = None,
        encoder: T5Encoder | None = None,
    ) -> None:
        length = len(level_sizes) + 2  # the start token, the codes and the summary token
        super().__init__(codes, level_sizes, settings, max_length, vectors, decoder_length=length, encoder=encoder)
        self.settings = settings
        self.summary_token = nn.Parameter(torch.randn(settings.width))
        self.summary_norm = nn.LayerNorm(settings.width)
        self.summary_project = nn.Linear(settings.width, target_width)
        unit = normalize(targets) if targets is not None else None
        self.register_buffer("targets", unit, persistent=False)

    def forward(self, batch: Batch, rng: torch.Generator) -> dict[str, Tensor]:
        """Return the losses of the codes (``"generation"``) and of the summary (``"contrastive"``), and their sum."""
        items = torch.from_numpy(batch.targets).to(self.codes.device)
        memory = self.encode(torch.from_numpy(batch.histories).to(self.codes.device))
        generation, summary = self.teacher_forced(memory, items)
        contrastive = self.contrastive_loss(summary, items, rng)
        return {"loss": generation + contrastive, "generation": generation, "contrastive": contrastive}

    def teacher_forced(self, memory: Memory, items: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean cross-entropy of the codes of items, shape (users,), and their projected summaries.

        Returns
        -------
        loss, summaries
            A scalar, and a tensor of shape (users, d).
        """
        labels = self.codes[items] + self.offsets  # (users, levels)
        tokens = self.table(f.pad(labels, (1, 0)))
        summary = self.summary_token.expand(len(items), 1, -1)
        states = self.decoder(torch.cat([tokens, summary], dim=1), memory)  # (users, levels + 2, width)
        logits = states[:, : labels.shape[1]] @ self.table.weight.T
        projected: Tensor = self.summary_project(self.summary_norm(states[:, -1]))
        return self.code_loss_of(logits, labels), projected

    def contrastive_loss(self, summaries: Tensor, items: Tensor, rng: torch.Generator) -> Tensor:
        """Return InfoNCE of summaries, shape (users, d), and the vectors of their items among those of random items.

        All users share the negatives; a negative that is the user's item does not count.
        """
        if self.targets is None:
            raise RuntimeError("this network was built without the item vectors that its loss needs")
        n_items, n_negatives = len(self.targets), self.settings.n_negatives
        if n_items <= n_negatives:
            negatives = torch.arange(n_items)[None]
        else:
            negatives = sample_negatives(len(items), n_items, n_negatives, len(items), rng)
        negatives = negatives.to(items.device)
        queries = normalize(summaries) / self.settings.contrastive_temperature
        targets, others = self.targets[items], self.targets[negatives]
        return sampled_softmax_loss(queries, items, targets, others, negatives).mean()
