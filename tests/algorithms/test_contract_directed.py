"""What every rule that runs on directed graphs must pass there: each direction of a link fires by itself."""

from itertools import pairwise

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import DIGRAPH, N, arc_events, arc_states
from tests.algorithms.test_contract import FACTS, RULES, made, runs_of, still
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, final, make_run, scattered

from dspodfl.algorithms import ALGORITHMS, runs_directed
from dspodfl.network import Graph
from dspodfl.problem.data.dataset import Federation

DIRECTED = [name for name in RULES if ALGORITHMS[name].directed]


def test_entries_say_which_rules_run_on_directed_graphs():
    assert [name for name in RULES if runs_directed(made(name)[1])] == DIRECTED
    assert not any(entry.directed for entry in ALGORITHMS.values() if entry.rule is None)


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_without_events_nothing_changes_to_the_bit(name):
    v, there, back = arc_events(12)
    v[8:], there[8:], back[8:] = False, False, False
    found = arc_states(made(name)[1], v, there, back, graph=DIGRAPH)
    for theta, clients, _ in found[9:]:
        assert torch.equal(theta, found[8][0])
        assert all(torch.equal(values, found[8][1][key]) for key, values in clients.items())
    assert not torch.equal(found[8][0], found[0][0])


@pytest.mark.parametrize("name", DIRECTED)
def test_only_clients_that_step_or_send_or_receive_change(name):
    v, there, back = arc_events(10, share=0.2)
    found = arc_states(made(name)[1], v, there, back, graph=DIGRAPH)
    some = False
    for k, (before, after) in enumerate(pairwise(found)):
        touched = v[k].copy()
        for way, fires in enumerate((there[k], back[k])):
            touched[DIGRAPH.edges[fires & DIGRAPH.arcs[:, way]].ravel()] = True
        same = torch.from_numpy(~touched)
        some |= bool(same.any())
        assert torch.equal(before[0][same], after[0][same])
        assert all(torch.equal(before[1][key][same], after[1][key][same]) for key in before[1])
    assert some


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_without_gradients_models_become_equal(name):
    """A rule whose facts say ``pushes`` keeps the sums of what it trains and of its weights, the first of its state."""
    model, data = still()
    rule = made(name)[1]
    found = arc_states(rule, *arc_events(3000), graph=DIGRAPH, model=model, data=data)
    shown = found[-1][2]
    assert (shown - shown.mean(dim=0)).abs().max() < 1e-6
    if FACTS[name].get("pushes"):
        assert (found[-1][0].sum(dim=0) - found[0][0].sum(dim=0)).abs().max() < 1e-12
        assert abs(found[-1][1]["rule.0"].sum() - N) < 1e-12
        assert (shown - found[0][0].mean(dim=0)).abs().max() < 1e-6
        assert (found[-1][1]["rule.0"] - 1).abs().max() > 0.1


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_relabelled_clients_have_the_same_models(name):
    order = np.random.default_rng(1).permutation(N)
    other = Graph.from_arcs(N, order[DIGRAPH.arc_list])
    v, there, back = arc_events(40)
    of_arc = {}
    for e, (i, j) in enumerate(DIGRAPH.edges.tolist()):
        of_arc[order[i], order[j]], of_arc[order[j], order[i]] = there[:, e], back[:, e]
    new_v = np.empty_like(v)
    new_v[:, order] = v
    new_there, new_back = (
        np.stack([of_arc[pair] for pair in map(tuple, ends.tolist())], axis=1)
        for ends in (other.edges, other.edges[:, ::-1])
    )
    data = Federation(instance.DATA.dataset, tuple(np.array([int(i)]) for i in np.argsort(order)), {})
    start = scattered(instance.MODEL, N, 0, torch.float64)
    moved = torch.empty_like(start)
    moved[order] = start
    rule = made(name)[1]
    here = arc_states(rule, v, there, back, graph=DIGRAPH, start=start)[-1][2]
    found = arc_states(rule, new_v, new_there, new_back, graph=other, data=data, start=moved)[-1][2]
    assert (found[order] - here).abs().max() < 1e-9


def arc_runs(name, n=7):
    """Two runs on random digraphs, and one on an undirected graph."""
    schedule, _ = made(name)
    _, data = MODELS["svm"]()
    runs = []
    for seed in range(2):
        pairs = np.argwhere(np.random.default_rng(seed).random((n, n)) < 0.35)
        arcs = [*((i, (i + 1) % n) for i in range(n)), *((i, j) for i, j in pairs.tolist() if i != j)]
        runs.append(make_run("dspodfl", seed, data=data, graph=Graph.from_arcs(n, arcs), schedule=schedule))
    return [*runs, *runs_of(name)[:1]]


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_stacked_is_alone_to_the_bit(name):
    model, _ = MODELS["svm"]()
    runs, (_, rule) = arc_runs(name), made(name)
    for run, found in zip(runs, final(runs, model, iterations=30, rule=rule), strict=True):
        (alone,) = final([run], model, iterations=30, rule=rule)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_split_over_ranks_is_whole(name):
    model, _ = MODELS["svm"]()
    runs, (_, rule) = arc_runs(name), made(name)
    looks, _, _ = split_up(runs, model, 3, rule=rule)
    assert_the_same(runs, model, looks, rule=rule, close=1e-9)


@pytest.mark.parametrize("name", DIRECTED)
def test_on_arcs_resumed_anywhere_is_in_one_go_to_the_last_bit(name):
    model, _ = MODELS["svm"]()
    assert_any_state_is_gone_on_from(arc_runs(name), model, rule=made(name)[1])


@pytest.mark.parametrize("name", [name for name in DIRECTED if ALGORITHMS[name].exact])
def test_an_exact_directed_method_stays_at_the_solution_although_arcs_and_clients_are_sporadic(name):
    theta = instance.models(made(name)[1], iterations=8000, d=instance.D.tolist(), b=0.5, graph=DIGRAPH)
    assert instance.error(theta) < 1e-10
