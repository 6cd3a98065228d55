"""Attackers: what honest clients receive, and what no attack changes."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
import pytest
import torch
from tests.algorithms.attacked import (
    ATTACKERS,
    COMPLETE,
    HONEST,
    START,
    N,
    P,
    consensus,
    offset,
    spread,
)
from tests.algorithms.listed import Listed, random_events, still
from tests.engine.test_sharded import assert_the_same, split_up
from tests.engine.test_state import assert_any_state_is_gone_on_from
from tests.worlds import MODELS, advance, erdos_renyi, final, make_run

from dspodfl import rng
from dspodfl.algorithms import ATTACKS, Attack, sends_models
from dspodfl.algorithms.attacks import Alie, Dissensus, Ipm, LabelFlip, Noise, SignFlip, alie
from dspodfl.algorithms.methods.bridge import Bridge
from dspodfl.algorithms.methods.clipped_gossip import ClippedGossip
from dspodfl.algorithms.methods.gradient_tracking import Tracking
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Stack
from dspodfl.errors import InputError
from dspodfl.network import Graph, WeightedTopology
from dspodfl.network.topology import Static
from dspodfl.rng import Stream

KINDS = [Alie(1.0), SignFlip(), Noise(0.5), Ipm(0.3), Dissensus(1.2)]
RULES_UNDER_ATTACK = ["simultaneous", "adapt_then_combine", ClippedGossip(delta=0.3, beta=0.5), Bridge()]


def attacker_sends(kind, x, i, j, k, neighbours, weight, attackers):
    """What attacker j sends to honest client i, from dictionaries."""
    honest = [h for h in neighbours[i] if h not in attackers]
    around = np.stack([x[i], *(x[h] for h in honest)])
    if isinstance(kind, Alie):
        return around.mean(axis=0) - kind.z * around.std(axis=0)
    if isinstance(kind, SignFlip):
        return -x[j]
    if isinstance(kind, Noise):
        return kind.std * rng.normal(0, Stream.ATTACK, j, k=k, count=x.shape[1])
    if isinstance(kind, Ipm):
        return -kind.epsilon * around.mean(axis=0)
    pull = sum((weight[i, h] * (x[h] - x[i]) for h in honest), np.zeros(x.shape[1]))
    return x[i] - kind.epsilon * pull / sum(weight[i, b] for b in neighbours[i] if b in attackers)


def plain_loop(kind, graph, v_hat, start, attackers, combine):
    """Gossip without gradients, client by client; ``combine`` makes a new model of the own one and what it receives."""
    x = start.numpy().copy()
    weights = WeightedTopology(Static(graph), "metropolis").at(np.zeros(1, dtype=np.int64))[1][0]
    for k in range(len(v_hat)):
        neighbours, weight = {i: [] for i in range(graph.n)}, {}
        for e, (i, j) in enumerate(graph.edges.tolist()):
            if v_hat[k, e]:
                neighbours[i].append(j)
                neighbours[j].append(i)
                weight[i, j] = weight[j, i] = weights[e]
        new = x.copy()
        for i in range(graph.n):
            sent = {
                j: attacker_sends(kind, x, i, j, k, neighbours, weight, attackers)
                if j in attackers and i not in attackers
                else x[j]
                for j in neighbours[i]
            }
            new[i] = combine(x[i], sent, {j: weight[i, j] for j in neighbours[i]})
        x = new
    return torch.from_numpy(x)


def averaged(own, sent, weight):
    return own + sum((weight[j] * (sent[j] - own) for j in sent), np.zeros_like(own))


def trimmed(own, sent, weight):
    if len(sent) < 3:
        return own
    return np.concatenate([np.sort(np.stack(list(sent.values())), axis=0)[1:-1], own[None]]).mean(axis=0)


def clipped(own, sent, weight):
    return averaged(own, {j: own + min(1, 0.4 / np.linalg.norm(m - own)) * (m - own) for j, m in sent.items()}, weight)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: type(kind).__name__)
@pytest.mark.parametrize(
    ("rule", "combine"),
    [("adapt_then_combine", averaged), (ClippedGossip(tau=0.4), clipped), (Bridge(1), trimmed)],
    ids=["mix", "exchange", "around"],
)
def test_honest_clients_receive_what_a_plain_loop_says(kind, rule, combine):
    graph, attackers = erdos_renyi(N, 1, p=0.7), (2, 6)
    v, v_hat = random_events(30, graph=graph, share=0.7)
    found = consensus(rule, kind, rounds=30, graph=graph, attackers=attackers, schedule=Listed(v, v_hat))
    expected = plain_loop(kind, graph, v_hat, START, attackers, combine)
    assert (found - expected).abs().max() < 1e-10 * max(1.0, float(expected.abs().max()))


def test_attackers_themselves_are_told_the_truth():
    """Without a link that fires between attackers and the others, nothing of an attack is seen."""
    v, v_hat = random_events(20, graph=COMPLETE)
    inside = np.isin(COMPLETE.edges, ATTACKERS)
    v_hat[:, inside[:, 0] != inside[:, 1]] = False
    schedule = Listed(v, v_hat)
    honest, attacked = (
        consensus("adapt_then_combine", kind, rounds=20, schedule=schedule) for kind in (None, SignFlip())
    )
    assert (honest - attacked).abs().max() < 1e-15
    assert (honest - START)[8:].abs().max() > 0.1


def test_dissensus_of_one_takes_back_what_the_honest_add():
    found = consensus("adapt_then_combine", Dissensus(1.0), rounds=50)
    assert (found - START)[HONEST].abs().max() < 1e-13
    assert (consensus("adapt_then_combine", Dissensus(0.9), rounds=50) - START)[HONEST].abs().max() > 0.1


def test_dissensus_drives_plain_averaging_apart_and_not_adaptive_clipping():
    assert spread(consensus("adapt_then_combine", Dissensus(1.5))) == pytest.approx(8e29, rel=0.06)
    assert spread(consensus(ClippedGossip(delta=0.2), Dissensus(1.5))) < 6e-16


def test_where_one_attacker_outweighs_the_honest_neighbours_adaptive_clipping_cannot_help():
    ring = Graph.from_edges(N, [(i, i + 1) for i in range(N - 1)] + [(0, N - 1)])
    start = spread(START)
    kept = consensus(ClippedGossip(delta=0.2), Dissensus(1.5), graph=ring, rounds=60)
    assert spread(consensus(ClippedGossip(delta=0.2), None, graph=ring, rounds=60)) < start
    assert (kept[[0, 7]] - kept[HONEST].mean(dim=0)).norm() > (START[[0, 7]] - START[HONEST].mean(dim=0)).norm()


@dataclass(frozen=True)
class Huge:
    """One huge value in all coordinates."""

    alters_data = False
    by_receiver = False

    def messages(self, x, attacker, at):
        return torch.full_like(x, 1000.0)


OFFSETS = [
    ("adapt_then_combine", 0.32, 2000),
    (ClippedGossip(tau=0.3), 0.37, 12),
    (ClippedGossip(delta=0.2), 0.36, 0.81),
    (Bridge(2), 0.54, 0.72),
]


@pytest.mark.parametrize(("rule", "little", "huge"), OFFSETS, ids=["plain", "fixed", "adaptive", "trimmed"])
def test_a_little_moves_robust_methods_further_and_a_huge_value_moves_plain_averaging_away(rule, little, huge):
    assert offset(consensus(rule, Alie(1.0))) == pytest.approx(little, abs=0.005)
    assert offset(consensus(rule, Huge())) == pytest.approx(huge, rel=0.005)


def test_z_of_alie_is_that_of_its_authors():
    assert alie(50, 12).z == NormalDist().inv_cdf((50 - 12 - 14) / (50 - 12))
    assert alie(10, 2).z == 0 and alie(10, 2, z=1.5) == Alie(1.5)
    for count, attackers in ((2, 1), (8, 7)):
        with pytest.raises(InputError, match=r"attack.z = None: must be given"):
            alie(count, attackers)


def test_noise_is_addressed_by_attacker_and_iteration():
    """Of a client that hears one attacker alone, and takes half of what it hears."""
    pair = Graph.from_edges(2, [(0, 1)])
    found = [
        consensus("adapt_then_combine", Noise(2.0), rounds=k, graph=pair, attackers=(1,), start=START[:2])[0]
        for k in (1, 2)
    ]
    said = torch.from_numpy(2.0 * rng.normal(0, Stream.ATTACK, 1, k=np.arange(2), count=4))
    assert (found[0] - (START[0] + said[0]) / 2).abs().max() < 1e-12
    assert (found[1] - (found[0] + said[1]) / 2).abs().max() < 1e-12


def test_noise_is_in_the_order_of_parameters_however_models_are_packed():
    model, data = MODELS["svm"]()
    attack = Attack((1,), Noise(1.0))
    run = make_run("dgd", 3, graph=Graph.from_edges(2, [(0, 1)]), data=data, attack=attack)
    run = type(run)(**{**vars(run), "learning_rate": lambda k: np.zeros(np.shape(k))})
    start = torch.zeros(2, model.parameters, dtype=torch.float64)
    (found,) = final([run], model, iterations=1, initial=[start])
    said = rng.normal(3, Stream.ATTACK, 1, k=0, count=model.parameters)
    assert (found[0] - torch.from_numpy(said) / 2).abs().max() < 1e-12


def runs_of(kind, n=7):
    _, data = MODELS["svm"]()
    return [
        make_run(name, seed, n=n, data=data, attack=Attack((1, 4), kind)) for seed, name in enumerate(("dgd", "rg"))
    ]


def pairs(short):
    """Every kind with every rule; all but some of them are for the long tests."""
    for k, kind in enumerate(KINDS):
        for r, rule in enumerate(RULES_UNDER_ATTACK):
            marks = () if short(k, r) else pytest.mark.long
            yield pytest.param(kind, rule, id=f"{type(kind).__name__}-{rule}", marks=marks)


@pytest.mark.parametrize(("kind", "rule"), list(pairs(lambda k, r: k == 0 or r == k % len(RULES_UNDER_ATTACK))))
def test_stacked_is_alone_and_split_over_ranks_is_whole(kind, rule):
    model, _ = MODELS["svm"]()
    runs = runs_of(kind)
    for run, found in zip(runs, final(runs, model, iterations=30, rule=rule), strict=True):
        (alone,) = final([run], model, iterations=30, rule=rule)
        assert (alone - found).abs().max() < 1e-12
    looks, _, _ = split_up(runs, model, 3, rule=rule)
    assert_the_same(runs, model, looks, rule=rule, close=1e-9)


@pytest.mark.parametrize(
    ("kind", "rule"), list(zip([Alie(1.0), Noise(0.5)] * 2, RULES_UNDER_ATTACK, strict=True)), ids=str
)
def test_resumed_anywhere_is_in_one_go_to_the_last_bit(kind, rule):
    model, _ = MODELS["svm"]()
    assert_any_state_is_gone_on_from(runs_of(kind), model, rule=rule)


def test_an_attack_on_labels_changes_nothing_that_is_sent():
    model, _ = MODELS["svm"]()
    runs = runs_of(LabelFlip())
    honest = [type(run)(**{**vars(run), "attack": None}) for run in runs]
    ends = (final(some, model, iterations=30, rule="adapt_then_combine") for some in (runs, honest))
    for one, other in zip(*ends, strict=True):
        assert torch.equal(one, other)


def test_runs_under_different_attacks_do_not_advance_together():
    runs = runs_of(SignFlip())[:1] + runs_of(Noise())[1:]
    model, _ = MODELS["svm"]()
    with pytest.raises(InputError, match=r"attack = 'of several kinds'"):
        advance(runs, model, iterations=1)
    assert Stack(runs).attackers(np.arange(14)).nonzero()[0].tolist() == [1, 4, 8, 11]


def test_honest_clients_are_the_others():
    _, data = still(P, N)
    run = make_run("dspodfl", 0, data=data, graph=COMPLETE, attack=Attack(ATTACKERS, SignFlip()))
    assert run.honest.tolist() == list(range(8))
    assert make_run("dspodfl", 0, data=data, graph=COMPLETE).honest.tolist() == list(range(N))


def test_rules_say_whether_they_send_models_alone():
    assert all(sends_models(rule) for rule in RULES.values())
    assert sends_models(Bridge()) and sends_models(ClippedGossip()) and not sends_models(Tracking())

    class Other(ClippedGossip):
        def step(self, theta, state, at):
            return theta, state

    assert not sends_models(Other())


def test_every_attack_is_registered():
    assert list(ATTACKS) == ["alie", "sign_flip", "noise", "ipm", "label_flip", "dissensus"]


@dataclass(frozen=True)
class SampleDeviation(Alie):
    """A plausible wrong version: the standard deviation of a sample."""

    def messages(self, x, attacker, at):
        mean = Ipm(-1.0).messages(x, attacker, at)
        return mean + (8 / 7) ** 0.5 * (super().messages(x, attacker, at) - mean)


@dataclass(frozen=True)
class Without(Dissensus):
    """A plausible wrong version: it divides by the weight of one attacker, although two send."""

    def messages(self, x, attacker, at):
        return x + 2 * (super().messages(x, attacker, at) - x)


def test_plausible_wrong_attacks_end_elsewhere():
    assert offset(consensus("adapt_then_combine", SampleDeviation(1.0))) == pytest.approx(0.34, abs=0.005)
    assert (consensus("adapt_then_combine", Without(1.0), rounds=50) - START)[HONEST].abs().max() > 0.1


@dataclass(frozen=True)
class Nearest(ClippedGossip):
    """A plausible wrong version of the adaptive τ: the neighbour itself counts among those beyond it."""

    sends_models = True

    def _adaptive(self, half, at):
        from dataclasses import replace

        return replace(ClippedGossip(), delta=self.delta - 0.1)._adaptive(half, at)

    def step(self, theta, state, at):
        return super().step(theta, state, at)


def test_an_adaptive_tau_that_is_one_neighbour_too_far_drifts_further():
    rule = Nearest(delta=0.2)
    assert offset(consensus(rule, Huge())) > 10 * 0.81
