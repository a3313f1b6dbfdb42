"""Semantic-guided transfer, an auxiliary task of EAGER: the semantic stream helps the behavior stream to learn its codes.

A small Transformer reads the behavior codes of the target item and the summary of the semantic stream, the guide. It learns to
reconstruct a masked code, and to recognize whether a code was replaced by a random one. No gradient reaches the guide, nor the
codes that a reconstruction is compared with: what is learned goes into the codes that are read.
"""

from typing import cast

import torch
import torch.nn.functional as f
from torch import Tensor, nn

from resid.generate.prefix_tree import TreeLevel
from resid.generate.settings import T5Settings
from resid.quantize.ids import SemanticIds


class TransferTask(nn.Module):
    """The network and the two losses.

    Parameters
    ----------
    ids
        The IDs of the behavior stream.
    guide_width
        Dimension of the guide.
    settings
        Width, heads, feed-forward width and dropout of the Transformer layer.
    """

    nodes: Tensor
    level_sizes: Tensor

    def __init__(self, ids: SemanticIds, guide_width: int, settings: T5Settings) -> None:
        super().__init__()
        s = settings
        self.guide = nn.Linear(guide_width, s.width)
        self.start, self.mask = nn.Parameter(torch.randn(s.width)), nn.Parameter(torch.randn(s.width))
        self.positions = nn.Parameter(torch.zeros(1 + ids.levels, s.width))
        self.layer = nn.TransformerDecoderLayer(s.width, s.heads, s.ffn_width, s.dropout, batch_first=True)
        self.is_real = nn.Linear(s.width, 1)
        self.tree = nn.ModuleList(TreeLevel(ids, level) for level in range(ids.levels))
        nodes = torch.stack([torch.from_numpy(ids.node_of(depth)) for depth in range(ids.levels + 1)], dim=1)
        self.register_buffer("nodes", nodes, persistent=False)  # (items, levels + 1)
        self.register_buffer("level_sizes", torch.tensor(ids.level_sizes), persistent=False)

    def forward(
        self, table: Tensor, offsets: Tensor, codes: Tensor, items: Tensor, guide: Tensor, rng: torch.Generator
    ) -> tuple[Tensor, Tensor]:
        """Return the mean losses of reconstruction and recognition.

        Parameters
        ----------
        table
            The token embeddings of the behavior stream, shape (tokens, width).
        offsets
            The token of the first code of every level, shape (levels,).
        codes, items
            The target items and their behavior codes, shapes (users, levels) and (users,).
        guide
            The projected summaries of the semantic stream, shape (users, guide width).
        rng
            Draws the levels that are masked or replaced, and the replacements.
        """
        guide = self.guide(guide.detach())
        masked = torch.randint(codes.shape[1], (len(codes),), generator=rng).to(codes.device)
        fake = self.corrupt(codes, rng)
        reconstruction = self.reconstruction_loss(table, offsets, codes, items, guide, masked)
        return reconstruction, self.recognition_loss(table, offsets, codes, fake, guide)

    def reconstruction_loss(
        self, table: Tensor, offsets: Tensor, codes: Tensor, items: Tensor, guide: Tensor, masked: Tensor
    ) -> Tensor:
        """Return InfoNCE of the state of each masked code with that code, among the codes that may follow its prefix.

        Parameters
        ----------
        masked
            The masked level of every user, shape (users,).
        """
        rows = torch.arange(len(codes), device=codes.device)
        tokens = f.embedding(codes + offsets, table)
        hidden = (torch.arange(codes.shape[1], device=codes.device) == masked[:, None])[:, :, None]
        states = self.states(torch.where(hidden, self.mask, tokens), guide)[rows, 1 + masked]
        states = states * states.shape[1] ** -0.5  # as before T5's output layer, which has the same table
        total = states.new_zeros(())
        for level in range(codes.shape[1]):
            tree = cast(TreeLevel, self.tree[level])
            some = (masked == level).nonzero()[:, 0]
            first = int(offsets[level])
            scores = states[some] @ table[first : first + tree.size].detach().T
            parents, nodes = self.nodes[items[some], level], self.nodes[items[some], level + 1]
            children, exist = tree.child_nodes(parents)  # (users, max children)
            scores = scores.gather(1, tree.codes[children]).masked_fill(~exist, -torch.inf)
            total = total + f.cross_entropy(scores, nodes - tree.first[parents], reduction="sum")
        loss: Tensor = total / len(codes)
        return loss

    def corrupt(self, codes: Tensor, rng: torch.Generator) -> Tensor:
        """Return codes of which one, at a random level, is replaced by another code of the level.

        A level of a single code has no other; a catalogue of one item is returned as it is.
        """
        replaceable = (self.level_sizes > 1).nonzero()[:, 0]
        if not len(replaceable):
            return codes
        choice = torch.randint(len(replaceable), (len(codes),), generator=rng).to(codes.device)
        level = replaceable[choice][:, None]
        sizes = self.level_sizes[level]
        shift = 1 + (torch.rand(len(codes), 1, generator=rng).to(codes.device) * (sizes - 1)).long()
        return codes.scatter(1, level, (codes.gather(1, level) + shift) % sizes)

    def recognition_loss(self, table: Tensor, offsets: Tensor, codes: Tensor, fake: Tensor, guide: Tensor) -> Tensor:
        """Return the binary cross-entropy, from the first state, of true codes and of codes of which one was replaced."""
        tokens = f.embedding(torch.cat([codes, fake]) + offsets, table)
        logits = self.is_real(self.states(tokens, torch.cat([guide, guide]))[:, 0])[:, 0]
        real = (torch.arange(len(logits), device=logits.device) < len(codes)).to(logits.dtype)
        return f.binary_cross_entropy_with_logits(logits, real)

    def states(self, tokens: Tensor, guide: Tensor) -> Tensor:
        """Return the states of the start token and of codes, shape (users, levels, width) to (users, 1 + levels, width)."""
        tokens = torch.cat([self.start.expand(len(tokens), 1, -1), tokens], dim=1) + self.positions
        states: Tensor = self.layer(tokens, guide[:, None])
        return states
