"""Plain loops over clients and links, with dictionaries, on the instance of `tests.algorithms.instance`.

The tests of a method write its update in them, apart from its rule, and compare the two on the same events.
"""

import numpy as np
import torch
from tests.algorithms.instance import DATA, L2, MODEL, RING, B, D, N, X, Y
from tests.worlds import make_run

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.engine import Stack, simulate
from dspodfl.network import Events, Graph
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem

ITERATIONS = 50
RATE = Diminishing(0.1, gamma=30.0)
"""A learning rate that falls, so that a loop and a rule have to use the same one in the same place."""
COMPLETE = Graph.from_edges(N, [(i, j) for i in range(N) for j in range(i + 1, N)])
START = np.random.default_rng(5).normal(size=(N, 3))


class Listed:
    """Events as they are given: (iterations, clients) and (iterations, links)."""

    def __init__(self, v, v_hat):
        self.v, self.v_hat = np.asarray(v, dtype=bool), np.asarray(v_hat, dtype=bool)

    def __call__(self, k, part, rates):
        return Events(self.v[k], self.v_hat[k])


def random_events(seed=0, graph=RING, iterations=ITERATIONS):
    """Events of half of the clients and links, at random; some iterations have none at all."""
    random = np.random.default_rng(seed)
    v, v_hat = random.random((iterations, graph.n)) < 0.5, random.random((iterations, graph.links)) < 0.5
    v[::7], v_hat[::5] = False, False
    return v, v_hat


def states(rule, v, v_hat, *, q=B, p=D, graph=RING, alpha=RATE, model=MODEL, data=DATA):
    """Models and state tensors after each of these events; q and p are what the schedule says of itself."""
    run = make_run("dspodfl", 0, data=data, graph=graph, schedule=Listed(v, v_hat), learning_rate=alpha)
    stack = Stack([run])
    stack.probabilities = lambda k: np.broadcast_to(q, (1, graph.links))
    stack.step_probabilities = lambda k: np.broadcast_to(p, (1, graph.n))
    problem = Problem(model, [(0, data)], batch_size=1, dtype=torch.float64)
    found = []
    for shot in simulate(stack, problem, rule, torch.from_numpy(START.copy()), iterations=len(v), every=1):
        (piece,) = shot.state.pieces()
        tables = {name: values.clone() for name, values in piece.clients.items() if name.startswith("rule.")}
        found.append((shot.models(stack.rows[0]).clone(), tables))
    return found


def played(rule, v, v_hat, **how):
    """The models of a rule after all of these events, as an array."""
    return states(rule, v, v_hat, **how)[-1][0].numpy()


_NOTHING = Dataset.from_arrays(*(np.zeros(shape, np.float32) for shape in ((N, 3), N, (N, 3), N)))
STILL = {"model": build("linear", (3,), 1), "data": Federation(_NOTHING, DATA.shards, {})}
"""Clients whose gradients are all 0."""


def gradient(i, theta):
    return (X[i] @ theta - Y[i]) * X[i] + L2 * theta


def start():
    return {i: START[i].copy() for i in range(N)}


def zeros():
    return {i: np.zeros(3) for i in range(N)}


def rates(alpha=RATE, iterations=ITERATIONS):
    """α(k) of every iteration, as numbers."""
    return [float(a) for a in alpha(np.arange(iterations))]


def weights(graph=RING):
    """Metropolis weights by link (i, j)."""
    degree = dict.fromkeys(range(graph.n), 0)
    for i, j in graph.edges.tolist():
        degree[i], degree[j] = degree[i] + 1, degree[j] + 1
    return {(i, j): 1 / (1 + max(degree[i], degree[j])) for i, j in graph.edges.tolist()}


def fired(v_hat_k, graph=RING):
    """The links that fire, as pairs."""
    return [tuple(edge) for edge, fires in zip(graph.edges.tolist(), v_hat_k, strict=True) if fires]


def mixed(x, links, r):
    """Px, link by link."""
    out = {i: value.copy() for i, value in x.items()}
    for i, j in links:
        out[i] += r[i, j] * (x[j] - x[i])
        out[j] += r[i, j] * (x[i] - x[j])
    return out


def as_array(x):
    return np.array([x[i] for i in range(len(x))])


def descended(theta, iterations, alpha, clients=range(N)):
    """Gradient descent on the mean of some clients' functions."""
    for _ in range(iterations):
        theta = theta - alpha * np.mean([gradient(i, theta) for i in clients], axis=0)
    return theta


def corrected(v, v_hat, *, factor, s=0.5, graph=RING, alpha=RATE):
    """Θ̂ = Θ − αV(G − h), Θ ← Θ̂ − sLΘ̂, h ← h − (s/α) L_q Θ̂; ``factor`` of a link is what counts in L_q."""
    theta, h, r = start(), zeros(), weights(graph)
    for k, a in enumerate(rates(alpha, len(v))):
        half = {i: theta[i] - a * (gradient(i, theta[i]) - h[i]) if v[k, i] else theta[i] for i in range(N)}
        theta = {i: value.copy() for i, value in half.items()}
        for i, j in fired(v_hat[k], graph):
            pull = s * r[i, j] * (half[j] - half[i])
            theta[i] += pull
            theta[j] -= pull
            h[i] = h[i] + factor[i, j] * pull / a
            h[j] = h[j] - factor[i, j] * pull / a
    return as_array(theta)
