"""CHOCO: compressed differences with replicas at the ends of links, against plain loops with dictionaries."""

import math

import numpy as np
import pytest
import torch
from tests.algorithms import instance
from tests.algorithms.instance import RING, N
from tests.algorithms.listed import random_events, states, still
from tests.worlds import final, make_run, scattered

from dspodfl import rng
from dspodfl.algorithms import Algorithm, Arc, PerLink, bytes_sent, make
from dspodfl.algorithms.compressors import COMPRESSORS, contraction
from dspodfl.algorithms.methods.choco import Choco
from dspodfl.algorithms.rules import AdaptThenCombine
from dspodfl.errors import InputError
from dspodfl.network.laws import FixedValues
from dspodfl.rng import Stream

NEIGHBOURS = {
    i: sorted({*RING.edges[RING.edges[:, 0] == i, 1], *RING.edges[RING.edges[:, 1] == i, 0]}) for i in range(N)
}
WEIGHT = {(i, j): 1 / (1 + max(len(NEIGHBOURS[i]), len(NEIGHBOURS[j]))) for i in range(N) for j in NEIGHBOURS[i]}
LINK = {(i, j): e for e, (a, b) in enumerate(RING.edges.tolist()) for i, j in ((a, b), (b, a))}


def largest(x, k, by=None):
    by = np.abs(x) if by is None else by
    keep = sorted(range(len(x)), key=lambda n: (-by[n], n))[:k]
    return np.array([x[n] if n in keep else 0.0 for n in range(len(x))])


def rounded(x, words, s=3):
    norm, omega = math.sqrt((x**2).sum()), min(len(x) / s**2, math.sqrt(len(x)) / s)
    out = []
    for value, word in zip(x, words, strict=True):
        level = s * abs(value) / norm if norm else 0.0
        level = math.floor(level) + (word < math.floor((level - math.floor(level)) * 2**32))
        out.append(math.copysign(norm * level / s, value))
    return np.array(out) / (1 + omega)


COMPRESS = {
    "top_k": lambda x, words: largest(x, 1),
    "random_k": lambda x, words: largest(x, 1, words),
    "qsgd": rounded,
    "sign": lambda x, words: np.where(x < 0, -1, 1) * np.abs(x).mean(),
}
SETTINGS = {"top_k": {"share": 0.3}, "random_k": {"share": 0.3}, "qsgd": {"levels": 3}, "sign": {}}


def gradient(i, theta):
    return (instance.X[i] @ theta - instance.Y[i]) * instance.X[i] + instance.L2 * theta


def loop(compress, gamma, v, v_hat, start, alpha):
    """CHOCO with what i has told j in a dictionary by (i, j)."""
    theta = {i: start[i].numpy().copy() for i in range(N)}
    told = {link: np.zeros(len(theta[0])) for link in LINK}
    for k in range(len(v)):
        half = {i: theta[i] - alpha * gradient(i, theta[i]) if v[k, i] else theta[i] for i in theta}
        words = {i: rng.words(0, Stream.COMPRESS, i, k=k, slots=len(half[i])) for i in theta}
        firing = [link for link in LINK if v_hat[k, LINK[link]]]
        for i, j in firing:
            told[i, j] = told[i, j] + compress(half[i] - told[i, j], words[i])
        theta = {
            i: half[i]
            + sum(gamma * WEIGHT[i, j] * (told[j, i] - told[i, j]) for j in NEIGHBOURS[i] if (i, j) in firing)
            for i in theta
        }
    return np.stack([theta[i] for i in range(N)])


@pytest.mark.parametrize("name", COMPRESS)
def test_it_is_its_plain_loop(name):
    v, v_hat = random_events(50)
    start = scattered(instance.MODEL, N, 0, torch.float64)
    found = states(Choco(name, **SETTINGS[name], gamma=0.3), v, v_hat, start=start)[-1][0]
    assert np.abs(found.numpy() - loop(COMPRESS[name], 0.3, v, v_hat, start, 0.05)).max() < 1e-10


SPORADIC = {"d": instance.D.tolist(), "b": instance.B.tolist()}


def test_the_identity_with_gamma_1_is_adapt_then_combine_to_the_bit():
    one, other = (instance.models(rule, iterations=200, **SPORADIC) for rule in (Choco("identity"), AdaptThenCombine()))
    assert torch.equal(one, other)


def test_all_numbers_sent_as_differences_with_gamma_1_is_adapt_then_combine():
    one, other = (
        instance.models(rule, iterations=200, **SPORADIC) for rule in (Choco(share=1.0, gamma=1.0), AdaptThenCombine())
    )
    assert (one - other).abs().max() < 1e-12


def test_the_identity_goes_a_share_gamma_of_the_way():
    one, other = (
        instance.models(rule, iterations=200, **SPORADIC)
        for rule in (Choco("identity", gamma=0.4), Choco(share=1.0, gamma=0.4))
    )
    assert (one - other).abs().max() < 1e-12


@pytest.mark.parametrize(("alpha", "expected"), [(0.01, 0.148), (0.005, 0.080)])
def test_it_stalls_at_a_distance_that_falls_with_the_step_size(alpha, expected):
    theta = instance.models(Choco(share=1 / 3, gamma=0.4), alpha=alpha, iterations=3000)
    assert instance.error(theta) == pytest.approx(expected, abs=5e-4)


@pytest.mark.parametrize(("alpha", "expected"), [(0.01, 0.319), (0.005, 0.191)])
def test_with_sporadic_links_it_stalls_further_away(alpha, expected):
    theta = instance.models(Choco(share=1 / 3, gamma=0.4), alpha=alpha, iterations=3000, b=SPORADIC["b"])
    assert instance.error(theta) == pytest.approx(expected, rel=0.15)  # it goes on moving: links are random


# --- consensus: no gradients, vectors of 20, top 2 ------------------------------------------------------------------

START = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 20)))


def spread(theta):
    theta = torch.as_tensor(theta)
    return float((theta - theta.mean(dim=0)).norm())


def consensus(iterations, *, sporadic=True, **settings):
    model, data = still(20)
    b = FixedValues(instance.B.tolist() if sporadic else 1.0)
    run = make_run("dspodfl", 1, data=data, graph=RING, link=b)
    return final([run], model, iterations=iterations, rule=Choco(**settings), initial=[START])[0]


def test_under_sporadic_links_models_reach_the_mean_of_the_beginning():
    theta = consensus(2000, share=0.1, gamma=0.2)
    assert (theta - START.mean(dim=0)).abs().max() < 2e-12


@pytest.mark.parametrize("gamma", [0.1, 0.2])
def test_top_2_of_20_converges_where_gamma_is_small(gamma):
    assert spread(consensus(800, sporadic=False, share=0.1, gamma=gamma)) < 1e-3


def test_top_2_of_20_diverges_at_a_gamma_of_three_tenths():
    assert spread(consensus(1500, sporadic=False, share=0.1, gamma=0.3)) > 100


def test_gamma_is_the_kept_share_by_default():
    assert torch.equal(consensus(50, share=0.1), consensus(50, share=0.1, gamma=0.1))


def mutant(iterations, gamma, change):
    """Consensus by a wrong version, in a plain loop: change(x, memory, firing) gives what each client adds."""
    random = np.random.default_rng(1)
    x, memory = START.numpy().copy(), {}
    for _ in range(iterations):
        v_hat = random.random(RING.links) < instance.B
        firing = [link for link in LINK if v_hat[LINK[link]]]
        x = x + gamma * change(x, memory, firing)
    return x


def one_replica_a_client(x, memory, firing):
    """The papers' form, with a replica that all neighbours are assumed to have, and sums of received messages."""
    own, received = (memory.setdefault(key, np.zeros_like(x)) for key in ("own", "received"))
    message = np.stack([largest(row, 2) for row in x - own])
    own += message
    share = np.eye(N)
    for i, j in firing:
        share[i, j], share[i, i] = WEIGHT[i, j], share[i, i] - WEIGHT[i, j]
    received += share @ message
    return received - own


def models_compressed_themselves(x, memory, firing):
    """No memory: what is sent is the model, compressed."""
    message = np.stack([largest(row, 2) for row in x])
    return np.stack(
        [sum(WEIGHT[i, j] * (message[j] - message[i]) for a, j in firing if a == i) + 0 * x[i] for i in range(N)]
    )


def test_one_replica_a_client_does_not_reach_consensus_where_links_are_sporadic():
    assert spread(mutant(2000, 0.2, one_replica_a_client)) > spread(START)


def test_compressing_models_themselves_stalls():
    late, later = (spread(mutant(iterations, 0.2, models_compressed_themselves)) for iterations in (3000, 4000))
    assert late > 1
    assert later == pytest.approx(late, rel=0.2)


# --- rows that are padded, as on a GPU ------------------------------------------------------------------------------


class Backwards:
    """Rows have their four numbers backwards, and two columns of padding."""

    parameters = 4

    def flat(self, x):
        return x[:, :4].flip(1)

    def packed(self, x):
        return torch.cat([x.flip(1), x.new_zeros(len(x), 2)], dim=1)


class Padded:
    """An iteration of two clients and a link that fires."""

    layout = Backwards()
    k, v, lr = 0, torch.ones(2, 1), torch.ones(2, 1)

    def gradient(self, x, scale):
        return torch.zeros_like(x)

    def words(self, stream, slots):
        return rng.words(0, stream, torch.arange(2), slots=slots)

    def exchange(self, x, send, receive, memory):
        message = send(x, memory.rows)
        half = torch.full((2, 1), 0.5)
        added, new = receive(x, message, message.flip(0), memory.rows, Arc(half, half, half, None))
        return added, PerLink(new)


@pytest.mark.parametrize(
    "rule", [Choco(share=0.5), Choco("random_k", share=0.5), Choco("qsgd"), Choco("sign")], ids=repr
)
def test_padding_is_neither_counted_nor_sent(rule):
    theta = Padded.layout.packed(torch.tensor([[1.0, -2.0, 2.0, 0.5], [0.0, 3.0, 1.0, -1.0]]))
    new, told = rule.step(theta, rule.init(theta, 1), Padded())
    q = COMPRESSORS[rule.compressor](**({"share": 0.5} if rule.share else {}))
    flat = Padded.layout.flat(theta)
    message = contraction(q, flat, Padded().words(Stream.COMPRESS, max(q.slots(4), 1)))
    change = q.delta(4) * 0.5 * (message.flip(0) - message)
    assert torch.allclose(new, theta + Padded.layout.packed(change), atol=1e-7)
    assert all(a.shape == (2, 6) and not a[:, 4:].any() for a in told.rows)


# --- settings and bytes ---------------------------------------------------------------------------------------------


def test_it_sends_what_its_compressor_sends():
    rules = [Choco(), Choco("random_k", share=0.05), Choco("qsgd"), Choco("sign"), Choco("identity")]
    assert [bytes_sent(rule, 1000) for rule in rules] == [800, 200, 4 + 631, 4 + 125, 4000]


@pytest.mark.parametrize(
    "settings",
    [
        {"compressor": "zip"},
        {"compressor": ["top_k"]},
        {"share": 0},
        {"share": 1.5},
        {"levels": 0, "compressor": "qsgd"},
        {"levels": True, "compressor": "qsgd"},
        {"gamma": 0},
        {"gamma": 1.01},
        {"gamma": "large"},
        {"gama": 0.5},
        {"share": 0.5, "compressor": "qsgd"},
        {"levels": 4},
    ],
)
def test_bad_settings_are_refused_by_their_key(settings):
    with pytest.raises(InputError) as caught:
        make(Algorithm("mine", schedule="choco", rule="choco", settings=settings))
    assert caught.value.field in {f"algorithms.settings.{key}" for key in settings}


def test_a_rule_that_is_made_in_python_is_checked_too():
    with pytest.raises(InputError, match="gamma"):
        Choco(gamma=2.0)
    with pytest.raises(InputError, match="compressor"):
        Choco("zip")
