"""The instance that methods are tested on: a ring of 8 clients with two chords, one sample each, ridge regression.

Each client holds one sample, so that every minibatch gives its full gradient. Numbers in the tests of methods are those
of this instance; where a plausible wrong version of a method ends is said next to them.
"""

import math

import numpy as np
import torch
from tests.worlds import final, make_run

from dspodfl.algorithms.learning_rate import Constant
from dspodfl.engine import Stack, simulate
from dspodfl.network import Graph
from dspodfl.network.laws import FixedValues
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem

N = 8
EDGES = sorted([*((i, i + 1) for i in range(N - 1)), (0, 7), (0, 3), (0, 5)])
RING = Graph.from_edges(N, EDGES)
ARCS = [*((i, (i + 1) % N) for i in range(N)), (0, 3), (0, 5), (2, 6), (4, 1)]
DIGRAPH = Graph.from_arcs(N, ARCS)
L2 = 0.5
_I = np.arange(N)
X = np.stack([np.cos(_I), np.sin(2 * _I), np.cos(3 * _I)], axis=1).astype(np.float32).astype(float)  # as data are kept
Y = _I - 3.5
D = 0.2 + 0.8 * ((3 * _I) % 8) / 7
B = 0.25 + 0.75 * ((5 * np.arange(len(EDGES))) % 10) / 9
SOLUTION = np.array([0.178975, 0.049650, -0.309337])


def minimizer(weight):
    """Of Σ weight_i F_i. Shape: (3,)."""
    weight = np.asarray(weight, dtype=float)
    left = (X * weight[:, None]).T @ X + L2 * weight.sum() * np.eye(3)
    return np.linalg.solve(left, (X * weight[:, None]).T @ Y)


OPTIMUM = torch.from_numpy(minimizer(np.ones(N)))
MODEL = build("linear", (3,), 1, l2=L2)
_DATA = Dataset.from_arrays(X.astype(np.float32), Y.astype(np.float32), X.astype(np.float32), Y.astype(np.float32))
DATA = Federation(_DATA, tuple(np.arange(N)[:, None]), {})


def made_run(*, schedule="dspodfl", alpha=0.05, d=1.0, b=1.0, graph=RING, seed=0):
    """A run on the instance."""
    return make_run(
        schedule if isinstance(schedule, str) else "dspodfl",
        seed,
        data=DATA,
        graph=graph,
        sgd=FixedValues(d),
        link=FixedValues(b),
        schedule=None if isinstance(schedule, str) else schedule,
        learning_rate=Constant(alpha) if isinstance(alpha, float) else alpha,
    )


def models(rule, *, iterations=2000, start=None, **how):
    """The models of a rule after some iterations, in float64. Shape: (8, 3)."""
    run = made_run(**how)
    initial = torch.zeros(run.clients, 3, dtype=torch.float64) if start is None else start
    return final([run], MODEL, iterations=iterations, rule=rule, initial=[initial])[0]


def ended(rule, *, seeds, iterations=2000, **how):
    """The models of each of some seeds after some iterations from 0, in float64."""
    runs = [made_run(seed=seed, **how) for seed in seeds]
    start = [torch.zeros(run.clients, 3, dtype=torch.float64) for run in runs]
    return final(runs, MODEL, iterations=iterations, rule=rule, initial=start)


def worst(rule, *, below, seeds=(0,), iterations=8000, every=500, **how):
    """The largest error over some seeds once all stay below a tolerance from one look to the next, or at the end.

    A method that is exact comes to the solution and stays there: nothing is run after that has been seen twice.
    """
    runs = [made_run(seed=seed, **how) for seed in seeds]
    stack, before, largest = Stack(runs), False, math.inf
    problem = Problem(MODEL, [(run.seed, run.data) for run in runs], batch_size=1, dtype=torch.float64)
    start = torch.zeros(sum(run.clients for run in runs), 3, dtype=torch.float64)
    for shot in simulate(stack, problem, rule, start, iterations=iterations, every=every):
        largest = max(error(shot.models(rows)) for rows in stack.rows)
        if before and largest < below:
            break
        before = largest < below
    return largest


class Loop:
    """A plain loop over clients and arcs with dictionaries: what rules on directed graphs are compared with.

    ``events`` are (v, there, back), (iterations, clients or links) each; ``there`` are i → j of links (i, j), i < j.
    """

    def __init__(self, events, graph=DIGRAPH):
        self.events, self.graph = events, graph
        self.out = {i: {j for a, j in graph.arc_list.tolist() if a == i} for i in range(graph.n)}
        self.into = {i: {j for j, b in graph.arc_list.tolist() if b == i} for i in range(graph.n)}

    def __len__(self):
        return len(self.events[0])

    def fired(self, k):
        """The arcs that fire at k, (from, to)."""
        _, there, back = self.events
        for e, (i, j) in enumerate(self.graph.edges.tolist()):
            if there[k, e] and j in self.out[i]:
                yield i, j
            if back[k, e] and i in self.out[j]:
                yield j, i

    def pushed(self, k, x):
        """Each client gives a share of x to every client that it sends to, and keeps the rest."""
        new = dict(x)
        for i, j in self.fired(k):
            share = x[i] / (1 + len(self.out[i]))
            new[i], new[j] = new[i] - share, new[j] + share
        return new

    def pulled(self, k, x):
        """Each client moves towards the x of every client that it receives from."""
        new = dict(x)
        for j, i in self.fired(k):
            new[i] = new[i] + (x[j] - x[i]) / (1 + len(self.into[i]))
        return new

    def steps(self, k, i):
        return bool(self.events[0][k, i])


def gradient(i, theta):
    """∇F_i, NumPy. Shapes: (3,) -> (3,)."""
    return X[i] * (X[i] @ theta - Y[i]) + L2 * theta


def error(theta, of=OPTIMUM):
    """The root mean square over clients of ‖θ_i − θ*‖."""
    return float((theta - of).square().sum(dim=1).mean().sqrt())
