"""Problems with every constant known, run by the engine itself: full gradients plus noise of a known σ.

A sample of client i is (its whole problem, ε_s), and its loss F_i(θ) + ε_sᵀθ: with minibatches of one sample the
gradient is ∇F_i + ε_s, and E‖ε‖² = σ² exactly and at every θ. The module gives the two scores (0, 2(F + C) − 1) and the
label is 0, so that the hinge loss, half of 1 + the second score, is F + C for any F > −C.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import nn

from dspodfl import Config, run
from dspodfl.network import Graph, generate
from dspodfl.network import weights as mixing
from dspodfl.problem.data import Dataset, Federation
from dspodfl.theory import estimation
from dspodfl.theory.formulas import Constants
from dspodfl.theory.formulas.spectral import rho_tilde

LIFT = 1e6


class Objective(nn.Module):
    """Scores whose hinge loss is F(θ; x) + LIFT. ``problem`` is the length of a client's part of x."""

    def __init__(self, start, problem):
        super().__init__()
        self.theta = nn.Parameter(torch.as_tensor(start, dtype=torch.float32))
        self.problem = problem

    def forward(self, x):
        own, noise = x[:, : self.problem], x[:, self.problem :]
        value = self.value(self.theta, own) + noise @ self.theta.to(x.dtype)
        return torch.stack([torch.zeros_like(value), 2 * (value + LIFT) - 1], dim=1)

    def value(self, theta, own):
        """F_i(θ). Shapes: theta (n,), own (batch, problem) -> (batch,)."""
        raise NotImplementedError


class Ridge(Objective):
    """½ mean (Xθ − y)² + (l2/2)‖θ‖², own = (X, y)."""

    def __init__(self, start, samples, l2):
        super().__init__(start, samples * (len(start) + 1))
        self.samples, self.l2 = samples, l2

    def value(self, theta, own):
        n, size = len(theta), self.samples
        x, y = own[:, : size * n].reshape(-1, size, n), own[:, size * n :]
        theta = theta.to(own.dtype)
        return ((x @ theta - y) ** 2).mean(dim=1) / 2 + self.l2 / 2 * theta @ theta


class Wells(Objective):
    """Σ_j ln(1 + (θ_j − a_j)²), own = a: smooth with β = 2, not convex."""

    def value(self, theta, own):
        return torch.log1p((theta.to(own.dtype) - own) ** 2).sum(dim=1)


class Waves(Objective):
    """½‖θ‖² + c Σ_j sin²θ_j + hᵀθ, own = (h, c): not convex for c > ½, and PL all the same."""

    def value(self, theta, own):
        theta = theta.to(own.dtype)
        h, c = own[:, :-1], own[:, -1]
        return (theta**2).sum() / 2 + c * (torch.sin(theta) ** 2).sum() + h @ theta


@dataclass(frozen=True, eq=False)
class Place:
    """Where it happens: a graph, rates and Metropolis weights."""

    graph: Graph
    d: np.ndarray  # (m,)
    b: np.ndarray  # (links,)

    @staticmethod
    def of(kind, m, d, b, **options):
        graph = generate(kind, m, seed=0, **options)
        return Place(graph, np.broadcast_to(d, m).astype(float), np.broadcast_to(b, graph.links).astype(float))

    @property
    def r(self):
        return mixing.weights("metropolis", self.graph.n, self.graph.edges, self.graph.degree)

    @cached_property
    def rho_tilde(self):
        return rho_tilde(self.graph, self.r, self.b)


def federation(problems, sigma, n, optimum):
    """Clients' problems (m, length) with 2n samples each, noise ±σ along each axis. Shapes: optimum (n,) or None."""
    noise = sigma * np.concatenate([np.eye(n), -np.eye(n)])  # (2n, n): mean 0, length σ
    x = np.concatenate([np.concatenate([np.tile(p, (2 * n, 1)), noise], axis=1) for p in problems]).astype(np.float32)
    y = np.zeros(len(x), dtype=np.int64)
    shards = tuple(np.arange(2 * n * i, 2 * n * (i + 1)) for i in range(len(problems)))
    return Federation(Dataset("known", x, y, x[:1], y[:1], classes=2), shards, {}, optimum)


def measured(module, data, place, rate, iterations, seeds, every=1, callbacks=()):
    """The engine's own metrics of DSpodFL at a place; ``rate`` a number or a table."""
    config = Config(
        seeds=seeds,
        algorithms=["dspodfl"],
        clients={"count": place.graph.n},
        rates={"sgd": {"law": "list", "values": place.d}, "link": {"law": "list", "values": place.b}},
        model={"factory": "tests.theory.worlds:Objective", "loss": "hinge"},
        train={
            "iterations": iterations,
            "batch_size": 1,
            "precision": "fp64",
            "learning_rate": rate if isinstance(rate, dict) else {"kind": "constant", "value": rate},
        },
        eval={"every": every},
    )
    result = run(config, model=module, data=data, graph=place.graph, device="cpu", callbacks=callbacks)
    return result.metrics


def states(module, data, place, rate, iterations, seeds, every=1):
    """Every client's model at each evaluated iteration. Shapes: (rows, seeds, m, n)."""
    seen = []

    def look(update):
        seen.append(torch.stack([update.theta("dspodfl", seed) for seed in range(seeds)]).numpy().copy())

    measured(module, data, place, rate, iterations, seeds, every, callbacks=[look])
    return np.stack(seen)


@dataclass(frozen=True, eq=False)
class WellsWorld:
    """F_i = Σ_j ln(1 + (θ_j − a_ij)²): β = 2; ‖∇F_i‖ ≤ ‖∇F‖ + 2 mean_l ‖a_i − a_l‖, so ζ = 1; F ≥ 0."""

    place: Place
    centres: np.ndarray  # (m, n)
    sigma: float
    start: np.ndarray

    @staticmethod
    def make(place, apart, sigma, n=3, seed=0):
        centres = np.float32(apart * np.random.default_rng(seed).standard_normal((place.graph.n, n)))
        return WellsWorld(place, centres.astype(float), sigma, np.float32([2.0, -2.0, 1.0][:n]))

    def constants(self, alpha=None):
        delta = 2 * max(np.linalg.norm(self.centres - one, axis=1).mean() for one in self.centres)
        d = self.place.d
        return Constants(
            m=len(self.centres), beta=2.0, rho_tilde=self.place.rho_tilde, delta=float(delta), zeta=1.0,
            sigma=self.sigma, d_min=float(d.min()), d_max=float(d.max()), alpha=alpha,
        )  # fmt: skip

    def loss(self, theta):
        """F. Shapes: (..., n) -> (...)."""
        return np.log1p((theta[..., None, :] - self.centres) ** 2).sum(axis=-1).mean(axis=-1)

    def gradient(self, theta):
        """∇F. Shapes: (..., n) -> (..., n)."""
        step = theta[..., None, :] - self.centres
        return (2 * step / (1 + step**2)).mean(axis=-2)

    def states(self, rate, iterations, seeds, every=1):
        data = federation(self.centres, self.sigma, len(self.start), None)
        return states(Wells(self.start, len(self.start)), data, self.place, rate, iterations, seeds, every)


@dataclass(frozen=True, eq=False)
class WavesWorld:
    """F_i = ½‖θ‖² + c_i Σ_j sin²θ_j + h_iᵀθ with Σ h_i = 0: F = ½‖θ‖² + c Σ sin²θ_j, whose minimum is F(0) = 0.

    F'' reaches down to 1 − 2c < 0, yet F is PL: μ is the least f'²/(2f) of one coordinate, by a grid of [0, 20] and,
    further out, (x − c)²/(x² + 2c). ∇F_i − ∇F = h_i + (c_i − c) sin 2θ, so δ = max‖h_i‖ and ζ = 2 max|c_i − c|.
    """

    place: Place
    pull: np.ndarray  # (m, n)
    wave: np.ndarray  # (m,)
    sigma: float
    start: np.ndarray

    @staticmethod
    def make(place, apart, sigma, n=2, c=0.55, seed=0):
        rng = np.random.default_rng(seed)
        pull = rng.standard_normal((place.graph.n, n))
        pull = np.float32(apart * (pull - pull.mean(axis=0))).astype(float)
        wave = c + 0.02 * np.linspace(-1, 1, place.graph.n)
        return WavesWorld(place, pull, np.float32(wave).astype(float), sigma, np.full(n, 1.5, dtype=np.float32))

    def constants(self, alpha=None):
        c, d = self.wave.mean(), self.place.d
        x = np.arange(1, 200_001) * 1e-4
        slope, value = x + c * np.sin(2 * x), x**2 / 2 + c * np.sin(x) ** 2
        mu = 0.99 * float((slope**2 / (2 * value)).min())
        assert mu < (20 - c) ** 2 / (400 + 2 * c)
        return Constants(
            m=len(self.wave), beta=float(1 + 2 * self.wave.max()), mu=mu, rho_tilde=self.place.rho_tilde,
            delta=float(np.linalg.norm(self.pull - self.pull.mean(axis=0), axis=1).max()),
            zeta=float(2 * np.abs(self.wave - c).max()), sigma=self.sigma,
            d_min=float(d.min()), d_max=float(d.max()), alpha=alpha,
        )  # fmt: skip

    def loss(self, theta):
        """F − F*. Shapes: (..., n) -> (...)."""
        return (theta**2 / 2 + self.wave.mean() * np.sin(theta) ** 2).sum(axis=-1)

    def states(self, rate, iterations, seeds, every=1):
        data = federation(np.concatenate([self.pull, self.wave[:, None]], axis=1), self.sigma, len(self.start), None)
        return states(Waves(self.start, len(self.start) + 1), data, self.place, rate, iterations, seeds, every)


@dataclass(frozen=True, eq=False)
class RidgeWorld:
    """Ridge regression at a place: constants, and what the engine measures."""

    place: Place
    shards: list
    l2: float
    sigma: float
    start: np.ndarray

    @staticmethod
    def make(place, heterogeneity, sigma, n=3, samples=30, l2=1.0, seed=0):
        """Clients whose features differ in scale, and whose optima lie apart, by ``heterogeneity``."""
        rng = np.random.default_rng(seed)
        base, _ = np.linalg.qr(rng.standard_normal((samples, n)))
        shards = []
        for _ in range(place.graph.n):
            scale = 1 + 0.25 * heterogeneity * rng.uniform(-1, 1, n)
            x = np.float32(base * np.sqrt(samples) * scale)
            own = np.ones(n) + heterogeneity * rng.standard_normal(n)
            shards.append((x.astype(float), np.float32(x @ own).astype(float)))
        return RidgeWorld(place, shards, l2, sigma, np.full(n, 2.0, dtype=np.float32))

    @cached_property
    def problem(self):
        return estimation.ridge(self.shards, self.l2)

    def constants(self, alpha=None):
        d = self.place.d
        return self.problem.constants(self.place.rho_tilde, self.sigma, float(d.min()), float(d.max()), alpha)

    def errors(self, rate, iterations, seeds, every=1):
        """(seeds, rows, 2): ‖θ̄ − θ*‖² and ‖Θ − 1θ̄‖² at iterations 0, every, 2·every, …"""
        problems = [np.concatenate([x.ravel(), y]) for x, y in self.shards]
        data = federation(problems, self.sigma, len(self.start), self.problem.theta)
        module = Ridge(self.start, len(self.shards[0][1]), self.l2)
        table = measured(module, data, self.place, rate, iterations, seeds, every)
        both = table[["optimality_error", "consensus_error"]].to_numpy()
        return both.reshape(seeds, -1, 2)
