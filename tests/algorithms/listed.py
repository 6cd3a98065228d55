"""Events that are listed, and what a rule makes of them on the instance of `tests.algorithms.instance`."""

from functools import cache
from typing import NamedTuple

import numpy as np
import torch
from tests.algorithms.instance import DATA, DIGRAPH, MODEL, RING, N
from tests.worlds import make_run, scattered

from dspodfl.algorithms import Constant
from dspodfl.engine import Stack, simulate
from dspodfl.network import Events
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem


class Listed:
    """A schedule of events as they are given: of clients and links, or of clients and both directions of links.

    Each has a row for every iteration: v (iterations, clients), v̂ (iterations, links).
    """

    def __init__(self, *events):
        self.events = [np.asarray(some, dtype=bool) for some in events]

    def __call__(self, k, part, rates):
        return Events(*(some[k] for some in self.events))


class After(NamedTuple):
    """What a rule has after an iteration."""

    theta: torch.Tensor
    """What is trained, (clients, p)."""
    clients: dict[str, torch.Tensor]
    """The state of the rule by name: rule.0, rule.1, …"""
    ends: dict[str, torch.Tensor]
    """Its memory at the ends of links by name."""
    models: torch.Tensor
    """The models that are evaluated, (clients, p)."""


def random_events(iterations, graph=RING, seed=0, share=0.5):
    """Random events of clients and links: v (iterations, clients), v̂ (iterations, links)."""
    random = np.random.default_rng(seed)
    return random.random((iterations, graph.n)) < share, random.random((iterations, graph.links)) < share


def arc_events(iterations, graph=DIGRAPH, seed=0, share=0.5):
    """Random events of clients, and of both directions of each link; those that are not there fire too, in vain."""
    random = np.random.default_rng(seed)
    v = random.random((iterations, graph.n)) < share
    return v, *(random.random((iterations, graph.links)) < share for _ in range(2))


def shots(rule, *events, graph=RING, data=DATA, model=MODEL, start=None, alpha=0.05, q=0.5, p=0.5, every=1):
    """Run a rule in float64 on listed events. Yields what it has before the first iteration and after each ``every``.

    ``q`` and ``p`` are what the schedule says of itself: the probabilities of links, and of clients.
    """
    rate = Constant(alpha) if isinstance(alpha, float) else alpha
    run = make_run("dspodfl", 0, data=data, graph=graph, schedule=Listed(*events), learning_rate=rate)
    stack = Stack([run])
    if not graph.directed:
        stack.probabilities = lambda k: np.broadcast_to(q, (1, graph.links))
        stack.step_probabilities = lambda k: np.broadcast_to(p, (1, graph.n))
    start = scattered(model, graph.n, 0, torch.float64) if start is None else start
    problem = Problem(model, [(0, run.data)], batch_size=1, dtype=torch.float64)
    for shot in simulate(stack, problem, rule, start.clone(), iterations=len(events[0]), every=every):
        (piece,) = shot.state.pieces()
        tables = (
            {name: values.clone() for name, values in table.items() if name.startswith("rule.")}
            for table in (piece.clients, piece.ends)
        )
        yield After(piece.clients["theta"].clone(), *tables, shot.models(stack.rows[0]).clone())


def states(rule, *events, **how):
    """What a rule has before the first of listed events and after each, as a list of `After`; see `shots`."""
    return list(shots(rule, *events, **how))


@cache
def still(p=5, n=N):
    """Clients whose gradients are all 0. Gives a model and a federation."""
    x, y = np.zeros((n, p), dtype=np.float32), np.zeros(n, dtype=np.float32)
    return build("linear", (p,), 1), Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(n)[:, None]), {})
