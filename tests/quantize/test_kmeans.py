"""Balanced k-means: scikit-learn's checks, balance, quality against k-means-constrained, and unusual input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from k_means_constrained import KMeansConstrained
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid.quantize import BalancedKMeans
from resid.quantize.kmeans import _start, balanced_kmeans


@parametrize_with_checks([BalancedKMeans(random_state=0)])
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def blobs(n, d=8, groups=5, seed=0):
    random = np.random.default_rng(seed)
    centers = random.normal(size=(groups, d)) * 4
    weights = random.random(groups) + 0.1
    return (centers[random.choice(groups, n, p=weights / weights.sum())] + random.normal(size=(n, d))).astype(
        np.float32
    )


@settings(max_examples=40)
@given(st.integers(1, 120), st.integers(1, 12), st.integers(0, 1000))
def test_sizes_and_attributes(n, k, seed):
    points = blobs(n, seed=seed)
    if n < k:
        with pytest.raises(ValueError, match=f"n_samples={n} should be >= n_clusters={k}"):
            BalancedKMeans(k).fit(points)
        return
    model = BalancedKMeans(k, random_state=seed).fit(points)
    sizes = np.bincount(model.labels_, minlength=k)
    assert sizes.max() - sizes.min() <= 1
    means = np.stack([points[model.labels_ == cluster].mean(axis=0) for cluster in range(k)])
    assert model.cluster_centers_ == pytest.approx(means, abs=1e-4)
    assert model.inertia_ == pytest.approx(((points - means[model.labels_]) ** 2).sum(), rel=1e-3, abs=1e-2)


def test_finds_balanced_clusters():
    truth = np.repeat(np.arange(6), 40)
    points = (np.random.default_rng(0).normal(size=(6, 16)) * 10)[truth] + np.random.default_rng(1).normal(
        size=(240, 16)
    )
    model = BalancedKMeans(6, n_init=5, random_state=0).fit(points)
    assert model.inertia_ == pytest.approx(KMeans(6, n_init=5, random_state=0).fit(points).inertia_, rel=1e-5)


def test_inertia_is_as_good_as_that_of_k_means_constrained():
    points = blobs(600, d=16, groups=9)
    low = 600 // 7
    ours = np.mean([BalancedKMeans(7, random_state=seed).fit(points).inertia_ for seed in range(8)])
    theirs = np.mean(
        [
            KMeansConstrained(7, size_min=low, size_max=low + 1, n_init=1, random_state=seed).fit(points).inertia_
            for seed in range(8)
        ]
    )
    assert ours <= 1.01 * theirs


def test_the_start_is_as_good_as_greedy_k_means_plus_plus():
    """Of many groups of unequal size, the large ones get a center; with plain k-means++, the distances are 1.16 times larger."""
    random = np.random.default_rng(0)
    groups, weights = 2 * random.standard_normal((100, 32)), random.dirichlet(np.full(100, 0.5))
    points = (groups[random.choice(100, 3_000, p=weights)] + random.standard_normal((3_000, 32))).astype(np.float32)

    def distances(centers):
        return float(torch.cdist(torch.from_numpy(points), torch.as_tensor(centers)).amin(dim=1).square().sum())

    one = torch.from_numpy(points)[None], np.array([3_000]), np.array([0]), 8
    ours = [distances(_start(*one, [np.random.default_rng(seed)])[0][0]) for seed in range(20)]
    greedy = [distances(kmeans_plusplus(points, 8, random_state=seed)[0]) for seed in range(20)]
    assert np.mean(ours) <= 1.03 * np.mean(greedy)


def test_more_initializations_are_not_worse():
    points = blobs(400)
    one, five = (BalancedKMeans(8, n_init=n, random_state=0).fit(points).inertia_ for n in (1, 5))
    assert five <= one


def test_large_problem_starts_on_a_sample():
    points = blobs(3_000, d=6)
    found = balanced_kmeans(torch.from_numpy(points)[None], 4, [[1]])  # more than 2 · 128 · 4 points
    sizes = np.bincount(found.labels[0])
    assert sizes.tolist() == [750] * 4


def test_problems_do_not_depend_on_each_other():
    points = torch.from_numpy(blobs(90, seed=4)).view(3, 30, 8)
    counts = np.array([30, 29, 30])
    together = balanced_kmeans(points, 4, [[5], [6], [7]], counts=counts)
    for number in range(3):
        alone = balanced_kmeans(points[number : number + 1, : counts[number]], 4, [[5 + number]])
        assert np.array_equal(together.labels[number, : counts[number]], alone.labels[0])
    assert together.labels[1, 29] == -1


def test_inertia_of_tight_clusters():
    random = np.random.default_rng(0)
    points = (random.normal(size=(6, 64)) * 1000)[np.repeat(np.arange(6), 50)] + 0.01 * random.normal(size=(300, 64))
    model = BalancedKMeans(6, n_init=5, random_state=0).fit(points)
    exact = ((points.astype(np.float32) - model.cluster_centers_[model.labels_]) ** 2).sum()
    assert model.inertia_ == pytest.approx(exact, rel=1e-3)


def test_points_far_from_the_origin():
    """A common offset costs precision in proportion to its length, not to its square."""
    points = blobs(400, d=16)
    near = BalancedKMeans(5, random_state=0).fit(points)
    far = BalancedKMeans(5, random_state=0).fit(points + 1000)
    assert far.inertia_ == pytest.approx(near.inertia_, rel=0.01)


class TestUnusualInput:
    def test_all_points_equal(self):
        model = BalancedKMeans(3, random_state=0).fit(np.ones((10, 4)))
        assert sorted(np.bincount(model.labels_)) == [3, 3, 4]
        assert model.inertia_ == pytest.approx(0, abs=1e-3)

    def test_one_point_one_cluster_and_as_many_clusters_as_points(self):
        assert BalancedKMeans(1).fit([[1.0, 2.0]]).labels_.tolist() == [0]
        assert sorted(BalancedKMeans(7, random_state=0).fit(blobs(7)).labels_) == list(range(7))

    @pytest.mark.parametrize("kind", ["integers", "float64", "strided", "constant column", "duplicates"])
    def test_accepted(self, kind):
        points = blobs(60)
        points = {
            "integers": (points * 10).astype(int),
            "float64": points.astype(np.float64),
            "strided": np.asfortranarray(np.repeat(points, 2, axis=0)[::2]),
            "constant column": np.hstack([points, np.ones((60, 1), np.float32)]),
            "duplicates": np.repeat(points[:6], 10, axis=0),
        }[kind]
        assert np.bincount(BalancedKMeans(6, random_state=0).fit(points).labels_).tolist() == [10] * 6

    @pytest.mark.parametrize("bad", [np.nan, np.inf])
    def test_not_finite(self, bad):
        points = blobs(20)
        points[3, 2] = bad
        for given_as in (points, torch.from_numpy(points)):
            with pytest.raises(ValueError, match=r"(?i)nan|infinity"):
                BalancedKMeans(2).fit(given_as)

    def test_huge_values(self):
        with pytest.raises(ValueError, match=r"values beyond 1e\+15"):
            BalancedKMeans(2).fit(blobs(20) * np.float32(1e20))

    def test_invalid_arguments(self):
        with pytest.raises(ValueError, match=r"(?i)expected.*2.*array|two-dimensional"):
            BalancedKMeans(2).fit(np.ones(5))
        with pytest.raises(ValueError, match="two-dimensional"):
            BalancedKMeans(2).fit(torch.ones(5))
        settings = [
            ("n_clusters", 0),
            ("n_init", 0),
            ("max_iter", 0),
            ("tol", -1.0),
            ("n_clusters", 2.5),
            ("n_init", True),
        ]
        for name, value in settings:
            with pytest.raises(ValueError, match=f"{name}={value}"):
                BalancedKMeans(**{name: value}).fit(blobs(20))


def test_tensors_and_arrays_give_the_same_result():
    points = blobs(100)
    assert np.array_equal(
        BalancedKMeans(5, random_state=0).fit(points).labels_,
        BalancedKMeans(5, random_state=0).fit(torch.from_numpy(points)).labels_,
    )


def test_predict_returns_the_nearest_center():
    points = blobs(100)
    model = BalancedKMeans(5, random_state=0).fit(points)
    distances = np.linalg.norm(points[:, None] - model.cluster_centers_, axis=2)
    assert np.array_equal(model.predict(points), distances.argmin(axis=1))
    assert model.transform(points) == pytest.approx(distances, abs=1e-3)


def test_deterministic_across_processes_and_threads(forks):
    script = (
        "import torch, sys; torch.set_num_threads(int(sys.argv[1]))\n"
        "import zlib; from tests.quantize.test_kmeans import blobs; from resid.quantize import GAOQ\n"
        "print(zlib.crc32(GAOQ((8, 6), random_state=3).fit(blobs(2_000, d=64)).codes_.tobytes()))"
    )
    outputs = {forks.output(script, threads) for threads in ("1", "2")}
    assert len(outputs) == 1
