"""The balanced assignment against an exact solver: the same cost, from any prices, with ties."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linear_sum_assignment

from resid.quantize.transport import balanced_assignment


def exact_cost(costs):
    """Return the least cost with sizes of floor(n/k) or one more, by the Hungarian method on repeated columns."""
    points, k = costs.shape
    low, larger = divmod(points, k)
    columns = np.repeat(np.arange(k), low + bool(larger))
    wide = costs[:, columns].astype(np.float64)
    if larger:  # the last place of all but `larger` clusters may stay free
        idle = np.full((k - larger, len(columns)), 1e6)
        idle[:, low :: low + 1] = 0
        wide = np.vstack([wide, idle])
    rows, chosen = linear_sum_assignment(wide)
    return wide[rows, chosen].sum()


@settings(max_examples=150)
@given(st.integers(1, 9), st.integers(0, 60), st.integers(0, 2**31), st.sampled_from(["any", "ties", "equal"]))
def test_cost_equals_that_of_the_exact_solver(k, more, seed, kind):
    random = np.random.default_rng(seed)
    costs = random.random((k + more, k)).astype(np.float32)
    if kind == "ties":
        costs = np.round(costs * 4) / 4
    elif kind == "equal":
        costs[:] = 0.5
    prices, labels = random.normal(size=k) * random.choice([0.0, 0.3, 10.0]), np.zeros(k + more, dtype=np.int32)
    total = balanced_assignment(costs, k + more, prices, labels)
    sizes = np.bincount(labels, minlength=k)
    assert sizes.max() - sizes.min() <= 1
    assert total == pytest.approx(costs[np.arange(k + more), labels].sum(dtype=np.float64))
    assert total == pytest.approx(exact_cost(costs), abs=1e-4)


def test_larger_problem_and_its_prices():
    random = np.random.default_rng(0)
    costs = random.random((1_200, 40)).astype(np.float32) + random.random(40).astype(
        np.float32
    )  # some clusters are expensive
    prices, labels = np.zeros(40), np.zeros(1_200, dtype=np.int32)
    total = balanced_assignment(costs, 1_200, prices, labels)
    assert total == pytest.approx(exact_cost(costs), rel=1e-6)
    # At the prices of the solution, every point is in its cheapest cluster.
    reduced = costs + prices
    assert (reduced[np.arange(1_200), labels] <= reduced.min(axis=1) + 1e-5).all()
    again = np.zeros(1_200, dtype=np.int32)
    assert balanced_assignment(costs, 1_200, prices, again) == pytest.approx(total, rel=1e-6)


def test_rows_beyond_the_points_are_ignored():
    costs = np.array([[0, 1], [0, 2], [np.nan, np.nan]], dtype=np.float32)
    labels = np.full(3, -1, dtype=np.int32)
    assert balanced_assignment(costs, 2, np.zeros(2), labels) == 1.0
    assert labels.tolist() == [1, 0, -1]


@settings(max_examples=20)
@given(st.integers(2, 5), st.integers(0, 500), st.integers(0, 2**31))
def test_prices_found_on_a_sample_first(k, more, seed):
    """With many points and poor prices, a sample is solved first; the result is still exact."""
    random = np.random.default_rng(seed)
    points = 128 * k + more
    costs = random.random((points, k)).astype(np.float32) + random.random(k).astype(np.float32)
    prices, labels = random.normal(size=k) * 10, np.zeros(points, dtype=np.int32)
    total = balanced_assignment(costs, points, prices, labels)
    sizes = np.bincount(labels, minlength=k)
    assert sizes.max() - sizes.min() <= 1
    assert total == pytest.approx(exact_cost(costs), rel=1e-6)
