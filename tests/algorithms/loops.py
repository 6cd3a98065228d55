"""Plain loops over clients and links, with dictionaries, on the instance of `tests.algorithms.instance`.

The tests of a method write its update in them, apart from its rule, and compare the two on the same events.
"""

import numpy as np
import torch
from tests.algorithms import listed
from tests.algorithms.instance import L2, RING, B, D, N, X, Y

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.network import Graph

ITERATIONS = 50
RATE = Diminishing(0.1, gamma=30.0)
"""A learning rate that falls, so that a loop and a rule have to use the same one in the same place."""
COMPLETE = Graph.from_edges(N, [(i, j) for i in range(N) for j in range(i + 1, N)])
START = np.random.default_rng(5).normal(size=(N, 3))


def random_events(seed=0, graph=RING, iterations=ITERATIONS):
    """Events of half of the clients and links, at random; some iterations have none at all."""
    v, v_hat = listed.random_events(iterations, graph, seed)
    v[::7], v_hat[::5] = False, False
    return v, v_hat


def states(rule, v, v_hat, **how):
    """What a rule has after each of these events, from `START`, with `RATE`, and D and B for probabilities."""
    defaults = {"start": torch.from_numpy(START), "alpha": RATE, "q": B, "p": D}
    return listed.states(rule, v, v_hat, **(defaults | how))


def played(rule, v, v_hat, **how):
    """The models of a rule after all of these events, as an array."""
    return states(rule, v, v_hat, **how)[-1].models.numpy()


STILL = dict(zip(("model", "data"), listed.still(3), strict=True))
"""Clients whose gradients are all 0."""


def beginning():
    """Some models of all clients. Shape: (8, 3)."""
    return torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def gradient(i, theta):
    """∇F_i of the instance at a model. Shape: (3,)."""
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


def mixed(x, links, r=None):
    """Px, link by link; Metropolis weights of the ring with chords unless others are given."""
    r = r or weights()
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
