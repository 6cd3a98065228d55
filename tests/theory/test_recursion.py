"""ν ← Φν + Ψ against its closed form, and the printed geometric form against both."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dspodfl.errors import InputError
from dspodfl.theory.formulas.recursion import Recursion

entries = st.floats(0, 0.49)
systems = st.builds(
    lambda a, b, c, d, e, f: Recursion(np.array([[a, b], [c, d]]), np.array([e, f])),
    entries, entries, entries, entries, st.floats(0, 1), st.floats(0, 1),
)  # fmt: skip


@given(systems)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_propagation_is_the_closed_form_of_a_linear_recursion(system):
    nu = np.array([1.0, 2.0])
    path = system.propagate(nu, 40)
    for k in (0, 1, 7, 40):
        exact = np.linalg.matrix_power(system.phi, k) @ (nu - system.gap) + system.gap
        np.testing.assert_allclose(path[k], exact, rtol=1e-9, atol=1e-12)


@given(systems)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_radius_is_the_largest_absolute_eigenvalue(system):
    assert system.radius == pytest.approx(np.abs(np.linalg.eigvals(system.phi)).max(), abs=1e-7)


@given(systems)
@settings(max_examples=100, deadline=None, derandomize=True)
def test_the_rate_is_geometric_in_the_perron_norm(system):
    nu = np.array([1.0, 2.0])
    w = system.perron
    np.testing.assert_allclose(w @ system.phi, system.radius * w, atol=1e-9)
    np.testing.assert_allclose(system.propagate(nu, 30) @ w, system.weighted(nu, 30), rtol=1e-6, atol=1e-9)


def test_the_printed_geometric_form_is_no_entrywise_bound():
    system = Recursion(np.array([[0.9, 0.1], [0.5, 0.3]]), np.zeros(2))
    nu = np.array([1.0, 0.0])
    assert system.radius < 1
    assert system.propagate(nu, 1)[1, 1] > 0 == system.printed(nu, 1)[1, 1]


def test_the_printed_limit_is_no_entrywise_bound():
    system = Recursion(np.array([[0.9, 0.1], [0.0, 0.3]]), np.array([0.0, 1.0]))
    assert system.gap[0] > 1 and system.printed_gap[0] == 0
    np.testing.assert_allclose(system.propagate(np.zeros(2), 2000)[-1], system.gap)


@pytest.mark.parametrize("entry", [0, 1])
def test_iterations_to_an_error_are_the_first_that_reach_it(entry):
    system = Recursion(np.array([[0.999, 0.001], [0.01, 0.9]]), np.array([1e-5, 1e-3]))
    nu = np.array([5.0, 8.0])
    error = 1.5 * system.gap[entry]
    path = system.propagate(nu, 20_000)[:, entry]
    assert system.iterations_to(nu, error, entry) == int(np.flatnonzero(path <= error)[0]) > 1000
    assert system.iterations_to(nu, 0.99 * system.gap[entry], entry) is None
    assert system.iterations_to(nu, 10.0, entry) == 0


def test_a_recursion_that_grows_has_no_limit_and_reaches_nothing():
    system = Recursion(np.array([[1.1, 0.0], [0.0, 0.5]]), np.array([1.0, 1.0]))
    assert np.isinf(system.gap).all() and np.isinf(system.printed_gap).all()
    assert system.iterations_to(np.array([1.0, 1.0]), 0.5) is None
    with pytest.raises(InputError):
        system.iterations_to(np.ones(2), 0.0)
