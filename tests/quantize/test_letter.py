"""LETTER's tokenizer: its losses, Sinkhorn assignment, groups of codes, repair of collisions, training."""

import os
import signal

import numpy as np
import pytest
import torch
from benchmarks.plain_letter import plain_diversity_loss, plain_losses, plain_sinkhorn
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid import InputError, Runtime
from resid.data import VectorBatch
from resid.encode import ItemEmbeddings
from resid.quantize import LETTER
from resid.quantize.letter_model import CodeGroups, LETTERModel, collaborative_loss, diversity_loss, group_codes
from resid.quantize.sinkhorn import sinkhorn_codes, sinkhorn_plan
from tests.quantize.contract import QuantizerContract
from tests.quantize.test_kmeans import blobs

QUICK = {
    "hidden_layer_sizes": (16,),
    "latent_dim": 4,
    "epochs": 6,
    "evaluate_every": 2,
    "batch_size": 64,
}
VECTORS, COLLABORATIVE = blobs(160, d=12), blobs(160, d=4, seed=5)


@parametrize_with_checks([LETTER(2, 3, hidden_layer_sizes=(8,), epochs=1, random_state=0)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


class TestLETTER(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return LETTER(3, 8, **QUICK, random_state=random_state)

    def test_learns(self):
        quick = {"epochs": 30, "evaluate_every": 5, "learning_rate": 5e-3}
        plain = self.make().set_params(**quick).fit(VECTORS, collaborative=COLLABORATIVE)
        assert plain.history_[-1]["reconstruction"] < 0.7 * plain.history_[0]["reconstruction"]
        strong = self.make().set_params(**quick, collaborative_weight=1.0).fit(VECTORS, collaborative=COLLABORATIVE)
        assert strong.history_[-1]["collaborative"] < strong.history_[0]["collaborative"]
        assert strong.history_[-1]["collaborative"] < plain.history_[-1]["collaborative"]

    def test_collaborative_vectors_change_the_codes(self, fitted):
        with_them = self.make().set_params(collaborative_weight=5.0).fit(VECTORS, collaborative=COLLABORATIVE)
        assert not np.array_equal(with_them.codes_, fitted.codes_)
        assert "collaborative" not in fitted.history_[0]

    def test_weights_of_the_losses_do_not_depend_on_the_scale_of_the_input(self):
        one = self.make().fit(VECTORS, collaborative=COLLABORATIVE)
        other = self.make().fit(4 * VECTORS, collaborative=8 * COLLABORATIVE)  # powers of two: no rounding
        assert np.array_equal(one.codes_, other.codes_)
        assert one.history_[-1]["loss"] == other.history_[-1]["loss"]


def model_and_batch(levels=3, size=24, weights=(0.02, 1e-4), n=50, **options):
    torch.manual_seed(1)
    collaborative = torch.randn(n, 6)
    model = LETTERModel(
        (10, 14, 6), levels, size, 0.25, *weights, 4, collaborative=collaborative, input_scale=0.5, **options
    )
    with torch.no_grad():
        model.codebooks.normal_()
    vectors = torch.randn(n, 10)
    return model, VectorBatch(np.arange(n), vectors.numpy()), vectors, collaborative


class TestLosses:
    def test_equal_to_the_plain_implementation(self):
        model, batch, vectors, collaborative = model_and_batch()
        terms = model(batch, torch.Generator().manual_seed(4))
        rng = torch.Generator().manual_seed(4)
        torch.randint(2**31, (), generator=rng)  # the seed of the clustering
        plain = plain_losses(
            model, vectors, collaborative, model.groups.labels.tolist(), torch.rand(50, 3, generator=rng)
        )
        assert set(terms) == set(plain)
        for name, term in terms.items():
            assert term.item() == pytest.approx(plain[name].item(), rel=1e-5), name
        gradients = [torch.autograd.grad(loss["loss"], list(model.parameters())) for loss in (terms, plain)]
        for ours, theirs in zip(*gradients, strict=True):
            assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-7)

    def test_reconstruction_and_quantization_by_hand(self):
        model = LETTERModel((3, 2), 2, 2, 0.25, 0.0, 0.0, 2)
        with torch.no_grad():
            model.encoder[0].weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
            model.encoder[0].bias.zero_()
            model.decoder[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [0, 0]]))
            model.decoder[0].bias.zero_()
            model.codebooks.copy_(torch.tensor([[[2.0, 0], [-2, 0]], [[0, 1.0], [0, -1]]]))
        terms = model(VectorBatch(np.arange(1), np.array([[1.5, 0.75, 3.0]], dtype=np.float32)), torch.Generator())
        # Latent (1.5, .75); the first level takes (2, 0) and leaves (-.5, .75); the second (0, 1) and leaves (-.5, -.25).
        assert terms["reconstruction"].item() == pytest.approx((0.5**2 + 0.25**2 + 9) / 3)
        assert terms["quantization"].item() == pytest.approx(1.25 * ((0.25 + 0.75**2) / 2 + (0.25 + 0.25**2) / 2) / 2)
        assert terms["loss"].item() == pytest.approx(terms["reconstruction"].item() + terms["quantization"].item())

    def test_collaborative_loss_by_hand(self):
        quantized, collaborative = torch.tensor([[1.0, 0], [0, 2]]), torch.tensor([[3.0, 1], [1, 1]])
        # Scores: (3, 1) and (2, 2).
        expected = (np.log(np.exp(3) + np.exp(1)) - 3 + np.log(2)) / 2
        assert collaborative_loss(quantized, collaborative, torch.tensor([0, 1])).item() == pytest.approx(expected)

    def test_another_row_with_the_same_item_is_no_negative(self):
        quantized, collaborative = torch.randn(3, 2), torch.randn(2, 2)
        items = torch.tensor([0, 1, 0])
        loss = collaborative_loss(quantized, collaborative[items], items)
        compared = ([0, 1], [1, 0, 0], [0, 1])  # items, each row's own first
        scores = [quantized[row] @ collaborative[each].T for row, each in enumerate(compared)]
        expected = -sum(row.log_softmax(dim=0)[0] for row in scores) / 3
        assert loss.item() == pytest.approx(expected.item(), rel=1e-5)

    def test_diversity_loss_by_hand(self):
        book = torch.tensor([[1.0, 0], [2, 0], [0, 3]])
        # Code 0 with positive 1: the scores of 1 and 2 are 2 and 0. Code 2 with positive 0: those of 0 and 1 are 0 and 0.
        expected = (np.log(np.exp(2) + 1) - 2 + np.log(2)) / 2
        loss = diversity_loss(book, torch.tensor([0, 2]), torch.tensor([1, 0]))
        assert loss.item() == pytest.approx(expected, rel=1e-6)

    def test_diversity_loss_of_items_with_the_same_code(self):
        rng = torch.Generator().manual_seed(0)
        book, codes = torch.randn(12, 5, generator=rng), torch.randint(12, (70,), generator=rng)
        labels, draws = torch.arange(12) % 3, torch.rand(70, 1, generator=rng)
        positives = CodeGroups(labels[None]).positives(codes[:, None], draws)[:, 0]
        plain = plain_diversity_loss(book, codes, labels.tolist(), draws[:, 0])
        assert diversity_loss(book, codes, positives).item() == pytest.approx(plain.item(), rel=1e-5)


class TestGradients:
    """Where the gradient of each term goes."""

    @pytest.mark.parametrize(
        ("term", "encoder", "codebooks", "decoder"),
        [
            ("reconstruction", True, False, True),  # straight through
            ("quantization", True, True, False),
            ("collaborative", True, False, False),
            ("diversity", False, True, False),
        ],
    )
    def test_reaches(self, term, encoder, codebooks, decoder):
        model, batch, _, _ = model_and_batch()
        model(batch, torch.Generator())[term].backward()
        for parameters, reached in ((model.encoder, encoder), (model.decoder, decoder)):
            assert any(p.grad is not None and p.grad.any() for p in parameters.parameters()) is reached
        assert (model.codebooks.grad is not None and bool(model.codebooks.grad.any())) is codebooks

    def test_quantization_stops_on_both_sides(self):
        model, batch, _, _ = model_and_batch(levels=1)
        model.commitment_weight = 0.0
        model(batch, torch.Generator())["quantization"].backward()
        assert model.codebooks.grad.any()
        assert not any(p.grad is not None and p.grad.any() for p in model.encoder.parameters())


class TestSinkhorn:
    def test_marginals(self):
        distances = torch.rand(3, 40, 8, generator=torch.Generator().manual_seed(0))
        for plan in (sinkhorn_plan(distances), sinkhorn_plan(distances, epsilon=0.1, n_iter=1_000)):
            assert plan.dtype == torch.float64
            assert plan.sum(dim=1).numpy() == pytest.approx(np.full((3, 8), 1 / 8), rel=1e-9)  # every code
        assert plan.sum(dim=2).numpy() == pytest.approx(np.full((3, 40), 1 / 40), rel=1e-9)  # every item

    def test_equal_to_the_plain_implementation(self):
        rng = torch.Generator().manual_seed(2)
        for rows, codes in ((40, 8), (5, 16), (1, 4)):
            distances = 9 * torch.rand(rows, codes, generator=rng)
            assert torch.allclose(sinkhorn_plan(distances[None])[0], plain_sinkhorn(distances), rtol=1e-3, atol=1e-9)

    def test_padding_changes_nothing(self):
        distances = torch.rand(7, 8, generator=torch.Generator().manual_seed(3))
        padded = torch.cat([distances, torch.full((3, 8), 1e6)])[None]
        present = (torch.arange(10) < 7)[None]
        assert torch.equal(sinkhorn_plan(padded, present)[0, :7], sinkhorn_plan(distances[None])[0])
        assert not sinkhorn_plan(padded, present)[0, 7:].any()

    def test_codes_are_used_evenly(self):
        rng = torch.Generator().manual_seed(0)
        points, books = torch.randn(64, 3, generator=rng), torch.randn(8, 3, generator=rng)
        distances = torch.cdist(points, books).square()
        nearest = torch.bincount(distances.argmin(dim=1), minlength=8)
        balanced = torch.bincount(sinkhorn_codes(distances[None])[0], minlength=8)
        assert balanced.max() - balanced.min() <= 4 < nearest.max() - nearest.min()

    def test_extreme_distances(self):
        for distances in (torch.zeros(1, 4, 3), torch.tensor([[[0.0, 1e12], [1e12, 0], [1e12, 1e12]]])):
            assert torch.isfinite(sinkhorn_plan(distances)).all()


class TestGroups:
    def test_positives_are_the_other_codes_of_the_group(self):
        labels = torch.tensor([[0, 1, 0, 1, 1, 0, 2, 2], [0, 0, 0, 0, 1, 1, 1, 1]])
        codes = torch.randint(8, (4_000, 2), generator=torch.Generator().manual_seed(0))
        found = CodeGroups(labels).positives(codes, torch.rand(codes.shape, generator=torch.Generator().manual_seed(1)))
        for level in range(2):
            for code in range(8):
                others = [c for c in range(8) if labels[level, c] == labels[level, code] and c != code]
                chosen, counts = found[codes[:, level] == code, level].unique(return_counts=True)
                assert chosen.tolist() == others
                assert counts.min() > 0.8 * counts.float().mean()  # all are equally likely

    def test_draws_at_the_ends(self):
        labels = torch.zeros(1, 3, dtype=torch.long)
        draws = torch.tensor([[0.0], [np.nextafter(np.float32(1), np.float32(0))]])
        assert CodeGroups(labels).positives(torch.tensor([[1], [1]]), draws).T.tolist() == [[0, 2]]

    def test_balanced_and_repeatable(self):
        books = torch.randn(4, 256, 32, generator=torch.Generator().manual_seed(0))
        groups = group_codes(books, 10, seed=3)
        for labels in groups.labels:
            assert set(torch.bincount(labels).tolist()) == {25, 26}  # the method allows 10 to 60
        assert torch.equal(groups.labels, group_codes(books, 10, seed=3).labels)
        assert not torch.equal(groups.labels, group_codes(books, 10, seed=4).labels)

    def test_small_codebooks(self):
        assert group_codes(torch.randn(2, 5, 3), 10, seed=0).labels.unique().tolist() == [0, 1]
        assert group_codes(torch.ones(1, 4, 3), 10, seed=0).labels.unique().tolist() == [0, 1]  # equal entries

    def test_once_per_pass(self):
        model, batch, _, _ = model_and_batch(steps_per_pass=3)
        seen = []
        for step in range(7):
            model(batch, torch.Generator().manual_seed(step))
            seen.append(model.groups)
        assert seen[0] is seen[1] is seen[2]
        assert seen[3] is seen[4] is seen[5]
        assert len({id(groups) for groups in seen}) == 3


class TestRepair:
    def test_separates_items(self):
        """Pairs of items that differ a little have the same codes, until repair."""
        vectors = np.concatenate([VECTORS[:40], VECTORS[:40] + np.float32(1e-3)])
        quantizer = LETTER(3, 16, **QUICK, random_state=0).fit(vectors)
        before = quantizer._encode(torch.from_numpy(vectors))
        assert len(np.unique(before, axis=0)) <= 45
        assert len(np.unique(quantizer.codes_, axis=0)) >= 75
        assert np.array_equal(quantizer.codes_[:, :-1], before[:, :-1])  # only the last code changes
        changed = (quantizer.codes_ != before).any(axis=1)
        shared = (before[:, None] == before).all(axis=2).sum(axis=1) > 1
        assert not (changed & ~shared).any()
        assert np.array_equal(quantizer.transform(vectors), quantizer.codes_)

    def test_equal_items_stay_together_and_are_found(self):
        vectors = np.concatenate([VECTORS[:30], VECTORS[:3]])
        quantizer = LETTER(2, 8, **QUICK, random_state=0).fit(vectors)
        ids = quantizer.semantic_ids_
        assert not ids.unique
        found = ids.find(quantizer.codes_)
        for item in range(33):
            assert item in found[item]
        deduplicated = LETTER(2, 8, **QUICK, random_state=0, collisions="deduplicate").fit(vectors)
        assert np.array_equal(deduplicated.codes_, quantizer.codes_)
        assert deduplicated.semantic_ids_.unique


class TestTraining:
    @pytest.mark.parametrize("steps", [3, 7, 12])
    def test_a_killed_training_continues_to_the_same_weights(self, steps, tmp_path, monkeypatch):
        make = lambda: LETTER(3, 8, **QUICK, random_state=0)  # noqa: E731
        whole = make().fit(VECTORS, collaborative=COLLABORATIVE)
        begin = LETTERModel._begin_step

        def interrupted(self, rng):
            begin(self, rng)
            if self.step == steps:
                os.kill(os.getpid(), signal.SIGTERM)

        monkeypatch.setattr(LETTERModel, "_begin_step", interrupted)
        with pytest.raises(SystemExit):
            make().fit(VECTORS, collaborative=COLLABORATIVE, runtime=Runtime(tmp_path))
        monkeypatch.undo()
        resumed = make().fit(VECTORS, collaborative=COLLABORATIVE, runtime=Runtime(tmp_path))
        assert np.array_equal(resumed.codes_, whole.codes_)
        for name, tensor in whole.model_.state_dict().items():
            assert torch.equal(tensor, resumed.model_.state_dict()[name]), name

    def test_other_collaborative_vectors_are_another_run(self, tmp_path):
        make = lambda: LETTER(2, 8, **QUICK, random_state=0)  # noqa: E731
        make().fit(VECTORS, collaborative=COLLABORATIVE, runtime=Runtime(tmp_path))
        with pytest.raises(InputError, match="another configuration, 'collaborative' was"):
            make().fit(VECTORS, collaborative=-COLLABORATIVE, runtime=Runtime(tmp_path))
        with pytest.raises(InputError, match=r"'diversity_weight' was 0\.0001 and is now 0\.5"):
            make().set_params(diversity_weight=0.5).fit(VECTORS, collaborative=COLLABORATIVE, runtime=Runtime(tmp_path))

    def test_saved_without_the_collaborative_vectors(self, tmp_path):
        quantizer = LETTER(2, 8, **QUICK, random_state=0).fit(VECTORS, collaborative=COLLABORATIVE)
        quantizer.save(tmp_path / "letter")
        loaded = LETTER.load(tmp_path / "letter")
        new = blobs(9, d=12, seed=8)
        assert np.array_equal(loaded.transform(new), quantizer.transform(new))  # the text vector is enough
        assert np.array_equal(loaded.extend(new), quantizer.extend(new))
        assert loaded.model_.collaborative is None
        assert loaded.model_.input_scale == quantizer.model_.input_scale


class TestInput:
    def test_few_items(self):
        for n in (1, 2, 3, 9):
            quantizer = LETTER(**QUICK, random_state=0).fit(VECTORS[:n], collaborative=COLLABORATIVE[:n])
            assert quantizer.codes_.shape == (n, 4)
            assert quantizer.level_sizes_ == (max(1, n // 4),) * 4
        with pytest.raises(ValueError, match="n_samples=9 should be >= codebook_size=256: use a smaller codebook"):
            LETTER(codebook_size=256).fit(VECTORS[:9])

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    @pytest.mark.parametrize("value", [0.0, 2.5])
    def test_equal_vectors(self, value):
        quantizer = LETTER(2, 8, **QUICK, random_state=0).fit(np.full((40, 12), value), collaborative=np.ones((40, 4)))
        assert len(np.unique(quantizer.codes_[:, :-1], axis=0)) == 1
        found = quantizer.semantic_ids_.find(np.unique(quantizer.codes_, axis=0))
        assert sorted(np.concatenate(found)) == list(range(40))  # every item is reachable

    def test_collaborative_vectors_that_do_not_match(self):
        make = lambda: LETTER(2, 8, **QUICK, random_state=0)  # noqa: E731
        for bad, message in (
            (COLLABORATIVE[:7], "collaborative has 7 rows for 160 items: give one vector per item"),
            (VECTORS, "collaborative has 12 dimensions and latent_dim=4: they must be equal"),
            (np.full((160, 4), np.nan), "collaborative contains NaN"),
            (np.full((160, 4), 1e30), "collaborative has values beyond 1e"),
            (COLLABORATIVE[0], "Expected 2D array"),
        ):
            with pytest.raises(ValueError, match=message):
                make().fit(VECTORS, collaborative=bad)
            with pytest.raises(InputError, match=rf"\[quantizer\] .*{message}"):
                make().fit_part(VECTORS, bad)
        text = ItemEmbeddings(VECTORS, {"text": (0, 12)}, "one")
        with pytest.raises(InputError, match="the vectors of another Dataset than X"):
            make().fit_part(text, ItemEmbeddings(COLLABORATIVE, {"item": (0, 4)}, "two"))
        same = make().fit_part(text, ItemEmbeddings(COLLABORATIVE, {"item": (0, 4)}, "one"))
        assert np.array_equal(same.codes_, make().fit(VECTORS, collaborative=COLLABORATIVE).codes_)

    def test_invalid_arguments(self):
        for name, value in (
            ("n_groups", 0),
            ("batch_size", 0),
            ("collaborative_weight", -1),
            ("diversity_weight", np.nan),
        ):
            with pytest.raises(ValueError, match=f"{name}="):
                LETTER(**{name: value}).fit(VECTORS)
