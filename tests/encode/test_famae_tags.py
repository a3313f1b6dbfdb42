"""FAMAE on fields with tags and numbers: tokens and loss against slow references, embeddings, new items, metrics."""

import numpy as np
import polars as pl
import pytest
import torch
import torch.nn.functional as f
from torch import nn

from resid import Dataset
from resid.data import Batches
from resid.data.synthetic import synthetic_shop
from resid.encode import FAMAE, FamaeModel, FamaeSettings
from resid.encode.metrics import embedding_quality
from resid.nn import item_and_fields

SMALL = FamaeSettings(width=8, ffn_width=16, heads=2, layers=1, dropout=0.0, epochs=2, batch_size=256)


@pytest.fixture(scope="module")
def shop():
    return synthetic_shop(users=120, items=50, interactions=1_500, seed=4, tags=4)


@pytest.fixture(scope="module")
def items(shop):
    """Return the items, one of them without tags and one without a price."""
    index = pl.int_range(pl.len())
    return shop.item_table.with_columns(tags=pl.when(index != 7).then("tags"), price=pl.when(index != 9).then("price"))


@pytest.fixture(scope="module")
def data(shop, items):
    fields = ["store", "tags", "price"]
    return Dataset.from_tables(shop.interaction_table, items, fields, k_core=1, missing="keep")


@pytest.fixture(scope="module")
def encoder(data):
    return FAMAE(SMALL).fit(data)


def make(data, **options):
    torch.manual_seed(0)
    model = FamaeModel(*item_and_fields(data), SMALL.replace(**options), data.settings.max_length)
    for parameter in model.parameters():  # larger weights than at the start, so that differences show
        nn.init.normal_(parameter, std=0.3)
    return model.double()


def codes_of(data, item, field):
    """Return the codes of an item's field, the item ID first, one by one."""
    if field == 0:
        return [item]
    return [code for place, code in enumerate(data.fields[item, field - 1]) if code or not place]


def slow_token(model, data, item, masked):
    token = torch.zeros(SMALL.width, dtype=torch.float64)
    for field, table in enumerate(model.embeddings()):
        token += model.masks[field] if masked[field] else table.weight[codes_of(data, item, field)].mean(dim=0)
    return token


def slow_loss(model, data, hidden, item, masked, negatives=None):
    """Return the loss of one target by the formula: the mean over tags of −log q."""
    total = 0.0
    for field, table in enumerate(model.embeddings()):
        codes = codes_of(data, item, field)
        for code in codes if masked[field] else []:
            others = range(len(table.weight)) if negatives is None else [n for n in negatives[field] if n not in codes]
            candidates = [code, *(other for other in others if other != code)]
            cosines = f.cosine_similarity(hidden[None], table.weight[candidates]) * SMALL.width**0.5
            total += (cosines.logsumexp(0) - cosines[0]) / len(codes)
    return total


def test_tokens(data):
    model = make(data)
    targets, rng = np.array([0, 7, 9, 20, 31]), torch.Generator().manual_seed(3)
    masked = model.draw_masks(len(targets), rng)
    fused = model.fuse(model.codes[torch.from_numpy(targets)], masked)
    for row, item in enumerate(targets):
        torch.testing.assert_close(fused[row], slow_token(model, data, item, masked[row]))


@pytest.mark.parametrize("options", [{}, {"full_softmax_limit": 4, "n_negatives": 5, "negative_group_size": 6}])
def test_the_loss_is_its_formula(data, options):
    model = make(data, **options)
    batch = next(iter(Batches(data.train, 40, seed=1)))
    histories, targets = model.windows(batch)
    rng = torch.Generator().manual_seed(0)
    masked = model.draw_masks(len(targets), rng)
    hidden = model.hidden(histories, targets, masked)
    drawn = model.draw_negatives(len(targets), rng)
    assert all((some is None) == (not options) for some in drawn)
    terms = model.loss(hidden, targets, masked, drawn)
    slow = [
        slow_loss(model, data, hidden[row], int(item), masked[row],
                  [some[row // 6].tolist() for some in drawn] if options else None)
        for row, item in enumerate(batch.targets)
    ]  # fmt: skip
    assert terms["loss"].item() == pytest.approx((sum(slow) / len(slow)).item())


@pytest.mark.parametrize("attention", ["causal", "bidirectional"])
def test_masked_tags_do_not_reach_the_hidden_state(data, attention):
    model = make(data, attention=attention)
    histories, targets = model.windows(next(iter(Batches(data.train, 40, seed=1))))
    masked = model.draw_masks(len(targets), torch.Generator().manual_seed(0))
    other = torch.where(masked[..., None], torch.ones_like(targets), targets)
    assert not torch.equal(other, targets)
    assert torch.equal(model.hidden(histories, targets, masked), model.hidden(histories, other, masked))
    visible = torch.where(masked[..., None], targets, (targets + 1) % 4)
    assert not torch.allclose(model.hidden(histories, targets, masked), model.hidden(histories, visible, masked))


def test_one_pass_equals_windows(data):
    model = make(data)
    items = torch.tensor([[3, 7, 12, 9, 20]])
    masked = model.draw_masks(4, torch.Generator().manual_seed(0))
    found = model.hidden_in_one_pass(items, masked[None])[0]
    for last in range(1, 5):
        wanted = model.hidden(items[:, :last], model.codes[items[:, last]], masked[last - 1 : last])
        torch.testing.assert_close(found[last - 1], wanted[0])


@pytest.mark.parametrize("masking", ["last", "random"])
def test_training_lowers_the_loss_of_tags(data, masking):
    settings = SMALL.replace(epochs=4, attention="bidirectional", masking=masking, learning_rate=0.01)
    history = FAMAE(settings).fit(data).history_
    for name in ("loss", "loss.tags", "loss.price"):
        assert history[-1][name] < history[0][name]


class TestEmbeddings:
    def test_that_of_tags_is_the_mean_of_their_rows(self, data, encoder):
        table, found = encoder.model_.tables[2].weight.detach().numpy(), encoder.embed(data)
        for item in np.flatnonzero(encoder.occurring_)[:20]:
            assert found.part("tags")[item] == pytest.approx(table[codes_of(data, item, 2)].mean(axis=0), abs=1e-6)

    def test_a_saved_encoder(self, data, encoder, items, tmp_path):
        encoder.save(tmp_path / "encoder")
        loaded = FAMAE.load(tmp_path / "encoder")
        assert np.array_equal(loaded.embed(data).vectors, encoder.embed(data).vectors)
        assert loaded.catalogue_.edges == data.edges
        assert np.array_equal(loaded.embed_new(items)[1], encoder.embed_new(items)[1])

    def test_new_items(self, data, encoder, items):
        """Tags that training never saw do not count; if there are none, the field is predicted as the item ID is."""
        known = items.filter(pl.col("item").is_in(data.item_ids.gather(np.flatnonzero(encoder.occurring_)).implode()))
        known = known.drop_nulls()[:5]
        _, vectors = encoder.embed_new(known)
        own = encoder.embed(data).vectors[data.item_indices(known["item"])]
        width = SMALL.width
        assert vectors[:, width:] == pytest.approx(own[:, width:], abs=1e-6)
        extended = known.with_columns(pl.col("tags").list.concat(pl.lit(["aardvark", "zebra"])))
        assert encoder.embed_new(extended)[1] == pytest.approx(vectors, abs=1e-6)
        unknown = known.with_columns(tags=pl.lit(["aardvark", "zebra"]))
        parts = encoder.embed_new(unknown, normalize=True)[1].reshape(5, 4, width)
        assert parts[:, 2] == pytest.approx(parts[:, 0], abs=1e-5)

    def test_padding_is_not_a_value_that_training_saw(self, shop):
        """The codes of items end with zeros, but 0 is also item 0, and "missing"."""
        data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["tags"], k_core=1)
        encoder = FAMAE(SMALL.replace(epochs=1)).fit(data)
        encoder.occurring_ = np.arange(data.n_items) > 0
        parts = encoder.embed(data, normalize=True).vectors.reshape(-1, 2, SMALL.width)
        assert not np.allclose(parts[0, 0], f.normalize(encoder.model_.tables[0].weight[0], dim=0).detach(), atol=1e-3)
        nothing = shop.item_table[:1].with_columns(tags=pl.lit([], pl.List(pl.String)))
        new = encoder.embed_new(nothing, normalize=True)[1].reshape(2, SMALL.width)
        assert new[1] == pytest.approx(new[0], abs=1e-5)  # both are predicted


def test_metrics(data, encoder):
    model = encoder.model_.eval()
    found = embedding_quality(model, data.validation)
    # The entropy of a random tag of a random target.
    shares = np.zeros(data.field_sizes[1])
    for target in data.validation.targets:
        codes = codes_of(data, target, 2)
        shares[codes] += 1 / len(codes) / len(data.validation)
    entropy = -(shares[shares > 0] * np.log(shares[shares > 0])).sum()
    with torch.no_grad():
        masked, rng = model.all_masked(len(data.validation)), torch.Generator().manual_seed(0)
        losses, counts = 0.0, 0
        for batch in Batches(data.validation, 512, shuffle=False):
            histories, targets = model.windows(batch)
            masked = model.draw_masks(len(targets), rng)
            hidden = model.hidden(histories, targets, masked)
            rows = torch.zeros_like(masked)
            rows[:, 2] = masked[:, 2]
            losses += sum(
                slow_loss(model, data, hidden[row], int(item), rows[row]) for row, item in enumerate(batch.targets)
            )
            counts += int(masked[:, 2].sum())
    assert found["bound_fields"]["tags"] == pytest.approx(entropy - float(losses) / counts, abs=1e-4)
    # Metric 1 over all fields: the sum of the cosines, the mean over tags.
    window = Batches(data.validation.take(np.arange(30)), 30, shuffle=False).batch(np.arange(30))
    with torch.no_grad():
        histories, targets = model.windows(window)
        hidden = model.hidden(histories, targets, model.all_masked(30))
        units = [f.normalize(table.weight, dim=1) for table in model.embeddings()]
        vectors = torch.stack(
            [
                sum(units[field][codes_of(data, item, field)].mean(dim=0) for field in range(4))
                for item in range(data.n_items)
            ]
        )
        scores = hidden @ vectors.T
    own = scores.gather(1, torch.from_numpy(window.targets)[:, None])
    hits = ((scores > own).sum(dim=1) < 10).double().mean().item()
    some = embedding_quality(model, data.validation.take(np.arange(30)))
    assert some["metric1_all_fields"]["recall@10"] == pytest.approx(hits)
