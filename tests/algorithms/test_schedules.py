"""What every schedule promises: events are a pure function of address, the same for whoever asks."""

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import cuts, graphs, subsets

from dspodfl import rng
from dspodfl.algorithms import PAPER, named
from dspodfl.algorithms.learning_rate import Diminishing
from dspodfl.algorithms.schedules import Cycles, Replay, Sporadic, dfedavg, draw
from dspodfl.errors import InputError
from dspodfl.network import Graph, Part, generate
from dspodfl.network.events import Events
from dspodfl.network.laws import Beta, FixedValues, Uniform
from dspodfl.network.rates import Rates
from dspodfl.rng import Stream

LENGTH = 60
LONG = 20_000
SIGMAS = 5


@dataclass(frozen=True)
class Alternating:
    """A schedule of a user's own: clients compute in turn, links fire with half their rate."""

    def __call__(self, k, part, rates):
        p = (part.client == k[:, None] % rates.graph.n).astype(float)
        return draw(k, part, p, rates.link(k)[:, part.link] / 2)


def recorded(rates, seed=0):
    """A record of LENGTH iterations that no other schedule made."""
    random = np.random.default_rng(seed)
    v, v_hat = (random.random((LENGTH, count)) < 0.5 for count in (rates.graph.n, rates.graph.links))
    return Replay(Events(v, v_hat), rates.graph.edges)


CYCLES = ("local_sgd", "ldsgd", "post_local", "gossip_pga")
CLOCKS = ("pairwise_gossip", "ad_psgd", "swift")
EVERY = {
    **{name: lambda rates, name=name: named(name) for name in PAPER},
    "dfedavg with a period": lambda rates: named("dfedavg", period=3),
    **{name: lambda rates, name=name: named(name) for name in CYCLES},
    "post_local with a start": lambda rates: named("post_local", start=7, period=3),
    **{name: lambda rates, name=name: named(name) for name in CLOCKS},
    "swift every second time": lambda rates: named("swift", every=2),
    "pairwise, drawn": lambda rates: named("pairwise_gossip", clocks="rates", steps="drawn"),
    "matcha": lambda rates: named("matcha"),
    "custom": lambda rates: Alternating(),
    "replay": recorded,
}
"""Name -> rates -> schedule."""

HOW_RATES_MOVE = {
    "constant": {},
    "two-sided": {"two_sided": True},
    "refresh": {"refresh": 7},
    "growth": {"growth": Diminishing(0.1, gamma=5.0)},
    "refresh and growth": {"refresh": 11, "growth": Diminishing(0.1, gamma=20.0)},
}


def some_rates(graph, seed, moving="constant", sgd=None, link=None):
    return Rates(graph, seed, sgd or Beta(2.0, 2.0), link or Uniform(), **HOW_RATES_MOVE[moving])


@st.composite
def worlds(draw):
    """A schedule, the rates that it is asked with, and a seed."""
    graph, seed = draw(graphs(least=1, most=7)), draw(st.integers(0, 2**63 - 1))
    rates = some_rates(graph, seed, draw(st.sampled_from(sorted(HOW_RATES_MOVE))))
    return EVERY[draw(st.sampled_from(sorted(EVERY)))](rates), rates, seed


def same(one, two):
    return np.array_equal(one.v, two.v) and np.array_equal(one.v_hat, two.v_hat)


# --- the contract ---------------------------------------------------------------------------------------------


@given(worlds(), st.integers(0, LENGTH - 1), st.data())
def test_events_are_bool_with_a_column_for_each_client_and_link_of_the_part(world, first, data):
    schedule, rates, seed = world
    k = np.arange(first, data.draw(st.integers(first + 1, LENGTH)))
    part = Part.of(rates.graph, seed, data.draw(subsets(rates.graph.n)))
    events = schedule(k, part, rates)
    assert events.v.dtype == events.v_hat.dtype == bool
    assert events.v.shape == (len(k), len(part.client))
    assert events.v_hat.shape == (len(k), len(part.link))


@given(worlds(), st.data())
def test_events_do_not_depend_on_the_blocks_in_which_they_are_asked_for(world, data):
    schedule, rates, seed = world
    part = Part.whole(rates.graph, seed)
    whole = schedule(np.arange(LENGTH), part, rates)
    for start, end in data.draw(st.permutations(data.draw(cuts(LENGTH)))):
        block = schedule(np.arange(start, end), part, rates)
        assert same(block, Events(whole.v[start:end], whole.v_hat[start:end]))


@given(worlds(), st.data())
def test_the_events_of_a_part_are_those_of_the_whole(world, data):
    schedule, rates, seed = world
    k = np.arange(LENGTH)
    whole = schedule(k, Part.whole(rates.graph, seed), rates)
    part = Part.of(rates.graph, seed, data.draw(subsets(rates.graph.n)))
    assert same(schedule(k, part, rates), Events(whole.v[:, part.client], whole.v_hat[:, part.link]))


@given(worlds())
def test_both_ends_of_a_link_agree_when_it_fires(world):
    schedule, rates, seed = world
    k = np.arange(LENGTH)
    parts = [Part.of(rates.graph, seed, [i]) for i in range(rates.graph.n)]
    seen = [schedule(k, part, rates).v_hat for part in parts]
    for link, (i, j) in enumerate(rates.graph.edges.tolist()):
        one, other = (seen[end][:, parts[end].link == link] for end in (i, j))
        assert one.shape == (LENGTH, 1)
        assert np.array_equal(one, other)


@given(worlds())
def test_a_schedule_made_anew_gives_the_same_events(world):
    _, rates, seed = world
    part = Part.whole(rates.graph, seed)
    again = Rates(
        rates.graph, seed, rates.sgd_law, rates.link_law, rates.refresh, growth=rates.growth, two_sided=rates.two_sided
    )
    for make in EVERY.values():
        k = np.arange(LENGTH)
        assert same(make(rates)(k, part, rates), make(again)(k, part, again))


def test_other_seeds_give_other_events():
    graph = generate("ring", 6, 0)
    rates = some_rates(graph, 0)
    drawn = [named("dspodfl")(np.arange(LENGTH), Part.whole(graph, seed), rates) for seed in range(5)]
    assert len({e.v.tobytes() for e in drawn}) == len({e.v_hat.tobytes() for e in drawn}) == 5


def test_every_named_schedule_can_be_had_and_no_other():
    assert all(isinstance(named(name), Sporadic) for name in PAPER)
    with pytest.raises(InputError, match=r"algorithms = 'dspodlf'.*did you mean 'dspodfl'"):
        named("dspodlf")


# --- rates ----------------------------------------------------------------------------------------------------

D = [0.004, 0.1, 0.35, 0.5, 0.8, 1.0]
B = [0.01, 0.2, 0.5, 0.75, 0.97, 1.0]
RING = generate("ring", 6, 0)


def long_events(name, two_sided=False, seed=1):
    rates = Rates(RING, seed, FixedValues(D), FixedValues(B), two_sided=two_sided)
    return named(name)(np.arange(LONG), Part.whole(RING, seed), rates)


def assert_rate(fired, p):
    """Fired about as often as probability p says: within SIGMAS standard deviations."""
    assert abs(fired.mean() - p) <= SIGMAS * np.sqrt(p * (1 - p) / len(fired))


@pytest.mark.parametrize(
    ("name", "p", "q"),
    [
        ("dspodfl", D, B),
        ("rg", [1.0] * 6, B),
        ("sporadic_sgd", D, [1.0] * 6),
        ("dgd", [1.0] * 6, [1.0] * 6),
    ],
)
def test_clients_and_links_fire_as_often_as_their_algorithm_says(name, p, q):
    events = long_events(name)
    for client in range(6):
        assert_rate(events.v[:, client], p[client])
    for link in range(6):
        assert_rate(events.v_hat[:, link], q[link])


def test_a_rate_of_one_fires_always():
    events = long_events("dspodfl")
    assert events.v[:, 5].all() and events.v_hat[:, 5].all()


@pytest.mark.parametrize("name", ["dspodfl", "rg"])
def test_a_two_sided_link_fires_when_either_end_draws_it(name):
    two, one = long_events(name, two_sided=True), long_events(name)
    for link, b in enumerate(B):
        assert_rate(two.v_hat[:, link], 1 - (1 - b) ** 2)
    assert np.array_equal(two.v, one.v)
    assert (two.v_hat >= one.v_hat).all()  # the first end's draw is the symmetric one


@pytest.mark.parametrize("two_sided", [False, True])
def test_nothing_latches_what_fired_fires_again_as_often_as_before(two_sided):
    events = long_events("dspodfl", two_sided)
    links = [1 - (1 - b) ** 2 if two_sided else b for b in B]
    for fired, p in [*zip(events.v.T, D, strict=True), *zip(events.v_hat.T, links, strict=True)]:
        after, not_after = fired[1:][fired[:-1]], fired[1:][~fired[:-1]]
        assert_rate(after, p)
        if p < 1:
            assert_rate(not_after, p)
            assert abs(np.corrcoef(fired[1:], fired[:-1])[0, 1]) < SIGMAS / np.sqrt(LONG)
        assert_rate(fired[LONG // 2 :], p)  # nor does it fire more as time goes on


def test_clients_and_links_fire_independently_of_each_other_now_and_next():
    events = long_events("dspodfl")
    series = np.concatenate([events.v[:, :5], events.v_hat[:, :5]], axis=1).T.astype(float)
    now = np.corrcoef(series)
    following = np.corrcoef(series[:, 1:], series[:, :-1])[:10, 10:]
    apart = ~np.eye(10, dtype=bool)
    assert np.abs(now[apart]).max() < SIGMAS / np.sqrt(LONG)
    assert np.abs(following).max() < SIGMAS / np.sqrt(LONG)


def test_events_are_the_documented_comparison_of_an_addressed_word_with_a_threshold():
    events = long_events("dspodfl", seed=7)
    for client, k in ((0, 3), (2, 19_999), (3, 500)):
        word = int(rng.words(7, Stream.SGD, client, k=k)[0])
        assert events.v[k, client] == (word < int(D[client] * 2**32))
    for link, k in ((1, 3), (2, 19_999), (3, 500)):
        i, j = RING.edges[link].tolist()
        word = int(rng.words(7, Stream.LINK, i, j, k)[0])
        assert events.v_hat[k, link] == (word < int(B[link] * 2**32))


# --- the baselines are DSpodFL with its firing overridden -----------------------------------------------------


@given(graphs(least=1, most=7), st.integers(0, 2**40), st.booleans())
def test_dgd_rg_and_sporadic_sgd_are_dspodfl_with_rates_of_one_in_their_place(graph, seed, two_sided):
    one = FixedValues(1.0)
    rates = {
        (sgd, link): Rates(
            graph,
            seed,
            Uniform() if sgd is None else sgd,
            Beta(0.5, 0.5) if link is None else link,
            two_sided=two_sided,
        )
        for sgd in (None, one)
        for link in (None, one)
    }
    part, k, true = Part.whole(graph, seed), np.arange(LENGTH), rates[None, None]
    assert same(named("dgd")(k, part, true), named("dspodfl")(k, part, rates[one, one]))
    assert same(named("rg")(k, part, true), named("dspodfl")(k, part, rates[one, None]))
    assert same(named("sporadic_sgd")(k, part, true), named("dspodfl")(k, part, rates[None, one]))


@given(graphs(least=1, most=7), st.integers(0, 2**40))
def test_algorithms_are_paired_they_share_what_they_both_draw(graph, seed):
    rates, part, k = some_rates(graph, seed), Part.whole(graph, seed), np.arange(LENGTH)
    ours, gossip, lazy = (named(name)(k, part, rates) for name in ("dspodfl", "rg", "sporadic_sgd"))
    assert np.array_equal(gossip.v_hat, ours.v_hat) and gossip.v.all()
    assert np.array_equal(lazy.v, ours.v) and lazy.v_hat.all()


# --- DFedAvg --------------------------------------------------------------------------------------------------


@given(graphs(least=1, most=7), st.integers(0, 2**40), st.one_of(st.none(), st.integers(1, 9)))
def test_dfedavg_takes_d_steps_without_exchange_then_exchanges_without_a_step(graph, seed, period):
    rates = some_rates(graph, seed)
    d = period or int(np.ceil(np.mean(1 / rates.sgd(np.zeros(1, dtype=int)))))
    events = named("dfedavg", period=period)(np.arange(LENGTH), Part.whole(graph, seed), rates)
    for k in range(LENGTH):
        exchange = k % (d + 1) == d
        assert (events.v[k] == (not exchange)).all()
        assert (events.v_hat[k] == exchange).all()


def test_the_length_of_a_cycle_is_the_mean_of_one_over_d_rounded_up():
    graph = generate("path", 4, 0)
    rates = Rates(graph, 0, FixedValues([1.0, 0.5, 0.25, 0.2]), FixedValues(1.0))  # 1/d: 1, 2, 4, 5; mean 3
    assert Cycles().length(0, rates) == 3
    rates = Rates(graph, 0, FixedValues([1.0, 0.5, 0.25, 0.19]), FixedValues(1.0))  # mean a little above 3
    assert Cycles().length(0, rates) == 4
    exchanges = Cycles().exchange(np.arange(12), rates)
    assert np.flatnonzero(exchanges).tolist() == [4, 9]


@given(
    graphs(least=1, most=6),
    st.integers(0, 2**40),
    st.sampled_from(["refresh", "growth", "refresh and growth"]),
    st.data(),
)
def test_d_is_taken_anew_at_the_start_of_every_cycle_while_rates_change(graph, seed, moving, data):
    rates = some_rates(graph, seed, moving)
    expected, k = np.zeros(LENGTH, dtype=bool), 0
    while k < LENGTH:
        d = int(np.ceil(np.mean(1 / rates.sgd(np.array([k]))[0])))
        expected[k + d : k + d + 1] = True
        k += d + 1
    schedule = dfedavg()
    part = Part.whole(graph, seed)
    for start, end in data.draw(st.permutations(data.draw(cuts(LENGTH)))):
        events = schedule(np.arange(start, end), part, rates)
        assert np.array_equal(events.v, np.repeat(~expected[start:end, None], graph.n, 1))
        assert np.array_equal(events.v_hat, np.repeat(expected[start:end, None], graph.links, 1))


def test_cycles_do_change_in_length_when_rates_are_redrawn():
    rates = Rates(RING, 3, Uniform(), Uniform(), refresh=20)
    exchanges = np.flatnonzero(Cycles().exchange(np.arange(300), rates))
    assert len(set(np.diff(exchanges).tolist())) > 3


def test_one_dfedavg_schedule_may_serve_runs_with_different_rates():
    schedule, k = dfedavg(), np.arange(LENGTH)
    part = Part.whole(RING, 0)
    worlds = [Rates(RING, seed, Uniform(), Uniform(), refresh=5) for seed in range(4)]
    together = [schedule(k, part, rates) for rates in worlds]
    assert all(same(events, dfedavg()(k, part, rates)) for events, rates in zip(together, worlds, strict=True))
    assert len({events.v.tobytes() for events in together}) == 4


@pytest.mark.parametrize("period", [0, -3])
def test_a_cycle_without_steps_is_refused(period):
    with pytest.raises(InputError, match=rf"train\.dfedavg_period = {period}"):
        dfedavg(period)


# --- replay ---------------------------------------------------------------------------------------------------


def small_record():
    rates = some_rates(RING, 4)
    return rates, named("dspodfl")(np.arange(LENGTH), Part.whole(RING, 4), rates)


def test_a_record_plays_back_its_events():
    rates, events = small_record()
    schedule, part = Replay(events, RING.edges), Part.whole(RING, 4)
    assert same(schedule(np.arange(LENGTH), part, rates), events)
    assert same(schedule(np.arange(10, 25), part, rates), Events(events.v[10:25], events.v_hat[10:25]))


def test_a_record_of_another_graph_is_refused():
    rates, events = small_record()
    for other in (generate("ring", 7, 0), Graph.from_edges(6, [(0, 2), *RING.edges[1:].tolist()])):
        with pytest.raises(InputError, match=r"6 clients, 6 links.*recorded on the same graph"):
            Replay(events, RING.edges)(np.arange(5), Part.whole(other, 4), some_rates(other, 4))
    assert Replay(events, RING.edges)(np.arange(5), Part.whole(RING, 4), rates).v.shape == (5, 6)


def test_a_record_that_is_too_short_is_refused():
    rates, events = small_record()
    schedule, part = Replay(events, RING.edges), Part.whole(RING, 4)
    assert len(schedule(np.arange(LENGTH - 3, LENGTH), part, rates).v) == 3
    with pytest.raises(InputError, match=rf"train\.iterations = {LENGTH + 1}: must be at most the {LENGTH} recorded"):
        schedule(np.arange(LENGTH - 3, LENGTH + 1), part, rates)
