"""What is measured on: images, large sparse graphs made without NetworkX, and runs on them."""

from __future__ import annotations

from functools import cache

import numpy as np
from scipy.spatial import cKDTree

from benchmarks.turns import say
from dspodfl.algorithms import ALGORITHMS, Algorithm, Rule, make, named, own_graph, own_topology
from dspodfl.algorithms.learning_rate import Constant
from dspodfl.engine import Run
from dspodfl.errors import DataError
from dspodfl.network import Graph
from dspodfl.network.laws import Beta, FixedValues
from dspodfl.network.rates import Rates
from dspodfl.network.topology import Static, WeightedTopology
from dspodfl.problem.data import Dataset, Federation, load, partitions

SHAPES = {"fmnist": ((1, 28, 28), 60_000, 10_000), "cifar10": ((3, 32, 32), 50_000, 10_000)}
"""Name -> (shape of a sample, training samples, test samples)."""
SAMPLES = 32
"""What each of very many clients holds."""


@cache
def images(name: str, stand_in: str = "random") -> Dataset:
    """A named dataset; where it is not on this machine, fmnist-mini (``mini``) or random bytes of its shape."""
    try:
        return load(name, progress=False)
    except DataError:
        say(f"{name} is not on this machine: {'fmnist-mini' if stand_in == 'mini' else 'random bytes of its shape'}")
    return load("fmnist-mini") if stand_in == "mini" else random_images(name, *SHAPES[name])


def random_images(name: str, shape: tuple[int, ...], train: int, test: int, classes: int = 10) -> Dataset:
    """Bytes and labels at random."""
    random = np.random.default_rng(0)
    x, x_test = (random.integers(0, 256, (count, *shape), dtype=np.uint8) for count in (train, test))
    y, y_test = (np.arange(count) % classes for count in (train, test))
    return Dataset(f"random bytes ({name})", x, y, x_test, y_test, classes, 1 / 255)


@cache
def _shared(dataset: Dataset, clients: int, samples: int) -> tuple[np.ndarray, ...]:
    return partitions.shared(dataset.y_train, clients, 0, samples).shards


def shared(dataset: Dataset, clients: int, samples: int = SAMPLES) -> Federation:
    """Every client its own draw of samples; those of client i do not depend on how many clients there are."""
    return Federation(dataset, _shared(dataset, clients, samples), {})


def torus(rows: int, columns: int) -> Graph:
    """A lattice whose sides meet, clients row by row."""
    number = np.arange(rows * columns).reshape(rows, columns)
    pairs = [np.stack([number, np.roll(number, -1, axis)], axis=-1).reshape(-1, 2) for axis in (0, 1)]
    edges = np.sort(np.concatenate(pairs), axis=1)
    edges = edges[edges[:, 0] < edges[:, 1]]
    return Graph(number.size, _sorted(edges, number.size))


def squarest(clients: int) -> Graph:
    """Return the torus of n clients that is nearest to a square."""
    rows = max(r for r in range(1, int(clients**0.5) + 1) if clients % r == 0)
    return torus(rows, clients // rows)


def geometric(clients: int, degree: float, seed: int = 0) -> Graph:
    """Uniform in the unit square, linked within the radius that gives a mean degree; may be disconnected.

    Clients are numbered along strips as wide as the radius, forth in one and back in the next, so that neighbours
    have near numbers and their models lie near each other.
    """
    radius = float(np.sqrt(degree / (np.pi * clients)))
    where = np.random.default_rng(seed).random((clients, 2))
    strip = (where[:, 1] / radius).astype(np.int64)
    along = np.where(strip % 2 == 0, where[:, 0], -where[:, 0])
    where = where[np.lexsort((along, strip))]
    pairs = cKDTree(where).query_pairs(radius, output_type="ndarray").astype(np.int64)
    return Graph(clients, _sorted(np.sort(pairs, axis=1), clients), where)


def _sorted(edges: np.ndarray, clients: int) -> np.ndarray:
    """Pairs i < j, each once, in lexicographic order."""
    code = np.unique(edges[:, 0] * clients + edges[:, 1])
    return np.stack([code // clients, code % clients], axis=1)


def make_run(
    algorithm: str, graph: Graph, data: Federation, *, seed: int = 0, rates_seed: int = 0, beta: float = 0.5
) -> Run:
    """A run with Metropolis weights, Beta(beta, beta) rates and a constant learning rate."""
    return Run(
        algorithm=algorithm,
        seed=seed,
        topology=WeightedTopology(Static(graph), "metropolis"),
        rates=Rates(graph, rates_seed, Beta(beta, beta), Beta(beta, beta)),
        schedule=named(algorithm),
        data=data,
        learning_rate=Constant(0.01),
    )


def make_method(
    name: str, graph: Graph, data: Federation, *, law: Beta | FixedValues = Beta(0.5, 0.5), **settings: float
) -> tuple[Run, Rule]:
    """A run of a method, with its rule; on its own graph and weights, where it has some."""
    own_rule = name if ALGORITHMS[name].rule is not None else None
    schedule, rule = make(Algorithm(name, schedule=name, rule=own_rule, settings=settings))
    base = WeightedTopology(Static(graph), "metropolis")
    own = own_graph(schedule, graph)
    rates = Rates(graph if own is None else own.graph, 0, law, law)
    topology = own_topology(schedule, base, rates, 0, own)
    data = data.with_server(graph.n) if rates.graph.server else data
    run = Run(name, 0, topology=topology, rates=rates, schedule=schedule, data=data, learning_rate=Constant(0.01))
    return run, rule
