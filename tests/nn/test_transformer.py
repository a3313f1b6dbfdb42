"""The layer against PyTorch's own."""

import pytest
import torch
from torch import nn

from resid.nn import EncoderLayer


@pytest.fixture
def pair():
    torch.manual_seed(0)
    ours, theirs = EncoderLayer(16, 4, 32, 0.0), nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True)
    names = {"qkv.": "self_attn.in_proj_", "out": "self_attn.out_proj", "ffn_in": "linear1",
             "ffn_out": "linear2", "attention_norm": "norm1", "ffn_norm": "norm2"}  # fmt: skip
    state = ours.state_dict()
    for old, new in names.items():
        state = {name.replace(old, new) if name.startswith(old) else name: value for name, value in state.items()}
    theirs.load_state_dict(state)
    return ours, theirs


def test_same_output(pair):
    ours, theirs = pair
    tokens, attend = torch.randn(5, 7, 16), torch.rand(5, 7) < 0.6
    attend[:, -1] = True
    expected = theirs(tokens, src_key_padding_mask=~attend)
    torch.testing.assert_close(ours(tokens, attend), expected)
    torch.testing.assert_close(ours(tokens, attend, n_last=1), expected[:, -1:])
    rows, places = torch.tensor([0, 0, 3, 4]), torch.tensor([6, 1, 0, 5])
    torch.testing.assert_close(ours.at(tokens, attend, rows, places), expected[rows, places])


def test_same_output_with_causal_attention(pair):
    ours, theirs = pair
    tokens = torch.randn(5, 7, 16)
    expected = theirs(tokens, src_mask=nn.Transformer.generate_square_subsequent_mask(7), is_causal=True)
    torch.testing.assert_close(ours(tokens, None), expected)
    torch.testing.assert_close(ours(tokens, None, n_last=1), expected[:, -1:])


@pytest.mark.parametrize("kind", ["boolean", "added"])
def test_same_output_with_any_mask(pair, kind):
    """A mask of queries and keys, boolean or with a bias, of which the last rows may be computed alone."""
    ours, theirs = pair
    tokens, visible = torch.randn(5, 7, 16), (torch.rand(7, 7) < 0.5) | torch.eye(7, dtype=torch.bool)
    bias = torch.randn(7, 7).masked_fill(~visible, -torch.inf)
    mask = visible if kind == "boolean" else bias
    expected = theirs(tokens, src_mask=~visible if kind == "boolean" else bias)
    mask = mask[None].expand(4, -1, -1)  # of the heads
    torch.testing.assert_close(ours(tokens, mask), expected)
    torch.testing.assert_close(ours(tokens, mask, n_last=3), expected[:, -3:])
    _, weights = theirs.self_attn(
        *3 * [tokens], attn_mask=~visible if kind == "boolean" else bias, average_attn_weights=False
    )
    torch.testing.assert_close(ours.attention_of_last(tokens, mask), weights[:, :, -1])


def test_attention_weights(pair):
    ours, theirs = pair
    tokens, attend = torch.randn(5, 7, 16), torch.ones(5, 7, dtype=torch.bool)
    attend[:, :2] = False
    _, expected = theirs.self_attn(tokens, tokens, tokens, ~attend, average_attn_weights=False)
    torch.testing.assert_close(ours.attention_of_last(tokens, attend), expected[:, :, -1])
