"""Events that are listed, and what a rule makes of them; clients without gradients."""

from functools import cache

import numpy as np
from tests.algorithms.instance import DATA, MODEL, RING, N
from tests.worlds import make_run

from dspodfl.algorithms import Constant
from dspodfl.engine import Stack, simulate
from dspodfl.network import Events
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build
from dspodfl.problem.problem import Problem


def random_events(iterations, seed=0, share=0.5):
    """v (iterations, 8) and v̂ (iterations, 10) of the instance."""
    random = np.random.default_rng(seed)
    return random.random((iterations, N)) < share, random.random((iterations, RING.links)) < share


def states(rule, v, v_hat, start, alpha=0.05):
    """Models and the first tensor of the state before and after every iteration of listed events, in float64."""
    run = make_run(
        data=DATA,
        graph=RING,
        schedule=lambda k, part, rates: Events(v[k], v_hat[k]),
        learning_rate=Constant(alpha),
    )
    problem = Problem(MODEL, [(0, DATA)], batch_size=1, dtype=start.dtype)
    found = []
    for shot in simulate(Stack([run]), problem, rule, start, iterations=len(v), every=1):
        (piece,) = shot.state.pieces()
        state = piece.clients.get("rule.0")
        found.append((piece.clients["theta"].clone(), None if state is None else state.clone()))
    return found


@cache
def still(p=5):
    """Clients whose gradients are all 0. Gives a model and a federation of 8 clients."""
    x, y = np.zeros((N, p), dtype=np.float32), np.zeros(N, dtype=np.float32)
    data = Federation(Dataset.from_arrays(x, y, x, y), tuple(np.arange(N)[:, None]), {})
    return build("linear", (p,), 1), data
