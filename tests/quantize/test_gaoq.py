"""GAOQ: Algorithm 1 against a literal transcription, balance, uniqueness, alignment, new vectors, refusals."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid.quantize import GAOQ
from resid.quantize.alignment import make_anchors, match
from resid.quantize.kmeans import balanced_kmeans
from resid.quantize.tree import automatic_branching
from tests.quantize.test_kmeans import blobs


@parametrize_with_checks(
    [GAOQ(random_state=0)],
    expected_failed_checks=lambda _: {
        "check_fit_idempotent": "it transforms rows that were not fitted, for which no code may be free",
    },
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def literal(vectors, branching, anchors, seed):
    """Algorithm 1, one parent after the other, with the same balanced k-means."""
    codes = np.zeros((len(vectors), len(branching) + 1), dtype=int)

    def cosine(vector, anchor):
        return vector @ anchor / (np.linalg.norm(vector) * np.linalg.norm(anchor) + 1e-30)

    def split(items, depth, node):
        center = vectors[items].mean(axis=0)
        if depth == len(branching):
            children = [[item] for item in items]
        else:
            points = torch.from_numpy(vectors[items])[None]
            labels = balanced_kmeans(points, branching[depth], [[seed, depth, node]]).labels[0]
            children = [items[labels == child] for child in range(branching[depth])]
        if depth == 0:
            matched = range(len(children))
        else:
            weights = [
                [cosine(vectors[child].mean(axis=0) - center, anchor) for anchor in anchors[depth - 1]]
                for child in children
            ]
            matched = linear_sum_assignment(np.array(weights), maximize=True)[1]
        for number, (child, code) in enumerate(zip(children, matched, strict=True)):
            codes[child, depth] = code
            if depth < len(branching):
                split(np.asarray(child), depth + 1, node * branching[depth] + number)

    split(np.arange(len(vectors)), 0, 0)
    return codes


def test_algorithm_1():
    vectors = blobs(180, d=24)
    model = GAOQ((4, 5), random_state=7).fit(vectors)
    seed = int(np.random.RandomState(7).randint(2**31 - 1))
    assert np.array_equal(model.codes_, literal(vectors, (4, 5), model.anchors_, seed))


@settings(deadline=None, max_examples=25)
@given(st.integers(1, 5), st.integers(1, 6), st.integers(0, 120), st.integers(0, 100))
def test_balanced_and_unique(first, second, more, seed):
    items = first * second + more
    model = GAOQ((first, second), random_state=seed).fit(blobs(items, seed=seed))
    codes = model.codes_
    assert len(np.unique(codes, axis=0)) == items
    assert (codes < model.level_sizes_).all()
    top = np.bincount(codes[:, 0], minlength=first)
    assert top.max() - top.min() <= 1
    leaves = np.unique(codes[:, :2], axis=0, return_counts=True)[1]
    assert len(leaves) == first * second
    assert leaves.max() - leaves.min() <= 2
    assert model.branching_[2] == leaves.max() == model.level_sizes_[2]


def test_the_order_of_children_does_not_matter():
    """The codes go with the clusters: give a parent's children in another order, and each keeps its anchor."""
    random = np.random.default_rng(0)
    children = torch.from_numpy(random.normal(size=(3, 6, 20)).astype(np.float32))
    parents = children.mean(dim=1)
    anchors = torch.from_numpy(make_anchors(6, 20, [1]))
    counts = np.array([6, 6, 6])
    codes = match(children, counts, parents, anchors)
    order = random.permutation(6)
    assert np.array_equal(match(children[:, order], counts, parents, anchors), codes[:, order])


def test_a_code_means_the_same_under_every_parent():
    """Parents whose children lie in the same directions, in any order: each direction has one code."""
    random = np.random.default_rng(0)
    directions = np.linalg.qr(random.normal(size=(32, 8)))[0].T * 3
    where = np.repeat(np.arange(8), 12)
    vectors = np.concatenate(
        [random.normal(size=32) * 20 + directions[where] + 0.01 * random.normal(size=(96, 32)) for _ in range(5)]
    )
    order = random.permutation(len(vectors))
    codes = GAOQ((5, 8), random_state=0).fit(vectors[order]).codes_
    by_direction = {kind: set(codes[np.tile(where, 5)[order] == kind, 1].tolist()) for kind in range(8)}
    assert all(len(found) == 1 for found in by_direction.values())
    assert len(set.union(*by_direction.values())) == 8


class TestAnchors:
    def test_orthonormal(self):
        anchors = make_anchors(20, 32, [0])
        assert anchors @ anchors.T == pytest.approx(np.eye(20), abs=1e-5)

    def test_more_than_dimensions(self):
        anchors = make_anchors(20, 8, [0])
        assert np.linalg.norm(anchors, axis=1) == pytest.approx(np.ones(20), abs=1e-5)
        assert anchors[:8] @ anchors[:8].T == pytest.approx(np.eye(8), abs=1e-5)
        vectors = blobs(200, d=4)
        assert len(np.unique(GAOQ((3, 10), random_state=0).fit(vectors).codes_, axis=0)) == 200

    def test_spare_ones(self):
        model = GAOQ((4, 5), anchors=(8, 20), random_state=0).fit(blobs(180))
        assert model.level_sizes_ == (4, 8, 20)
        assert [len(anchors) for anchors in model.anchors_] == [8, 20]


class TestNewVectors:
    def test_fitted_ones_keep_their_ids(self):
        vectors = blobs(150)
        vectors[70:75] = vectors[3]  # duplicates too
        model = GAOQ((3, 5), random_state=0).fit(vectors)
        assert np.array_equal(model.transform(vectors), model.codes_)
        assert np.array_equal(model.transform(vectors[80:]), model.codes_[80:])
        some = model.transform(vectors[70:75])  # of equal rows, any may be meant
        assert set(map(tuple, some)) <= set(map(tuple, model.codes_[[3, *range(70, 75)]]))
        assert len(np.unique(some, axis=0)) == 5

    def test_new_ones_get_free_ids_near_by(self):
        vectors = blobs(150, d=16)
        model = GAOQ((3, 5), anchors=(5, 30), random_state=0).fit(vectors)
        before = model.codes_.copy()
        near = vectors[:20] + 1e-4
        codes = model.transform(np.concatenate([near, near]) + np.repeat([[0.0], [1e-5]], 20, axis=0))
        everything = np.concatenate([model.codes_, codes])
        assert len(np.unique(everything, axis=0)) == len(everything)
        assert np.array_equal(model.codes_, before)
        assert (codes[:20, 0] == before[:20, 0]).mean() > 0.8  # balance sends some elsewhere

    def test_a_full_leaf_and_a_full_parent(self):
        vectors = blobs(60, d=16)
        model = GAOQ((3, 4), random_state=0).fit(vectors)  # five items in each leaf, and no spare code
        with pytest.raises(ValueError, match=r"full, .* more anchors"):
            model.transform(vectors[:1] + 0.5)


class TestRefusals:
    @pytest.mark.parametrize(
        ("branching", "match"),
        [((0, 3), "at least 1"), ((), "one or more"), ((2.5, 3), "at least 1"), ((50, 50), "2,500 leaves for 100"),
         ("many", "'auto'")],
    )  # fmt: skip
    def test_branching(self, branching, match):
        with pytest.raises(ValueError, match=match):
            GAOQ(branching).fit(blobs(100))

    def test_anchors(self):
        with pytest.raises(ValueError, match="must have 2 numbers"):
            GAOQ((4, 5), anchors=(5,)).fit(blobs(100))
        with pytest.raises(ValueError, match="level 2 has 5 children and needs as many anchors, not 4"):
            GAOQ((4, 5), anchors=(4, 9)).fit(blobs(100))

    def test_parents_with_fewer_items_than_branches(self):
        model = GAOQ((10, 3, 3), random_state=0).fit(blobs(93))
        assert len(np.unique(model.codes_, axis=0)) == 93


def test_branching_from_the_number_of_items():
    for items in (1, 2, 5, 30, 150, 1_000, 5_000):
        first, second = automatic_branching(items)
        assert 1 <= first * second <= items
    paper = {23_742: (32, 40), 24_685: (32, 64), 87_449: (64, 96), 193_383: (96, 192)}
    for items, (first, second) in paper.items():
        ours = automatic_branching(items)
        assert 0.6 < ours[0] * ours[1] / (first * second) < 1.5
        assert 10 <= items / (ours[0] * ours[1]) <= 20
