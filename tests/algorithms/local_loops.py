"""What rules and plain loops are compared on: the instance with listed events, and gradients client by client."""

import numpy as np
import torch
from tests.algorithms import instance
from tests.algorithms.instance import EDGES, RING, N
from tests.worlds import make_run, scattered

from dspodfl.algorithms import Constant
from dspodfl.engine import Stack, simulate
from dspodfl.network import Events
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem

DEGREE = {i: sum(i in edge for edge in EDGES) for i in range(N)}


def events(iterations, share=0.5):
    """Random v (iterations, 8) and v̂ (iterations, 10)."""
    random = np.random.default_rng(0)
    return random.random((iterations, N)) < share, random.random((iterations, len(EDGES))) < share


def states(rule, v, v_hat, *, start=None, alpha=0.05, gradients=True):
    """Models and the rule's tensors, before the first iteration and after each, in float64; gradients may all be 0."""
    model, data = (instance.MODEL, instance.DATA) if gradients else _still()

    def schedule(k, part, rates):
        return Events(v[k], v_hat[k])

    run = make_run("dspodfl", 0, data=data, graph=RING, schedule=schedule, learning_rate=Constant(alpha))
    start = scattered(model, N, 0, torch.float64) if start is None else start
    problem = Problem(model, [(0, data)], batch_size=1, dtype=torch.float64)
    found = []
    for shot in simulate(Stack([run]), problem, rule, start.clone(), iterations=len(v), every=1):
        (piece,) = shot.state.pieces()
        state = [values.clone() for name, values in piece.clients.items() if name.startswith("rule.")]
        found.append((piece.clients["theta"].clone(), state))
    assert len(found) == len(v) + 1
    return found


def _still(p=3):
    x, y = np.zeros((N, p), dtype=np.float32), np.zeros(N, dtype=np.float32)
    data = Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(N)[:, None]), {})
    return build("linear", (p,), 1), data


def beginning():
    """Some models of all clients. Shape: (8, 3)."""
    return torch.randn(N, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))


def gradient(i, theta):
    """∇F_i of the instance at a model. Shape: (3,)."""
    x = instance.X[i]
    return x * (x @ theta - instance.Y[i]) + instance.L2 * theta


def mixed(models, fired):
    """P applied to a dictionary of models, link by link."""
    out = dict(models)
    for i, j in fired:
        r = 1 / (1 + max(DEGREE[i], DEGREE[j]))
        out[i], out[j] = out[i] + r * (models[j] - models[i]), out[j] + r * (models[i] - models[j])
    return out
