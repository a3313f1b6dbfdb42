"""FAMAE the plain way, as the yardstick of the benchmark and of the tests: PyTorch's encoder, nothing left out."""

import torch
import torch.nn.functional as f
from torch import nn

# Where PyTorch's layer keeps the parameters of ours.
_NAMES = {
    "project_in.weight": "self_attn.in_proj_weight", "project_in.bias": "self_attn.in_proj_bias",
    "project_out.weight": "self_attn.out_proj.weight", "project_out.bias": "self_attn.out_proj.bias",
    "widen.weight": "linear1.weight", "widen.bias": "linear1.bias",
    "narrow.weight": "linear2.weight", "narrow.bias": "linear2.bias",
    "attention_norm.weight": "norm1.weight", "attention_norm.bias": "norm1.bias",
    "perceptron_norm.weight": "norm2.weight", "perceptron_norm.bias": "norm2.bias",
}  # fmt: skip


class PlainFamae(nn.Module):
    """Every window padded to the full length, `torch.nn.TransformerEncoder`, all positions in every layer.

    Parameters
    ----------
    model
        The FamaeModel whose parameters it uses; the loss is its loss.
    dropout
        In the encoder and on its input.
    """

    def __init__(self, model, dropout=0.0):
        super().__init__()
        self.model = model
        width, hidden = model.positions.shape[1], model.layers[0].widen.out_features
        layer = nn.TransformerEncoderLayer(width, model.layers[0].heads, hidden, dropout, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, len(model.layers), enable_nested_tensor=False)
        self.dropout = nn.Dropout(dropout)
        for ours, theirs in zip(model.layers, self.encoder.layers, strict=True):
            for old, new in _NAMES.items():
                module, _, attribute = new.rpartition(".")
                setattr(theirs.get_submodule(module), attribute, ours.get_parameter(old))

    def forward(self, batch, generator):
        """Return the loss terms of a batch, as FamaeModel does."""
        histories, targets = self.model.windows(batch)
        masked = self.model.draw_masks(len(targets), generator)
        hidden = self.hidden(histories, targets, masked)
        return self.model.loss(hidden, targets, masked, self.model.draw_negatives(len(targets), generator))

    def hidden(self, histories, targets, masked):
        """Return h_T, shape (batch, width)."""
        model = self.model
        length = len(model.positions)
        histories = f.pad(histories, (length - 1 - histories.shape[1], 0), value=-1)
        codes = torch.cat([model.codes[histories.clamp_min(0)], targets[:, None]], dim=1)
        parts = [table(codes[..., field]) for field, table in enumerate(model.tables)]
        last = [torch.where(masked[:, j, None], model.masks[j], part[:, -1]) for j, part in enumerate(parts)]
        tokens = torch.cat([sum(parts)[:, :-1], sum(last)[:, None]], dim=1)
        tokens = self.dropout(tokens + model.positions)
        padding = f.pad(histories == -1, (0, 1), value=False)
        return self.encoder(tokens, src_key_padding_mask=padding)[:, -1]
