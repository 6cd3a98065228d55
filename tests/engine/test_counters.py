"""Counts and delays of a stack, the same numbers as those of each run by the plain meter."""

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import ALGORITHMS, classified, erdos_renyi, make_run

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.engine import Stack
from dspodfl.engine import counters as ledger
from dspodfl.network import generate
from dspodfl.network.delay import DELAYS, Meter, in_order
from dspodfl.network.topology import BernoulliLinks, Waypoint

DATA = classified(samples=300)


def metered(run, events, k):
    present, _, degree = run.topology.at(k)
    current = present if run.topology.time_varying_weights else None
    meter = Meter(run.rates.graph.edges, run.clients)
    return meter.add(events, run.rates.sgd(k), run.rates.link(k), degree, current)


def assert_ledger_is_meter(runs, iterations=40):
    (block,) = Stack(runs).blocks(iterations, iterations)
    for r, run in enumerate(runs):
        events = block.events(r)
        expected = metered(run, events, block.k)
        for name in DELAYS:
            assert np.array_equal(getattr(block.tally, name)[:, r].numpy(), getattr(expected, name)), name
        assert np.array_equal(block.tally.sgd_steps[:, r].numpy(), np.cumsum(events.v.sum(axis=1)))
        assert np.array_equal(block.tally.link_uses[:, r].numpy(), np.cumsum(events.v_hat.sum(axis=1)))


@given(
    st.lists(st.tuples(st.sampled_from(ALGORITHMS), st.integers(1, 9), st.sampled_from([0, 7])), min_size=1, max_size=4)
)
def test_a_stack_is_counted_as_each_of_its_runs_to_the_last_bit(drawn):
    assert_ledger_is_meter(
        [make_run(a, seed, n=n, data=DATA, refresh=refresh) for seed, (a, n, refresh) in enumerate(drawn)]
    )


def test_runs_of_many_links_and_worlds_that_change_are_counted_to_the_last_bit():
    start = generate("geometric", 6, 1, radius=0.45, allow_disconnected=True)
    assert_ledger_is_meter(
        [
            make_run(data=DATA, graph=erdos_renyi(90, 1, p=0.4)),
            make_run("rg", 2, data=DATA, topology=BernoulliLinks(erdos_renyi(6, 2), 2, 0.4)),
            make_run("dgd", 3, data=DATA, topology=Waypoint(start, 1, 0.45, 40, (0.02, 0.1))),
            make_run("dfedavg", 4, data=DATA, growth=Diminishing(0.1, gamma=9.0)),
        ]
    )


@given(st.integers(0, 300), st.integers(0, 2**30))
def test_sums_are_taken_in_one_order_whoever_takes_them(count, seed):
    values = np.random.default_rng(seed).lognormal(0, 5, size=(3, count))
    one, other = in_order(values), ledger.in_order(torch.from_numpy(values)).numpy()
    assert np.array_equal(one, other)
    assert np.allclose(one, values.sum(axis=1), rtol=1e-12)


def test_the_loops_for_devices_add_as_the_calls_for_the_cpu_do():
    """On a GPU sums are taken column by column and row by row; the same additions."""
    values = torch.from_numpy(np.random.default_rng(0).lognormal(0, 5, size=(4, 3, 64)))
    fold = values[..., 0].clone()
    for n in range(1, 64):
        fold += values[..., n]
    assert torch.equal(fold, ledger._fold(values))
    carry, rows = values[0, :, 0].contiguous(), values[1:, :, 1].contiguous()
    step, out = carry, []
    for row in rows:
        step = step + row
        out.append(step)
    assert torch.equal(torch.stack(out), ledger.running(carry, rows))
