"""The instance that robust methods are tested on: a complete graph of 10 whose last two attack, vectors of 4."""

import numpy as np
import torch
from tests.algorithms import instance
from tests.algorithms.listed import states, still
from tests.worlds import final, make_run

from dspodfl.algorithms import Attack
from dspodfl.network import Graph
from dspodfl.network.laws import FixedValues

N, P, ATTACKERS = 10, 4, (8, 9)
HONEST = slice(0, 8)
COMPLETE = Graph.from_edges(N, [(i, j) for i in range(N) for j in range(i + 1, N)])
START = torch.from_numpy(np.random.default_rng(5).normal(size=(N, P)))


def consensus(rule, kind=None, *, rounds=200, graph=COMPLETE, attackers=ATTACKERS, start=START, schedule=None, b=1.0):
    """The models of a rule after some rounds without gradients, under an attack. Shape: (clients, p)."""
    model, data = still(start.shape[1], graph.n)
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


def trained(rule, v, v_hat, start, graph=instance.RING):
    """The models of a rule on the samples of `instance` after listed events. Shape: (8, 3)."""
    return states(rule, v, v_hat, graph=graph, start=start)[-1].models
