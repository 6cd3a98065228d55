"""Counts and delays of a stack, the same numbers as those of each run by the plain meter."""

from dataclasses import replace

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import ALGORITHMS, classified, erdos_renyi, make_run

from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.engine import Stack
from dspodfl.engine import counters as ledger
from dspodfl.network import generate
from dspodfl.network.delay import DELAYS, DelayMeter, in_order
from dspodfl.network.topology import BernoulliLinks, Waypoint

DATA = classified(samples=300)


def metered(run, events, k):
    present, _, degree = run.topology.at(k)
    current = present if run.topology.time_varying_weights else None
    meter = DelayMeter(run.rates.graph.edges, run.clients, run.link_models)
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


def test_runs_that_send_more_or_less_than_a_model_are_counted_to_the_last_bit_next_to_others():
    one = make_run(data=DATA, graph=erdos_renyi(9, 1))
    two, tenth = replace(one, link_models=2.0), replace(one, link_models=0.1)
    assert_ledger_is_meter([one, two, tenth, make_run("dgd", 2, data=DATA)])
    (block,) = Stack([one, two, tenth]).blocks(30, 30)
    sent, tally = block.tally.transmission.numpy().T, block.tally
    assert np.array_equal(sent[1], 2 * sent[0]) and np.allclose(sent[2], 0.1 * sent[0], rtol=1e-12)
    assert np.array_equal(tally.processing[:, 0], tally.processing[:, 1])
    ratio = tally.transmission_normalized.numpy().T
    assert np.array_equal(ratio[0], ratio[1]) and np.allclose(ratio[0], ratio[2], rtol=1e-12)


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
