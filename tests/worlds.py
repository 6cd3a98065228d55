"""Small worlds to test in: graphs, data, runs and what the engine makes of them. Everything follows from a seed."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from hypothesis import strategies as st
from torch import nn

from dspodfl.algorithms import PAPER, named, own_graph, own_topology
from dspodfl.algorithms.learning_rate import Constant
from dspodfl.algorithms.rules import RULES
from dspodfl.engine import Counters, Run, Stack, simulate
from dspodfl.network import Graph, generate
from dspodfl.network.laws import Uniform
from dspodfl.network.rates import Rates
from dspodfl.network.topology import Static, WeightedTopology
from dspodfl.problem.data.dataset import Dataset, Federation
from dspodfl.problem.models import build, from_module
from dspodfl.problem.problem import Problem

ALGORITHMS = PAPER
BATCH = 4


# --- graphs ---------------------------------------------------------------------------------------------------


def pairs(n):
    return [(i, j) for i in range(n) for j in range(i + 1, n)]


@st.composite
def graphs(draw, least=1, most=8):
    """Any graph, connected or not."""
    n = draw(st.integers(least, most))
    every = pairs(n)
    return Graph.from_edges(n, draw(st.sets(st.sampled_from(every))) if every else [])


@st.composite
def subsets(draw, n, least=0):
    """Some of n clients."""
    return sorted(draw(st.sets(st.integers(0, n - 1), min_size=least)))


@st.composite
def cuts(draw, length):
    """0 … length cut into consecutive blocks, as (start, end)."""
    inner = draw(st.sets(st.integers(1, length - 1))) if length > 1 else set()
    ends = [0, *sorted(inner), length]
    return list(pairwise(ends))


def erdos_renyi(n, seed, p=0.5):
    return generate("erdos_renyi", n, seed, p=p)


# --- data and models ------------------------------------------------------------------------------------------


def classified(shape=(6,), classes=3, seed=0, samples=60, test_samples=25):
    """Random inputs with random labels, every class present."""
    random = np.random.default_rng(seed)
    x, x_test = (random.normal(size=(count, *shape)).astype(np.float32) for count in (samples, test_samples))
    y, y_test = (random.permutation(np.arange(count) % classes) for count in (samples, test_samples))
    return Dataset.from_arrays(x, y, x_test, y_test)


def regression(features=6, seed=0, samples=60, test_samples=25):
    """Random inputs with random targets."""
    random = np.random.default_rng(seed)
    x, x_test = (random.normal(size=(count, features)).astype(np.float32) for count in (samples, test_samples))
    y, y_test = (random.normal(size=count).astype(np.float32) for count in (samples, test_samples))
    return Dataset.from_arrays(x, y, x_test, y_test)


def federation(dataset, clients, seed=0):
    """The samples dealt at random to clients, unevenly, at least one each."""
    random = np.random.default_rng(seed)
    order = random.permutation(len(dataset.x_train))
    ends = np.sort(random.choice(np.arange(1, len(order)), clients - 1, replace=False))
    return Federation(dataset, tuple(np.split(order, ends)), {})


class Own(nn.Module):
    """A module of a user's own: a skip connection, a shape of its own, and a buffer."""

    def __init__(self, input_shape, outputs):
        super().__init__()
        self.inner = nn.Linear(input_shape[0], input_shape[0])
        self.outer = nn.Linear(input_shape[0], outputs)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return self.outer(x + self.scale * torch.tanh(self.inner(x)))


MODELS = {
    "svm": lambda: (build("svm", (6,), 3), classified()),
    "logistic": lambda: (build("logistic", (6,), 3, l2=0.05), classified()),
    "linear": lambda: (build("linear", (6,), 1, l2=0.1), regression()),
    "mlp": lambda: (build("mlp", (6,), 3, hidden=[5]), classified()),
    "cnn": lambda: (build("cnn", (1, 8, 8), 3, channels=[2, 3], l2=0.01), classified((1, 8, 8))),
    "custom": lambda: (from_module(Own, (6,), 3), classified()),
}
"""Name -> (a small model, a dataset for it)."""


def scattered(model, clients, seed=0, dtype=torch.float32, spread=0.3):
    """Different models for all clients. Shape: (clients, p)."""
    noise = torch.randn(clients, model.parameters, dtype=dtype, generator=torch.Generator().manual_seed(seed))
    return model.initial(seed).to(dtype) + spread * noise


# --- runs -----------------------------------------------------------------------------------------------------


def make_run(
    algorithm="dspodfl",
    seed=0,
    *,
    n=5,
    data,
    graph=None,
    topology=None,
    weights="metropolis",
    sgd=None,
    link=None,
    schedule=None,
    learning_rate=None,
    attack=None,
    **rates,
):
    """A run on a random graph with uniform rates, or whatever else is given; ``data`` may be a Dataset.

    A schedule that has a graph or weights of its own gets them.
    """
    if topology is None:
        topology = Static(graph if graph is not None else erdos_renyi(n, seed))
    schedule = schedule or named(algorithm)
    own = own_graph(schedule, topology.graph)
    graph = topology.graph if own is None else own.graph
    if isinstance(data, Federation) and graph.server and data.clients == graph.clients:
        data = data.with_server(graph.clients)
    drawn = Rates(graph, seed, sgd or Uniform(), link or Uniform(), **rates)
    return Run(
        algorithm=algorithm,
        seed=seed,
        topology=own_topology(schedule, WeightedTopology(topology, weights), drawn, seed, own),
        rates=drawn,
        schedule=schedule,
        data=federation(data, graph.n, seed) if isinstance(data, Dataset) else data,
        learning_rate=learning_rate or Constant(0.1),
        attack=attack,
    )


@dataclass
class Look:
    """One run at one snapshot."""

    iteration: int
    theta: torch.Tensor  # (clients, p)
    counters: Counters
    diverged: bool


def advance(
    runs,
    model,
    *,
    iterations,
    every=0,
    rule="simultaneous",
    initial=None,
    dtype=torch.float64,
    batch=BATCH,
    device="cpu",
    compute=None,
    tf32=False,
    **more,
):
    """Simulate the runs together. Gives, for each run, its looks in order.

    ``initial`` is a list with the models of each run, (clients, p); the default is scattered by the run's seed.
    """
    stack = Stack(runs)
    how = {"dtype": dtype, "compute": compute, "device": device, "tf32": tf32}
    problem = Problem(model, [(run.seed, run.data) for run in runs], batch_size=batch, **how)
    if initial is None:
        initial = [scattered(model, run.clients, run.seed) for run in runs]
    looks = [[] for _ in runs]
    start = torch.cat([theta.to(dtype) for theta in initial])
    how = RULES[rule] if isinstance(rule, str) else rule
    for shot in simulate(
        stack, problem, how, start, iterations=iterations, every=iterations if every == 0 else every, **more
    ):
        for r, counters, diverged in zip(shot.runs, shot.counters, shot.diverged, strict=True):
            looks[r].append(Look(shot.iteration, shot.models(stack.rows[r]).cpu().clone(), counters, diverged))
    return looks


def final(runs, model, **how):
    """The models of each run after the last iteration."""
    return [looks[-1].theta for looks in advance(runs, model, **how)]
