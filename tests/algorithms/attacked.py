"""The instance that robust methods are tested on: a complete graph of 10 whose last two attack, vectors of 4."""

from functools import cache

import numpy as np
import torch
from tests.algorithms import instance
from tests.worlds import final, make_run

from dspodfl.algorithms import Attack, Constant
from dspodfl.network import Events, Graph
from dspodfl.network.laws import FixedValues
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build

N, P, ATTACKERS = 10, 4, (8, 9)
HONEST = slice(0, 8)
COMPLETE = Graph.from_edges(N, [(i, j) for i in range(N) for j in range(i + 1, N)])
START = torch.from_numpy(np.random.default_rng(5).normal(size=(N, P)))


@cache
def still(n=N, p=P):
    """A model, and clients whose gradients are all 0."""
    x, y = np.zeros((n, p), dtype=np.float32), np.zeros(n, dtype=np.float32)
    return build("linear", (p,), 1), Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(n)[:, None]), {})


def consensus(rule, kind=None, *, rounds=200, graph=COMPLETE, attackers=ATTACKERS, start=START, schedule=None, b=1.0):
    """The models of a rule after some rounds without gradients, under an attack. Shape: (clients, p)."""
    model, data = still(graph.n, start.shape[1])
    run = make_run(
        "dspodfl",
        0,
        data=data,
        graph=graph,
        sgd=FixedValues(1.0),
        link=FixedValues(b),
        schedule=schedule,
        attack=None if kind is None else Attack(tuple(attackers), kind),
    )
    return final([run], model, iterations=rounds, rule=rule, initial=[start], batch=1)[0]


def spread(theta):
    """The root of the sum over honest models of their squared distances from their mean."""
    return float((theta[HONEST] - theta[HONEST].mean(dim=0)).norm())


def offset(theta, start=START):
    """How far the mean of the honest models has moved."""
    return float((theta[HONEST].mean(dim=0) - start[HONEST].mean(dim=0)).norm())


class Listed:
    """Events as they are given: (iterations, clients) and (iterations, links)."""

    def __init__(self, v, v_hat):
        self.v, self.v_hat = v, v_hat

    def __call__(self, k, part, rates):
        return Events(self.v[k], self.v_hat[k])


def random_events(iterations, graph=instance.RING, seed=0, share=0.5):
    random = np.random.default_rng(seed)
    return random.random((iterations, graph.n)) < share, random.random((iterations, graph.links)) < share


def trained(rule, v, v_hat, start, graph=instance.RING):
    """The models of a rule on the samples of `instance` after listed events. Shape: (8, 3)."""
    how = {"data": instance.DATA, "graph": graph, "learning_rate": Constant(0.05)}
    run = make_run("dspodfl", 0, schedule=Listed(v, v_hat), **how)
    return final([run], instance.MODEL, iterations=len(v), rule=rule, initial=[start], batch=1)[0]
