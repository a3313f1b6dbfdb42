"""The summary token: its contrastive loss against a slow reference, where gradients flow, and decoding without it."""

import numpy as np
import pytest
import torch
import torch.nn.functional as f

from resid.data.batches import Batch
from resid.generate import SummarySettings, SummaryT5Model, T5Model

SETTINGS = SummarySettings(width=16, heads=2, head_width=8, ffn_width=32, layers=2, dropout=0.0, n_negatives=8)
CODES = torch.tensor([[item // 4, item % 4] for item in range(16)])


def model(**changes):
    torch.manual_seed(0)
    return SummaryT5Model(CODES, (4, 4), SETTINGS.replace(**changes), 5, 6, torch.randn(16, 6))


def batch():
    rng = np.random.default_rng(0)
    index = np.arange(7)
    return Batch(index, index, rng.integers(0, 16, (7, 5)), rng.integers(0, 16, 7))


@pytest.mark.parametrize("n_negatives", [8, 16, 50])
def test_contrastive_loss_equals_a_slow_reference(n_negatives):
    net = model(n_negatives=n_negatives)
    summaries, items = torch.randn(7, 6), torch.tensor([0, 3, 3, 15, 8, 2, 9])
    found = net.contrastive_loss(summaries, items, torch.Generator().manual_seed(4))
    drawn = torch.randint(16, (1, 8), generator=torch.Generator().manual_seed(4))[0]
    negatives = drawn.tolist() if n_negatives < 16 else range(16)
    each = []
    for summary, item in zip(summaries, items.tolist(), strict=True):
        scores = [f.cosine_similarity(summary, net.targets[item], dim=0) / 0.3]
        scores += [f.cosine_similarity(summary, net.targets[n], dim=0) / 0.3 for n in negatives if n != item]
        each.append(-torch.stack(scores).log_softmax(dim=0)[0])
    torch.testing.assert_close(found, torch.stack(each).mean())


def test_losses_of_a_batch():
    """The codes' loss is that of T5 with the same weights: the summary token comes after the codes and changes nothing."""
    net, some = model(), batch()
    losses = net(some, torch.Generator().manual_seed(0))
    plain = T5Model(CODES, (4, 4), SETTINGS, 5, decoder_length=4)
    plain.load_state_dict({name: w for name, w in net.state_dict().items() if not name.startswith("summary")})
    torch.testing.assert_close(losses["generation"], plain(some, torch.Generator())["loss"])
    assert losses["loss"] == losses["generation"] + losses["contrastive"]
    losses["contrastive"].backward()
    for name in ("summary_token", "summary_project.weight", "table.weight", "encoder.norm.weight"):
        assert net.get_parameter(name).grad.abs().sum() > 0, name


def test_two_temperatures():
    """One divides the logits of the codes, the other the cosines of the summary."""
    some = batch()
    with torch.no_grad():
        plain, codes, cosines = (
            model(**changes)(some, torch.Generator().manual_seed(0))
            for changes in ({}, {"temperature": 0.5}, {"contrastive_temperature": 0.6})
        )
    assert codes["contrastive"] == plain["contrastive"]
    assert codes["generation"].item() != pytest.approx(plain["generation"].item(), rel=1e-3)
    assert cosines["generation"] == plain["generation"]
    assert cosines["contrastive"].item() != pytest.approx(plain["contrastive"].item(), rel=1e-3)


def test_the_summary_reads_all_codes():
    """The summaries of two items that differ in their last code alone are different."""
    net = model().eval()
    memory = net.encode(torch.tensor([[1, 2], [1, 2]]))
    _, summaries = net.teacher_forced(memory, torch.tensor([4, 5]))
    assert not torch.allclose(summaries[0], summaries[1])


def test_step_by_step_decoding_equals_teacher_forcing():
    net = model().eval()
    histories, item = torch.tensor([[-1, 2, 7]]), 9
    memory = net.encode_histories(histories)
    first, state = net.next_level(memory, None, None)
    second, _ = net.next_level(memory, net.reorder(state, torch.tensor([[0]])), CODES[item, :1][None])
    score = first[0, 0, CODES[item, 0]] + second[0, 0, CODES[item, 1]]
    loss, _ = net.teacher_forced(net.encode(histories), torch.tensor([item]))
    torch.testing.assert_close(score, -2 * loss)
