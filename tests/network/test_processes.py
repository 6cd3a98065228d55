"""Processes are pure functions of seed, entity and iteration, and have the numbers that they are given."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import cuts

from dspodfl import rng
from dspodfl.errors import InputError
from dspodfl.network import AVAILABILITY, CHANNELS, Graph, generate
from dspodfl.network.activation import Entities
from dspodfl.network.chain import TwoState
from dspodfl.network.processes import _FIRST
from dspodfl.network.processes.clocks import Clocks
from dspodfl.network.processes.cyclic import Cyclic
from dspodfl.network.processes.gilbert_elliott import GilbertElliott
from dspodfl.network.processes.markov import Markov
from dspodfl.network.processes.stragglers import Stragglers
from dspodfl.network.processes.trace import Trace
from dspodfl.rng import MASK, Stream

RING = generate("ring", 6, 0)
BOUNDS = [np.array([0.0, 3.0 + i, 10.0, 12.5]) for i in range(6)]
CASES = {
    "markov": [Markov(0.1, 0.05), Markov(0.01, 0.02), Markov(0.8, 0.7), Markov(1.0, 1.0)],
    "gilbert_elliott": [GilbertElliott(0.1, 0.2), GilbertElliott(0.05, 0.1, 0.1, 0.6)],
    "cyclic": [Cyclic(7, 0.5), Cyclic(10, 0.3, [0, 1, 2, 3, 14, 5])],
    "clocks": [Clocks(1.0), Clocks([0.1, 1.0, 2.0, 3.0, 4.0, 5.0])],
    "stragglers": [Stragglers(1.0, 0.5), Stragglers([1.0, 2.0, 5.5, 1.5, 30.0, 1.0], 1.0), Stragglers(1.0, 1e9)],
    "trace": [Trace(BOUNDS, 20.0, 1.0), Trace(BOUNDS, 13.7, 0.3)],
}
EVERY = [pytest.param(one, id=f"{name}-{n}") for name, some in CASES.items() for n, one in enumerate(some)]


def clients(n=6, seed=3, stream=Stream.AVAILABLE):
    i = np.arange(n)
    return Entities(seed, stream, i, np.zeros_like(i))


def test_every_registered_process_is_tested_here():
    assert set(CASES) == {*AVAILABILITY, *CHANNELS}


def test_a_process_is_a_file_and_lists_begin_with_the_plainest():
    files = {
        path.stem for path in Path(__file__).parents[2].joinpath("src/dspodfl/network/processes").glob("[a-z]*.py")
    }
    assert files == {*AVAILABILITY, *CHANNELS}
    assert (next(iter(CHANNELS)), next(iter(AVAILABILITY))) == _FIRST


# --- all of them ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("process", EVERY)
@given(seed=st.integers(0, 2**40), data=st.data())
def test_states_are_a_pure_function_of_the_iteration_in_any_order_and_any_cut(process, seed, data):
    length = 300
    whole = process.states(clients(seed=seed)).on(np.arange(length))
    assert whole.shape == (length, 6) and whole.dtype == bool
    states = process.states(clients(seed=seed))
    for start, end in data.draw(st.permutations(data.draw(cuts(length)))):
        assert np.array_equal(states.on(np.arange(start, end)), whole[start:end])
    anywhere = data.draw(st.lists(st.integers(0, length - 1), min_size=1, max_size=20))
    assert np.array_equal(states.on(np.array(anywhere)), whole[anywhere])


@pytest.mark.parametrize("process", EVERY)
def test_states_far_from_the_start_are_those_of_one_go(process):
    length = 5000
    whole = process.states(clients()).on(np.arange(length))
    for first in (4990, 1234):
        assert np.array_equal(process.states(clients()).on(np.arange(first, first + 10)), whole[first : first + 10])


@pytest.mark.parametrize("process", EVERY)
def test_the_share_is_that_of_the_iterations(process):
    length = 60_000
    states = process.states(clients(seed=11))
    on = states.on(np.arange(length)).astype(float)
    blocks = on.reshape(60, -1, 6).mean(axis=1)  # means of long blocks are nearly independent
    spread = blocks.std(axis=0, ddof=1) / np.sqrt(len(blocks))
    assert (np.abs(on.mean(axis=0) - states.share) < 5 * spread + 2e-3).all()


@pytest.mark.parametrize(
    "process",
    [p for p in EVERY if not isinstance(p.values[0], Clocks | Trace) and getattr(p.values[0], "phases", None) is None],
)
def test_a_client_has_the_same_states_in_any_company(process):
    k = np.arange(200)
    if isinstance(process, Stragglers):
        process = Stragglers(2.0, 0.5)
    few, many = (process.states(clients(n)).on(k) for n in (3, 50))
    assert np.array_equal(few, many[:, :3])


@pytest.mark.parametrize(
    "process", [Markov(0.2, 0.3), GilbertElliott(0.2, 0.3), Cyclic(1000, 0.5), Stragglers(2.0, 1.0)]
)
def test_clients_and_seeds_have_different_states(process):
    k = np.arange(2000)
    columns = [process.states(clients(seed=seed)).on(k).T for seed in (1, 2)]
    assert len(np.unique(np.concatenate(columns), axis=0)) > 6


# --- chains ---------------------------------------------------------------------------------------------------


def runs(on, state):
    """How long each stay in a state is, without those cut off by the ends."""
    lengths = []
    for column in on.T:
        change = np.flatnonzero(np.diff(column.astype(int))) + 1
        lengths += [b - a for a, b in pairwise(change) if column[a] == state]
    return np.array(lengths)


@pytest.mark.parametrize(("up", "down"), [(0.1, 0.05), (0.02, 0.3), (0.7, 0.9)])
def test_a_markov_client_has_its_stationary_share_its_mean_stays_and_its_lag_one_correlation(up, down):
    length, n = 20_000, 40
    on = Markov(up, down).states(clients(n)).on(np.arange(length))
    share, memory = up / (up + down), 1 - up - down
    spread = np.sqrt(share * (1 - share) / on.size * (1 + memory) / (1 - memory))
    assert abs(on.mean() - share) < 5 * spread
    for state, leaves in ((True, down), (False, up)):
        stays = runs(on, state)
        assert abs(stays.mean() - 1 / leaves) < 5 * stays.std() / np.sqrt(len(stays)) + 0.01 / leaves
    before, after = on[:-1].ravel().astype(float), on[1:].ravel().astype(float)
    assert np.corrcoef(before, after)[0, 1] == pytest.approx(memory, abs=0.02)


def test_a_markov_client_starts_stationary_and_not_always_on():
    on = Markov(0.001, 0.004).states(clients(20_000)).on(np.array([0]))[0]
    assert abs(on.mean() - 0.2) < 5 * np.sqrt(0.2 * 0.8 / 20_000)


def test_the_states_of_markov_clients_are_those_of_a_plain_chain():
    up, down, seed = 0.7, 0.6, 9
    got = Markov(up, down).states(clients(4, seed)).on(np.arange(200))
    for i in range(4):
        state = int(rng.words(seed, Stream.AVAILABLE, i, slots=2)[1]) < int(rng.threshold(up / (up + down)))
        for k in range(200):
            chance = 1 - down if state else up
            state = int(rng.words(seed, Stream.AVAILABLE, i, k=k)[0]) < int(rng.threshold(chance))
            assert got[k, i] == state


def test_consecutive_blocks_of_a_slow_chain_do_not_go_back_to_the_start():
    asked = []

    def words(k):
        asked.append(len(k))
        return np.full((len(k), 1), 2**31)  # neither forces a state: only the start decides

    chain = TwoState(1e-6, 1e-6, words, np.array([0]))
    for first in range(0, 10_000, 100):
        assert chain.at(np.arange(first, first + 100)).all()
    assert sum(asked) == 10_000


def test_a_gilbert_elliott_link_fires_with_the_probability_of_its_state():
    up, down, good, bad = 0.05, 0.1, 0.1, 0.6
    at, k = clients(40, stream=Stream.CHANNEL), np.arange(20_000)
    state = GilbertElliott(up, down).states(at).on(k)
    carried = GilbertElliott(up, down, good, bad).states(at).on(k)
    for which, loss in ((True, good), (False, bad)):
        some = carried[state == which]
        assert abs(some.mean() - (1 - loss)) < 5 * np.sqrt(loss * (1 - loss) / len(some))
    share = up / (up + down)
    marginal = GilbertElliott(up, down, good, bad).states(at).share
    assert marginal == pytest.approx(np.full(40, share * (1 - good) + (1 - share) * (1 - bad)))
    stays = runs(state, True)
    assert abs(stays.mean() - 1 / down) < 5 * stays.std() / np.sqrt(len(stays))


# --- cycles ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("period", "share", "length"), [(10, 0.7, 7), (10, 0.75, 8), (3, 0.1, 1), (1, 1.0, 1)])
def test_a_cycle_is_on_for_its_share_of_the_period_from_its_phase_on(period, share, length):
    states = Cyclic(period, share, [0, 1, period]).states(clients(3))
    for k, row in enumerate(states.on(np.arange(50))):
        assert row.tolist() == [(k + phase) % period < length for phase in (0, 1, period)]
    assert states.share.tolist() == [length / period] * 3


def test_phases_are_drawn_uniformly_and_those_given_are_one_for_each():
    on = Cyclic(100, 0.01).states(clients(10_000)).on(np.arange(100))
    assert (on.sum(axis=0) == 1).all()
    assert (np.abs(on.sum(axis=1) - 100) < 5 * 10).all()
    with pytest.raises(InputError, match=r"rates\.availability\.phases = '2 values'.*each of the 3 clients"):
        Cyclic(10, 0.5, [0, 1]).states(clients(3))


# --- clocks ---------------------------------------------------------------------------------------------------


def test_one_clock_ticks_in_every_iteration_with_the_probability_of_its_rate():
    rate, length = [0.1, 1.0, 2.0, 3.0, 4.0, 5.9], 40_000
    states = Clocks(rate).states(clients(seed=4))
    on = states.on(np.arange(length))
    assert (on.sum(axis=1) == 1).all()
    p = np.array(rate) / 16
    assert states.share == pytest.approx(p)
    assert (np.abs(on.mean(axis=0) - p) < 5 * np.sqrt(p * (1 - p) / length)).all()
    u = rng.uniform(4, Stream.CLOCK, MASK, MASK, 17)[0]
    assert on[17].tolist() == [i == np.searchsorted(np.cumsum(p), u) for i in range(6)]


def test_the_gaps_of_a_clock_are_geometric_and_not_poisson():
    on = Clocks(1.0).states(clients(10)).on(np.arange(50_000))
    gaps = np.concatenate([np.diff(np.flatnonzero(column)) for column in on.T])
    assert gaps.var() == pytest.approx(90, rel=0.1)  # (1 − p)/p² with p = 0.1; a Poisson gap would have 10


# --- stragglers -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("shift", "rate"), [(1.0, 0.5), (2.5, 0.25), (1.0, 10.0), (20.0, 1.0)])
def test_a_straggler_ends_a_job_every_shift_plus_one_over_rate_iterations(shift, rate):
    length, n = 20_000, 30
    on = Stragglers(shift, rate).states(clients(n)).on(np.arange(length))
    mean = shift + 1 / rate
    sigma = np.sqrt((1 / rate**2) / mean**3 / length / n)  # of the number of renewals, a share of the iterations
    assert abs(on.mean() - 1 / mean) < 5 * sigma + 1 / length
    gaps = np.concatenate([np.diff(np.flatnonzero(column)) for column in on.T])
    assert gaps.min() >= np.floor(shift)


def test_stragglers_are_stationary_from_the_start():
    shift, rate, n = 4.0, 0.5, 40_000
    on = Stragglers(shift, rate).states(clients(n)).on(np.arange(12))
    p = 1 / (shift + 1 / rate)
    assert (np.abs(on.mean(axis=1) - p) < 5 * np.sqrt(p * (1 - p) / n)).all()


def test_jobs_end_where_a_plain_loop_ends_them():
    shift, rate, seed = [1.0, 3.25], [0.5, 2.0], 8
    got = Stragglers(shift, rate).states(clients(2, seed)).on(np.arange(500))
    for i in range(2):
        first, which = rng.uniform(seed, Stream.JOB, i, count=2)
        tail = -np.log1p(-first) / rate[i]
        whole = which * (shift[i] + 1 / rate[i]) < shift[i]
        end, job, ends = first * shift[i] if whole else shift[i] + tail, 0, set()
        while end < 500:
            ends.add(int(end))
            job += 1
            end += shift[i] - np.log1p(-rng.uniform(seed, Stream.JOB, i, k=job)[0]) / rate[i]
        assert set(np.flatnonzero(got[:, i]).tolist()) == ends


def test_jobs_can_be_followed_from_before_what_is_kept():
    states, whole = (Stragglers(2.0, 1.0).states(clients()) for _ in range(2))
    for first in range(0, 2000, 10):  # more blocks than are kept
        states.on(np.arange(first, first + 10))
    assert np.array_equal(states.on(np.arange(5, 300)), whole.on(np.arange(300))[5:])


# --- traces ---------------------------------------------------------------------------------------------------

PAIR = Graph.from_edges(2, [(0, 1)])
GOOD = "client,start,end\n# a comment\n1,2,4\n\n0,0,3\n0, 3, 5  # goes on\n0,8,10\n"


def traced(path, text=GOOD, graph=PAIR, **more):
    path.write_text(text)
    found = {"file": str(path), "seconds": 1.0} | more
    return AVAILABILITY["trace"].make({"graph": graph, "field": "rates.availability"}, found)


def test_a_trace_is_on_within_its_intervals_with_their_gaps_and_begins_again_after_its_end(tmp_path):
    states = traced(tmp_path / "t.csv").states(clients(2))
    one = [[k < 5 or k >= 8, 2 <= k < 4] for k in range(10)]
    assert states.on(np.arange(30)).tolist() == one * 3
    assert states.share.tolist() == [0.7, 0.2]


def test_an_iteration_of_a_trace_has_its_seconds_and_the_trace_its_length(tmp_path):
    half = traced(tmp_path / "t.csv", seconds=0.5).states(clients(2)).on(np.arange(20))
    assert half[:, 0].tolist() == [k / 2 < 5 or k / 2 >= 8 for k in range(20)]
    longer = traced(tmp_path / "t.csv", length=12.0).states(clients(2))
    assert longer.on(np.array([11, 12, 23, 24]))[:, 0].tolist() == [False, True, False, True]
    assert longer.share.tolist() == pytest.approx([7 / 12, 2 / 12])


def test_a_trace_names_clients_by_their_labels(tmp_path):
    named = Graph.from_edges(2, [(0, 1)], labels=["b", "a"])
    states = traced(tmp_path / "t.csv", "client,start,end\na,0,1\nb,1,2\n", named).states(clients(2))
    assert states.on(np.arange(2)).tolist() == [[False, True], [True, False]]


HEAD = "client,start,end\n"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "columns client,start,end"),
        ("client,end,start\n0,1,2\n", "line 1 has columns client,end,start"),
        (HEAD + "0,1,2\n\n1,2\n", "line 4 has 2 values"),
        (HEAD + "0,1,2\n1,2,3,4\n", "line 3 has 4 values"),
        (HEAD + "0,1,2\n7,2,3\n", "line 3 has client '7', which is not in the graph"),
        (HEAD + "0,1,2\n1,two,3\n", "line 3 has start = 'two', which must be a number"),
        (HEAD + "0,1,inf\n", "line 2 has end = 'inf', which must be a number"),
        (HEAD + "0,-1,2\n", "line 2 has start = -1, which must be at least 0"),
        (HEAD + "0,1,2\n1,3,3\n", "line 3 has end = 3, which must be above start = 3"),
        (HEAD + "0,5,7\n1,0,1\n0,4,6\n", "line 4 has an interval that overlaps line 2"),
        (HEAD + "0,1,2\n", "an interval for each client: 1 has none"),
    ],
)
def test_a_bad_trace_is_refused_with_its_line(text, says, tmp_path):
    with pytest.raises(InputError) as caught:
        traced(tmp_path / "t.csv", text)
    assert caught.value.field == "rates.availability.file" and says in caught.value.allowed


def test_a_missing_trace_and_one_longer_than_its_length_are_refused(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        AVAILABILITY["trace"].make(
            {"graph": PAIR, "field": "rates.churn"}, {"file": str(tmp_path / "none.csv"), "seconds": 1.0}
        )
    with pytest.raises(InputError, match=r"rates\.availability\.length = 9.*at least 10"):
        traced(tmp_path / "t.csv", length=9.0)
