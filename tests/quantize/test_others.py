"""Hierarchical k-means and RQ-KMeans."""

import numpy as np
import pytest
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid.quantize import GAOQ, HierarchicalKMeans, RQKMeans
from resid.quantize.tree import number_within
from tests.quantize.contract import QuantizerContract
from tests.quantize.test_kmeans import blobs


@parametrize_with_checks([HierarchicalKMeans(random_state=0), RQKMeans(2, 3, random_state=0)])
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

    def test_the_tree_is_that_of_gaoq(self, fitted):
        aligned = GAOQ((4, 5), random_state=0).fit(blobs(160, d=12)).codes_
        for depth in (1, 2, 3):
            pairs = np.unique(np.column_stack([aligned[:, :depth], fitted.codes_[:, :depth]]), axis=0)
            assert len(pairs) == len(np.unique(aligned[:, :depth], axis=0))  # one to one
        assert np.array_equal(aligned[:, 0], fitted.codes_[:, 0])
        assert not np.array_equal(aligned[:, 1], fitted.codes_[:, 1])
        assert fitted.semantic_ids_.unique


class TestRQKMeans(QuantizerContract):
    @classmethod
    def make(cls, random_state=0):
        return RQKMeans(3, 8, random_state=random_state)

    def test_every_level_takes_the_nearest_and_explains_more(self, fitted):
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

    def test_refusals(self):
        with pytest.raises(ValueError, match="n_clusters=0 cannot be used"):
            RQKMeans(2, 0).fit(blobs(20))
        with pytest.raises(ValueError, match="n_samples=20 should be >= n_clusters=256"):
            RQKMeans().fit(blobs(20))


def test_number_within():
    assert number_within(np.array([3, 1, 3, 3, 1])).tolist() == [0, 0, 1, 2, 1]
