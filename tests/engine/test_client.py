"""One client at a time is the stacked engine, for every registered algorithm; and through bytes it is itself."""

from functools import cache

import numpy as np
import pytest
import torch
from tests.algorithms.instance import DIGRAPH
from tests.algorithms.test_contract import facts
from tests.worlds import BATCH, MODELS, advance, make_run, scattered

from dspodfl.algorithms import ALGORITHMS, Algorithm, bytes_sent, fitted, make
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import (
    Stack,
    all_clients,
    client_loop,
    packed,
    plain_loop,
    runs_on_nodes,
)

ITERATIONS = 40
REFUSED = {"bridge": "around", "clipped_gossip": "around", "fedavg": "server", "scaffold": "server", "anarchic": "server"}


def made(name, **settings):
    """The schedule and the rule of an algorithm, with the settings of the contract."""
    entry = ALGORITHMS[name]
    settings = {**facts(name).get("settings", {}), **settings}
    schedule, rule = make(Algorithm(name, schedule=name, rule=name if entry.rule else None, settings=settings))
    return schedule, rule or RULES["simultaneous"]


@cache
def world(name, model="logistic", directed=False, **settings):
    """A run of an algorithm, its rule and its model."""
    schedule, rule = made(name, **settings)
    model, dataset = MODELS[model]()
    graph = DIGRAPH if directed else facts(name).get("graph")
    rule = fitted(rule, tuple(tuple(shape) for shape in model.shapes.values()))
    return make_run(name, 3, n=6, graph=graph, data=dataset, schedule=schedule), rule, model


def loop(run, rule, model, dtype=torch.float64, iterations=ITERATIONS, batch=BATCH):
    start = scattered(model, run.clients, run.seed).to(dtype)
    return list(plain_loop(run, model, start, iterations=iterations, batch_size=batch, rule=rule))


CASES = [name for name in ALGORITHMS if name not in REFUSED]
DIRECTED = [name for name, entry in ALGORITHMS.items() if entry.directed]


@pytest.mark.parametrize("name", CASES)
def test_every_algorithm_is_the_stacked_engine_s(name):
    run, rule, model = world(name)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, every=10, rule=rule)
    models = loop(run, rule, model)
    assert len(models) == ITERATIONS
    assert (models[-1] - looks[0].theta).abs().max() > 1e-3
    for look in looks[1:]:
        assert torch.allclose(models[look.iteration - 1], look.theta, rtol=0, atol=1e-10)


@pytest.mark.parametrize("name", DIRECTED)
def test_directed_graphs_are_the_stacked_engine_s(name):
    run, rule, model = world(name, directed=True)
    assert runs_on_nodes(rule, run) is None
    (looks,) = advance([run], model, iterations=ITERATIONS, rule=rule)
    assert torch.allclose(loop(run, rule, model)[-1], looks[-1].theta, rtol=0, atol=1e-10)
