"""Learning rates: their formulas."""

import numpy as np
import pytest

from dspodfl.algorithms import LEARNING_RATES
from dspodfl.algorithms.learning_rate import Constant, Diminishing, Step

K = np.array([0, 1, 2, 9, 10, 11, 30, 1000])


@pytest.mark.parametrize(
    ("rate", "alpha"),
    [
        (Constant(0.3), lambda k: 0.3),
        (Diminishing(0.5, gamma=10.0), lambda k: 0.5 / (1 + k / 10) ** 0.5),
        (Step(0.5, every=10, factor=0.1), lambda k: 0.5 * 0.1 ** (k // 10)),
    ],
)
def test_a_learning_rate_is_its_formula_at_every_k(rate, alpha):
    got = rate(K)
    assert got.shape == K.shape and got.dtype == np.float64
    assert np.allclose(got, [alpha(int(k)) for k in K], rtol=1e-14, atol=0)


def test_a_diminishing_rate_has_the_values_computed_by_hand():
    assert Diminishing(0.6, gamma=4.0)(np.array([0, 12, 32])).tolist() == pytest.approx([0.6, 0.3, 0.2], rel=1e-15)


def test_a_step_rate_falls_at_multiples_of_every_and_not_before():
    assert Step(1.0, every=5, factor=0.5)(np.array([0, 4, 5, 9, 10])).tolist() == [1.0, 1.0, 0.5, 0.5, 0.25]


def test_learning_rates_are_made_by_name_and_describe_themselves():
    assert LEARNING_RATES["diminishing"].make({}, {"value": 0.2, "gamma": 3.0}) == Diminishing(0.2, gamma=3.0)
    assert [one.name for one in LEARNING_RATES["step"].parameters] == ["value", "every", "factor"]
    assert LEARNING_RATES.lines()["constant"] == "α(k) = value."
