"""Expected mixing: R̄ = E[P], R̃ = E[PᵀP] and the contraction ρ̃ that every bound rests on (lemma:rho_tilde).

p_ij = r_ij v̂_ij with v̂_ij ~ Bernoulli(b_ij), one draw a link (eq. p). R̃ = R̄² + R₀, where R₀ is the Laplacian of the
graph with link weights 2 b (1 − b) r²: PSD, rows and columns summing to zero. ρ̃ is the spectral radius of
R̃ − 11ᵀ/m; R̃ is PSD, so ρ̃ is its largest eigenvalue off the direction 1, and the least constant with
E‖PΘ − 1θ̄‖² ≤ ρ̃ ‖Θ − 1θ̄‖² for all Θ.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from scipy import sparse
from scipy.linalg import eigh_tridiagonal
from scipy.sparse.linalg import eigsh

from dspodfl.errors import InputError
from dspodfl.network import Graph
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas.constants import Floats

Method = Literal["auto", "dense", "lanczos", "inverse"]
DENSE = 600
"""Most clients for which ``auto`` takes the dense way."""
STEPS = 3000
"""Lanczos steps before ``auto`` turns to the inverse: the more a graph looks like a long path, the more it needs."""
RESIDUAL = 1e-7
"""Lanczos residual; the eigenvalue's own error is its square over the distance to the next eigenvalue."""
SHIFT = 1e-12


def expected(graph: Graph, r: Floats, b: Floats | float) -> Floats:
    """Compute R̄ = E[P]: r̄_ij = b_ij r_ij, r̄_ii = 1 − Σ_j b_ij r_ij (lemma:rho_tilde a).

    Args:
        graph: The graph of m clients.
        r: The mixing weight of each link, shape (links,).
        b: The probability that a link fires: one number, or shape (links,).

    Returns:
        R̄, shape (m, m); its rows and columns sum to 1.

    Raises:
        InputError: A shape is wrong, a number is out of its range, or the weights of a client sum to more than 1.

    >>> from dspodfl.network import generate
    >>> ring = generate("ring", 4, seed=0)
    >>> expected(ring, np.full(4, 1 / 3), 0.75)  # every link fires with 3/4
    array([[0.5 , 0.25, 0.  , 0.25],
           [0.25, 0.5 , 0.25, 0.  ],
           [0.  , 0.25, 0.5 , 0.25],
           [0.25, 0.  , 0.25, 0.5 ]])
    """
    r, b = _checked(graph, r, b)
    return mixing.matrix(graph.n, graph.edges, r * b)


def excess(graph: Graph, r: Floats, b: Floats | float) -> Floats:
    """R₀ = E[P²] − R̄²: −2 b_ij (1 − b_ij) r_ij² off the diagonal, rows summing to 0. Shapes: -> (m, m)."""
    r, b = _checked(graph, r, b)
    return np.eye(graph.n) - mixing.matrix(graph.n, graph.edges, _excess_weight(r, b))


def expected_square(graph: Graph, r: Floats, b: Floats | float) -> Floats:
    """Compute R̃ = E[PᵀP] = R̄² + R₀ (lemma:rho_tilde b).

    Args:
        graph: The graph of m clients.
        r: The mixing weight of each link, shape (links,).
        b: The probability that a link fires: one number, or shape (links,).

    Returns:
        R̃, shape (m, m): symmetric, positive semidefinite; its rows sum to 1.

    Raises:
        InputError: As of `expected`.

    >>> from dspodfl.network import generate
    >>> ring, third = generate("ring", 4, seed=0), np.full(4, 1 / 3)
    >>> mean = expected(ring, third, 1.0)
    >>> bool(np.allclose(expected_square(ring, third, 1.0), mean @ mean))  # where all links fire there is no variance
    True
    """
    mean = expected(graph, r, b)
    return np.asarray(mean @ mean + excess(graph, r, b))


def rho_tilde(graph: Graph, r: Floats, b: Floats | float, method: Method = "auto") -> float:
    """Compute ρ̃, the spectral radius of R̃ − 11ᵀ/m (lemma:rho_tilde c).

    ρ̃ = ρ_r² at b = 1 and 1 at b = 0, but it is not monotone in between: the appendix calls b = 1 the lowest
    achievable value (appendix:b_rho), and K₅,₅ refutes it. ``dense`` costs m³; ``lanczos`` touches R̃ only through
    products with sparse R̄ and R₀; ``inverse`` factorizes I − R̃, for graphs whose gap is too small for Lanczos.

    Args:
        graph: The graph of m clients.
        r: The mixing weight of each link, shape (links,).
        b: The probability that a link fires: one number, or shape (links,).
        method: ``dense``, ``lanczos``, ``inverse``, or ``auto``: the first up to 600 clients, else the second, and the
            third where that does not converge.

    Returns:
        ρ̃, from 0 to 1; 1 where the graph is not connected.

    Raises:
        InputError: As of `expected`, or the method needs more clients.

    >>> from dspodfl.network import generate
    >>> ring, third = generate("ring", 4, seed=0), np.full(4, 1 / 3)
    >>> [round(rho_tilde(ring, third, b), 4) for b in (0.0, 0.5, 1.0)]  # at b = 1 it is ρ_r² = (1/3)²
    [1.0, 0.5556, 0.1111]
    """
    r, b = _checked(graph, r, b)
    if graph.n == 1:
        return 0.0
    if method == "dense" or (method == "auto" and graph.n <= DENSE):
        values = np.linalg.eigvalsh(expected_square(graph, r, b) - 1.0 / graph.n)
        return float(np.clip(values[-1], 0.0, 1.0))
    if graph.n < 4:
        raise InputError("method", method, "dense for fewer than 4 clients")
    if not graph.connected:
        return 1.0
    if method == "inverse":
        return _by_inverse(graph, r, b)
    found, residual = _by_lanczos(graph, r, b)
    if residual > RESIDUAL and method == "auto":
        return _by_inverse(graph, r, b)
    return found


def rho_r(graph: Graph, r: Floats, method: Method = "auto") -> float:
    """Compute ρ_r, the spectral radius of R − 11ᵀ/m (appendix:assumptions): the square root of ρ̃ at b = 1.

    Args:
        graph: The graph of m clients.
        r: The mixing weight of each link, shape (links,).
        method: As of `rho_tilde`.

    Returns:
        ρ_r, from 0 to 1.

    Raises:
        InputError: As of `rho_tilde`.

    >>> from dspodfl.network import generate
    >>> round(rho_r(generate("ring", 4, seed=0), np.full(4, 1 / 3)), 4)
    0.3333
    """
    return float(np.sqrt(rho_tilde(graph, r, 1.0, method)))


def mean_square_rate(graph: Graph, r: Floats, b: Floats | float) -> float:
    """lim_k (E‖P(k)⋯P(1)x − 1x̄‖²)^{1/k} for a generic x: the rate that ρ̃ bounds, ρ_r² ≤ it ≤ ρ̃ (lemma:rho_tilde c).

    The spectral radius of X → E[PXP] = R̄XR̄ + Σ_links b(1 − b)r² L X L off the direction 1, L = (e_i − e_j)(e_i − e_j)ᵀ,
    whose iterates stay PSD: by power iteration, dense. It equals ρ̃ where R̃ treats all directions alike, as on the
    complete graph with one common b, and where b is 0 or 1; elsewhere the worst direction of one step is not
    that of the next.
    """
    r, b = _checked(graph, r, b)
    mean, weight, (i, j) = expected(graph, r, b), b * (1.0 - b) * r * r, graph.edges.T
    x = np.eye(graph.n) - 1.0 / graph.n
    rate = 0.0
    for _ in range(100_000):
        across = weight * (x[i, i] + x[j, j] - 2.0 * x[i, j])  # LXL = (x_ii + x_jj − 2x_ij) L
        y = mean @ x @ mean + np.eye(graph.n) - mixing.matrix(graph.n, graph.edges, across)
        y = y - y.mean(axis=0) - y.mean(axis=1, keepdims=True) + y.mean()  # rounding lets the direction 1 grow back
        before, rate = rate, float(np.linalg.norm(y) / np.linalg.norm(x))
        if rate == 0.0 or abs(rate - before) <= 1e-14:
            break
        x = y / np.linalg.norm(y)
    return rate


def mixed_consensus(graph: Graph, r: Floats, b: Floats | float, theta: Floats) -> float:
    """E‖PΘ − 1θ̄‖² = Σ_columns xᵀ R̃ x with x = θ − θ̄1, exactly. Shapes: theta (m, parameters) -> scalar."""
    r, b = _checked(graph, r, b)
    x = theta - theta.mean(axis=0)
    across = x[graph.edges[:, 0]] - x[graph.edges[:, 1]]  # (links, parameters)
    mean = _sparse_mean(graph, r, b) @ x
    return float((mean * mean).sum() + (_excess_weight(r, b)[:, None] * across * across).sum())


def _excess_weight(r: Floats, b: Floats) -> Floats:
    return 2.0 * b * (1.0 - b) * r * r


def _checked(graph: Graph, r: Floats, b: Floats | float) -> tuple[Floats, Floats]:
    r = np.asarray(r, dtype=np.float64)
    if r.shape != (graph.links,):
        raise InputError("r", f"shape {r.shape}", f"one weight a link, shape ({graph.links},)")
    b = np.asarray(b, dtype=np.float64)
    if b.shape not in ((), r.shape):
        raise InputError("b", f"shape {b.shape}", f"one probability, or one a link, shape ({graph.links},)")
    b = np.broadcast_to(b, r.shape)
    if r.size and not (r.min() >= 0 and b.min() >= 0 and b.max() <= 1):
        raise InputError("r, b", f"r from {r.min()}, b from {b.min()} to {b.max()}", "r at least 0, b from 0 to 1")
    row = np.bincount(graph.edges.ravel(), weights=np.repeat(r, 2), minlength=graph.n)
    if r.size and row.max() > 1.0 + 1e-9:
        raise InputError("r", f"Σ_j r_ij up to {row.max()}", "such that Σ_j r_ij is at most 1 at every client")
    return r, b


def _laplacian(graph: Graph, weight: Floats) -> sparse.csr_array:
    i, j = graph.edges.T
    at_ends = np.bincount(graph.edges.ravel(), weights=np.repeat(weight, 2), minlength=graph.n)
    rows, columns = np.concatenate([i, j, np.arange(graph.n)]), np.concatenate([j, i, np.arange(graph.n)])
    entries = np.concatenate([-weight, -weight, at_ends])
    return sparse.coo_array((entries, (rows, columns)), shape=(graph.n, graph.n)).tocsr()


def _sparse_mean(graph: Graph, r: Floats, b: Floats) -> sparse.csr_array:
    return (sparse.eye_array(graph.n) - _laplacian(graph, r * b)).tocsr()


def _by_lanczos(graph: Graph, r: Floats, b: Floats) -> tuple[float, float]:
    """The largest Ritz value and its residual.

    The three-term recurrence without reorthogonalization: lost orthogonality only repeats eigenvalues already found,
    and two vectors of clients are all it holds.
    """
    mean, extra = _sparse_mean(graph, r, b), _laplacian(graph, _excess_weight(r, b))
    x = np.random.default_rng(0).standard_normal(graph.n)
    x -= x.mean()
    x /= np.linalg.norm(x)
    before, norm = np.zeros(graph.n), 0.0
    diagonal: list[float] = []
    off: list[float] = []
    value, residual = 0.0, np.inf
    for step in range(1, STEPS + 1):
        y = mean @ (mean @ x) + extra @ x - norm * before
        diagonal.append(float(x @ y))
        y -= diagonal[-1] * x
        y -= y.mean()  # rounding would let the direction 1, whose eigenvalue is 1, grow back
        before, norm = x, float(np.linalg.norm(y))
        last = norm < 1e-14 or step == STEPS
        if last or step % 50 == 0:
            top = eigh_tridiagonal(diagonal, off, select="i", select_range=(step - 1, step - 1))
            value, residual = float(top[0][0]), norm * abs(float(top[1][-1, 0]))
            if last or residual <= RESIDUAL:
                break
        off.append(norm)
        x = y / norm
    return float(np.clip(value, 0.0, 1.0)), residual


def _by_inverse(graph: Graph, r: Floats, b: Floats) -> float:
    # I − R̃ = 2L − L² − L₀ with R̄ = I − L: its two least eigenvalues are 0, of the direction 1, and 1 − ρ̃
    one, extra = _laplacian(graph, r * b), _laplacian(graph, _excess_weight(r, b))
    gap = (2.0 * one - one @ one - extra).tocsc()
    start = np.random.default_rng(0).standard_normal(graph.n)
    found = eigsh(gap, k=2, sigma=-SHIFT, which="LM", v0=start, return_eigenvectors=False)
    return float(np.clip(1.0 - found.max(), 0.0, 1.0))
