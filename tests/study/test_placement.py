"""Which process holds which clients and runs."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.teams import Threads
from tests.worlds import ALGORITHMS, MODELS, make_run

from dspodfl.engine import Shard, Stack
from dspodfl.errors import InputError
from dspodfl.network import GRAPHS, generate
from dspodfl.study.placement import assign, bisect, cut, place
from dspodfl.study.work_split import WorkSplit, expected_rows, work

OWN = {"geometric": {"radius": 0.3}, "erdos_renyi": {"p": 0.2}, "regular": {"degree": 4}}
OWN["small_world"] = {"neighbours": 4, "rewire": 0.1}


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("kind", GRAPHS)
def test_every_client_of_every_graph_has_a_place_and_no_rank_is_without(kind, ranks):
    graph = generate(kind, 60, seed=0, **OWN.get(kind, {}))
    random = np.random.default_rng(0)
    owner = place(graph, random.integers(1, 9, 60), random.random(60), ranks)
    assert sorted(set(owner.tolist())) == list(range(ranks))


@pytest.mark.parametrize("kind", ["geometric", "grid", "ring", "regular", "small_world"])
def test_samples_and_work_are_balanced_and_few_links_cut(kind):
    graph = generate(kind, 400, seed=1, **(OWN | {"geometric": {"radius": 0.12}}).get(kind, {}))
    random = np.random.default_rng(0)
    samples, steps = random.integers(5, 50, 400), random.beta(0.5, 0.5, 400)
    owner = place(graph, samples, steps, 4)
    for weight in (samples, steps):
        assert (np.bincount(owner, weight) / weight.sum()).max() < 0.25 * 1.2
    anyhow = np.mean([cut(graph, random.permutation(owner)) for _ in range(5)])
    assert cut(graph, owner) < (0.6 if kind == "regular" else 0.35) * anyhow  # a random graph has no good cut


@settings(max_examples=50)
@given(st.integers(1, 40), st.integers(1, 8), st.integers(0, 99))
def test_bisection_leaves_no_part_empty(n, parts, seed):
    parts = min(n, parts)
    random = np.random.default_rng(seed)
    owner = bisect(random.random((n, 2)).round(1), random.random(n) + 1e-6, parts)
    assert sorted(set(owner.tolist())) == list(range(parts))


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=30), st.integers(1, 5))
def test_no_rank_has_more_than_a_run_beyond_its_share(work, ranks):
    dealt = np.bincount(assign(work, ranks), weights=work, minlength=ranks)
    assert dealt.max() <= sum(work) / ranks + max(work) + 1e-9


def test_every_rank_has_a_run_of_every_wave_and_waves_that_are_too_small_are_refused():
    division = [WorkSplit(Threads(rank, 3, {}), "runs", "", [5.0, 1.0, 1.0, 1.0, 1.0, 9.0], []) for rank in range(3)]
    for wave in ([0, 1, 2], [3, 4, 5], [0, 1, 2, 3, 4, 5]):
        here = [one.here(wave) for one in division]
        assert all(here) and sorted(r for some in here for r in some) == wave
    with pytest.raises(InputError, match="ranks = 3: must be at most 2"):
        division[0].check([[0, 1, 2], [4, 5]])


def test_runs_that_step_more_often_are_more_work():
    _, dataset = MODELS["svm"]()
    costs = {name: work(make_run(name, 0, n=8, data=dataset)) for name in ALGORITHMS}
    assert costs["dgd"] == costs["rg"] > costs["dfedavg"] > costs["dspodfl"] == costs["sporadic_sgd"]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("more", [{}, {"two_sided": True}, {"refresh": 50}], ids=["plain", "two_sided", "refresh"])
def test_rows_that_cross_are_those_expected_from_the_rates_within_two_percent(algorithm, more):
    _, dataset = MODELS["svm"]()
    graph = generate("geometric", 60, seed=3, radius=0.3)
    run = make_run(algorithm, 1, graph=graph, data=dataset, **more)
    owner = place(graph, np.ones(60), np.ones(60), 3)
    stack = Stack([run])
    found = 0
    for block in stack.blocks(3000, 500):
        active = block.active.numpy()
        found += sum(
            int(shard.leave.needed(active[:, shard.link]).sum())
            for shard in (Shard.of(stack, [owner], rank, 3) for rank in range(3))
        )
    assert found == pytest.approx(expected_rows(run, owner, 0, 3000), rel=0.02)
