"""Draws of a schedule's own: independent between methods, paired between settings, the same wherever they are read."""

import sys
from functools import partial
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.edge import tiny
from tests.worlds import classified, final, make_run, subsets

from dspodfl import InputError, rng, run
from dspodfl.algorithms import Algorithm, Draws, make
from dspodfl.algorithms.making import _method
from dspodfl.engine import Stack
from dspodfl.network import Events, Part, generate
from dspodfl.problem.models import build

GRAPH = generate("ring", 6, 0)
WHOLE = Part.whole(GRAPH, 7)
KINDS = ("clients", "links", "common")


class Pairwise:
    """Every client steps with probability ``share``; one link exchanges."""

    def __init__(self, draws, share=0.5):
        self.draws, self.share = draws, share

    def __call__(self, k, part, rates):
        link = rng.index_below(self.draws.common(k, part), rates.graph.links)
        steps = rng.bernoulli(self.draws.clients(k, part)[..., 0], self.share)
        return Events(steps, link == part.link)


def together(k, part, rates, draws):
    """All links exchange, or none."""
    fires = rng.bernoulli(draws.common(k, part), 0.5)
    return Events(np.ones((len(k), len(part.client)), dtype=bool), np.repeat(fires, len(part.link), axis=1))


def quietly(k, part, rates, *, draws):
    word = draws.links(k, part)[..., 0]
    return Events(np.zeros((len(k), len(part.client)), dtype=bool), rng.bernoulli(word, 0.3))


def pairwise(draws, share=0.5, other=1):
    """A function with three parameters that makes a schedule."""
    return Pairwise(draws, share)


def schedule_of(given, **settings):
    return make(Algorithm("a label", schedule=given, settings=settings))[0]


def events(schedule, k, part=WHOLE):
    found = schedule(np.asarray(k), part, make_run(graph=GRAPH, data=classified()).rates)
    return np.concatenate([found.v, found.v_hat], axis=1)


@pytest.mark.parametrize("kind", KINDS)
@given(first=st.integers(0, 2**31), length=st.integers(1, 20), slots=st.integers(1, 5))
def test_words_have_their_shape_and_can_be_read_in_any_order(kind, first, length, slots):
    read, k = getattr(Draws("mine"), kind), first + np.arange(length)
    whole = read(k, WHOLE, slots=slots)
    assert whole.shape == (length, *{"clients": (6,), "links": (6,), "common": ()}[kind], slots)
    assert ((whole >= 0) & (whole < rng.WORD)).all()
    for t in reversed(range(length)):
        assert np.array_equal(read(k[t : t + 1], WHOLE, slots=slots)[0], whole[t])


@given(subsets(6, least=1))
def test_a_part_reads_the_words_of_the_whole(clients):
    part, k, draws = Part.of(GRAPH, 7, clients), np.arange(9), Draws("mine")
    assert np.array_equal(draws.clients(k, part), draws.clients(k, WHOLE)[:, part.client])
    assert np.array_equal(draws.links(k, part), draws.links(k, WHOLE)[:, part.link])
    assert np.array_equal(draws.common(k, part), draws.common(k, WHOLE))


def test_methods_seeds_kinds_and_shared_streams_have_words_of_their_own():
    k, other = np.arange(500), Part.whole(GRAPH, 8)
    found = [getattr(Draws(name), kind)(k, part) for name in ("a", "b") for part in (WHOLE, other) for kind in KINDS]
    found += [rng.words(7, stream, np.arange(6), 0, k[:, None]) for stream in rng.Stream]
    words = np.concatenate([array.ravel() for array in found])
    repeated = len(words) - len(np.unique(words))
    assert repeated <= 3 + 10 * len(words) ** 2 / 2**33  # of n words, n² / 2 · 2⁻³² pairs are expected to be equal
    firsts = [array.reshape(500, -1)[:, 0] < 2**31 for array in found]
    for one, two in combinations(firsts, 2):
        assert abs((one == two).mean() - 0.5) < 0.12  # five standard deviations


def test_a_schedule_receives_the_draws_of_its_method_and_settings_and_labels_do_not_count():
    assert schedule_of(Pairwise).draws == Draws(f"{__name__}:Pairwise")
    assert schedule_of(f"{__name__}:Pairwise", share=0.2).draws == Draws(f"{__name__}:Pairwise")
    assert schedule_of(partial(pairwise, share=0.1)) is not None
    assert schedule_of(pairwise, share=0.9).draws == Draws(f"{__name__}:pairwise")
    assert _method("dgd") == _method("dspodfl.algorithms.schedules:dgd") == "dgd"
    low, high = (events(schedule_of(Pairwise, share=share), np.arange(200)) for share in (0.2, 0.7))
    assert (low <= high).all() and (low < high).any()  # paired: who steps with 0.2 steps with 0.7
    assert not np.array_equal(low[:, 6:], events(schedule_of(pairwise), np.arange(200))[:, 6:])


@pytest.mark.parametrize("given", [together, quietly])
def test_a_function_may_take_draws_next_to_k_part_and_rates(given):
    by_name = schedule_of(f"{__name__}:{given.__name__}")
    k = np.arange(40)
    assert np.array_equal(events(schedule_of(given), k), events(by_name, k))
    own = given(k, WHOLE, None, draws=Draws(f"{__name__}:{given.__name__}"))
    assert np.array_equal(events(by_name, k), np.concatenate([own.v, own.v_hat], axis=1))
    assert 0 < own.v_hat.mean() < 1


@pytest.mark.parametrize("given", [Pairwise, pairwise])
def test_draws_are_no_setting(given):
    with pytest.raises(InputError, match=r"algorithms\.settings\.draws.*share"):
        schedule_of(given, draws=3)


def test_a_maker_that_takes_any_settings_is_given_no_draws_among_them():
    taken = {}

    def maker(**settings):
        taken.update(settings)
        return together

    schedule_of(maker, share=3)
    assert taken == {"share": 3}


def test_events_and_models_are_the_same_stacked_and_alone():
    data, model = classified(), build("svm", (6,), 3)
    runs = [
        make_run("mine", seed, n=n, data=data, schedule=schedule_of(given)) for seed, (n, given) in enumerate(MIXED)
    ]
    stack = Stack(runs)
    (block,) = stack.blocks(30, 30)
    for r, one in enumerate(runs):
        (alone,) = Stack([one]).blocks(30, 30)
        pieces = list(Stack([one]).blocks(30, 7))
        for which in ("v", "v_hat"):
            stacked = getattr(block.events(r), which)
            assert np.array_equal(stacked, getattr(alone.events(0), which))
            assert np.array_equal(stacked, np.concatenate([getattr(piece.events(0), which) for piece in pieces]))
    together_, alone_ = final(runs, model, iterations=30), [final([one], model, iterations=30)[0] for one in runs]
    assert all(np.allclose(a, b, atol=1e-12) for a, b in zip(together_, alone_, strict=True))


MIXED = [(5, Pairwise), (4, together), (6, Pairwise), (3, quietly)]


def test_two_labels_of_a_custom_schedule_give_identical_rows_in_a_study(tmp_path, monkeypatch):
    (tmp_path / "walks.py").write_text("from tests.algorithms.test_draws import Pairwise\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "walks", raising=False)
    tables = [{"schedule": "walks:Pairwise", "label": label} for label in ("one", "two")]
    tables += [{"schedule": "walks:Pairwise", "label": "often", "settings": {"share": 0.9}}]
    found = run(tiny(algorithms=tables, train={"iterations": 30})).metrics
    one, two, often = (
        found[found["algorithm"] == label].drop(columns="algorithm").reset_index(drop=True)
        for label in ("one", "two", "often")
    )
    assert one.equals(two)
    assert often["link_uses"].equals(one["link_uses"]) and often["sgd_steps"].iloc[-1] > one["sgd_steps"].iloc[-1]
