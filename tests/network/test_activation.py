"""Availability, channel and churn mask what any schedule fires, and their probabilities are known."""

import math

import numpy as np
import pytest
from tests.worlds import ALGORITHMS, classified, make_run

from dspodfl.algorithms import named
from dspodfl.errors import InputError
from dspodfl.network import Diurnal, Graph, Part, generate
from dspodfl.network.laws import LAWS, FixedValues, Uniform
from dspodfl.network.processes.clocks import Clocks
from dspodfl.network.processes.cyclic import Cyclic
from dspodfl.network.processes.gilbert_elliott import GilbertElliott
from dspodfl.network.processes.markov import Markov
from dspodfl.network.rates import Rates

RING = generate("ring", 6, 0)
K = np.arange(300)
PROCESSES = {
    "availability": Markov(0.1, 0.2),
    "channel": GilbertElliott(0.1, 0.2, 0.1, 0.7),
    "churn": Markov(0.05, 0.05),
}


def drawn(graph=RING, seed=3, **more):
    return Rates(graph, seed, FixedValues(0.6), FixedValues(0.7), **more)


def test_without_processes_events_and_probabilities_are_the_same_objects():
    rates = drawn()
    part = Part.whole(RING, 3)
    events, (p, q) = named("dspodfl")(K, part, rates), named("dspodfl").probabilities(K, rates)
    assert rates.activation is None
    assert rates.masked(events, K, part) is events
    assert rates.marginal(p, q)[0] is p and rates.marginal(p, q)[1] is q


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_what_happens_is_what_the_schedule_fires_where_client_and_link_are_on(algorithm):
    rates, plain, part = drawn(**PROCESSES), drawn(), Part.whole(RING, 3)
    events = named(algorithm)(K, part, rates)
    fired = named(algorithm)(K, part, plain)
    assert np.array_equal(events.v, fired.v) and np.array_equal(events.v_hat, fired.v_hat)
    happened = rates.masked(events, K, part)
    on = {name: drawn(**{name: process}).activation.on(K) for name, process in PROCESSES.items()}
    there = on["churn"][0]
    i, j = RING.edges.T
    assert np.array_equal(happened.v, fired.v & on["availability"][0] & there)
    assert np.array_equal(happened.v_hat, fired.v_hat & on["channel"][1] & there[:, i] & there[:, j])
    assert happened.v.sum() < fired.v.sum() or not fired.v.any()


def test_availability_leaves_links_alone_and_channels_leave_clients_alone():
    clients, links = drawn(availability=PROCESSES["availability"]).activation.on(K)
    assert not clients.all() and links.all()
    clients, links = drawn(channel=PROCESSES["channel"]).activation.on(K)
    assert clients.all() and not links.all()


def test_availability_and_churn_of_the_same_kind_are_independent():
    one, two = (drawn(**{key: Markov(0.5, 0.5)}).activation.on(np.arange(4000))[0] for key in ("availability", "churn"))
    assert abs(np.corrcoef(one.ravel(), two.ravel())[0, 1]) < 5 / np.sqrt(one.size)


@pytest.mark.parametrize("owned", [[0], [1, 4], [0, 1, 2, 3, 4, 5]])
def test_a_part_sees_the_events_of_the_whole(owned):
    rates = drawn(**PROCESSES)
    whole, part = Part.whole(RING, 3), Part.of(RING, 3, owned)
    every, some = (rates.masked(named("dgd")(K, one, rates), K, one) for one in (whole, part))
    assert np.array_equal(some.v, every.v[:, part.client]) and np.array_equal(some.v_hat, every.v_hat[:, part.link])


def test_iterations_that_were_asked_for_before_and_others_have_their_own_masks():
    rates, again = drawn(**PROCESSES), drawn(**PROCESSES)
    whole = again.activation.on(K)
    for k in (K[:50], K[:50], K[50:100], K[10:60], K[[7, 3]], K[[7, 3]], K[7:9]):
        for found, expected in zip(rates.activation.on(k), whole, strict=True):
            assert np.array_equal(found, expected[k])


def test_marginal_probabilities_are_those_of_the_events():
    graph, k = generate("ring", 40, 0), np.arange(20_000)
    rates = Rates(graph, 5, FixedValues(0.6), FixedValues(0.7), **PROCESSES)
    schedule, part = named("dspodfl"), Part.whole(graph, 5)
    p, q = rates.marginal(*schedule.probabilities(k, rates))
    assert p == pytest.approx(np.full((1, 40), 0.6 * (1 / 3) * 0.5))
    carries = (1 / 3) * 0.9 + (2 / 3) * 0.3
    assert q == pytest.approx(np.full((1, 40), 0.7 * carries * 0.25))
    happened = rates.masked(schedule(k, part, rates), k, part)
    assert happened.v.mean() == pytest.approx(p.mean(), rel=0.05)
    assert happened.v_hat.mean() == pytest.approx(q.mean(), rel=0.05)


def test_the_masks_of_another_graph_are_those_of_its_own_clients_and_links():
    from dataclasses import replace

    star = Graph.from_edges(8, [(0, j) for j in range(1, 8)])
    rates = drawn(**PROCESSES)
    rates.activation.on(K)
    clients, links = replace(rates, graph=star).activation.on(K)
    assert clients.shape == (300, 8) and links.shape == (300, 7)
    assert np.array_equal(clients[:, :6], rates.activation.on(K)[0])


def test_a_client_whose_clock_does_not_tick_does_not_step_under_any_schedule():
    for algorithm in ALGORITHMS:
        run = make_run(algorithm, 1, data=classified(), graph=RING, availability=Clocks(1.0))
        part = Part.whole(RING, 1)
        assert (run.rates.masked(run.schedule(K, part, run.rates), K, part).v.sum(axis=1) <= 1).all()


def test_values_for_each_client_are_as_many_as_there_are():
    with pytest.raises(InputError, match=r"rates\.churn\.phases = '2 values'.*each of the 6 clients"):
        drawn(churn=Cyclic(10, 0.5, [0, 1])).activation.on(K)
    with pytest.raises(InputError, match=r"rates\.channel\.phases = '2 values'.*each of the 6 links"):
        drawn(channel=Cyclic(10, 0.5, [0, 1])).activation.on(K)


# --- rates that rise and fall ---------------------------------------------------------------------------------


def test_diurnal_rates_rise_and_fall_by_their_amplitude_and_stay_at_most_one():
    d, phases = [0.3, 0.9, 0.5], [0.0, 0.25, 0.5]
    graph = generate("path", 3, 0)
    rates = Rates(graph, 0, FixedValues(d), FixedValues(1.0), diurnal=Diurnal(8, 0.5, phases))
    got = rates.sgd(np.arange(20))
    for k in range(20):
        for i in range(3):
            wanted = d[i] * (1 + 0.5 * math.sin(2 * math.pi * (k / 8 + phases[i])))
            assert got[k, i] == pytest.approx(min(wanted, 1.0), abs=1e-12)
    assert got.max() == 1.0 and rates.changing and not rates.fixed
    assert np.array_equal(rates.sgd(np.array([13, 2])), got[[13, 2]])


def test_diurnal_rates_never_fall_below_the_floor_and_links_keep_theirs():
    rates = Rates(RING, 1, Uniform(), Uniform(), floor=0.01, diurnal=Diurnal(10, 1.0))
    assert rates.sgd(np.arange(100)).min() >= 0.01
    assert np.array_equal(rates.link(np.arange(3)), Rates(RING, 1, Uniform(), Uniform(), floor=0.01).link(np.arange(3)))


def test_phases_of_the_day_differ_between_clients_and_must_be_one_for_each():
    rates = Rates(RING, 1, FixedValues(0.5), FixedValues(1.0), diurnal=Diurnal(10, 0.5))
    assert len(np.unique(rates.sgd(np.array([0])))) == 6
    with pytest.raises(InputError, match=r"rates\.diurnal\.phases = '1 values'.*6 clients"):
        Rates(RING, 1, FixedValues(0.5), FixedValues(1.0), diurnal=Diurnal(10, 0.5, [0.0])).sgd(K)


# --- laws -----------------------------------------------------------------------------------------------------


def made(law, field="rates.sgd", graph=RING, **parameters):
    return LAWS[law].make({"field": field, "graph": graph}, parameters)


def test_a_poisson_clock_ticks_within_an_iteration_with_one_minus_e_to_the_minus_rate():
    rate = [0.1, 0.5, 1.0, 2.0, 3.0, 0.7]
    rates = Rates(RING, 4, made("poisson", rate=rate), made("poisson", "rates.link", rate=0.25))
    expected = [1 - math.exp(-one) for one in rate]
    assert rates.sgd(K)[0].tolist() == pytest.approx(expected)
    assert rates.link(K)[0].tolist() == pytest.approx([1 - math.exp(-0.25)] * 6)
    k = np.arange(20_000)
    fired = named("dspodfl")(k, Part.whole(RING, 4), rates).v.mean(axis=0)
    assert (np.abs(fired - expected) < 5 * 0.5 / np.sqrt(len(k))).all()


def test_a_deadline_is_met_with_the_probability_of_a_shifted_exponential():
    values = made("deadline", deadline=3.0, shift=[0.0, 1.0, 2.0, 2.5, 2.9, 1.0], rate=[1.0, 1.0, 1.0, 2.0, 5.0, 0.1])
    pairs = zip([0, 1, 2, 2.5, 2.9, 1], [1, 1, 1, 2, 5, 0.1], strict=True)
    assert values.expand(6, "clients").tolist() == pytest.approx([1 - math.exp(-m * (3 - s)) for s, m in pairs])
    rng = np.random.default_rng(0)
    times = 1.0 + rng.exponential(2.0, 100_000)
    assert made("deadline", deadline=3.0, shift=1.0, rate=0.5).expand(1, "clients")[0] == pytest.approx(
        (times < 3.0).mean(), abs=0.01
    )


@pytest.mark.parametrize(
    ("parameters", "field"),
    [
        ({"deadline": 2.0, "shift": [1.0, 2.0], "rate": 1.0}, "rates.sgd.deadline"),
        ({"deadline": 2.0, "shift": [1.0, 1.0], "rate": [1.0, 1.0, 1.0]}, "rates.sgd.rate"),
    ],
)
def test_a_deadline_that_no_job_meets_is_refused(parameters, field):
    with pytest.raises(InputError) as caught:
        made("deadline", **parameters)
    assert caught.value.field == field


CAPACITIES = "client,compute,bandwidth\n2,4,10\n0,1,20\n1,2,5\n"


def test_capacities_are_shares_of_the_largest_or_of_the_reference_and_a_link_has_its_lesser_end(tmp_path):
    path, graph = tmp_path / "c.csv", generate("path", 3, 0)
    path.write_text(CAPACITIES)
    given = {"graph": graph, "file": str(path)}
    assert made("capacities", **given).expand(3, "clients").tolist() == [0.25, 0.5, 1.0]
    assert made("capacities", "rates.link", **given).expand(2, "links").tolist() == [0.25, 0.25]  # 5 of 20
    assert made("capacities", reference=2.0, **given).expand(3, "clients").tolist() == [0.5, 1.0, 1.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("client,rate\n0,1\n", "line 1 has columns client,rate"),
        (CAPACITIES + "1,1,1\n", "line 5 has client 1, as line 4 does"),
        (CAPACITIES.replace("2,4,10", "2,0,10"), "line 2 has compute = 0, which must be above 0"),
        (CAPACITIES.replace("1,2,5", "1,2,x"), "line 4 has bandwidth = 'x', which must be a number"),
        (CAPACITIES.replace("1,2,5\n", ""), "1 is missing"),
    ],
)
def test_bad_capacities_are_refused_with_their_line(text, says, tmp_path):
    path = tmp_path / "c.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        made("capacities", graph=generate("path", 3, 0), file=str(path))
    assert caught.value.field == "rates.sgd.file" and says in caught.value.allowed
