"""The analytic operation counts against those of PyTorch."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from resid.evaluate.cost import attention_flops, encoder_flops, famae_flops, feed_forward_flops, gaoq_flops, t5_flops
from resid.nn import EncoderLayer
from resid.quantize import GAOQ
from tests.quantize.test_kmeans import blobs


def counted(work):
    # PyTorch counts plain matrix products only, so fused attention is disabled.
    with sdpa_kernel(SDPBackend.MATH), FlopCounterMode(display=False) as counter, torch.no_grad():
        work()
    return counter.get_total_flops()


@pytest.mark.parametrize("last_only", [False, True])
def test_encoder(last_only):
    layers = [EncoderLayer(32, 4, 96, 0.0).eval() for _ in range(3)]
    tokens, attend = torch.randn(2, 11, 32), torch.ones(2, 11, dtype=torch.bool)

    def run():
        hidden = tokens
        for layer in layers[:-1]:
            hidden = layer(hidden, attend)
        layers[-1](hidden, attend, n_last=1 if last_only else None)

    assert 2 * encoder_flops(11, 32, 96, 3, last_only=last_only) == pytest.approx(counted(run), rel=0.01)


def test_famae():
    assert famae_flops(10, 5, 16, 32, 2) == 10 * 5 * 16 + encoder_flops(10, 16, 32, 2, last_only=True)
    assert famae_flops(10, 5, 16, 32, 2) < famae_flops(10, 5, 16, 32, 2, last_only=False)


def test_t5():
    """A decoder layer of PyTorch has the same products."""
    layer = nn.TransformerDecoderLayer(32, 4, 96, 0.0, batch_first=True)  # in training mode, without fused kernels
    target, memory = torch.randn(1, 3, 32), torch.randn(1, 20, 32)
    expected = attention_flops(3, 3, 32) + attention_flops(3, 20, 32) + feed_forward_flops(3, 32, 96)
    assert counted(lambda: layer(target, memory)) == pytest.approx(expected, rel=0.01)
    whole = t5_flops(20, 3, 32, 96, (2, 5), vocabulary=100)
    assert whole == encoder_flops(20, 32, 96, 2) + 5 * expected + 2 * 3 * 32 * 100


def test_gaoq():
    """The clustering term equals the count of the fit; the other terms are computed by hand for a small tree."""
    model = GAOQ((4, 5), max_iter=1, random_state=0).fit(blobs(200, d=16))  # too few items for a sample
    start = [2 * 50**2 * 16, 4 * 2 * 20**2 * 16]  # k-means++ among a quarter of the points, at least 4 per cluster
    paper = gaoq_flops(200, 16, model.branching_, [1, 1])
    assert sum(model.product_flops_) == paper["clustering"] + sum(start)
    assert model.branching_ == (4, 5, 10)
    assert paper["cosines"] == 2 * 16 * (4 * 5 * 5 + 20 * 10 * 10)
    assert paper["matching"] == 4 * 5**3 + 20 * 10**3
    assert paper["anchors"] == 2 * 16 * (5**2 + 10**2)
    assert paper["centering"] == 16 * (4 * 5 + 20 * 10)
    more = gaoq_flops(200, 16, model.branching_, np.array([2.5, 1]), anchors=(7, 12))
    assert more["clustering"] - paper["clustering"] == 1.5 * 2 * 200 * 4 * 16
    assert more["cosines"] > paper["cosines"]
