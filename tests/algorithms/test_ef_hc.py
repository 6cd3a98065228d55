"""EF-HC: who sends is decided by how far models have moved; what is counted is what was sent."""

import math
from functools import cache

import numpy as np
import pytest
import torch
from tests.algorithms import instance, loops
from tests.algorithms.instance import DATA, MODEL, RING, N
from tests.worlds import advance, erdos_renyi, final, make_run, scattered

from dspodfl.algorithms import Algorithm, Constant, Diminishing, Replay, bytes_sent, gates_links, make, named
from dspodfl.algorithms.methods.ef_hc import EventTriggered
from dspodfl.algorithms.rules import Simultaneous
from dspodfl.errors import InputError
from dspodfl.network import Events
from dspodfl.network.laws import FixedValues
from dspodfl.network.topology import BernoulliLinks

CONTRACT = {
    "settings": {"r": 0.5, "rho": 1.0},  # some links pass, and some do not
    "without_consensus": True,  # where all gradients are 0 nobody moves, and nobody sends
}
FALLING = Diminishing(0.1, gamma=50.0)
LINKS = RING.links


def look(rule, *, iterations=5000, alpha=FALLING, schedule="dgd", **how):
    """The last look at a run on the instance: models and counters."""
    run = make_run(schedule, 0, data=DATA, graph=RING, learning_rate=alpha, schedule=named(schedule), **how)
    start = [torch.zeros(N, 3, dtype=torch.float64)]
    return advance([run], MODEL, iterations=iterations, rule=rule, initial=start)[0][-1]


@cache
def at_the_end(r):
    return look(EventTriggered(r, 1.0))


@pytest.mark.parametrize(("r", "share"), [(0.0, 1.0), (0.5, 0.80), (2.0, 0.51), (10.0, 0.13)])
def test_fewer_links_are_used_the_larger_r_is(r, share):
    found = at_the_end(r)
    assert found.counters.link_uses / (5000 * LINKS) == pytest.approx(share, abs=0.005)
    assert found.counters.sgd_steps == 5000 * N


class OnlyTheTriggeringEndIsHeard(EventTriggered):
    """The wrong version: P is not symmetric, since the end that has not triggered sends nothing."""

    def step(self, theta, state, at):
        who = (theta - state).norm(dim=1, keepdim=True) / math.sqrt(3) >= self.r * at.lr
        over = at.gate(who)

        def receive(x, mine, theirs, memory, arc):
            return arc.into * theirs[1] * (theirs[0] - mine[0]), None

        heard, _ = over.exchange((theta, who.to(theta.dtype)), lambda x, memory: x, receive)
        return theta + heard - at.gradient(theta, at.lr * at.v), theta.where(who, state)


def test_both_ends_of_a_link_are_heard_though_one_has_triggered():
    assert instance.error(at_the_end(2.0).theta) == pytest.approx(0.11, abs=0.005)
    assert instance.error(look(OnlyTheTriggeringEndIsHeard(2.0, 1.0)).theta) == pytest.approx(0.34, abs=0.005)


def test_without_a_threshold_it_is_dgd():
    here, dgd = (look(rule, iterations=200) for rule in (EventTriggered(0.0), Simultaneous()))
    assert (here.theta - dgd.theta).abs().max() < 1e-12
    assert vars(here.counters) == vars(dgd.counters)


def test_with_an_infinite_threshold_it_is_local_sgd():
    found = look(EventTriggered(math.inf), iterations=200, alpha=Constant(0.1))
    for i in range(N):
        alone = loops.descended(np.zeros(3), 200, 0.1, clients=[i])
        assert np.abs(found.theta[i].numpy() - alone).max() < 1e-12
    assert (found.counters.link_uses, found.counters.delay_transmission) == (0, 0.0)


def test_where_the_step_size_is_0_models_become_equal_and_their_mean_stays():
    start = scattered(MODEL, N, 0, torch.float64)
    found = instance.models(EventTriggered(5.0), alpha=lambda k: np.zeros(len(k)), iterations=400, start=start)
    assert (found - start.mean(dim=0)).abs().max() < 1e-9


def plain_loop(v, v_hat, r, rho, alpha=loops.RATE):
    """Client by client and link by link, with dictionaries; which links fired, too."""
    theta, weight = loops.start(), loops.weights()
    sent, fired = {i: x.copy() for i, x in theta.items()}, []
    for k, a in enumerate(loops.rates(alpha, len(v))):
        triggers = {i: math.sqrt(sum((theta[i] - sent[i]) ** 2) / 3) >= r * rho[i] * a for i in range(N)}
        links = [(i, j) for i, j in loops.fired(v_hat[k]) if triggers[i] or triggers[j]]
        heard = {end for link in links for end in link}
        sent = {i: theta[i] if triggers[i] and i in heard else sent[i] for i in range(N)}
        mixed = loops.mixed(theta, links, weight)
        theta = {i: mixed[i] - a * loops.gradient(i, theta[i]) if v[k, i] else mixed[i] for i in range(N)}
        fired.append(links)
    return loops.as_array(theta), loops.as_array(sent), fired


@pytest.mark.parametrize("r", [0.0, 0.4, 1.0, 3.0])
def test_it_is_a_plain_loop_with_dictionaries(r):
    v, v_hat = loops.random_events()
    models, state = loops.states(EventTriggered(r, 1.0), v, v_hat)[-1][:2]
    theta, sent, fired = plain_loop(v, v_hat, r, np.ones(N))
    assert np.abs(models.numpy() - theta).max() < 1e-10
    assert np.abs(state["rule.0"].numpy() - sent).max() < 1e-10
    assert r in (0.0, 3.0) or 0 < sum(map(len, fired)) < v_hat.sum()


def test_a_client_of_slow_links_triggers_later():
    """ρ_i is 1 / the mean rate of the client's links, at each iteration."""
    v, v_hat = np.ones((50, N), dtype=bool), np.ones((50, LINKS), dtype=bool)
    rate = {i: [b for (a, c), b in zip(RING.edges.tolist(), instance.B, strict=True) if i in (a, c)] for i in range(N)}
    theta, _, fired = plain_loop(v, v_hat, 0.7, [1 / np.mean(rate[i]) for i in range(N)])
    run = make_run("dgd", 0, data=DATA, graph=RING, link=FixedValues(instance.B.tolist()), learning_rate=loops.RATE)
    start = [torch.from_numpy(loops.START.copy())]
    found = advance([run], MODEL, iterations=50, rule=EventTriggered(0.7), initial=start)[0][-1]
    assert np.abs(found.theta.numpy() - theta).max() < 1e-10
    assert 0 < found.counters.link_uses == sum(map(len, fired)) < 50 * LINKS


def test_what_triggers_in_vain_is_not_taken_as_sent():
    """No link can fire at first: whoever has moved far enough sends as soon as one can."""
    v, v_hat = np.ones((12, N), dtype=bool), np.zeros((12, LINKS), dtype=bool)
    v_hat[11] = True
    found = loops.states(EventTriggered(0.01, 1.0), v, v_hat)
    assert torch.equal(found[11][1]["rule.0"], torch.from_numpy(loops.START))
    assert torch.equal(found[12][1]["rule.0"], found[11][0])


def record(runs, rule, iterations, **how):
    """What fired, as on_block is told: v and v̂ of the whole stack, and the looks."""
    parts = []
    looks = advance(runs, how.pop("model", MODEL), iterations=iterations, rule=rule, on_block=parts.append, **how)
    assert np.array_equal(np.concatenate([part.k for part in parts]), np.arange(iterations))
    return [torch.cat([getattr(part, name) for part in parts]).numpy() for name in ("v", "v_hat")], looks


def test_recorded_events_replayed_give_the_same_models():
    run = make_run("dgd", 0, data=DATA, graph=RING, learning_rate=FALLING)
    start = [torch.from_numpy(loops.START.copy())]
    (v, v_hat), (looks,) = record([run], EventTriggered(2.0, 1.0), 600, initial=start, every=150)
    assert 0.2 < v_hat.mean() < 0.8
    played = Replay(Events(v, v_hat), RING.edges)
    again = make_run("dgd", 0, data=DATA, graph=RING, learning_rate=FALLING, schedule=played)
    for one, two in zip(looks, advance([again], MODEL, iterations=600, initial=start, every=150)[0], strict=True):
        assert (one.theta - two.theta).abs().max() < 1e-10
        assert vars(one.counters) == vars(two.counters)


def test_a_link_that_is_new_fires_though_nobody_triggers():
    topology = BernoulliLinks(erdos_renyi(N, 2), 5, 0.5)
    run = make_run("dgd", 0, data=DATA, topology=topology)
    (_, v_hat), _ = record([run], EventTriggered(math.inf), 60)
    there = topology.present(np.arange(60))
    assert not v_hat[0].any()
    assert np.array_equal(v_hat[1:], there[1:] & ~there[:-1]) and v_hat.any()


@pytest.mark.parametrize("bad", [-1, "much", True, math.nan])
def test_r_is_a_number_of_at_least_0(bad):
    with pytest.raises(InputError, match=r"algorithms.settings.r"):
        make(Algorithm("mine", schedule="ef_hc", rule="ef_hc", settings={"r": bad}))


@pytest.mark.parametrize("bad", [0, -1, "slow", math.inf])
def test_rho_is_rates_or_a_number_above_0(bad):
    with pytest.raises(InputError, match=r"algorithms.settings.rho"):
        make(Algorithm("mine", schedule="ef_hc", rule="ef_hc", settings={"rho": bad}))


def test_it_sends_one_model_and_says_that_it_gates():
    assert bytes_sent(EventTriggered(), 10) == 40
    rule = make(Algorithm("m", schedule="ef_hc", rule="ef_hc", local={"momentum": 0.9}))[1]
    assert gates_links(rule) and gates_links(EventTriggered()) and not gates_links(Simultaneous())


def test_with_momentum_its_links_are_still_counted():
    rule = make(Algorithm("m", schedule="ef_hc", rule="ef_hc", local={"proximal": 0.1, "momentum": 0.5}))[1]
    run = make_run("dgd", 0, data=DATA, graph=RING, learning_rate=FALLING)
    (_, v_hat), (looks,) = record([run], rule, 100)
    assert 0 < v_hat.sum() == looks[-1].counters.link_uses < 100 * LINKS


class Undeclared(Simultaneous):
    def step(self, theta, state, at):
        return at.gate(at.v > 0).mix(theta), state


class MixesWithoutAGate(EventTriggered):
    def step(self, theta, state, at):
        return at.mix(theta), state


@pytest.mark.parametrize(
    ("rule", "words"), [(Undeclared(), "declares gates = True"), (MixesWithoutAGate(), r"exchange over at\.gate")]
)
def test_rules_exchange_through_a_gate_if_and_only_if_they_declare_it(rule, words):
    run = make_run("dgd", 0, data=DATA, graph=RING)
    with pytest.raises(InputError, match=words):
        final([run], MODEL, iterations=2, rule=rule)
