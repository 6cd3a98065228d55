"""Constants are refused with the field, the value and what is allowed."""

import numpy as np
import pytest

from dspodfl.errors import InputError
from dspodfl.theory.formulas.constants import Constants

GOOD = {"m": 10, "beta": 2.0, "rho_tilde": 0.8, "mu": 1.0}


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("m", 0),
        ("m", 2.5),
        ("beta", 0.0),
        ("beta", float("inf")),
        ("rho_tilde", 1.0),
        ("rho_tilde", float("nan")),
        ("mu", 3.0),
        ("mu", 0.0),
        ("delta", -1.0),
        ("zeta", -1e-9),
        ("sigma", float("nan")),
        ("d_max", 1.5),
        ("d_min", -0.1),
        ("alpha", 0.0),
    ],
)
def test_what_cannot_be_is_refused_by_name(field, value):
    with pytest.raises(InputError) as error:
        Constants(**{**GOOD, field: value})
    assert error.value.field == field


def test_the_least_rate_may_not_exceed_the_largest():
    with pytest.raises(InputError, match="d_min"):
        Constants(**GOOD, d_min=0.9, d_max=0.8)


def test_a_theorem_asks_for_what_it_needs():
    with pytest.raises(InputError, match="mu"):
        _ = Constants(m=2, beta=1.0, rho_tilde=0.5).strong
    with pytest.raises(InputError, match="alpha"):
        _ = Constants(**GOOD).step
    with pytest.raises(InputError, match="alpha"):
        _ = Constants(**GOOD, alpha=lambda k: 1.0 / (1.0 + k)).step
    with pytest.raises(InputError, match="alpha"):
        Constants(**GOOD).steps(np.arange(3))


def test_a_number_and_a_schedule_both_give_rates():
    k = np.arange(3)
    assert Constants(**GOOD, alpha=0.1).steps(k).tolist() == [0.1] * 3
    assert Constants(**GOOD).at(lambda k: 1.0 / (1.0 + k)).steps(k).tolist() == [1.0, 0.5, 1 / 3]
