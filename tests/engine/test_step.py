"""What a rule sees of an iteration: exchanges over links with memory at their ends, neighbours, words."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, final, graphs, make_run

from dspodfl import InputError, rng
from dspodfl.algorithms import PerLink, named
from dspodfl.network import Part
from dspodfl.rng import Stream

ITERATIONS = 30


def keep(x, memory):
    return x


@dataclass(frozen=True)
class Gossip:
    """Θ ← PΘ − αVG by messages: what `mix` does, link by link."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        def receive(x, mine, theirs, memory, arc):
            return arc.into * (theirs - mine), None

        change, _ = at.exchange(theta, keep, receive)
        return theta + change - at.gradient(theta, at.lr * at.v), state


@dataclass(frozen=True)
class Remembers:
    """Adds a tenth of what the neighbour sent last time, and counts the uses of each link at both of its ends."""

    def init(self, theta, links):
        last = theta.new_zeros(2 * links, theta.shape[1])
        return {"ends": PerLink((last, theta.new_zeros(2 * links))), "sum": theta.new_zeros(len(theta), 1)}

    def step(self, theta, state, at):
        def send(x, memory):
            return x[0] * x[1], memory[1][:, None]

        def receive(x, mine, theirs, memory, arc):
            model, uses = theirs
            assert torch.equal(uses, mine[1])
            added = 0.1 * arc.into * (memory[0] - x[0]), torch.ones_like(uses)
            return added, (model, memory[1] + 1)

        one = torch.ones_like(at.v)
        (change, count), ends = at.exchange((theta, one), send, receive, state["ends"])
        new = at.mix(theta + change - at.gradient(theta, at.lr * at.v))
        return new, {"ends": ends, "sum": state["sum"] + count}


@dataclass(frozen=True)
class Middle:
    """Moves to the mean of the neighbours whose links fire, a tenth of the way."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        rows, there = at.around(theta)
        count = there.sum(dim=1, keepdim=True)
        mean = rows.sum(dim=1) / count.clamp(min=1)
        assert torch.equal(at.linked, count > 0)
        return torch.where(at.linked, 0.9 * theta + 0.1 * mean, theta) - at.gradient(theta, at.lr * at.v), state


@dataclass(frozen=True)
class Noise:
    """Adds addressed noise to every model."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        words = at.words(Stream.DATA, theta.shape[1])
        return theta + (words.to(theta.dtype) / rng.WORD - 0.5), state


@dataclass(frozen=True)
class Numbered:
    """Adds the number of each client in its run and the probability with which it steps, a little."""

    def init(self, theta, links):
        return None

    def step(self, theta, state, at):
        return theta + 0.01 * at.client.to(theta.dtype) + 0.1 * at.probability, state


RULES = [Gossip(), Remembers(), Middle(), Noise(), Numbered()]


def runs_of(names=("dspodfl", "dgd"), n=7, model="svm"):
    _, data = MODELS[model]()
    return [make_run(name, seed, n=n, data=data) for seed, name in enumerate(names)]


@settings(max_examples=25, deadline=None)
@given(graphs(least=1), st.integers(0, 99))
def test_messages_that_are_models_give_what_mixing_gives(graph, seed):
    model, data = MODELS["svm"]()
    run = make_run("dspodfl", seed, graph=graph, data=data)
    (mixed,), (sent,) = (final([run], model, iterations=10, rule=rule) for rule in ("simultaneous", Gossip()))
    assert (mixed - sent).abs().max() < 1e-12


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_stacked_is_alone(rule):
    model, _ = MODELS["svm"]()
    runs = runs_of()
    stacked = final(runs, model, iterations=ITERATIONS, rule=rule)
    for run, found in zip(runs, stacked, strict=True):
        (alone,) = final([run], model, iterations=ITERATIONS, rule=rule)
        assert torch.equal(alone, found)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
@pytest.mark.parametrize("ranks", [2, 3])
def test_split_over_ranks_is_whole(rule, ranks):
    model, _ = MODELS["svm"]()
    runs = runs_of()
    looks, _, _ = split_up(runs, model, ranks, rule=rule)
    assert_the_same(runs, model, looks, rule=rule)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: type(rule).__name__)
def test_resumed_anywhere_is_in_one_go_to_the_last_bit(rule):
    model, _ = MODELS["svm"]()
    assert_any_state_is_gone_on_from(runs_of(), model, rule=rule)


def test_a_client_knows_its_number_in_its_run_and_with_which_probability_it_steps():
    model, _ = MODELS["svm"]()
    runs = runs_of()
    start = [torch.zeros(run.clients, model.parameters) for run in runs]
    expected = [runs[0].rates.sgd(np.arange(1))[0], np.ones(7)]  # dspodfl steps by its rates, dgd always
    for found, p in zip(final(runs, model, iterations=10, rule=Numbered(), initial=start), expected, strict=True):
        assert np.abs(found[:, 0].numpy() - 10 * (0.01 * np.arange(7) + 0.1 * p)).max() < 1e-12


def test_a_schedule_that_does_not_know_its_probabilities_is_refused_where_a_rule_asks_for_them():
    model, data = MODELS["svm"]()
    run = make_run("dspodfl", 0, data=data, schedule=lambda k, part, rates: named("dspodfl")(k, part, rates))
    with pytest.raises(InputError, match="knows with which probability"):
        final([run], model, iterations=3, rule=Numbered())


@dataclass(frozen=True)
class Halved:
    """What is evaluated is half of what is trained."""

    def init(self, theta, links):
        return torch.full_like(theta, 0.5)

    def model(self, theta, state):
        return theta * state

    def step(self, theta, state, at):
        return at.mix(theta, minus=at.gradient(theta, at.lr * at.v)), state


def test_what_is_evaluated_may_be_other_than_what_is_trained():
    model, _ = MODELS["svm"]()
    runs = runs_of()
    for whole, half in zip(
        *(final(runs, model, iterations=10, rule=r) for r in ("simultaneous", Halved())), strict=True
    ):
        assert (half - whole / 2).abs().max() < 1e-12
    assert_any_state_is_gone_on_from(runs, model, rule=Halved())


@dataclass(frozen=True)
class Counts:
    """Remembers the neighbour's number of uses at every end; adds up all ends, also of links that are silent."""

    def init(self, theta, links):
        return PerLink((theta.new_zeros(2 * links, 1), theta.new_ones(2 * links)))

    def step(self, theta, state, at):
        def send(x, memory):
            return memory[0] + 1, x[:, :0]

        def receive(x, mine, theirs, memory, arc):
            return mine[1], (theirs[0], memory[1])

        nothing, ends = at.exchange(theta, send, receive, state)
        assert nothing.shape == (len(theta), 0)
        uses, degree = at.total(ends)
        return (uses + 1000 * degree[:, None] + 1e6 * at.n).expand_as(theta).clone(), ends


def test_memory_is_added_up_over_all_links_of_a_client_and_a_step_knows_the_size_of_its_run():
    model, data = MODELS["svm"]()
    runs = [make_run("dspodfl", seed, n=n, data=data) for seed, n in ((0, 5), (1, 7))]
    for run, found in zip(runs, final(runs, model, iterations=ITERATIONS, rule=Counts()), strict=True):
        graph = run.rates.graph
        events = run.schedule(np.arange(ITERATIONS), Part.whole(graph, run.seed), run.rates)
        uses = np.zeros(graph.n)
        np.add.at(uses, graph.edges.ravel(), np.repeat(events.v_hat.sum(axis=0), 2))
        assert found[:, 0].tolist() == (uses + 1000 * graph.degree + 1e6 * graph.n).tolist()
    looks, _, _ = split_up(runs, model, 3, rule=Counts())
    assert_the_same(runs, model, looks, rule=Counts())
