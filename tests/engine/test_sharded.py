"""A stack whose clients are split over processes is the stack in one process; the processes are threads here."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.teams import place, together
from tests.worlds import ALGORITHMS, BATCH, MODELS, advance, erdos_renyi, final, graphs, make_run, scattered

from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.rules import RULES, Simultaneous
from dspodfl.engine import Shard, Split, Stack, loop, simulate
from dspodfl.errors import InputError
from dspodfl.network import GRAPHS, generate
from dspodfl.network.topology import BernoulliLinks, Waypoint
from dspodfl.problem.data import restrict_to_clients
from dspodfl.problem.problem import Problem

STEPS = 30


def scattered_owners(runs, ranks, seed=0):
    """Anyone, anywhere; no rank without a client."""
    random = np.random.default_rng(seed)
    return [random.permutation(np.arange(run.clients) % ranks) for run in runs]


def split_up(
    runs,
    model,
    ranks,
    *,
    owners=None,
    rule="simultaneous",
    dtype=torch.float64,
    device="cpu",
    every=10,
    batch=BATCH,
    **more,
):
    """Snapshots of all ranks put together, how many bytes each sent, and the shards."""
    owners = scattered_owners(runs, ranks) if owners is None else owners
    stack = Stack(runs)
    shards = [Shard.of(stack, owners, rank, ranks) for rank in range(ranks)]

    def work(team):
        team.prepost_receives = torch.device(device).type != "cuda"  # as the real transport has it
        shard = shards[team.rank]
        mine = [np.flatnonzero(owner == team.rank) for owner in owners]
        held = restrict_to_clients([run.data for run in runs], mine)
        here = [(run.seed, data) for run, data in zip(runs, held, strict=True)]
        problem = Problem(model, here, batch_size=batch, dtype=dtype, device=device)
        whole = torch.cat([scattered(model, run.clients, run.seed) for run in runs]).to(dtype)
        start = whole[torch.from_numpy(shard.own)]
        split, rules = Split(shard, team), RULES[rule] if isinstance(rule, str) else rule
        way = simulate(stack, problem, rules, start, iterations=STEPS, every=every, split=split, **more)
        shots = [(shot.iteration, shot.runs, shot.counters, shot.diverged, shot.theta.clone()) for shot in way]
        return shots, team.sent

    found = together(ranks, work)
    for shots, _ in found[1:]:
        for (k, which, counters, lost, _), (k0, which0, counters0, lost0, _) in zip(shots, found[0][0], strict=True):
            assert (k, which, lost) == (k0, which0, lost0)
            assert [vars(c) for c in counters] == [vars(c) for c in counters0]
    looks = [
        (k, which, counters, lost, place([shots[n][-1] for shots, _ in found], shards))
        for n, (k, which, counters, lost, _) in enumerate(found[0][0])
    ]
    return looks, [sent for _, sent in found], shards


def assert_the_same(runs, model, looks, dtype=torch.float64, close=None, **how):
    alone = advance(runs, model, iterations=STEPS, every=10, dtype=dtype, **how)
    stack = Stack(runs)
    close = close or (1e-12 if dtype == torch.float64 else 2e-6)
    seen = [0] * len(runs)
    for k, which, counters, lost, theta in looks:
        for r, counter, diverged in zip(which, counters, lost, strict=True):
            expected = alone[r][seen[r]]
            seen[r] += 1
            assert (k, vars(counter), diverged) == (expected.iteration, vars(expected.counters), expected.diverged)
            if not diverged:
                apart = (theta[stack.rows[r]] - expected.theta).abs().max()
                assert apart <= close, (k, r, float(apart))
    assert seen == [len(looks) for looks in alone]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["svm", "logistic", "linear"])  # torch.func is not for threads
def test_all_algorithms_stacked_and_split_are_those_of_one_process(name, rule, ranks):
    model, dataset = MODELS[name]()
    runs = [make_run(algorithm, seed, n=7, data=dataset) for seed, algorithm in enumerate(ALGORITHMS)]
    looks, _, _ = split_up(runs, model, ranks, rule=rule)
    assert_the_same(runs, model, looks, rule=rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", GRAPHS)
def test_every_kind_of_graph_can_be_split(kind, dtype):
    own = {"geometric": {"radius": 0.5}, "erdos_renyi": {"p": 0.4}, "regular": {"degree": 4}}
    own["small_world"] = {"neighbours": 4, "rewire": 0.3}
    model, dataset = MODELS["svm"]()
    graph = generate(kind, 12, seed=1, **own.get(kind, {}))
    runs = [make_run("dspodfl", 3, graph=graph, data=dataset, refresh=7)]
    looks, _, _ = split_up(runs, model, 3, dtype=dtype)
    assert_the_same(runs, model, looks, dtype=dtype)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_linear_models_on_the_cpu_are_the_same_to_the_bit_where_few_rows_cross(algorithm):
    model, dataset = MODELS["svm"]()
    runs = [make_run(algorithm, 2, graph=generate("grid", 40, seed=0), data=dataset)]
    owners = [np.arange(40) // 20]
    looks, sent, _ = split_up(runs, model, 2, owners=owners, dtype=torch.float32)
    alone = advance(runs, model, iterations=STEPS, every=10, dtype=torch.float32)
    assert min(sent) > 0
    for (_, _, _, _, theta), expected in zip(looks, alone[0], strict=True):
        assert torch.equal(theta, expected.theta)


def test_changing_graphs_and_delays_to_look_at_can_be_split():
    model, dataset = MODELS["svm"]()
    walk = Waypoint(generate("geometric", 8, seed=0, radius=0.5), 3, 0.5, STEPS, (0.01, 0.1))
    runs = [
        make_run("dgd", 0, topology=BernoulliLinks(erdos_renyi(8, 2), 5, 0.4), data=dataset),
        make_run("dspodfl", 1, topology=walk, data=dataset),
    ]
    looks, _, _ = split_up(runs, model, 2, at_delay=[20.0, 61.5])
    assert_the_same(runs, model, looks, at_delay=[20.0, 61.5])


def test_a_run_that_diverges_on_one_rank_is_frozen_on_all_and_the_others_go_on():
    from dspodfl.algorithms.learning_rate import Constant

    model, dataset = MODELS["linear"]()
    runs = [
        make_run("dgd", 0, n=6, data=dataset, learning_rate=Constant(1e30)),
        make_run("dspodfl", 1, n=6, data=dataset),
    ]
    looks, _, _ = split_up(runs, model, 2)
    assert [lost for _, _, _, lost, _ in looks][-1] == [True, False]
    assert_the_same(runs, model, looks)


class Mixes:
    """Mixes as often as it is told for each iteration, other arrays than the models among them."""

    def __init__(self, *counts):
        self.counts = counts

    def init(self, theta, links):
        return torch.zeros((), dtype=torch.int64)

    def step(self, theta, state, at):
        new = theta - at.gradient(theta, at.lr * at.v)
        for n in range(self.counts[int(state) % len(self.counts)]):
            both = at.mix(torch.cat([new, theta], dim=1)) if n % 2 else None
            new = at.mix(new) if both is None else both[:, : new.shape[1]]
        return new, state + 1


@pytest.mark.parametrize("counts", [(2,), (0,), (3,), (1, 2, 0, 3), (0, 1)])
@pytest.mark.parametrize("name", ["svm", "linear"])
def test_a_rule_may_mix_any_number_of_times_in_an_iteration(name, counts):
    model, dataset = MODELS[name]()
    runs = [make_run(algorithm, seed, n=7, data=dataset) for seed, algorithm in enumerate(("dspodfl", "dgd"))]
    looks, sent, _ = split_up(runs, model, 3, rule=Mixes(*counts))
    assert (min(sent) > 0) == any(counts)
    assert_the_same(runs, model, looks, rule=Mixes(*counts))


def test_a_rule_that_mixes_other_than_it_declares_is_refused_and_nobody_waits():
    model, dataset = MODELS["svm"]()
    rule = Mixes(1, 1, 2)
    rule.mixes = 1
    with pytest.raises(InputError, match=r"Mixes\.mixes = 1: must be 2"):
        split_up([make_run("dgd", 0, n=6, data=dataset)], model, 2, rule=rule)


def test_a_rule_derived_from_the_papers_update_is_asked_for_its_own():
    class Twice(Simultaneous):
        def step(self, theta, state, at):
            return at.mix(at.mix(theta)) - at.gradient(theta, at.lr * at.v), state

    class Plain:
        init = Twice.init
        step = Twice.step

    Twice.mixes = 2
    model, dataset = MODELS["svm"]()
    runs = [make_run("dgd", 0, n=6, data=dataset)]
    (derived,), (plain,) = (final(runs, model, iterations=STEPS, rule=rule) for rule in (Twice(), Plain()))
    assert torch.equal(derived, plain)
    looks, _, _ = split_up(runs, model, 2, rule=Twice())
    assert (looks[-1][-1] - plain).abs().max() < 1e-12


@settings(max_examples=25, deadline=None)
@given(graphs(least=4), st.integers(2, 4), st.integers(0, 99))
def test_each_row_crosses_once_to_each_rank_that_a_firing_link_leads_to(graph, ranks, seed):
    model, dataset = MODELS["svm"]()
    runs = [make_run("dspodfl", seed, graph=graph, data=dataset)]
    owners = scattered_owners(runs, ranks, seed)
    _, sent, _ = split_up(runs, model, ranks, owners=owners)
    (block,) = Stack(runs).blocks(STEPS, STEPS)
    expected = [0] * ranks
    for fired in block.events(0).v_hat:
        needs = {
            (i, owners[0][j])
            for a, b in graph.edges[fired]
            for i, j in ((a, b), (b, a))
            if owners[0][i] != owners[0][j]
        }
        for i, _ in needs:
            expected[owners[0][i]] += 8 * model.parameters
    assert sent == expected


def test_a_part_holds_no_sample_of_other_clients():
    model, dataset = MODELS["svm"]()
    run = make_run("dgd", 0, n=6, data=dataset)
    (part,) = restrict_to_clients([run.data], [np.array([1, 4])])
    held = np.concatenate([run.data.shards[1], run.data.shards[4]])
    assert len(part.dataset.x_train) == len(held)
    for n, i in enumerate((1, 4)):
        assert np.array_equal(part.dataset.x_train[part.shards[n]], dataset.x_train[run.data.shards[i]])
    k = np.arange(9)
    whole = Problem(model, [(0, run.data)], batch_size=3)
    some = Problem(model, [(0, part)], batch_size=3)
    assert torch.equal(some.x[some.minibatches(k)], whole.x[whole.minibatches(k)[:, [1, 4]]])


def test_shards_of_one_dataset_share_what_is_kept_of_it():
    _, dataset = MODELS["svm"]()
    runs = [make_run("dgd", seed, n=6, data=dataset) for seed in (0, 1)]
    one, two = restrict_to_clients([run.data for run in runs], [np.array([0]), np.array([5])])
    assert one.dataset is two.dataset
    assert replace(one, some=None).number.tolist() == [0]
    assert two.number.tolist() == [5]


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("name", ["svm", "logistic", "cnn"])
def test_on_a_gpu_stacks_can_be_split_as_well(name, rule, ranks, monkeypatch):
    """The fast ways: rows of the others come in between. Threads share the one GPU."""
    model, dataset = MODELS[name]()
    if name == "cnn" and rule != "simultaneous":
        pytest.skip("other rules take gradients by torch.func, which is not for threads")
    chosen, real = [], loop.choose
    monkeypatch.setattr(loop, "choose", lambda *a: chosen.append(real(*a)) or chosen[-1])
    runs = [make_run(algorithm, seed, n=7, data=dataset) for seed, algorithm in enumerate(ALGORITHMS)]
    runs.append(make_run("dspodfl", 9, graph=erdos_renyi(20, 4, p=0.2), data=dataset, refresh=7))
    looks, sent, _ = split_up(runs, model, ranks, rule=rule, dtype=torch.float32, device="cuda")
    assert (min(sent) > 0) == (ranks > 1)
    if rule == "simultaneous":
        assert {type(way).__name__ for way in chosen} == {"CudaNetwork" if name == "cnn" else "CudaLinear"}
    assert_the_same(runs, model, looks, dtype=torch.float32, close=1e-4, rule=rule)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", ["svm", "cnn"])
def test_a_run_that_diverges_on_a_gpu_does_so_on_every_rank(name):
    model, dataset = MODELS[name]()
    runs = [make_run("dgd", 0, n=6, data=dataset), make_run("dgd", 1, n=6, data=dataset, learning_rate=Constant(3e38))]
    looks, _, _ = split_up(runs, model, 2, dtype=torch.float32, device="cuda")
    assert [lost for *_, lost, _ in looks][-1] == [False, True]
    sound = [(k, which[:1], counters[:1], lost[:1], theta) for k, which, counters, lost, theta in looks]
    assert_the_same(runs[:1], model, sound, dtype=torch.float32, close=1e-4)  # numbers near 1e38 say nothing
