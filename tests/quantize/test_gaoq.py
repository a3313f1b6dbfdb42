"""GAOQ: Algorithm 1 against a literal transcription, balance, uniqueness, alignment, new vectors, invalid input."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment
from sklearn.utils.estimator_checks import parametrize_with_checks

from resid.quantize import GAOQ
from resid.quantize.alignment import make_anchors, match
from resid.quantize.cluster_tree import automatic_branching, build_tree
from resid.quantize.kmeans import balanced_kmeans
from tests.quantize.test_kmeans import blobs

pytestmark = pytest.mark.filterwarnings("ignore:there are up to")  # more anchors than dimensions, in small trees


@parametrize_with_checks(
    [GAOQ(random_state=0)],
    expected_failed_checks=lambda _: {
        "check_fit_idempotent": "it transforms rows that were not fitted, for which there may be no free code",
    },
)
@pytest.mark.filterwarnings("ignore")
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def literal(vectors, branching, anchors, seed):
    """Return the codes of Algorithm 1, one parent after the other, with the same balanced k-means."""
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


@pytest.mark.parametrize("anchors", [None, (8, 20)])
def test_algorithm_1(anchors):
    vectors = blobs(180, d=24)
    model = GAOQ((4, 5), anchors=anchors, random_state=7).fit(vectors)
    seed = int(np.random.RandomState(7).randint(2**31 - 1))
    expected = literal(vectors, (4, 5), model.anchors_, seed)
    assert np.array_equal(model.codes_, expected)
    plain = GAOQ((4, 5), anchors=anchors, align_last=False, random_state=7).fit(vectors).codes_
    assert np.array_equal(plain[:, :2], expected[:, :2])
    for leaf in np.unique(plain[:, :2], axis=0):
        own = plain[(plain[:, :2] == leaf).all(axis=1), 2]
        assert own.tolist() == list(range(len(own)))  # in the order of the items


def test_nodes_with_fewer_items_than_children():
    """Quantizers refuse such branching; the tree gives every item a child of its own."""
    vectors = torch.from_numpy(blobs(22, d=12))
    first, second = build_tree(vectors, (4, 8), seed=0, max_iter=10, tol=1e-4)
    assert second.counts.tolist() == np.bincount(first.children).tolist()  # five or six, not eight
    for node in range(4):
        own = np.flatnonzero(second.parents == node)
        assert sorted(second.children[own]) == list(range(len(own)))
        for item in own:
            assert torch.equal(second.centers[node, second.children[item]], vectors[item])
    matched = match(second.centers, second.counts, first.centers[0], torch.from_numpy(make_anchors(8, 12, [0])))
    for node, count in enumerate(second.counts):
        assert len(set(matched[node, :count])) == count
        assert (matched[node, count:] == -1).all()


@settings(max_examples=25)
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


def test_matching_does_not_depend_on_the_order_of_children():
    random = np.random.default_rng(0)
    children = torch.from_numpy(random.normal(size=(3, 6, 20)).astype(np.float32))
    parents = children.mean(dim=1)
    anchors = torch.from_numpy(make_anchors(6, 20, [1]))
    counts = np.array([6, 6, 6])
    codes = match(children, counts, parents, anchors)
    order = random.permutation(6)
    assert np.array_equal(match(children[:, order], counts, parents, anchors), codes[:, order])


def test_codes_are_aligned_between_parents():
    """The children of all parents lie in the same directions: each direction has one code."""
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
        with pytest.warns(UserWarning, match="up to 10 anchors in 4 dimensions"):
            codes = GAOQ((3, 10), random_state=0).fit(vectors).codes_
        assert len(np.unique(codes, axis=0)) == 200

    def test_more_than_children(self):
        model = GAOQ((4, 5), anchors=(8, 20), random_state=0).fit(blobs(180))
        assert model.level_sizes_ == (4, 8, 20)
        assert [len(anchors) for anchors in model.anchors_] == [8, 20]


class TestNewVectors:
    def test_fitted_rows_keep_their_ids(self):
        vectors = blobs(150)
        vectors[70:75] = vectors[3]  # duplicates too
        model = GAOQ((3, 5), random_state=0).fit(vectors)
        assert np.array_equal(model.transform(vectors), model.codes_)
        assert np.array_equal(model.transform(vectors[80:]), model.codes_[80:])
        some = model.transform(vectors[70:75])  # equal rows may get each other's IDs
        assert set(map(tuple, some)) <= set(map(tuple, model.codes_[[3, *range(70, 75)]]))
        assert len(np.unique(some, axis=0)) == 5

    def test_new_rows_get_free_ids_nearby(self):
        vectors = blobs(150, d=16)
        model = GAOQ((3, 5), anchors=(5, 30), random_state=0).fit(vectors)
        before = model.codes_.copy()
        near = vectors[:20] + 1e-4
        codes = model.transform(np.concatenate([near, near]) + np.repeat([[0.0], [1e-5]], 20, axis=0))
        everything = np.concatenate([model.codes_, codes])
        assert len(np.unique(everything, axis=0)) == len(everything)
        assert np.array_equal(model.codes_, before)
        assert (codes[:20, 0] == before[:20, 0]).mean() > 0.8  # balancing moved some to other clusters

    def test_extend_keeps_ids_and_transform_does_not(self):
        vectors = blobs(150, d=40)
        model = GAOQ((3, 5), anchors=(5, 30), random_state=0).fit(vectors)
        one, two = vectors[:1] + 1e-4, vectors[:1] - 1e-4
        assert np.array_equal(model.transform(one), model.transform(two))
        first = model.extend(one)
        second = model.extend(two)
        assert not np.array_equal(first, second)
        assert np.array_equal(model.transform(np.concatenate([two, one])), np.concatenate([second, first]))
        assert np.array_equal(model.codes_[150:], np.concatenate([first, second]))
        assert np.array_equal(model.extend(one), first)  # it is a known row now
        assert len(model.codes_) == 152
        assert model.semantic_ids_.unique

    def test_full_leaves(self):
        vectors = blobs(61, d=16)
        model = GAOQ((3, 4), random_state=0).fit(vectors)  # six codes in each of twelve leaves
        free = 72 - 61
        new = vectors[:1] + np.linspace(0.1, 0.2, free, dtype=np.float32)[:, None]
        codes = model.transform(new)
        assert model.level_sizes_[2] == 6
        assert (
            len(np.unique(np.concatenate([model.codes_, codes]), axis=0)) == 72
        )  # siblings first, then the next parent
        own = codes[:, 0] == codes[0, 0]
        assert own[: own.sum()].all()  # other parents once the nearest one is full
        with pytest.raises(ValueError, match=r"row 11: all 72 IDs are taken; .* with 'spare'"):
            model.transform(np.concatenate([new, vectors[:1] + 5]))

    def test_minus_zero_equals_zero(self):
        vectors = np.concatenate([blobs(59, d=16), np.zeros((1, 16), dtype=np.float32)])
        model = GAOQ((3, 4), random_state=0).fit(vectors)
        assert np.array_equal(model.transform(-vectors[59:]), model.codes_[59:])


class TestInvalidArguments:
    @pytest.mark.parametrize(
        ("branching", "match"),
        [((0, 3), "must be positive integers"), ((), "one per level"), ((2.5, 3), "must be positive integers"),
         ((50, 50), "has 2,500 leaves for n_samples=100 items"), ("many", "must be integers or 'auto'"),
         (5, "one per level"), (None, "one per level"), ((2**40, 2**40), "1,208,925,819,614,629,174,706,176")],
    )  # fmt: skip
    def test_branching(self, branching, match):
        with pytest.raises(ValueError, match=match):
            GAOQ(branching).fit(blobs(100))

    def test_anchors(self):
        for bad in (5, "many"):
            with pytest.raises(ValueError, match="must be 2 integers, one per level from the second on"):
                GAOQ((4, 5), anchors=bad).fit(blobs(100))
        for name, value in (("max_iter", 0), ("tol", -1.0), ("tol", np.nan), ("max_iter", 1.5)):
            with pytest.raises(ValueError, match=f"{name}={value}"):
                GAOQ((4, 5), **{name: value}).fit(blobs(100))
        with pytest.raises(ValueError, match="must be 2 integers, one per level from the second on"):
            GAOQ((4, 5), anchors=(5,)).fit(blobs(100))
        with pytest.raises(ValueError, match="level 2 has 5 children and needs at least as many anchors, not 4"):
            GAOQ((4, 5), anchors=(4, 9)).fit(blobs(100))

    def test_three_levels_of_clusters(self):
        model = GAOQ((10, 3, 3), random_state=0).fit(blobs(93))
        assert len(np.unique(model.codes_, axis=0)) == 93


def test_automatic_branching():
    for items in (1, 2, 5, 30, 150, 1_000, 5_000):
        first, second = automatic_branching(items)
        assert 1 <= first * second <= items
        assert items < 8 or min(first, second) > 1  # one code for all items says nothing about them
    paper = {23_742: (32, 40), 24_685: (32, 64), 87_449: (64, 96), 193_383: (96, 192)}
    for items, (first, second) in paper.items():
        ours = automatic_branching(items)
        assert 0.6 < ours[0] * ours[1] / (first * second) < 1.5
        assert 10 <= items / (ours[0] * ours[1]) <= 20
