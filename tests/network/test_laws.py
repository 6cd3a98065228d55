"""The laws that capability rates follow."""

import numpy as np
import pytest
from scipy import stats

from dspodfl.network import generate
from dspodfl.network.laws import Beta, Bimodal, TruncatedNormal, Uniform
from dspodfl.network.rates import FLOOR, Rates

MANY = generate("path", 4001, 0)
START = np.zeros(1, dtype=int)


def normal_between(mean, std, x):
    """P(X ≤ x | 0 ≤ X ≤ 1) for the parent X ~ Normal(mean, std²)."""
    parent = stats.norm(mean, std).cdf
    return (parent(x) - parent(0)) / (parent(1) - parent(0))


LAWS = {
    "beta(0.5, 0.5)": (Beta(0.5, 0.5), stats.beta(0.5, 0.5).cdf),
    "beta(0.8, 0.8)": (Beta(0.8, 0.8), stats.beta(0.8, 0.8).cdf),
    "beta(2, 5)": (Beta(2.0, 5.0), stats.beta(2, 5).cdf),
    "uniform": (Uniform(), stats.uniform().cdf),
    "truncnorm inside": (TruncatedNormal(0.5, 0.2), lambda x: normal_between(0.5, 0.2, x)),
    "truncnorm at the edge": (TruncatedNormal(0.0, 0.4), lambda x: normal_between(0.0, 0.4, x)),
    "truncnorm wide": (TruncatedNormal(1.0, 1.0), lambda x: normal_between(1.0, 1.0, x)),
    "bimodal": (
        Bimodal(0.2, 0.1, 0.8, 0.1),
        lambda x: (normal_between(0.2, 0.1, x) + normal_between(0.8, 0.1, x)) / 2,
    ),
    "bimodal uneven": (
        Bimodal(0.0, 0.1, 0.9, 0.3),
        lambda x: (normal_between(0.0, 0.1, x) + normal_between(0.9, 0.3, x)) / 2,
    ),
}


@pytest.mark.parametrize(("law", "cdf"), LAWS.values(), ids=LAWS)
def test_drawn_rates_follow_their_law(law, cdf):
    rates = Rates(MANY, 1, law, law)
    for values in (rates.sgd(START)[0], rates.link(START)[0]):
        assert values.min() >= FLOOR and values.max() <= 1
        assert stats.kstest(values, cdf).pvalue > 0.001


def test_uniform_rates_can_be_one_but_never_zero():
    ends = np.array([[0.0, 0.0], [1 - 2.0**-53, 0.0]])
    assert Uniform()(ends).tolist() == [1.0, 2.0**-53]


def test_the_second_uniform_picks_the_component_of_a_bimodal_law():
    law = Bimodal(0.2, 0.1, 0.8, 0.1)
    low, high = law(np.array([[0.5, 0.499], [0.5, 0.5]]))
    assert low == pytest.approx(float(TruncatedNormal(0.2, 0.1)(np.array([0.5, 0.0]))))
    assert high == pytest.approx(float(TruncatedNormal(0.8, 0.1)(np.array([0.5, 0.0]))))
    assert low < 0.3 and high > 0.7
