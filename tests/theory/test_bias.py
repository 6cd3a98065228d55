"""The bias of sporadic clients: how far the minimizer of Σ d_i F_i is from that of Σ F_i, and where the gap has it."""

import numpy as np
import pytest

from dspodfl.theory.formulas import Constants, convex


def quadratics(seed, m=6, p=3):
    """Hessians with eigenvalues in [1, 1.2], and minima that differ. Shapes: (m, p, p), (m, p)."""
    random = np.random.default_rng(seed)
    turns = [np.linalg.qr(random.standard_normal((p, p)))[0] for _ in range(m)]
    hessians = np.array([turn @ np.diag(random.uniform(1.0, 1.2, p)) @ turn.T for turn in turns])
    return hessians, random.standard_normal((m, p))


def minimizer(hessians, minima, weight):
    """Of Σ weight_i F_i. Shape: (p,)."""
    left = np.einsum("i,ijk->jk", weight, hessians)
    return np.linalg.solve(left, np.einsum("i,ijk,ik->j", weight, hessians, minima))


def constants(hessians, minima, d):
    mean = minimizer(hessians, minima, np.ones(len(d)))
    delta = max(np.linalg.norm(h @ (mean - a)) for h, a in zip(hessians, minima, strict=True))
    values = np.linalg.eigvalsh(hessians)
    known = {"mu": values.min(), "beta": values.max(), "zeta": 0.2, "delta": delta, "sigma": 0.3, "rho_tilde": 0.5}
    return Constants(m=len(d), d_min=d.min(), d_max=d.max(), **known)


def limit(c):
    return 2 * (1 - c.d_min) * c.delta**2 / (c.mu**2 * (1 - convex.scarcity(c)))


@pytest.mark.parametrize("seed", range(5))
def test_the_bias_is_below_the_spread_of_the_rates_and_its_square_below_what_the_gap_keeps(seed):
    hessians, minima = quadratics(seed)
    d = np.random.default_rng(seed).uniform(0.75, 1.0, len(minima))
    c = constants(hessians, minima, d)
    both = [minimizer(hessians, minima, weight) for weight in (np.ones(len(d)), d)]
    bias = float(np.linalg.norm(both[0] - both[1]))
    assert 0.001 < bias <= d.std() / d.mean() * c.delta / c.mu
    assert convex.scarcity(c) < 1 and bias**2 < limit(c)


def test_the_gap_of_the_average_model_does_not_fall_to_zero_with_the_learning_rate_and_that_of_consensus_does():
    c = constants(*quadratics(0), np.linspace(0.8, 1.0, 6))
    far, near = (convex.recursion(c.at(alpha)).gap for alpha in (1e-4, 1e-7))
    assert near[0] == pytest.approx(limit(c), rel=1e-4) and far[0] > near[0] > 0.01
    assert near[1] < 1e-5 * far[1]


def test_that_term_stays_where_all_clients_are_equally_busy_and_nothing_is_biased():
    hessians, minima = quadratics(1)
    d = np.full(6, 0.8)
    assert np.allclose(minimizer(hessians, minima, d), minimizer(hessians, minima, np.ones(6)), rtol=0, atol=1e-12)
    assert limit(constants(hessians, minima, d)) > 0.01
    assert limit(constants(hessians, minima, np.ones(6))) == 0
