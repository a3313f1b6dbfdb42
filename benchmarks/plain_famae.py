"""A plain implementation of FAMAE with PyTorch's encoder, the reference of the benchmark and of the tests."""

import torch
import torch.nn.functional as f
from torch import nn

_NAMES = {  # parameters of our layer → those of PyTorch's
    "qkv.weight": "self_attn.in_proj_weight", "qkv.bias": "self_attn.in_proj_bias",
    "out.weight": "self_attn.out_proj.weight", "out.bias": "self_attn.out_proj.bias",
    "ffn_in.weight": "linear1.weight", "ffn_in.bias": "linear1.bias",
    "ffn_out.weight": "linear2.weight", "ffn_out.bias": "linear2.bias",
    "attention_norm.weight": "norm1.weight", "attention_norm.bias": "norm1.bias",
    "ffn_norm.weight": "norm2.weight", "ffn_norm.bias": "norm2.bias",
}  # fmt: skip


class PlainFamae(nn.Module):
    """Pads every window to the full length and computes all positions in every layer of `torch.nn.TransformerEncoder`.

    Parameters
    ----------
    model
        The `FamaeModel` whose parameters and loss are used.
    dropout
        Of the encoder and its input.
    """

    def __init__(self, model, dropout=0.0):
        super().__init__()
        self.model = model
        width, ffn_width = model.positions.shape[1], model.layers[0].ffn_in.out_features
        layer = nn.TransformerEncoderLayer(width, model.layers[0].heads, ffn_width, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, len(model.layers), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        for ours, theirs in zip(model.layers, self.encoder.layers, strict=True):
            for old, new in _NAMES.items():
                module, _, attribute = new.rpartition(".")
                setattr(theirs.get_submodule(module), attribute, ours.get_parameter(old))

    def forward(self, batch, rng):
        """Return the loss terms of a batch, as `FamaeModel` does."""
        histories, targets = self.model.windows(batch)
        masked = self.model.draw_masks(len(targets), rng)
        hidden = self.hidden(histories, targets, masked)
        return self.model.loss(hidden, targets, masked, self.model.draw_negatives(len(targets), rng))

    def hidden(self, histories, targets, masked):
        """Return h_T, shape (batch, width)."""
        model = self.model
        length = len(model.positions)
        histories = f.pad(histories, (length - 1 - histories.shape[1], 0), value=-1)
        codes = torch.cat([model.codes[histories.clamp_min(0)], targets[:, None]], dim=1)
        parts = [table(codes[..., field]) for field, table in enumerate(model.embeddings())]
        last = [torch.where(masked[:, j, None], model.masks[j], part[:, -1]) for j, part in enumerate(parts)]
        tokens = torch.cat([sum(parts)[:, :-1], sum(last)[:, None]], dim=1)
        tokens = self.dropout(tokens + model.positions)
        padding = f.pad(histories == -1, (0, 1), value=False)
        return self.encoder(tokens, src_key_padding_mask=padding)[:, -1]
