"""A process that works alone holds a shard with an empty halo: nothing crosses, and nothing is paid for it."""

import inspect

import numpy as np
import pytest
import torch
from tests.teams import Threads, together
from tests.worlds import ALGORITHMS, BATCH, MODELS, erdos_renyi, final, make_run, scattered

from dspodfl._kernels.cpu import linear as kernel
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import LocalTransport, Shard, Split, Stack, Transport, simulate
from dspodfl.engine.exchange import Exchange, NoExchange
from dspodfl.engine.transport.torch_distributed import Group
from dspodfl.network.graph import Graph
from dspodfl.problem.data import restrict_to_clients
from dspodfl.problem.problem import Problem

MEMBERS = sorted(Transport.__annotations__) + sorted(name for name in vars(Transport) if not name.startswith("_"))


def five_runs(dataset, **more):
    return [make_run(algorithm, seed, data=dataset, **more) for seed, algorithm in enumerate(ALGORITHMS)]


def dumbbell(n):
    """Two rings of n clients, and one link between them."""
    rings = [(base + i, base + (i + 1) % n) for base in (0, n) for i in range(n)]
    return Graph.from_edges(2 * n, {tuple(sorted(pair)) for pair in [*rings, (0, n)]})


def test_a_whole_shard_is_that_of_one_rank():
    _, dataset = MODELS["svm"]()
    stack = Stack([*five_runs(dataset), make_run("dgd", 7, graph=erdos_renyi(9, 1), data=dataset)])
    whole = Shard.whole(stack)
    one = Shard.of(stack, [np.zeros(run.clients, dtype=np.int64) for run in stack.runs], 0, 1)
    assert whole.is_whole and one.is_whole
    for name in ("owner", "own", "halo", "link", "ends"):
        assert np.array_equal(getattr(whole, name), getattr(one, name)), name
    assert (whole.rows, whole.links, whole.clients) == (one.rows, one.links, one.clients)
    (block,) = stack.blocks(5, 5)
    assert whole.block(block) is block  # not copied
    assert len(whole.leave.row) == len(whole.come.row) == len(whole.outer.col) == 0
    for name in ("ptr", "col", "link"):
        assert np.array_equal(getattr(whole.inner, name), getattr(stack.neighbours, name)), name


def test_the_neighbours_of_a_stack_are_those_of_its_shards():
    _, dataset = MODELS["svm"]()
    stack = Stack([make_run("dgd", 3, graph=erdos_renyi(12, 3), data=dataset)])
    owner = np.arange(12) % 3
    found = set()
    for rank in range(3):
        shard = Shard.of(stack, [owner], rank, 3)
        assert not shard.is_whole
        here = np.concatenate([shard.own, shard.halo])
        links = shard.neighbours
        for n in range(shard.clients):
            found |= {(here[n], here[col]) for col in links.col[links.ptr[n] : links.ptr[n + 1]]}
    edges = {tuple(pair) for pair in stack.edges.tolist()}
    assert found == edges | {(j, i) for i, j in edges}


class Silent(LocalTransport):
    """A transport that must not be used."""

    def start(self, send, receive):
        raise AssertionError("a local run sends nothing")


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_a_local_run_starts_no_exchange(name, rule, monkeypatch):
    model, dataset = MODELS[name]()
    runs = five_runs(dataset)
    stack = Stack(runs)
    split = Split(Shard.whole(stack), Silent())
    monkeypatch.setattr(Exchange, "__init__", None)  # none is made
    assert type(split.exchange(torch.zeros(3, 2))) is NoExchange
    problem = Problem(model, [(run.seed, run.data) for run in runs], batch_size=BATCH, dtype=torch.float64)
    start = torch.cat([scattered(model, run.clients, run.seed) for run in runs])
    *_, last = simulate(stack, problem, RULES[rule], start, iterations=9, every=9, split=split)
    expected = final(runs, model, iterations=9, rule=rule)
    assert torch.equal(last.theta, torch.cat(expected))


@pytest.mark.skipif(not kernel.available(), reason="needs Numba")
def test_iterations_in_which_no_row_crosses_are_one_call(monkeypatch):
    """All of a local run's between two evaluations; of a split one those between two uses of the cut link."""
    model, dataset = MODELS["svm"]()
    run = make_run("rg", 3, graph=dumbbell(10), data=dataset)
    stack, owner = Stack([run]), np.repeat([0, 1], 10)
    start = scattered(model, 20, 1).float()
    calls, real = [], kernel.advance
    monkeypatch.setattr(kernel, "advance", lambda **how: calls.append(len(how["rows"])) or real(**how))

    def advanced(split, data, rows):
        problem = Problem(model, [(run.seed, data)], batch_size=BATCH, dtype=torch.float32)
        *_, last = simulate(stack, problem, RULES["simultaneous"], start[rows], iterations=60, every=15, split=split)
        return last.theta.clone()

    alone = advanced(None, run.data, slice(None))
    assert calls == [15] * 4
    calls.clear()

    def work(transport):
        mine = np.flatnonzero(owner == transport.rank)
        (held,) = restrict_to_clients([run.data], [mine])
        return advanced(Split(Shard.of(stack, [owner], transport.rank, 2), transport), held, mine)

    both = torch.cat(together(2, work))
    (block,) = stack.blocks(60, 60)
    link = run.rates.graph.edges.tolist().index([0, 10])
    crossings = int(block.v_hat[:, link].sum())
    assert 0 < crossings < 10
    assert len(calls) <= 2 * (2 * crossings + crossings + 4)  # two calls where a row crosses, one in between
    assert torch.equal(both, alone)


@pytest.mark.skipif(not kernel.available(), reason="needs Numba")
@pytest.mark.parametrize("every", [1, 3, 7, 10])
def test_a_run_is_frozen_in_both_buffers(every):
    """Models alternate between two: a run that is over stays what it was wherever they are."""
    from dspodfl.engine.steppers.base import choose

    model, dataset = MODELS["svm"]()
    runs = five_runs(dataset)
    stack = Stack(runs)
    problem = Problem(model, [(run.seed, run.data) for run in runs], batch_size=BATCH)
    theta = problem.pack(torch.cat([scattered(model, run.clients, run.seed) for run in runs]).float())
    stepper = choose(Split.local(stack), problem, RULES["simultaneous"], theta)
    (block,) = stack.blocks(40, 40, "cpu", torch.float32)
    stepper.load(block)
    stepper.advance(0, every)
    kept, others = stepper.theta[stack.rows[1]].clone(), stepper.theta[stack.rows[0]].clone()
    stepper.freeze(1)
    for t in range(every, 25):
        stepper.advance(t, t + 1)
        assert torch.equal(stepper.theta[stack.rows[1]], kept)
    assert not torch.equal(stepper.theta[stack.rows[0]], others)


@pytest.mark.parametrize("kind", [LocalTransport, Group, Threads])
def test_every_transport_has_what_the_engine_asks_for(kind):
    for name in MEMBERS:
        if name in Transport.__annotations__:
            continue
        asked, made = (list(inspect.signature(getattr(one, name)).parameters) for one in (Transport, kind))
        assert made == asked, name


def test_the_double_hands_out_copies_as_the_real_transport_does():
    def work(transport):
        mine = {"rank": transport.rank}
        given, all_of_them = transport.broadcast(mine), transport.gather(mine)
        assert (given is mine) == (transport.rank == 0)
        assert given == {"rank": 0}
        transport.set_timeout(40)
        values = torch.full((transport.rank + 1,), float(transport.rank))
        first, second = transport.all_gather(values, [1, 2])
        first += 5  # nobody else sees it
        transport.barrier()
        assert second.tolist() == [1, 1]
        total = transport.all_reduce_sum(torch.tensor([1.0]))
        transport.leave()
        return all_of_them, total.tolist(), transport.local_ranks

    zero, one = together(2, work)
    assert zero == ([{"rank": 0}, {"rank": 1}], [2.0], 2)
    assert one == (None, [2.0], 2)
