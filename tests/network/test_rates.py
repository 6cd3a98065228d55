"""Capability rates: how they are drawn and clipped, and how they move in time."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.worlds import graphs

from dspodfl import rng
from dspodfl.algorithms.learning_rate import Constant, Diminishing, Step
from dspodfl.errors import InputError
from dspodfl.network import Graph, generate
from dspodfl.network.laws import Beta, FixedValues, Uniform
from dspodfl.network.rates import Rates
from dspodfl.rng import Stream

MANY = generate("path", 4001, 0)
START = np.zeros(1, dtype=int)


def test_rates_of_clients_and_links_are_drawn_independently():
    rates = Rates(MANY, 1, Uniform(), Uniform())
    d, b = rates.sgd(START)[0], rates.link(START)[0]
    for one, other in ((d[:-1], b), (d[1:], b), (d[1:], d[:-1]), (b[1:], b[:-1])):
        assert abs(np.corrcoef(one, other)[0, 1]) < 5 / np.sqrt(len(b))


# --- clipping and given values --------------------------------------------------------------------------------


@pytest.mark.parametrize("floor", [1e-6, 0.01, 0.3])
def test_drawn_rates_below_the_floor_are_raised_to_it_and_counted(floor):
    raw = Rates(MANY, 2, Beta(0.3, 0.5), Uniform(), floor=1e-300)
    rates = Rates(MANY, 2, Beta(0.3, 0.5), Uniform(), floor=floor)
    d, b = raw.sgd(START), raw.link(START)
    assert np.array_equal(rates.sgd(START), np.maximum(d, floor))
    assert np.array_equal(rates.link(START), np.maximum(b, floor))
    assert rates.clipped() == (int((d < floor).sum()), int((b < floor).sum()))
    assert rates.clipped()[0] > 0


@given(graphs(least=1, most=5), st.floats(1e-9, 1.0))
def test_values_given_outright_are_kept_as_they_are_and_never_count_as_clipped(graph, value):
    rates = Rates(graph, 0, FixedValues(value), FixedValues([value] * graph.links), refresh=2, floor=1e-2)
    k = np.arange(5)
    assert np.array_equal(rates.sgd(k), np.full((5, graph.n), value))
    assert np.array_equal(rates.link(k), np.full((5, graph.links), value))
    assert rates.clipped() == (0, 0)


@pytest.mark.parametrize("wrong", [0.0, -0.2, 1.0000001, float("nan"), float("inf")])
@pytest.mark.parametrize("several", [False, True])
def test_given_values_outside_zero_to_one_are_refused_by_name_and_value(wrong, several):
    given_values = FixedValues([0.5, wrong, 0.5] if several else wrong, "rates.sgd.values")
    with pytest.raises(InputError, match=r"in \(0, 1\]") as caught:
        Rates(generate("path", 3, 0), 0, given_values, FixedValues(1.0)).sgd(START)
    assert caught.value.field == "rates.sgd.values"
    assert caught.value.value == pytest.approx(wrong, nan_ok=True)


@pytest.mark.parametrize("count", [0, 1, 2, 4])
def test_a_wrong_number_of_given_values_is_refused(count):
    rates = Rates(generate("path", 4, 0), 0, FixedValues([0.5] * (count + 1), "d"), FixedValues([0.5] * count, "b"))
    if count != 3:
        with pytest.raises(InputError, match=rf"b = '{count} values': must be one value for each of the 3 links"):
            rates.link(START)
    if count + 1 != 4:
        with pytest.raises(InputError, match=rf"d = '{count + 1} values': must be one value for each of the 4 clients"):
            rates.sgd(START)


# --- time -----------------------------------------------------------------------------------------------------


@given(graphs(least=2, most=6), st.integers(0, 2**40), st.integers(1, 9))
def test_rates_are_redrawn_exactly_at_the_multiples_of_refresh(graph, seed, every):
    rates = Rates(graph, seed, Uniform(), Uniform(), refresh=every)
    k = np.arange(4 * every)
    d, b = rates.sgd(k), rates.link(k)
    assert d.shape == (len(k), graph.n) and b.shape == (len(k), graph.links)
    changes = 1 + np.flatnonzero((d[1:] != d[:-1]).any(axis=1))
    assert changes.tolist() == [every, 2 * every, 3 * every]
    assert (d[1:] != d[:-1])[changes - 1].all() and (b[1:] != b[:-1])[changes - 1].all()
    assert not (b[1:] != b[:-1])[np.setdiff1d(k[1:], changes) - 1].any()


@given(graphs(least=1, most=6), st.integers(0, 2**40), st.integers(1, 9), st.integers(1, 9), st.data())
def test_refreshed_rates_are_a_function_of_the_epoch_alone(graph, seed, every, other, data):
    one, two = (Rates(graph, seed, Beta(0.5, 0.5), Uniform(), refresh=n) for n in (every, other))
    epoch = data.draw(st.integers(0, 50))
    k = np.array([data.draw(st.integers(epoch * n, epoch * n + n - 1)) for n in (every, other)])
    assert np.array_equal(one.sgd(k[:1]), two.sgd(k[1:]))
    assert np.array_equal(one.link(k[:1]), two.link(k[1:]))
    anywhere = np.array(data.draw(st.permutations(range(3 * every))))
    assert np.array_equal(one.sgd(anywhere), one.sgd(np.arange(3 * every))[anywhere])


def test_the_first_epoch_of_refreshed_rates_is_that_of_constant_ones():
    constant, refreshed = (Rates(MANY, 5, Uniform(), Uniform(), refresh=n) for n in (0, 3))
    assert np.array_equal(constant.sgd(START), refreshed.sgd(np.array([2])))
    assert np.array_equal(constant.link(START), refreshed.link(np.array([2])))


def test_constant_rates_have_one_row_however_many_iterations_are_asked_for():
    rates = Rates(generate("ring", 4, 0), 0, Uniform(), Uniform())
    assert rates.sgd(np.arange(100)).shape == (1, 4)
    assert not rates.changing
    assert np.array_equal(rates.sgd(np.array([77])), rates.sgd(START))


@pytest.mark.parametrize("alpha", [Constant(0.2), Diminishing(0.2, gamma=3.0), Step(0.2, every=4, factor=0.5)])
def test_growth_follows_its_formula(alpha):
    graph = generate("ring", 5, 0)
    plain, grown = (Rates(graph, 3, Uniform(), Uniform(), growth=g) for g in (None, alpha))
    d0 = plain.sgd(START)[0]
    for k in (0, 1, 5, 40):
        share = float(alpha(np.array([k]))[0] / alpha(START)[0])
        assert np.allclose(grown.sgd(np.array([k]))[0], 1 - (1 - d0) * share, rtol=1e-14, atol=0)
    assert np.array_equal(grown.link(np.array([40])), plain.link(START))  # links do not grow
    assert grown.changing


def test_growth_starts_from_the_rates_of_the_epoch_when_both_move():
    graph, alpha = generate("ring", 5, 0), Diminishing(0.1, gamma=2.0)
    plain = Rates(graph, 3, Uniform(), Uniform(), refresh=4)
    grown = Rates(graph, 3, Uniform(), Uniform(), refresh=4, growth=alpha)
    k = np.arange(13)
    share = (alpha(k) / alpha(START))[:, None]
    assert np.allclose(grown.sgd(k), 1 - (1 - plain.sgd(k)) * share, rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("given", "changing"),
    [
        ({"sgd_law": Uniform()}, False),
        ({"sgd_law": Uniform(), "refresh": 5}, True),
        ({"sgd_law": FixedValues(0.5), "refresh": 5}, False),
        ({"sgd_law": FixedValues(0.5), "growth": Constant(0.1)}, True),
    ],
)
def test_rates_say_whether_the_clients_change(given, changing):
    assert Rates(generate("ring", 3, 0), 0, link_law=Uniform(), **given).changing is changing


# --- addresses ------------------------------------------------------------------------------------------------


@given(graphs(least=2, most=6), st.integers(0, 2**63 - 1), st.integers(1, 20))
def test_the_rate_of_a_client_or_link_does_not_depend_on_what_else_there_is(graph, seed, more):
    larger = Graph.from_edges(
        graph.n + more, [*graph.edges.tolist(), *((i, graph.n + more - 1) for i in range(graph.n + more - 1))]
    )
    small, large = (Rates(g, seed, Beta(0.5, 0.5), Uniform(), refresh=3) for g in (graph, larger))
    k = np.arange(7)
    rows = {tuple(e): n for n, e in enumerate(larger.edges.tolist())}
    kept = [rows[tuple(e)] for e in graph.edges.tolist()]
    assert np.array_equal(small.sgd(k), large.sgd(k)[:, : graph.n])
    assert np.array_equal(small.link(k), large.link(k)[:, kept])


def test_rates_are_the_law_of_the_uniforms_at_their_documented_address():
    graph = generate("ring", 4, 0)
    rates = Rates(graph, 77, Beta(0.5, 2.0), Uniform(), refresh=10)
    for epoch in (0, 3):
        k = np.array([10 * epoch])
        for i in range(4):
            u = rng.uniform(77, Stream.RATE_SGD, i, k=epoch, count=2)
            assert rates.sgd(k)[0, i] == Beta(0.5, 2.0)(u)
        for link, (i, j) in enumerate(graph.edges.tolist()):
            assert rates.link(k)[0, link] == 1 - rng.uniform(77, Stream.RATE_LINK, i, j, k=epoch)[0]


def test_other_seeds_give_other_rates():
    drawn = [Rates(MANY, seed, Uniform(), Uniform()) for seed in (1, 2)]
    assert not (drawn[0].sgd(START) == drawn[1].sgd(START)).any()
    assert not (drawn[0].link(START) == drawn[1].link(START)).any()
