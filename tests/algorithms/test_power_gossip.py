"""PowerGossip: rank-one gossip of weight matrices, against a plain loop, and what both ends of a link know."""

import numpy as np
import pytest
import torch
from tests.algorithms.instance import RING, N
from tests.algorithms.listed import random_events, states
from tests.worlds import MODELS, classified, federation
from torch import nn

from dspodfl import rng
from dspodfl.algorithms import bytes_sent, fitted
from dspodfl.algorithms.methods.power_gossip import PowerGossip, matrices
from dspodfl.algorithms.rules import AdaptThenCombine
from dspodfl.problem.models import build, from_module
from dspodfl.rng import Stream

LINK = {(i, j): e for e, (a, b) in enumerate(RING.edges.tolist()) for i, j in ((a, b), (b, a))}
WEIGHT = {(i, j): 1 / (1 + max(RING.degree[i], RING.degree[j])) for i, j in LINK}


def matrix_model(input_shape, outputs):
    return nn.Linear(5, 4, bias=False)


MODEL = from_module(matrix_model, (5,), 4)
DATA = federation(classified((5,), 4), N)
START = torch.from_numpy(np.random.default_rng(0).normal(size=(N, 20)))


def consensus(rule, iterations, share=1.0, model=MODEL, data=DATA, start=START):
    """Models and link memory after each iteration, without gradients."""
    v = np.zeros((iterations, N), dtype=bool)
    return states(rule, v, random_events(iterations, share=share)[1], model=model, data=data, start=start)


def spread(theta):
    return float((theta - theta.mean(dim=0)).norm())


def loop(shapes, v_hat, start):
    """Gossip without gradients in dictionaries: a vector and a turn for each link and matrix."""
    theta = {i: [part.numpy().copy() for part in cut(start[i], shapes)] for i in range(N)}
    vector, turn = {}, {}
    for k in range(len(v_hat)):
        add = {i: [np.zeros_like(part) for part in theta[i]] for i in theta}
        for e, (i, j) in enumerate(RING.edges.tolist()):
            if not v_hat[k, e]:
                continue
            for n, shape in enumerate(shapes):
                gap, r = theta[j][n] - theta[i][n], WEIGHT[i, j]
                if len(shape) > 1 and min(shape) > 1:
                    if (e, n) not in vector:
                        begin = rng.normal(0, Stream.COMPRESS, 0, 1 + n, count=max(shape))[: shape[1]]
                        vector[e, n], turn[e, n] = begin / np.linalg.norm(begin), 0
                    q = vector[e, n]
                    u = gap @ q if turn[e, n] % 2 == 0 else gap.T @ q
                    gap = np.outer(u, q) if turn[e, n] % 2 == 0 else np.outer(q, u)
                    vector[e, n], turn[e, n] = u / np.linalg.norm(u), turn[e, n] + 1
                add[i][n] += r * gap
                add[j][n] -= r * gap
        theta = {i: [a + b for a, b in zip(theta[i], add[i], strict=True)] for i in theta}
    return np.stack([np.concatenate([part.ravel() for part in theta[i]]) for i in range(N)])


def cut(row, shapes):
    parts = torch.split(row, [int(np.prod(shape)) for shape in shapes])
    return [part.reshape(shape) for part, shape in zip(parts, shapes, strict=True)]


@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_it_is_its_plain_loop_with_biases_as_they_are(name):
    model, data = MODELS[name]()
    start = torch.randn(N, model.parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    found = consensus(PowerGossip(), 50, 0.5, model, federation(data, N), start)[-1][0]
    expected = loop([tuple(shape) for shape in model.shapes.values()], random_events(50, share=0.5)[1], start)
    assert np.abs(found.numpy() - expected).max() < 1e-10


def test_the_mean_stays_to_the_last_digit():
    found = consensus(PowerGossip(), 300, 0.5)
    assert (found[-1][0].mean(dim=0) - START.mean(dim=0)).abs().max() < 1e-15


def test_consensus_is_slower_than_with_whole_models_and_as_cheap_by_numbers_sent():
    power, whole = (
        consensus(rule, iterations) for rule, iterations in ((PowerGossip(), 600), (AdaptThenCombine(), 135))
    )
    assert 2e-2 < spread(power[100][0]) < 2e-1
    assert spread(whole[100][0]) < 2e-7
    assert spread(power[600][0]) < 3e-10  # 600 × 4.5 numbers
    assert 1e-11 < spread(whole[135][0]) < 1e-9  # 135 × 20 numbers


def test_both_ends_of_a_link_know_the_same_vector_of_length_1_and_the_same_turn():
    for after in consensus(PowerGossip(), 40, 0.5)[10:]:
        vector, turn, side = after.ends.values()
        assert torch.equal(vector[0::2], vector[1::2])
        assert torch.equal(turn[0::2], turn[1::2])
        assert torch.equal(side[0::2], -side[1::2])
        fired = turn > 0
        assert ((vector.norm(dim=1) - 1).abs() < 1e-12)[fired].all()


def test_the_turn_is_that_of_the_link_and_advances_when_it_fires():
    v_hat, found = random_events(30, share=0.5)[1], consensus(PowerGossip(), 30, 0.5)
    for k in range(30):
        uses = v_hat[: k + 1].sum(axis=0)
        expected = np.where(uses == 0, 0, 2 - uses % 2)
        assert found[k + 1][2]["rule.1"][0::2].tolist() == expected.tolist()


def test_equal_models_that_part_later_find_each_other_again():
    """Where u = 0 the vector would be lost: 0 in place of a unit vector."""
    equal = START[:1].expand(N, -1).clone()
    found = consensus(PowerGossip(), 5, start=equal)
    vector = found[-1][2]["rule.0"]
    assert ((vector.norm(dim=1) - 1).abs() < 1e-12).all()
    v = np.zeros((400, N), dtype=bool)
    v[5, 0] = True  # one step of one client parts them
    theta = states(PowerGossip(), v, np.ones((400, RING.links), dtype=bool), model=MODEL, data=DATA, start=equal)
    assert spread(theta[6][0]) > 1e-3
    assert spread(theta[-1][0]) < 1e-6


def test_models_without_matrices_are_gossiped_as_they_are():
    model, data = build("linear", (6,), 1), MODELS["linear"]()[1]
    start = torch.randn(N, model.parameters, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    one, other = (
        states(rule, *random_events(50), model=model, data=federation(data, N), start=start)[-1][0]
        for rule in (PowerGossip(), AdaptThenCombine())
    )
    assert (one - other).abs().max() < 1e-12


SHAPES = ((4, 5), (4,), (3, 2, 2, 2), (3,), (1, 3))


def test_bytes_are_the_mean_of_rows_and_columns_and_all_that_is_no_matrix():
    p = 20 + 4 + 24 + 3 + 3
    assert [(m.rows, m.columns) for m in matrices(SHAPES)] == [(4, 5), (3, 8)]
    assert bytes_sent(fitted(PowerGossip(), SHAPES), p) == 4 * (4 + 3 + 3) + 4 * (4 + 5 + 3 + 8) / 2
    assert bytes_sent(PowerGossip(), p) == 4 * p  # it does not know the shapes


def test_a_rule_that_knows_the_shapes_does_the_same_with_less_memory():
    shapes = ((4, 5),)
    known = consensus(fitted(PowerGossip(), shapes), 30, 0.5)[-1]
    unknown = consensus(PowerGossip(), 30, 0.5)[-1]
    assert torch.equal(known[0], unknown[0])
    assert known[2]["rule.0"].shape[1] == 5 < unknown[2]["rule.0"].shape[1]
