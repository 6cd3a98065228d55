"""What every registered rule must pass: the properties of docs/algorithms.md, one parametrized list.

A rule that runs on directed graphs must pass them there as well, where each direction of a link fires by itself.
"""

from dataclasses import dataclass, replace
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import DIGRAPH, RING, N
from tests.algorithms.listed import arc_events, random_events, shots, states, still
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, final, make_run, scattered

from dspodfl.algorithms import ALGORITHMS, Algorithm, make, runs_directed
from dspodfl.engine import leaves, link_leaves
from dspodfl.network import Graph
from dspodfl.problem.data.dataset import Federation

RULES = [name for name, entry in ALGORITHMS.items() if entry.rule is not None]


def facts(name):
    """What the tests of a method, tests/algorithms/test_<name>.py, say about it in ``CONTRACT``, if they do.

    ``settings``: those it is tested with here, where the defaults do not suit the small instances; ``moves_the_mean``:
    where all gradients are 0, the mean of the models does not stay; ``without_consensus``: nor do models become equal;
    ``draws``: it draws at the address of a client, so that relabelled clients have other models; ``iterations``: until
    an exact method is at the solution of the instance (8000); ``graph``: the graph of 8 clients that it is tested on,
    where it does not run on the ring with chords; ``pushes``: on a directed graph it keeps the sums of what it trains
    and of its weights, the first of its state.
    """
    there = find_spec(f"tests.algorithms.test_{name}") is not None
    return getattr(import_module(f"tests.algorithms.test_{name}"), "CONTRACT", {}) if there else {}


FACTS = {name: facts(name) for name in RULES}
DIRECTED = [name for name in RULES if ALGORITHMS[name].directed]


def made(name):
    """The schedule and the rule of a method."""
    return make(Algorithm(name, schedule=name, rule=name, settings=FACTS.get(name, {}).get("settings", {})))


@dataclass(frozen=True)
class Case:
    """A method on the graph that it is tested on: with links, or with arcs."""

    name: str
    arcs: bool = False

    def __str__(self):
        return f"{self.name}-arcs" if self.arcs else self.name

    @property
    def graph(self):
        return DIGRAPH if self.arcs else FACTS[self.name].get("graph", RING)

    @property
    def rule(self):
        return made(self.name)[1]

    def events(self, iterations, **how):
        """Random events of the clients and links of the graph, or of its clients and both directions of its links."""
        return (arc_events if self.arcs else random_events)(iterations, self.graph, **how)

    def fired(self, events, k):
        """Which links fire at k, in a direction that they have. Shape: (links,)."""
        if not self.arcs:
            return events[1][k]
        return (events[1][k] & self.graph.arcs[:, 0]) | (events[2][k] & self.graph.arcs[:, 1])

    def states(self, *events, **how):
        return states(self.rule, *events, **({"graph": self.graph} | how))

    def runs(self, n=7):
        """Two runs on random graphs, or on random digraphs, and then one on an undirected graph as well."""
        schedule, _ = made(self.name)
        _, data = MODELS["svm"]()
        run = partial(make_run, "dspodfl", data=data, schedule=schedule)
        graph = FACTS[self.name].get("graph")
        if not self.arcs:
            return [run(seed, n=n, graph=graph) for seed in range(2)]
        return [*(run(seed, graph=digraph(n, seed)) for seed in range(2)), run(0, n=n, graph=graph)]


def digraph(n, seed):
    """A ring of arcs, and others at random."""
    pairs = np.argwhere(np.random.default_rng(seed).random((n, n)) < 0.35)
    return Graph.from_arcs(n, [*((i, (i + 1) % n) for i in range(n)), *((i, j) for i, j in pairs.tolist() if i != j)])


CASES = [*map(Case, RULES), *(Case(name, arcs=True) for name in DIRECTED)]
every_case = pytest.mark.parametrize("case", CASES, ids=str)


def cases_without(fact):
    """The cases of rules that a fact does not hold for; what facts say is said of links."""
    return pytest.mark.parametrize("case", [c for c in CASES if c.arcs or not FACTS[c.name].get(fact)], ids=str)


def test_entries_say_which_rules_run_on_directed_graphs():
    assert [name for name in RULES if runs_directed(made(name)[1])] == DIRECTED
    assert not any(entry.directed for entry in ALGORITHMS.values() if entry.rule is None)


@every_case
def test_without_events_nothing_changes_to_the_bit(case):
    events = case.events(12)
    for some in events:
        some[8:] = False
    found = case.states(*events)
    for after in found[9:]:
        assert torch.equal(after.theta, found[8].theta)
        assert all(torch.equal(values, found[8].clients[key]) for key, values in after.clients.items())
        assert all(torch.equal(values, found[8].ends[key]) for key, values in after.ends.items())
    assert not torch.equal(found[8].theta, found[0].theta)


@every_case
def test_only_clients_with_events_change_and_only_the_memory_of_links_that_fire(case):
    events = case.events(10, share=0.2)
    some = False
    for k, (before, after) in enumerate(pairwise(case.states(*events))):
        fired, touched = case.fired(events, k), events[0][k].copy()
        touched[case.graph.edges[fired].ravel()] = True
        same = torch.from_numpy(~touched)
        some |= bool(same.any())
        assert torch.equal(before.theta[same], after.theta[same])
        assert all(torch.equal(before.clients[key][same], after.clients[key][same]) for key in before.clients)
        silent = torch.from_numpy(np.repeat(~fired, 2))
        assert all(torch.equal(before.ends[key][silent], after.ends[key][silent]) for key in before.ends)
    assert some


@pytest.mark.parametrize("name", [name for name in RULES if not FACTS[name].get("moves_the_mean")])
def test_without_gradients_the_mean_stays(name):
    case, (model, data) = Case(name), still()
    first, last = case.states(*case.events(200), model=model, data=data, every=200)
    assert (last.theta.mean(dim=0) - first.theta.mean(dim=0)).abs().max() < 1e-12


@cases_without("without_consensus")
def test_without_gradients_models_become_equal(case):
    model, data = still()
    found = shots(case.rule, *case.events(3000), graph=case.graph, model=model, data=data, every=500)
    first = next(found)
    for after in found:
        models = after.models if case.arcs else after.theta
        if (models - models.mean(dim=0)).abs().max() < 1e-6:
            break
    assert (models - models.mean(dim=0)).abs().max() < 1e-6
    if case.arcs and FACTS[case.name].get("pushes"):
        assert (after.theta.sum(dim=0) - first.theta.sum(dim=0)).abs().max() < 1e-12
        assert abs(after.clients["rule.0"].sum() - N) < 1e-12
        assert (models - first.theta.mean(dim=0)).abs().max() < 1e-6
        assert (after.clients["rule.0"] - 1).abs().max() > 0.1


def relabelled(graph, order, events):
    """The graph where client i is called order[i], and the same events there."""
    v = np.empty_like(events[0])
    v[:, order] = events[0]
    of_arc = {}
    for e, (i, j) in enumerate(graph.edges.tolist()):
        of_arc[order[i], order[j]], of_arc[order[j], order[i]] = events[1][:, e], events[-1][:, e]
    if graph.directed:
        other = Graph.from_arcs(graph.n, order[graph.arc_list])
    else:
        other = Graph.from_edges(graph.n, [tuple(sorted(edge)) for edge in order[graph.edges].tolist()])
        other = replace(other, server=graph.server)
    ways = [other.edges, other.edges[:, ::-1]][: len(events) - 1]
    return other, (v, *(np.stack([of_arc[pair] for pair in map(tuple, ends.tolist())], axis=1) for ends in ways))


@cases_without("draws")
def test_relabelled_clients_have_the_same_models(case):
    graph, events = case.graph, case.events(40)
    order = np.random.default_rng(1).permutation(graph.clients)  # client i becomes order[i]
    order = np.append(order, N - 1) if graph.server else order  # a server is the last
    other, same_events = relabelled(graph, order, events)
    data = Federation(instance.DATA.dataset, tuple(np.array([int(i)]) for i in np.argsort(order)), {})
    start = scattered(instance.MODEL, N, 0, torch.float64)
    moved = torch.empty_like(start)
    moved[order] = start
    here = case.states(*events, start=start)[-1].models
    there = case.states(*same_events, graph=other, data=data, start=moved)[-1].models
    assert (there[order] - here).abs().max() < 1e-9


@every_case
def test_stacked_is_alone_to_the_bit(case):
    model, _ = MODELS["svm"]()
    runs, rule = case.runs(), case.rule
    for run, found in zip(runs, final(runs, model, iterations=30, rule=rule), strict=True):
        (alone,) = final([run], model, iterations=30, rule=rule)
        assert torch.equal(alone, found)


@every_case
def test_split_over_ranks_is_whole(case):
    model, _ = MODELS["svm"]()
    runs, rule = case.runs(), case.rule
    looks, _, _ = split_up(runs, model, 3, rule=rule)
    assert_the_same(runs, model, looks, rule=rule, close=1e-9)


@every_case
def test_resumed_anywhere_is_in_one_go_to_the_last_bit(case):
    model, _ = MODELS["svm"]()
    assert_any_state_is_gone_on_from(case.runs(), model, rule=case.rule)


EXACT = [name for name, entry in ALGORITHMS.items() if entry.exact]


@pytest.mark.parametrize(
    "case", [*map(Case, EXACT), *(Case(name, arcs=True) for name in DIRECTED if name in EXACT)], ids=str
)
def test_an_exact_method_stays_at_the_solution(case):
    """Run to the solution, then on: random events move nothing any more. Several seeds where events are sporadic."""
    schedule, rule = made(case.name)
    sporadic, graph, how = ALGORITHMS[case.name].sporadic, RING, {"schedule": schedule}
    if case.arcs:
        graph, how = DIGRAPH, {}
    elif hasattr(schedule, "graph"):  # a method may have a graph of its own
        graph = schedule.graph(RING)
    b = 0.5 if case.arcs else np.resize(instance.B, graph.links).tolist()
    d, b = (instance.D.tolist(), b) if sporadic or case.arcs else (1.0, 1.0)
    seeds = (11, 12, 13) if sporadic and not case.arcs else (0,)
    how |= {"iterations": FACTS[case.name].get("iterations", 8000), "d": d, "b": b, "graph": graph}
    assert instance.worst(rule, seeds=seeds, below=1e-10, **how) < 1e-10


def test_the_state_of_every_rule_can_be_saved():
    for name in RULES:
        _, rule = made(name)
        theta = torch.zeros(4, 3)
        state = rule.init(theta, 5)
        leaves(state, 4)
        assert all(len(leaf) == 10 for leaf in link_leaves(state)), name
