"""UNGER: adaptation and alignment against slow references, unified item vectors, and the generator with distillation."""

import math

import numpy as np
import polars as pl
import pytest
import torch

import resid
from resid import Dataset, InputError, Runtime
from resid.data.batches import Batches, SequenceBatches
from resid.encode import ItemEmbeddings
from resid.methods.unger import (
    ModalityAdaptation,
    UNGEREncoder,
    UNGERGenerator,
    UNGERGeneratorSettings,
    UNGERSASRecEncoder,
    UNGERSASRecSettings,
    UNGERSettings,
    UnifiedDIN,
    UnifiedSASRecModel,
)
from resid.nn.losses import symmetric_contrastive_loss
from resid.quantize import HierarchicalKMeans
from resid.runs import Run
from tests.encode.contract import EncoderContract
from tests.generate.test_generators import _GeneratorContract
from tests.recommend.contract import interrupt_after, walks

DIN = {"width": 8, "attention_widths": (6,), "mlp_widths": (10,), "n_negatives": 5, "windows": (2, 1), "epochs": 2}
SASREC = {"width": 16, "layers": 1, "heads": 2, "ffn_width": 16, "epochs": 2}
T5 = {"width": 16, "ffn_width": 32, "layers": 1, "heads": 2, "head_width": 8, "batch_size": 128, "warmup_steps": 5}
TEXT_WIDTH = 7


def make_text(n_items, fingerprint=""):
    vectors = np.random.default_rng(4).normal(size=(n_items, TEXT_WIDTH)).astype(np.float32)
    return ItemEmbeddings(vectors, {"text": (0, TEXT_WIDTH)}, fingerprint)


def make_encoder(kind, **changes):
    if kind == "din":
        return UNGEREncoder(UNGERSettings(**{**DIN, **changes}))
    return UNGERSASRecEncoder(UNGERSASRecSettings(**{**SASREC, **changes}))


class _UnifiedContract(EncoderContract):
    kind = ""

    @classmethod
    def make(cls):
        """Return an encoder whose `fit` has the text of the items already."""
        encoder, fit = make_encoder(cls.kind), type(make_encoder(cls.kind)).fit
        encoder.fit = lambda data, runtime=None: fit(
            encoder, data, make_text(data.n_items, data.fingerprint), runtime=runtime
        )
        return encoder

    def test_halves_have_length_one(self, embeddings):
        assert list(embeddings.columns) == ["behavior", "text"]
        halves = [embeddings.part(name) for name in embeddings.columns]
        assert halves[0].shape == halves[1].shape == (len(embeddings), 8)
        for half in halves:
            assert np.linalg.norm(half, axis=1) == pytest.approx(1, abs=1e-5)

    def test_both_losses_are_recorded(self, encoder):
        for record in encoder.history_:
            total = record["loss.sequence"] + record["loss.alignment"]
            assert record["loss"] == pytest.approx(total)
        losses = [record["loss.alignment"] for record in encoder.history_]
        assert losses[-1] < losses[0]


class TestWithDIN(_UnifiedContract):
    kind = "din"


class TestWithSASRec(_UnifiedContract):
    kind = "sasrec"


class TestAdaptation:
    def test_by_hand(self):
        torch.manual_seed(0)
        text = torch.tensor([[3.0, 4.0], [0.0, -2.0]])
        layer = ModalityAdaptation(text, 3)
        for part in (layer.scale, layer.shift):
            torch.nn.init.normal_(part.weight)
            torch.nn.init.normal_(part.bias)
        for item, unit in enumerate(([0.6, 0.8], [0.0, -1.0])):

            def linear(part, unit=unit):
                rows = zip(part.weight.tolist(), part.bias.tolist(), strict=True)
                return [sum(w * x for w, x in zip(row, unit, strict=True)) + bias for row, bias in rows]

            projected, scale, shift = (linear(part) for part in (layer.project, layer.scale, layer.shift))
            mean = sum(projected) / 3
            deviation = math.sqrt(sum((value - mean) ** 2 for value in projected) / 3 + 1e-5)
            values = zip(projected, scale, shift, strict=True)
            adapted = [(1 + gamma) * (value - mean) / deviation + delta for value, gamma, delta in values]
            expected = [value / math.sqrt(3) for value in adapted]
            assert layer(torch.tensor(item)).tolist() == pytest.approx(expected, abs=1e-5)

    def test_it_starts_as_a_normalized_projection(self):
        torch.manual_seed(0)
        layer = ModalityAdaptation(torch.randn(5, 4), 6)
        items = torch.arange(5)
        normed = torch.nn.functional.layer_norm(layer.project(layer.text), (6,))
        torch.testing.assert_close(layer(items), normed / math.sqrt(6))


def test_alignment_equals_a_slow_reference():
    torch.manual_seed(0)
    ours, theirs = torch.randn(4, 3), torch.randn(4, 3)
    cosine = [[float(torch.cosine_similarity(a, b, dim=0)) / 0.07 for b in theirs] for a in ours]
    total = 0.0
    for own in range(4):
        total -= cosine[own][own] - math.log(sum(math.exp(cosine[own][other]) for other in range(4)))
        total -= cosine[own][own] - math.log(sum(math.exp(cosine[other][own]) for other in range(4)))
    assert float(symmetric_contrastive_loss(ours, theirs, 0.07)) == pytest.approx(total / 8, rel=1e-4)
    assert float(symmetric_contrastive_loss(ours, ours, 0.07)) < 0.1  # the pairs are alike


@pytest.mark.parametrize("kind", ["din", "sasrec"])
def test_both_halves_start_with_length_one(kind):
    """At the default widths, so that neither half dominates the scores."""
    text = torch.from_numpy(make_text(300).vectors)
    torch.manual_seed(0)
    if kind == "din":
        vectors = UnifiedDIN(300, UNGERSettings(), 31, text).item_vectors(torch.arange(300))
    else:
        vectors = UnifiedSASRecModel(UNGERSASRecSettings(), 31, text).tables.all_vectors()
    assert vectors.shape == (300, 256)
    for half in vectors.detach().chunk(2, dim=1):
        assert float(half.norm(dim=1).mean()) == pytest.approx(1, abs=0.05)


class TestModels:
    """The losses of both sequential models, and where their gradients flow."""

    @pytest.fixture(params=["din", "sasrec"])
    def trained(self, request):
        data = walks()
        text = torch.from_numpy(make_text(data.n_items).vectors)
        torch.manual_seed(0)
        if request.param == "din":
            model = UnifiedDIN(data.n_items, UNGERSettings(**DIN), 11, text)
            batch = next(iter(Batches(data.train, 30)))
            return model, batch, model.table, model.adaptation, set(batch.targets.tolist())
        model = UnifiedSASRecModel(UNGERSASRecSettings(**SASREC, dropout=0.0), 11, text)
        batch = next(iter(SequenceBatches(data.train, 9, 7)))
        items = set(batch.items[:, 1:][batch.are_targets].tolist())
        return model, batch, model.tables.embeddings()[0], model.tables.adaptation, items

    def rng(self):
        return torch.Generator().manual_seed(1)

    def test_alignment_of_the_distinct_targets(self, trained):
        model, batch, table, adaptation, targets = trained
        items = torch.tensor(sorted(targets))
        with torch.no_grad():
            terms = model(batch, self.rng())
            expected = symmetric_contrastive_loss(table(items), adaptation(items), 0.07)
        assert float(terms["loss.alignment"]) == pytest.approx(float(expected), rel=1e-5)
        assert float(terms["loss"]) == pytest.approx(float(terms["loss.sequence"] + terms["loss.alignment"]))

    def test_gradients(self, trained):
        """Alignment moves both halves and nothing else; the next item moves everything. The text is fixed."""
        model, batch, *_ = trained
        touched = {}
        for term in ("loss.alignment", "loss.sequence"):
            model.zero_grad()
            model(batch, self.rng())[term].backward()
            touched[term] = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.any()}
        halves = {name for name, _ in model.named_parameters() if name.startswith(("table.", "adaptation.", "tables."))}
        assert touched["loss.alignment"] == halves
        assert halves < touched["loss.sequence"]
        assert "text" not in dict(model.named_parameters())


def test_sasrec_without_fields_and_with_even_width():
    with pytest.raises(InputError, match="width=15 must be even"):
        UNGERSASRecSettings(width=15, heads=3)
    for wrong in ({"use_fields": True}, {"target": "id"}):
        with pytest.raises(InputError, match="the item vectors of UNGER have no fields"):
            UNGERSASRecSettings(**wrong)


class TestTextInput:
    @pytest.mark.parametrize("kind", ["din", "sasrec"])
    def test_bad_text(self, kind):
        data = walks()
        text = make_text(data.n_items).vectors
        broken = text.copy()
        broken[3, 1] = np.nan
        for given, message in (
            (None, "the encoder of UNGER reads text vectors of the items; fit the recipe 'unger'"),
            (make_text(data.n_items, "other"), "these are the text vectors of another Dataset"),
            (text[:7], "one row for each of 12 items"),
            (broken, "the embedding of item 3 is not finite"),
        ):
            with pytest.raises(InputError, match=message):
                make_encoder(kind).fit(data, given)

    def test_other_text_is_another_training(self, tmp_path):
        data = walks()
        text = make_text(data.n_items).vectors
        make_encoder("din", epochs=1).fit(data, text, runtime=Runtime(tmp_path))
        with pytest.raises(InputError, match="this run has another configuration, 'text' was"):
            make_encoder("din", epochs=1).fit(data, -text, runtime=Runtime(tmp_path))


def fit_generator(data, folder=None, **changes):
    vectors = np.random.default_rng(0).normal(size=(data.n_items, 10)).astype(np.float32)
    ids = HierarchicalKMeans((2, 3), random_state=0).fit(vectors).semantic_ids_
    generator = UNGERGenerator(UNGERGeneratorSettings(**{**T5, "epochs": 1, "n_negatives": 5, **changes}))
    return generator.fit(data, ids, vectors, runtime=Runtime(folder))


class TestGenerator(_GeneratorContract):
    @classmethod
    def make(cls, data):
        return fit_generator(data, beam_size=4)

    @pytest.mark.parametrize("weight", [0.0, 2.5])
    def test_the_weight_of_the_distillation(self, data, weight):
        record = fit_generator(data, distillation_weight=weight).history_[0]
        assert record["loss"] == pytest.approx(record["generation"] + weight * record["contrastive"])
        assert record["contrastive"] > 0

    def test_item_vectors_are_not_saved(self, model, data):
        assert model.model_.targets is None
        assert "targets" not in model.to_artifact().arrays
        assert fit_generator(data, input_embeddings=True).model_.project is not None

    def test_it_needs_embeddings(self, data, model):
        with pytest.raises(InputError, match="the generator of UNGER needs item embeddings"):
            UNGERGenerator().fit(data, model.ids_)

    @pytest.mark.parametrize("last", [2, 9])
    def test_resumes_exactly(self, data, tmp_path, monkeypatch, last):
        options = {"epochs": 3, "patience": 0, "dropout": 0.2}
        whole = fit_generator(data, **options)
        interrupt_after(last, monkeypatch)
        with pytest.raises(KeyboardInterrupt):
            fit_generator(data, tmp_path, **options)
        monkeypatch.undo()
        again = fit_generator(data, tmp_path, **options)
        for ours, theirs in zip(again.model_.parameters(), whole.model_.parameters(), strict=True):
            assert torch.equal(ours, theirs)


class TestRecipe:
    @pytest.fixture(scope="class")
    @classmethod
    def data(cls, shop):
        return Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])

    @pytest.fixture(scope="class")
    @classmethod
    def changes(cls, data, tmp_path_factory):
        """Text vectors from a file, and small parts."""
        path = tmp_path_factory.mktemp("text") / "vectors.parquet"
        vectors = make_text(data.n_items).vectors
        table = pl.DataFrame({"item": data.item_ids, "vector": pl.Series(vectors.tolist(), dtype=pl.List(pl.Float32))})
        table.write_parquet(path)
        parts = {"encoder": DIN, "generator": {**T5, "epochs": 1}}
        small = {f"{part}.{name}": value for part, values in parts.items() for name, value in values.items()}
        return small | {"text_encoder.vectors": str(path), "quantizer.branching": 8}

    def test_from_tables_to_recommendations(self, data, changes, tmp_path):
        model = resid.fit(data, "unger", tmp_path / "run", changes=changes)
        assert isinstance(model, UNGERGenerator)
        assert list(model.parts_) == ["text_encoder", "encoder", "quantizer"]
        assert model.ids_.level_sizes[:2] == (8, 8)
        assert model.ids_.unique
        loaded = resid.load(tmp_path / "run")
        again = resid.fit(data, "unger", tmp_path / "run", changes=changes)  # all stages are there
        history = [data.item_ids[:3].to_list()]
        everything, scores = model.recommend(history, data.n_items, exact=True)
        assert set(everything[0]) == set(data.item_ids)  # no item is out of reach
        for other in (loaded, again):
            items, values = other.recommend(history, data.n_items, exact=True)
            assert items.tolist() == everything.tolist()
            assert values.tobytes() == scores.tobytes()

    @pytest.mark.parametrize("generator", ["onepass", "t5"])
    def test_with_sasrec_and_another_generator(self, data, changes, generator):
        kept = {name: value for name, value in changes.items() if not name.startswith(("encoder.", "generator."))}
        small = {f"encoder.{name}": value for name, value in SASREC.items()}
        other = {"encoder.kind": "unger-sasrec", "generator.kind": generator}
        short = {"epochs": 1, "width": 16, "layers": 1, "ffn_width": 16, "beam_size": 10, "validation_users": 20}
        small |= {f"generator.{name}": value for name, value in short.items()}
        model = resid.fit(data, "unger", changes=kept | small | other)
        assert model.kind == generator

    def test_a_catalogue_smaller_than_the_branching(self, data, changes):
        model = resid.fit(data, "unger", changes=changes | {"quantizer.branching": 256})
        assert model.ids_.level_sizes == (256,)
        assert model.ids_.unique

    def test_an_encoder_that_reads_no_text(self, data, changes):
        kept = {name: value for name, value in changes.items() if not name.startswith("encoder.")}
        with pytest.raises(InputError, match=r'needs an encoder that reads text: set encoder\.kind to "unger"'):
            resid.fit(data, "unger", changes=kept | {"encoder.kind": "sasrec"})

    def test_a_generator_that_trains_another_quantizer(self, data, changes, monkeypatch):
        """Refused before anything is fitted."""
        monkeypatch.delattr(Run, "stage")
        kept = {name: value for name, value in changes.items() if not name.startswith("generator.")}
        with pytest.raises(
            InputError, match=r"'etegrec' .* cannot use the quantizer 'hierarchical'; set quantizer\.kind"
        ):
            resid.fit(data, "unger", changes=kept | {"generator.kind": "etegrec"})
