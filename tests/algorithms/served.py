"""The instance with a server: a star of its 8 clients, and a plain loop with dictionaries over them."""

from dataclasses import replace

import numpy as np
import torch
from tests.algorithms import instance
from tests.algorithms.instance import DATA, MODEL, N
from tests.worlds import make_run, scattered

from dspodfl.algorithms import Constant
from dspodfl.algorithms.star import star
from dspodfl.engine import Stack, simulate
from dspodfl.network import Events, Graph
from dspodfl.problem.problem import Problem

STAR = star(instance.RING)
SMALL = replace(Graph.from_edges(N, [(i, N - 1) for i in range(N - 1)]), server=True)
"""7 clients and a server: as many rows as the instance has clients."""


def of_server(theta):
    """How far the model of the server is from the minimizer."""
    return float((theta[-1] - instance.OPTIMUM).norm())


def random_events(iterations, seed=0, share=0.5):
    """Events of 8 clients, of a server that never steps, and of the 8 links."""
    random = np.random.default_rng(seed)
    v, v_hat = (random.random((iterations, count)) < share for count in (N + 1, N))
    v[:, N] = False
    return v, v_hat


def run_of(v, v_hat, alpha=0.05):
    """A run with listed events on the star."""

    def schedule(k, part, rates):
        return Events(v[k], v_hat[k])

    rate = Constant(alpha) if isinstance(alpha, float) else alpha
    return make_run("dspodfl", 0, data=DATA, graph=STAR, schedule=schedule, learning_rate=rate)


def after_each(rule, v, v_hat, alpha=0.05, start=None):
    """The models after every iteration of listed events, in float64. Shape: (iterations + 1, 9, 3)."""
    run = run_of(v, v_hat, alpha)
    problem = Problem(MODEL, [(0, run.data)], batch_size=1, dtype=torch.float64)
    start = scattered(MODEL, N + 1, 0, torch.float64) if start is None else start
    shots = simulate(Stack([run]), problem, rule, start, iterations=len(v), every=1)
    return torch.stack([shot.theta.clone() for shot in shots])


def begun():
    """Where `after_each` begins, as dictionaries: the models of the clients, and that of the server."""
    start = scattered(MODEL, N + 1, 0, torch.float64).numpy()
    return {i: start[i] for i in range(N)}, start[N]
