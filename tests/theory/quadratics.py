"""Quadratic losses F_i(θ) = ½(θ − c_i)ᵀH_i(θ − c_i) with every constant known, and exact expectations over events."""

from dataclasses import dataclass
from itertools import product

import numpy as np

from dspodfl.network import Graph
from dspodfl.network import weights as mixing
from dspodfl.theory.formulas.constants import Constants
from dspodfl.theory.formulas.spectral import rho_tilde


@dataclass(frozen=True, eq=False)
class World:
    """Clients with quadratic losses on a graph, rates d and b, and noise ±σ along the first axis."""

    graph: Graph
    hessian: np.ndarray  # (m, n, n)
    centre: np.ndarray  # (m, n)
    d: np.ndarray  # (m,)
    b: np.ndarray  # (links,)
    sigma: float

    @property
    def r(self):
        return mixing.weights("metropolis", self.graph.n, self.graph.edges, self.graph.degree)

    @property
    def optimum(self):
        pull = np.einsum("ijk,ik->j", self.hessian, self.centre)
        return np.linalg.solve(self.hessian.sum(axis=0), pull)

    def gradients(self, theta):
        """∇F_i(θ_i). Shapes: (m, n) -> (m, n)."""
        return np.einsum("ijk,ik->ij", self.hessian, theta - self.centre)

    def excess(self, theta):
        """F(θ) − F*. Shapes: (n,) -> scalar."""
        step = theta - self.optimum
        return 0.5 * step @ self.hessian.mean(axis=0) @ step

    def constants(self, alpha):
        """The least constants of the convex family: ζ is the largest ‖H − H_i‖, δ the largest ‖∇F_i(θ*)‖."""
        values = np.linalg.eigvalsh(self.hessian)
        at_optimum = self.gradients(np.broadcast_to(self.optimum, self.centre.shape))
        return Constants(
            m=self.graph.n,
            beta=float(values.max()),
            mu=float(values.min()),
            zeta=float(np.linalg.norm(self.hessian.mean(axis=0) - self.hessian, 2, axis=(1, 2)).max()),
            delta=float(np.linalg.norm(at_optimum, axis=1).max()),
            sigma=self.sigma,
            rho_tilde=rho_tilde(self.graph, self.r, self.b),
            d_min=float(self.d.min()),
            d_max=float(self.d.max()),
            alpha=alpha,
        )

    def outcomes(self):
        """(probability, v, v̂, noise signs) of every event of one iteration."""
        m = self.graph.n
        for v in product((0, 1), repeat=m):
            for fired in product((0, 1), repeat=self.graph.links):
                chance = np.prod(np.where(v, self.d, 1 - self.d)) * np.prod(np.where(fired, self.b, 1 - self.b))
                for sign in product((-1, 1), repeat=m):
                    yield chance / 2**m, np.array(v), np.array(fired), np.array(sign)

    def expectations(self, theta, alpha):
        """E of what the lemmas bound, after one iteration from θ, exactly. Shapes: theta (m, n)."""
        m, star = self.graph.n, self.optimum
        gradient, mean = self.gradients(theta), theta.mean(axis=0)
        whole = self.gradients(np.broadcast_to(mean, theta.shape)).mean(axis=0)  # ∇F(θ̄)
        total = dict.fromkeys(
            ("optimum", "consensus", "excess", "deviation", "noise", "spread", "error", "descent", "half"), 0.0
        )
        for chance, v, fired, sign in self.outcomes():
            noise = np.zeros_like(theta)
            noise[:, 0] = self.sigma * sign * v
            active = gradient * v[:, None]
            average = active.mean(axis=0)
            p = mixing.matrix(m, self.graph.edges, self.r * fired)
            after = p @ theta - alpha * (active + noise)
            centre = after.mean(axis=0)
            seen = {
                "optimum": ((centre - star) ** 2).sum(),
                "consensus": ((after - centre) ** 2).sum(),
                "excess": self.excess(centre),
                "deviation": ((active - average) ** 2).sum(),
                "noise": (noise.mean(axis=0) ** 2).sum(),
                "spread": ((noise - noise.mean(axis=0)) ** 2).sum(),
                "error": ((whole - average) ** 2).sum(),
                "descent": -whole @ average,
                "half": 0.5 * average @ average,
            }
            for name, value in seen.items():
                total[name] += chance * value
        return total


def random_world(seed, size=3, full=False):
    """A random quadratic world on a path of 3 clients, from mild to harsh in every constant."""
    rng = np.random.default_rng(seed)
    graph = Graph.from_edges(size, [(i, i + 1) for i in range(size - 1)])
    turn = np.linalg.qr(rng.standard_normal((size, 2, 2)))[0]
    values = 10 ** rng.uniform(-1, 0, (size, 2))
    hessian = np.einsum("ijk,ik,ilk->ijl", turn, values, turn)
    low = 1.0 if full else rng.uniform(0, 1)
    return World(
        graph,
        hessian,
        rng.standard_normal((size, 2)) * 10 ** rng.uniform(-1, 1),
        rng.uniform(low, 1, size),
        rng.uniform(0.05, 1, size - 1),
        rng.uniform(0, 1),
    )


def draws(count, seed=0):
    """Constants over which the claims are checked; 1 − d_min within what s < 1 allows, and beyond."""
    rng = np.random.default_rng(seed)
    return [_drawn(rng) for _ in range(count)]


def _drawn(rng):
    mu, idle = 10 ** rng.uniform(-1.5, 0), rng.choice([0.0, 1.0])
    d_min = max(1e-3, 1.0 - idle * rng.uniform(0, 1) ** 3 * mu**2)
    return Constants(
        m=int(rng.integers(2, 30)),
        mu=mu,
        beta=1.0,
        zeta=rng.uniform(0, 2),
        rho_tilde=rng.uniform(0, 0.99),
        d_min=d_min,
        d_max=rng.uniform(d_min, 1),
        delta=rng.uniform(0, 1),
        sigma=rng.uniform(0, 1),
    )
