"""Clients and links that are off: the same events however runs are stacked, cut, split and resumed."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.engine.test_engine_equals_plain_loop import assert_engine_equals_plain_loop
from tests.engine.test_sharded import assert_the_same, split_up
from tests.worlds import ALGORITHMS, MODELS, advance, classified, erdos_renyi, make_run

from dspodfl.engine import Stack
from dspodfl.engine.horizon import cap, expected, last_iterations
from dspodfl.errors import InputError
from dspodfl.network import Budget, Diurnal, Events, Part
from dspodfl.network.laws import FixedValues
from dspodfl.network.processes.clocks import Clocks
from dspodfl.network.processes.cyclic import Cyclic
from dspodfl.network.processes.gilbert_elliott import GilbertElliott
from dspodfl.network.processes.markov import Markov
from dspodfl.network.processes.stragglers import Stragglers
from dspodfl.network.topology import BernoulliLinks
from dspodfl.study.work_split import expected_rows, steps
from dspodfl.theory.assess.sporadicity import sporadicity

HOW = {
    "markov": {"availability": Markov(0.3, 0.2)},
    "clocks": {"availability": Clocks(1.0)},
    "stragglers": {"availability": Stragglers(1.5, 1.0)},
    "cyclic": {"churn": Cyclic(6, 0.5)},
    "gilbert_elliott": {"channel": GilbertElliott(0.3, 0.3, 0.1, 0.8)},
    "diurnal": {"diurnal": Diurnal(10.0, 0.5)},
    "all": {"availability": Markov(0.5, 0.2), "channel": GilbertElliott(0.5, 0.2), "churn": Markov(0.3, 0.1)},
}
RATES = {"sgd": FixedValues(0.9), "link": FixedValues(0.8)}


def runs_with(how, data, **more):
    return [make_run(a, seed, n=6, data=data, **RATES, **HOW[how], **more) for seed, a in enumerate(ALGORITHMS)]


def custom(k, part, rates):
    """A schedule that is called for its events: everything fires."""
    return Events(*(np.ones((len(k), len(of)), dtype=bool) for of in (part.client, part.link)))


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("length", [1, 7, 60])
def test_blocks_of_a_stack_are_the_masked_events_of_each_run_alone(how, length):
    data = classified(samples=300)
    runs = runs_with(how, data)
    runs.append(replace(runs[0], schedule=custom))
    runs.append(make_run("dgd", 9, data=data, topology=BernoulliLinks(erdos_renyi(6, 1), 7, 0.5), **HOW[how]))
    runs.append(make_run("dgd", 3, data=data))  # next to one without a process
    k = np.arange(60)
    blocks = list(Stack(runs).blocks(60, length))
    for r, run in enumerate(runs):
        part = Part.whole(run.rates.graph, run.seed)
        wanted = run.rates.masked(run.schedule(k, part, run.rates), k, part)
        present = run.topology.present(k)
        got = [block.events(r) for block in blocks]
        assert np.array_equal(np.concatenate([events.v for events in got]), wanted.v)
        fired = wanted.v_hat if present is None else wanted.v_hat & present
        assert np.array_equal(np.concatenate([events.v_hat for events in got]), fired)


@pytest.mark.parametrize("how", HOW)
def test_the_engine_is_the_plain_loop(how):
    model, dataset = MODELS["linear"]()
    assert_engine_equals_plain_loop(runs_with(how, dataset), model, 40)


@pytest.mark.parametrize("how", HOW)
def test_stacked_runs_are_those_of_each_alone_to_the_bit(how):
    model, dataset = MODELS["svm"]()
    runs = runs_with(how, dataset)
    together = advance(runs, model, iterations=40, every=20, dtype=torch.float32)
    for run, looks in zip(runs, together, strict=True):
        (alone,) = advance([run], model, iterations=40, every=20, dtype=torch.float32)
        for one, other in zip(looks, alone, strict=True):
            assert torch.equal(one.theta, other.theta) and vars(one.counters) == vars(other.counters)


@pytest.mark.parametrize("how", ["stragglers", "all"])
def test_clients_split_over_ranks_are_those_of_one_process(how):
    model, dataset = MODELS["svm"]()
    runs = runs_with(how, dataset)
    looks, _, _ = split_up(runs, model, 2)
    assert_the_same(runs, model, looks)


def test_a_client_that_is_absent_keeps_its_model_and_its_neighbours_do_not_see_it():
    model, dataset = MODELS["svm"]()
    run = make_run("dgd", 2, n=6, data=dataset, churn=Cyclic(1000, 0.5, [0, 0, 600, 0, 600, 0]))
    (looks,) = advance([run], model, iterations=20, every=1)
    first, last = looks[0].theta, looks[-1].theta
    still = (first == last).all(dim=1).tolist()
    assert still == [False, False, True, False, True, False]


@pytest.mark.parametrize("how", [how for how in HOW if how not in ("cyclic", "diurnal")])
@pytest.mark.parametrize("algorithm", ["dspodfl", "dgd", "dfedavg"])
def test_the_expected_length_of_a_run_follows_the_marginal_probabilities(how, algorithm):
    data, graph = classified(samples=300), erdos_renyi(8, 1)
    budget = Budget("delay", 1500.0)
    runs = [
        replace(make_run(algorithm, seed, data=data, graph=graph, **RATES, **HOW[how]), budget=budget, cap=10**5)
        for seed in range(5)
    ]
    need = expected(runs[0], budget)
    assert np.mean(last_iterations(runs)) == pytest.approx(need, rel=0.1)
    plain = replace(runs[0], rates=replace(runs[0].rates, availability=None, channel=None, churn=None))
    assert need > 1.05 * expected(plain, budget)
    assert cap(runs[0], budget, None)[0] >= need


def test_the_expected_length_of_a_custom_schedule_is_that_of_what_happens():
    data = classified(samples=300)
    run = make_run("dgd", 1, n=6, data=data, schedule=custom, availability=Clocks(1.0), **RATES)
    budget = Budget("delay", 1000.0)
    plain = replace(run, rates=replace(run.rates, availability=None))
    assert expected(run, budget) > 1.3 * expected(plain, budget)


def test_links_have_their_marginal_probabilities_and_so_has_the_traffic_between_ranks():
    data, graph = classified(samples=300), erdos_renyi(8, 1)
    run = make_run("dspodfl", 1, data=data, graph=graph, **RATES, **HOW["all"])
    carries, there = 0.5 / 0.7, 0.75
    q = 0.8 * carries * there**2
    assert Stack([run]).probabilities(np.arange(3)) == pytest.approx(np.full((1, graph.links), q))
    both = make_run("dspodfl", 1, data=data, graph=graph, two_sided=True, **RATES, **HOW["all"])
    assert Stack([both]).probabilities(np.arange(3)) == pytest.approx(np.full((1, graph.links), 0.96 / 0.8 * q))
    assert steps(run) == pytest.approx(8 * 0.9 * (5 / 7) * there)
    owner = np.arange(8)
    assert expected_rows(run, owner, 0, 10) == pytest.approx(10 * 2 * graph.links * q)


@pytest.mark.parametrize(
    ("how", "field"), [("markov", "availability"), ("gilbert_elliott", "channel"), ("cyclic", "churn")]
)
def test_the_theorems_do_not_speak_of_events_that_depend_on_those_before(how, field):
    run = make_run("dspodfl", 1, data=classified(), **HOW[how])
    with pytest.raises(InputError, match=rf"rates\.{field} = .*independent over time"):
        sporadicity(run, 10)


def test_without_a_process_nothing_is_masked(monkeypatch):
    from dspodfl.network.activation import Activation

    monkeypatch.setattr(Activation, "on", None)
    runs = [make_run(a, seed, data=classified()) for seed, a in enumerate(ALGORITHMS)]
    assert sum(int(block.v.sum()) for block in Stack(runs).blocks(20, 7)) > 0
