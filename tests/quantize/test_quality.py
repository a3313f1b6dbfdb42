"""The quality of IDs: every metric against a slow way to compute it, or a distribution with a known value."""

from itertools import combinations

import numpy as np
import pytest
import scipy.stats

from resid import Dataset, InputError
from resid.quantize import GAOQ, HierarchicalKMeans, SemanticIds, id_quality
from resid.quantize.quality import gini
from tests.quantize.test_kmeans import blobs

RANDOM = np.random.default_rng(0)
CODES = np.column_stack([RANDOM.integers(0, 4, 120), RANDOM.integers(0, 3, 120), RANDOM.integers(0, 6, 120)])
VECTORS = blobs(120, d=7)


@pytest.fixture(scope="module")
def found():
    return id_quality(SemanticIds(CODES, (4, 5, 6)), VECTORS)  # two codes of the second level are dead


def variance_left(vectors, groups):
    own = np.unique(groups, axis=0, return_inverse=True)[1].ravel()
    means = np.stack([vectors[own == group].mean(axis=0) for group in range(own.max() + 1)])
    return ((vectors - means[own]) ** 2).sum() / ((vectors - vectors.mean(axis=0)) ** 2).sum()


def test_collisions(found):
    _, counts = np.unique(CODES, axis=0, return_counts=True)
    assert found["items"] == 120
    assert found["ids"] == len(counts)
    assert found["unique"] == pytest.approx((counts == 1).sum() / 120)
    assert found["largest_collision"] == counts.max()


@pytest.mark.parametrize("level", [0, 1, 2])
def test_usage(found, level):
    values = found["levels"][level]
    counts = np.bincount(CODES[:, level], minlength=(4, 5, 6)[level])
    assert values["entropy"] == pytest.approx(scipy.stats.entropy(counts, base=2))
    assert values["perplexity"] == pytest.approx(2 ** scipy.stats.entropy(counts, base=2))
    assert values["dead"] == (counts == 0).sum() == (2 if level == 1 else 0)
    differences = np.abs(counts[:, None] - counts).mean()
    assert values["gini"] == pytest.approx(differences / (2 * counts.mean()))
    given = 0.0
    for prefix in {tuple(row[:level]) for row in CODES.tolist()}:
        own = CODES[(CODES[:, :level] == prefix).all(axis=1), level]
        given += len(own) / 120 * scipy.stats.entropy(np.bincount(own), base=2)
    assert values["conditional_entropy"] == pytest.approx(given)


def test_gini_of_known_distributions():
    assert gini(np.array([3, 3, 3])) == pytest.approx(0)
    assert gini(np.array([0, 0, 0, 8])) == pytest.approx(0.75)


@pytest.mark.parametrize("level", [0, 1, 2])
def test_distortion(found, level):
    values = found["levels"][level]
    left, before = (variance_left(VECTORS, CODES[:, :depth]) if depth else 1.0 for depth in (level + 1, level))
    assert values["distortion"] == pytest.approx(left, abs=1e-6)
    assert values["distortion_code"] == pytest.approx(variance_left(VECTORS, CODES[:, level]), abs=1e-6)
    assert values["step_explained"] == pytest.approx(1 - left / before, abs=1e-6)
    steps = VECTORS.astype(float).copy()
    for prefix in {tuple(row[:level]) for row in CODES.tolist()}:
        own = (CODES[:, :level] == prefix).all(axis=1)
        steps[own] -= steps[own].mean(axis=0)
    assert values["step_explained_code"] == pytest.approx(1 - variance_left(steps, CODES[:, level]), abs=1e-6)


@pytest.mark.parametrize("level", [1, 2])
def test_cosines(found, level):
    units = np.zeros_like(VECTORS)
    for prefix in {tuple(row[:level]) for row in CODES.tolist()}:
        own = (CODES[:, :level] == prefix).all(axis=1)
        steps = VECTORS[own] - VECTORS[own].mean(axis=0)
        lengths = np.linalg.norm(steps, axis=1, keepdims=True)
        units[own] = np.where(
            lengths > 1e-6, steps / np.maximum(lengths, 1e-6), 0
        )  # an item without siblings has no step
    pairs = [(a, b) for a, b in combinations(range(120), 2) if CODES[a, level] == CODES[b, level]]
    between = [(a, b) for a, b in pairs if (CODES[a, :level] != CODES[b, :level]).any()]
    assert found["levels"][level]["cosine"] == pytest.approx(np.mean([units[a] @ units[b] for a, b in pairs]), abs=1e-5)
    expected = np.mean([units[a] @ units[b] for a, b in between])
    assert found["levels"][level]["cosine_between"] == pytest.approx(expected, abs=1e-5)


def test_neighbors(found):
    distances = ((VECTORS[:, None] - VECTORS) ** 2).sum(axis=2)
    np.fill_diagonal(distances, np.inf)
    nearest = np.argsort(distances, axis=1)[:, :10]
    for depth in (1, 2, 3):
        same = (CODES[nearest, :depth] == CODES[:, None, :depth]).all(axis=2)
        assert found["levels"][depth - 1]["neighbors"] == pytest.approx(same.mean())
        anyone = (CODES[:, None, :depth] == CODES[:, :depth]).all(axis=2).sum() - 120
        assert found["levels"][depth - 1]["neighbors_chance"] == pytest.approx(anyone / (120 * 119))


class TestAmbiguity:
    """z = a[c2] + b[c1] + noise, all Gaussian, with many prefixes c1: then z given c2 is Gaussian."""

    prefixes, codes, each, d = 300, 8, 12, 16

    def measured(self, of_code, of_prefix, noise, shuffled=False):
        random = np.random.default_rng(1)
        prefix = np.repeat(np.arange(self.prefixes), self.codes * self.each)
        code = np.tile(np.repeat(np.arange(self.codes), self.each), self.prefixes)
        a = of_code * random.normal(size=(self.codes, self.d))
        b = of_prefix * random.normal(size=(self.prefixes, self.d))
        vectors = a[code] + b[prefix] + noise * random.normal(size=(len(code), self.d))
        if shuffled:
            orders = np.stack([random.permutation(self.codes) for _ in range(self.prefixes)])
            code = orders[prefix, code]
        return id_quality(SemanticIds(np.column_stack([prefix, code])), vectors)["levels"][1], a

    @pytest.mark.parametrize(("of_prefix", "noise"), [(1.0, 1.0), (2.0, 0.5), (0.3, 1.0)])
    def test_prefix_ambiguity(self, of_prefix, noise):
        truth = 0.5 * np.log2(1 + of_prefix**2 / noise**2)
        assert self.measured(1.0, of_prefix, noise)[0]["ambiguity"] == pytest.approx(truth, abs=0.02)

    def test_no_ambiguity_if_prefixes_add_nothing(self):
        assert self.measured(1.0, 0.0, 1.0)[0]["ambiguity"] == pytest.approx(0, abs=0.003)

    def test_aligned_steps_have_no_ambiguity(self):
        values, _ = self.measured(1.0, 2.0, 0.5)
        assert values["step_ambiguity"] == pytest.approx(0, abs=0.003)
        assert values["step_explained_code"] == pytest.approx(values["step_explained"], abs=0.03)  # few items per group

    def test_local_codes_lose_the_step(self):
        values, a = self.measured(1.0, 2.0, 0.5, shuffled=True)
        truth = 0.5 * np.log2(1 + a.var(axis=0).mean() / 0.5**2)
        assert values["step_ambiguity"] == pytest.approx(truth, abs=0.03)
        assert values["step_explained_code"] < 0.01


def test_aligned_against_local_codes_on_the_same_tree():
    random = np.random.default_rng(0)
    groups, directions = 3 * random.normal(size=(6, 64)), random.normal(size=(8, 64))
    vectors = groups[random.integers(6, size=960)] + directions[random.integers(8, size=960)]
    vectors = (vectors + 0.2 * random.normal(size=(960, 64))).astype(np.float32)
    aligned, local = (
        id_quality(kind((6, 8), random_state=2).fit(vectors).semantic_ids_, vectors)["levels"][1]
        for kind in (GAOQ, HierarchicalKMeans)
    )
    assert aligned["cosine"] > 3 * local["cosine"]
    assert aligned["cosine_between"] > 0.3 > 0.1 > abs(local["cosine_between"])
    assert aligned["step_ambiguity"] < local["step_ambiguity"]
    for same in ("distortion", "conditional_entropy", "neighbors"):
        assert aligned[same] == pytest.approx(local[same])


def test_overlap(shop):
    data = Dataset.from_tables(shop.interaction_table, shop.item_table, ["store"])
    codes = np.random.default_rng(3).integers(0, 5, size=(data.n_items, 2))
    found = id_quality(SemanticIds(codes, (5, 5)), data=data)["levels"]
    same, pairs = np.zeros(2), 0
    windows = data.validation
    for begin, end, target in zip(windows.begin, windows.end, windows.targets, strict=True):
        for item in windows.sequence[begin:end]:
            same += codes[item] == codes[target]
            pairs += 1
    assert [level["overlap"] for level in found] == pytest.approx(same / pairs)
    assert all(0.1 < level["overlap_chance"] < 0.4 for level in found)
    with pytest.raises(InputError, match=r"3 IDs, but .* items in the Dataset"):
        id_quality(SemanticIds(codes[:3]), data=data)


def test_equal_vectors_and_invalid_input():
    found = id_quality(SemanticIds(CODES), np.ones((120, 4)))
    assert found["levels"][0]["distortion"] == 1
    assert found["levels"][1]["cosine"] == pytest.approx(0)
    with pytest.raises(InputError, match=r"120 IDs, but vectors of shape \(5, 4\)"):
        id_quality(SemanticIds(CODES), np.ones((5, 4)))
    alone = id_quality(SemanticIds([[0, 0]]), np.ones((1, 4)))
    assert alone["unique"] == 1
    for bad, match in ((np.full((120, 4), np.nan), "NaN"), (np.full((120, 4), "a"), "the vectors are invalid"),
                       (np.ones((120, 0)), "the vectors are invalid"), (np.full((120, 4), 1e20), "values beyond"),
                       (np.ones(120), "the vectors are invalid")):  # fmt: skip
        with pytest.raises(InputError, match=match):
            id_quality(SemanticIds(CODES), bad)


def test_scale_invariance_and_first_level(found):
    for scale in (1e-6, 1e6):
        for other, level in zip(
            id_quality(SemanticIds(CODES, (4, 5, 6)), VECTORS * scale)["levels"], found["levels"], strict=True
        ):
            for name, value in level.items():
                assert other[name] == (value if value is None else pytest.approx(value, abs=1e-4))
    assert found["levels"][0]["ambiguity"] == pytest.approx(0, abs=1e-9)
    assert found["levels"][0]["step_ambiguity"] == pytest.approx(0, abs=1e-9)


def test_levels_after_all_items_are_distinct():
    """As in IDs that are deduplicated although a level before made them unique."""
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(12, 4))
    codes = np.column_stack([np.arange(12) // 4, np.arange(12) % 4, np.zeros(12, dtype=int), np.arange(12) % 2])
    levels = id_quality(SemanticIds(codes), vectors)["levels"]
    assert [level["distortion"] for level in levels[1:]] == [0, 0, 0]
    assert levels[0] == id_quality(SemanticIds(codes[:, :2]), vectors)["levels"][0]
    assert "cosine" not in levels[3]
