"""Hierarchical k-means, RQ-KMeans and RQ-VAE."""

import os
import signal

import numpy as np
import pytest
import torch
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid import InputError, Runtime
from resid.data import VectorBatch
from resid.quantize import GAOQ, RQVAE, HierarchicalKMeans, RQKMeans
from resid.quantize.cluster_tree import number_within
from resid.quantize.rqvae import RQVAEModel
from resid.train import open_fabric
from tests.quantize.contract import QuantizerContract
from tests.quantize.test_kmeans import blobs


@parametrize_with_checks(
    [
        HierarchicalKMeans(random_state=0),
        RQKMeans(2, 3, random_state=0),
        RQVAE(2, 3, hidden_layer_sizes=(8,), epochs=1, random_state=0),
    ],
    expected_failed_checks=lambda estimator: (
        {"check_fit_idempotent": "it transforms rows that were not fitted, for which there may be no free code"}
        if isinstance(estimator, HierarchicalKMeans)
        else {}
    ),
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


class TestGAOQ(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return GAOQ((4, 5), random_state=random_state)


class TestHierarchicalKMeans(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return HierarchicalKMeans((4, 5), random_state=random_state)

    def test_same_tree_as_gaoq(self, fitted):
        aligned = GAOQ((4, 5), random_state=0).fit(blobs(160, d=12)).codes_
        for depth in (1, 2, 3):
            pairs = np.unique(np.column_stack([aligned[:, :depth], fitted.codes_[:, :depth]]), axis=0)
            assert len(pairs) == len(np.unique(aligned[:, :depth], axis=0))  # one to one
        assert np.array_equal(aligned[:, 0], fitted.codes_[:, 0])
        assert not np.array_equal(aligned[:, 1], fitted.codes_[:, 1])
        assert fitted.semantic_ids_.unique


class TestKAryTree(QuantizerContract):
    """EAGER's tree."""

    @classmethod
    def make(cls, random_state=0):
        return HierarchicalKMeans(6, random_state=random_state)

    def test_shape(self, fitted):
        assert fitted.level_sizes_ == (6, 6, 6)  # 36 leaves are too few for 160 items
        assert fitted.semantic_ids_.unique
        for depth in (1, 2):
            sizes = np.unique(fitted.codes_[:, :depth], axis=0, return_counts=True)[1]
            assert len(sizes) == 6**depth
            assert sizes.max() - sizes.min() <= depth
        assert np.bincount(fitted.codes_[:, 2]).min() > 10  # the codes of the last level are used evenly

    def test_few_items_and_invalid_branching(self):
        assert sorted(HierarchicalKMeans(6, random_state=0).fit(blobs(5)).codes_[:, 0]) != [0, 0, 0, 0, 0]
        few = HierarchicalKMeans(6, random_state=0).fit(blobs(5))
        assert few.level_sizes_ == (6,)
        assert len(np.unique(few.codes_)) == 5
        assert len(np.unique(np.vstack([few.codes_, few.transform(blobs(6, seed=9)[:1])]))) == 6
        with pytest.raises(ValueError, match="branching=1 must be at least 2"):
            HierarchicalKMeans(1).fit(blobs(20))

    @pytest.mark.parametrize(("n_items", "codes"), [(1, 1), (2, 2), (3, 2), (5, 3), (9, 3), (100, 10), (101, 11)])
    def test_k_ary_tree_of_a_small_catalogue(self, n_items, codes):
        small = HierarchicalKMeans("k-ary", random_state=0).fit(blobs(n_items))
        assert small.level_sizes_ == (codes, codes)
        assert small.semantic_ids_.unique

    @pytest.mark.parametrize(
        ("n_items", "branching"),
        [(4_344, (66,)), (16_384, (128,)), (16_385, (256,)), (65_536, (256,)), (65_537, (256, 256))],
    )
    def test_levels_of_a_k_ary_tree(self, n_items, branching):
        assert HierarchicalKMeans("k-ary")._branching(n_items) == branching


class TestRQVAE(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return RQVAE(
            3, 8, hidden_layer_sizes=(16,), latent_dim=4, epochs=30, evaluate_every=10, random_state=random_state
        )

    def test_learns(self, fitted):
        losses = [record["reconstruction"] for record in fitted.history_]
        assert losses[-1] < losses[0]
        assert max(record["distinct"] for record in fitted.history_) == len(np.unique(fitted.codes_, axis=0)) / 160

    def test_resumes_in_a_folder(self, fitted, tmp_path):
        vectors, runtime = blobs(160, d=12), Runtime(tmp_path)
        first = self.make().fit(vectors, runtime=runtime)
        assert np.array_equal(first.codes_, fitted.codes_)
        written = (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns
        assert np.array_equal(self.make().fit(vectors, runtime=runtime).codes_, fitted.codes_)
        assert (tmp_path / "checkpoint.safetensors").stat().st_mtime_ns == written  # no further training

    def test_loss_by_hand(self):
        model = RQVAEModel((3, 2), n_levels=2, codebook_size=2, commitment_weight=0.25)
        with torch.no_grad():
            model.encoder[0].weight.copy_(torch.tensor([[1.0, 0, 0], [0, 1.0, 0]]))
            model.encoder[0].bias.zero_()
            model.decoder[0].weight.copy_(torch.tensor([[1.0, 0], [0, 1.0], [0, 0]]))
            model.decoder[0].bias.zero_()
            model.codebooks.copy_(torch.tensor([[[2.0, 0], [-2, 0]], [[0, 1.0], [0, -1]]]))
        batch = VectorBatch(np.arange(1), np.array([[1.5, 0.75, 3.0]], dtype=np.float32))
        terms = model(batch, torch.Generator())
        # Latent (1.5, .75); the first level takes (2, 0) and leaves (-.5, .75); the second (0, 1) and leaves (-.5, -.25).
        assert terms["reconstruction"].item() == pytest.approx(0.5**2 + 0.25**2 + 9)
        assert terms["quantization"].item() == pytest.approx(1.25 * (0.25 + 0.75**2) + 1.25 * (0.25 + 0.25**2))
        terms["loss"].backward()
        # Straight through: the decoder's error reaches the encoder, and the commitment loss adds 2 β times the residuals.
        error = 2 * np.array([0.5, 0.25])
        commitment = 2 * 0.25 * (np.array([-0.5, 0.75]) + np.array([-0.5, -0.25]))
        assert model.encoder[0].bias.grad.numpy() == pytest.approx(error + commitment)
        assert model.codebooks.grad[0, 0].numpy() == pytest.approx([2 * 0.5, 2 * -0.75])  # towards the latent vector

    def test_the_scale_of_the_input_does_not_matter(self):
        """Adam's steps have the same length for vectors of any length."""
        vectors = blobs(160, d=12)
        first, second = (self.make().fit(vectors * factor).codes_ for factor in (1.0, 2.0**-10))
        assert np.array_equal(first, second)

    def test_dead_codes_are_moved(self):
        """An entry that 8 vectors per code did not use takes the place of a residual of the batch; used ones stay."""
        model = RQVAEModel((2, 2), n_levels=2, codebook_size=2, commitment_weight=0.25)
        with torch.no_grad():
            model.encoder[0].weight.copy_(torch.eye(2))
            model.encoder[0].bias.zero_()
            model.codebooks.copy_(torch.tensor([[[1.0, 0], [90, 90]], [[0, 1.0], [0, -1]]]))
        start = model.codebooks.detach().clone()
        batch = VectorBatch(np.arange(10), np.tile(np.array([[1.0, 0.5], [1.0, -0.5]], dtype=np.float32), (5, 1)))
        model(batch, torch.Generator())
        assert torch.equal(model.codebooks, start)
        assert model.extra_state()["idle"].tolist() == [[0, 10], [0, 0]]
        model(batch, torch.Generator())
        assert torch.equal(model.codebooks[:, 0], start[:, 0])
        assert model.codebooks[0, 1].tolist() in ([1.0, 0.5], [1.0, -0.5])
        assert torch.equal(model.codebooks[1], start[1])

    def test_dead_codes_are_moved_in_half_precision(self):
        """Latent vectors are then in bfloat16, and the codebooks in float32."""
        fabric = open_fabric(precision="bf16-mixed")
        model = self.make().set_params(codebook_size=40, batch_size=32, epochs=20)
        model.fit(blobs(160, d=12), runtime=Runtime(fabric=fabric))
        assert model.model_.codebooks.dtype == torch.float32

    def test_codebooks_are_used(self):
        """Vectors in a narrow cone, as text embeddings are, which an RQ-VAE without these measures maps to a few codes."""
        rng = np.random.default_rng(0)
        vectors = 0.05 * (1 + rng.normal(size=(2_000, 32)) @ rng.normal(size=(32, 64)) / 32)
        model = RQVAE(2, 64, hidden_layer_sizes=(32,), latent_dim=8, epochs=20, batch_size=500, random_state=0)
        last = model.fit(vectors).history_[-1]
        for level in (1, 2):
            assert last[f"perplexity.{level}"] > 32
            assert last[f"dead.{level}"] < 8

    @pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
    def test_a_collapse_is_reported(self, caplog):
        vectors = np.repeat(blobs(2, d=12), 40, axis=0)  # two different rows for 20 codes
        model = RQVAE(2, 20, hidden_layer_sizes=(8,), epochs=2, random_state=0).fit(vectors)
        assert (
            "the codebook of level 1 has collapsed: it effectively uses 2.0 of 20 codes, 18 have no item" in caplog.text
        )
        assert "quantizer.kind=rq-kmeans" in caplog.text
        assert model.history_[-1]["dead.1"] == 18

    def test_an_interrupted_fit_continues(self, tmp_path, monkeypatch):
        """Also with entries that are about to be moved, which belongs to the state of the training."""
        vectors, forward, steps = blobs(160, d=12), RQVAEModel.forward, []
        make = lambda: self.make().set_params(codebook_size=40, batch_size=32)  # noqa: E731
        whole = make().fit(vectors)

        def interrupt(model, batch, rng):
            steps.append(1)
            if len(steps) == 70:
                os.kill(os.getpid(), signal.SIGINT)
            return forward(model, batch, rng)

        monkeypatch.setattr(RQVAEModel, "forward", interrupt)
        with pytest.raises(KeyboardInterrupt):
            make().fit(vectors, runtime=Runtime(tmp_path))
        again = make().fit(vectors, runtime=Runtime(tmp_path))
        assert len(steps) < 70 + 30 * 5  # what was trained is not trained again
        assert np.array_equal(again.codes_, whole.codes_)
        assert torch.equal(again.model_.codebooks, whole.model_.codebooks)

    def test_another_commitment_weight_is_another_run(self, tmp_path):
        runtime = Runtime(tmp_path)
        self.make().set_params(epochs=10).fit(blobs(160, d=12), runtime=runtime)
        with pytest.raises(InputError, match=r"'commitment_weight' was 0\.25 and is now 5\.0"):
            self.make().set_params(epochs=10, commitment_weight=5.0).fit(blobs(160, d=12), runtime=runtime)

    def test_invalid_arguments(self):
        for name, value in (
            ("hidden_layer_sizes", 5),
            ("hidden_layer_sizes", (0,)),
            ("learning_rate", 0),
            ("commitment_weight", np.nan),
        ):
            with pytest.raises(ValueError, match=f"{name}="):
                RQVAE(**{name: value}).fit(blobs(300))
        with pytest.raises(ValueError, match="epochs=0 is invalid; it must be an integer of at least 1"):
            RQVAE(epochs=0).fit(blobs(300))
        with pytest.raises(ValueError, match="commitment_weight=-1 is invalid; it must be a number of at least 0"):
            RQVAE(commitment_weight=-1).fit(blobs(300))
        with pytest.raises(ValueError, match="n_samples=20 should be >= codebook_size=256: use a smaller codebook"):
            RQVAE(codebook_size=256).fit(blobs(20))


class TestRQKMeans(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return RQKMeans(3, 8, random_state=random_state)

    def test_every_level_takes_the_nearest_entry(self, fitted):
        residual = blobs(160, d=12)
        left = [(residual**2).sum()]
        for level, book in enumerate(fitted.codebooks_):
            distances = ((residual[:, None] - book) ** 2).sum(axis=2)
            assert np.array_equal(fitted.codes_[:, level], distances.argmin(axis=1))
            residual = residual - book[fitted.codes_[:, level]]
            left.append((residual**2).sum())
        assert left == sorted(left, reverse=True)
        assert np.array_equal(fitted.transform(blobs(160, d=12)), fitted.codes_)

    def test_balanced(self):
        codes = RQKMeans(2, 8, balanced=True, random_state=0).fit(blobs(160, d=12)).codes_
        for level in range(2):
            assert np.bincount(codes[:, level]).tolist() == [20] * 8

    def test_invalid_arguments(self):
        for size in (0, 2.5, "many", True):
            with pytest.raises(
                ValueError, match=f"codebook_size={size!r} is invalid; it must be an integer of at least 1"
            ):
                RQKMeans(2, size).fit(blobs(20))
        with pytest.raises(ValueError, match="n_samples=20 should be >= codebook_size=256: use a smaller codebook"):
            RQKMeans(codebook_size=256).fit(blobs(20))
        with pytest.raises(ValueError, match="collisions='count' is invalid; use 'deduplicate' or 'keep'"):
            RQKMeans(2, 4, collisions="count").fit(blobs(20))

    def test_automatic_codebook_size(self):
        assert RQKMeans(2, random_state=0).fit(blobs(21)).level_sizes_ == (5, 5)
        assert RQKMeans(1, random_state=0).fit(blobs(2)).level_sizes_ == (1,)
        assert RQKMeans(1, max_iter=1, random_state=0).fit(blobs(2_000)).level_sizes_ == (256,)


class TestBalancedRQKMeans(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return RQKMeans(2, 8, balanced=True, random_state=random_state)


def test_number_within():
    assert number_within(np.array([3, 1, 3, 3, 1])).tolist() == [0, 0, 1, 2, 1]
