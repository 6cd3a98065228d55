"""What every registered rule must pass: the properties of docs/algorithms.md, one parametrized list."""

from dataclasses import replace
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import RING, N
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, final, make_run, scattered

from dspodfl.algorithms import ALGORITHMS, Algorithm, Constant, make
from dspodfl.engine import Stack, leaves, link_leaves, simulate
from dspodfl.network import Events, Graph
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem

RULES = [name for name, entry in ALGORITHMS.items() if entry.rule is not None]


def facts(name):
    """What the tests of a method, tests/algorithms/test_<name>.py, say about it in ``CONTRACT``, if they do.

    ``settings``: those it is tested with here, where the defaults do not suit the small instances; ``moves_the_mean``:
    where all gradients are 0, the mean of the models does not stay; ``without_consensus``: nor do models become equal;
    ``draws``: it draws at the address of a client, so that relabelled clients have other models; ``iterations``: until
    an exact method is at the solution of the instance (8000); ``graph``: the graph of 8 clients that it is tested on,
    where it does not run on the ring with chords.
    """
    there = find_spec(f"tests.algorithms.test_{name}") is not None
    return getattr(import_module(f"tests.algorithms.test_{name}"), "CONTRACT", {}) if there else {}


FACTS = {name: facts(name) for name in RULES}


def graph_of(name):
    """The graph of 8 clients that a method is tested on."""
    return FACTS[name].get("graph", RING)


def without(fact):
    """The rules that a fact does not hold for."""
    return [name for name in RULES if not FACTS[name].get(fact)]


def made(name):
    """The schedule and the rule of a method."""
    return make(Algorithm(name, schedule=name, rule=name, settings=FACTS.get(name, {}).get("settings", {})))


@cache
def still(p=5):
    """Clients whose gradients are all 0. Gives a model and a federation of 8 clients."""
    x, y = np.zeros((N, p), dtype=np.float32), np.zeros(N, dtype=np.float32)
    data = Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(N)[:, None]), {})
    return build("linear", (p,), 1), data


class Listed:
    """Events as they are given: (iterations, clients) and (iterations, links); firing probabilities of ½."""

    independent = True

    def __init__(self, v, v_hat):
        self.v, self.v_hat = np.asarray(v, dtype=bool), np.asarray(v_hat, dtype=bool)

    def __call__(self, k, part, rates):
        return Events(self.v[k], self.v_hat[k])


class Told(Listed):
    """The same, for the engine: it is called for its events, and knows probabilities."""

    def probabilities(self, k, rates):
        return np.full((1, self.v.shape[1]), 0.5), np.full((1, self.v_hat.shape[1]), 0.5)

    def constant(self, rates):
        return True


def random_events(iterations, graph=RING, seed=0, share=0.5):
    random = np.random.default_rng(seed)
    return random.random((iterations, graph.n)) < share, random.random((iterations, graph.links)) < share


def states(rule, v, v_hat, *, graph=RING, data=None, model=None, start=None, alpha=0.05):
    """Models and the tensors of the state after every iteration of listed events, in float64."""
    model, data = model or instance.MODEL, data or instance.DATA
    run = make_run("dspodfl", 0, data=data, graph=graph, schedule=_Unknown(v, v_hat), learning_rate=Constant(alpha))
    start = scattered(model, graph.n, 0, torch.float64) if start is None else start
    problem = Problem(model, [(0, data)], batch_size=1, dtype=torch.float64)
    found = []
    stack = Stack([run])
    stack.probabilities = lambda k: np.full((1, graph.links), 0.5)
    for shot in simulate(stack, problem, rule, start, iterations=len(v), every=1):
        pieces = list(shot.state.pieces())
        (piece,) = pieces
        found.append((piece.clients["theta"].clone(), _tensors(piece.clients), _tensors(piece.ends)))
    return found


def _tensors(table):
    return {name: values.clone() for name, values in table.items() if name.startswith("rule.")}


class _Unknown(Listed):
    independent = False


@pytest.mark.parametrize("name", RULES)
def test_without_events_nothing_changes_to_the_bit(name):
    v, v_hat = random_events(12, graph_of(name))
    v[8:], v_hat[8:] = False, False
    found = states(made(name)[1], v, v_hat, graph=graph_of(name))
    for theta, clients, ends in found[9:]:
        assert torch.equal(theta, found[8][0])
        assert all(torch.equal(values, found[8][1][key]) for key, values in clients.items())
        assert all(torch.equal(values, found[8][2][key]) for key, values in ends.items())
    assert not torch.equal(found[8][0], found[0][0])


@pytest.mark.parametrize("name", RULES)
def test_only_clients_with_events_change_and_only_the_memory_of_links_that_fire(name):
    graph = graph_of(name)
    v, v_hat = random_events(10, graph, share=0.25)
    found = states(made(name)[1], v, v_hat, graph=graph)
    for k, (before, after) in enumerate(pairwise(found)):
        touched = v[k].copy()
        touched[graph.edges[v_hat[k]].ravel()] = True
        same = torch.from_numpy(~touched)
        assert torch.equal(before[0][same], after[0][same])
        assert all(torch.equal(before[1][key][same], after[1][key][same]) for key in before[1])
        silent = torch.from_numpy(np.repeat(~v_hat[k], 2))
        assert all(torch.equal(before[2][key][silent], after[2][key][silent]) for key in before[2])


@pytest.mark.parametrize("name", without("moves_the_mean"))
def test_without_gradients_the_mean_stays(name):
    model, data = still()
    graph = graph_of(name)
    found = states(made(name)[1], *random_events(200, graph), graph=graph, model=model, data=data)
    apart = (found[-1][0].mean(dim=0) - found[0][0].mean(dim=0)).abs().max()
    assert apart < 1e-12


@pytest.mark.parametrize("name", without("without_consensus"))
def test_without_gradients_models_become_equal(name):
    model, data = still()
    graph = graph_of(name)
    found = states(made(name)[1], *random_events(3000, graph), graph=graph, model=model, data=data)
    assert (found[-1][0] - found[-1][0].mean(dim=0)).abs().max() < 1e-6


@pytest.mark.parametrize("name", without("draws"))
def test_relabelled_clients_have_the_same_models(name):
    graph = graph_of(name)
    order = np.random.default_rng(1).permutation(graph.clients)  # client i becomes order[i]
    order = np.append(order, N - 1) if graph.server else order  # a server is the last
    edges = order[graph.edges]
    other = Graph.from_edges(N, [tuple(sorted(edge)) for edge in edges.tolist()])
    other = replace(other, server=graph.server)
    place = [next(e for e, edge in enumerate(other.edges.tolist()) if edge == sorted(one)) for one in edges.tolist()]
    v, v_hat = random_events(40, graph)
    new_v, new_v_hat = np.empty_like(v), np.empty_like(v_hat)
    new_v[:, order], new_v_hat[:, place] = v, v_hat
    shards = [np.array([int(i)]) for i in np.argsort(order)]
    data = Federation(instance.DATA.dataset, tuple(shards), {})
    start = scattered(instance.MODEL, N, 0, torch.float64)
    moved = torch.empty_like(start)
    moved[order] = start
    rule = made(name)[1]
    here = states(rule, v, v_hat, graph=graph, start=start)[-1][0]
    there = states(rule, new_v, new_v_hat, graph=other, data=data, start=moved)[-1][0]
    assert (there[order] - here).abs().max() < 1e-9


def runs_of(name, model="svm", n=7):
    schedule, _ = made(name)
    _, data = MODELS[model]()
    graph = FACTS[name].get("graph")
    return [make_run("dspodfl", seed, n=n, graph=graph, data=data, schedule=schedule) for seed in range(2)]


@pytest.mark.parametrize("name", RULES)
def test_stacked_is_alone_to_the_bit(name):
    model, _ = MODELS["svm"]()
    runs, (_, rule) = runs_of(name), made(name)
    for run, found in zip(runs, final(runs, model, iterations=30, rule=rule), strict=True):
        (alone,) = final([run], model, iterations=30, rule=rule)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("name", RULES)
def test_split_over_ranks_is_whole(name):
    model, _ = MODELS["svm"]()
    runs, (_, rule) = runs_of(name), made(name)
    looks, _, _ = split_up(runs, model, 3, rule=rule)
    assert_the_same(runs, model, looks, rule=rule, close=1e-9)


@pytest.mark.parametrize("name", RULES)
def test_resumed_anywhere_is_in_one_go_to_the_last_bit(name):
    model, _ = MODELS["svm"]()
    assert_any_state_is_gone_on_from(runs_of(name), model, rule=made(name)[1])


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.exact])
def test_an_exact_method_stays_at_the_solution(name):
    """Run to the solution, then on: random events move nothing any more."""
    schedule, rule = made(name)
    sporadic = ALGORITHMS[name].sporadic
    graph = schedule.graph(RING) if hasattr(schedule, "graph") else RING  # a method may have a graph of its own
    d, b = (instance.D.tolist(), np.resize(instance.B, graph.links).tolist()) if sporadic else (1.0, 1.0)
    iterations = FACTS[name].get("iterations", 8000)
    theta = instance.models(rule, schedule=schedule, iterations=iterations, d=d, b=b, graph=graph)
    assert instance.error(theta) < 1e-10


def test_the_state_of_every_rule_can_be_saved():
    for name in RULES:
        _, rule = made(name)
        theta = torch.zeros(4, 3)
        state = rule.init(theta, 5)
        leaves(state, 4)
        assert all(len(leaf) == 10 for leaf in link_leaves(state)), name
