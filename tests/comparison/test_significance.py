"""P-values of paired differences, and their correction."""

import numpy as np
import pytest

from resid.comparison import bootstrap_p_values, holm
from resid.comparison.significance import against_best_rival


class TestHolm:
    def test_by_hand(self):
        """Sorted 0.005, 0.01, 0.03, 0.04 times 4, 3, 2, 1 are 0.02, 0.03, 0.06, 0.04; none is less than the one before."""
        corrected = holm(np.array([0.01, 0.04, 0.03, 0.005]))
        np.testing.assert_allclose(corrected, [0.03, 0.06, 0.06, 0.02])

    def test_is_between_the_value_and_bonferroni(self):
        p_values = np.random.default_rng(0).uniform(size=20)
        corrected = holm(p_values)
        assert (corrected >= p_values).all()
        assert (corrected <= np.minimum(1, 20 * p_values)).all()
        assert corrected[p_values.argmin()] == pytest.approx(min(1, 20 * p_values.min()))

    def test_a_single_one_is_not_corrected(self):
        assert holm(np.array([0.03])) == pytest.approx([0.03])


class TestBootstrap:
    def test_agrees_with_the_normal_approximation(self):
        """Of a mean over many users, the bootstrap and the z-test agree."""
        from scipy.stats import norm

        rng = np.random.default_rng(1)
        differences = rng.normal(size=(500, 3)) + np.array([0.0, 0.06, 0.12])
        z = differences.mean(axis=0) / (differences.std(axis=0) / np.sqrt(len(differences)))
        found = bootstrap_p_values(differences, np.arange(len(differences)))
        np.testing.assert_allclose(found, 2 * norm.sf(np.abs(z)), atol=0.03)

    def test_no_difference(self):
        assert bootstrap_p_values(np.zeros((50, 1)), np.arange(50)) == pytest.approx([1.0])

    def test_never_zero(self):
        p = bootstrap_p_values(np.ones((50, 1)), np.arange(50))[0]
        assert 0 < p < 0.001

    def test_the_targets_of_a_user_are_drawn_together(self):
        """A hundred copies of three users' targets are no evidence beyond three users."""
        differences = np.tile([[1.0], [1.0], [-0.5]], (100, 1))
        together = bootstrap_p_values(differences, np.tile(np.arange(3), 100))[0]
        apart = bootstrap_p_values(differences, np.arange(300))[0]
        assert apart < 0.01 < 0.05 < together


def test_every_row_against_its_best_rival():
    rng = np.random.default_rng(2)
    base = rng.uniform(size=500)
    gains = {"low": {"m": base - 0.5}, "best": {"m": base + 0.2}, "second": {"m": base + rng.normal(size=500) / 10}}
    found = against_best_rival(gains, np.arange(500))
    assert found["low"]["m"]["rival"] == found["second"]["m"]["rival"] == "best"
    assert found["best"]["m"]["rival"] == "second"
    assert found["best"]["m"]["difference"] == -found["second"]["m"]["difference"] > 0
    assert found["low"]["m"]["difference"] == pytest.approx(-0.7)
    assert found["best"]["m"]["p"] == found["second"]["m"]["p"] < 0.01
    assert against_best_rival({"alone": {"m": base}}, np.arange(500)) == {"alone": {}}
