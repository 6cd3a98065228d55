"""Which training samples each client holds: one pure function a kind, every draw by its address.

All kinds but `shared` are disjoint; what is left over is counted in `Partition.unused`. No client is ever without
a sample: a request that cannot be met is an `InputError` that names the field. Shards are sorted.

To add a kind, add a function here under ``@PARTITIONS.register()``: its first docstring line is what users read; its
arguments are ``y``, the labels, ``clients``, ``seed``, and its parameters, each annotated with its range and a `Doc`.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import scipy  # its submodules are imported where they are first used
from annotated_types import Ge, Le

from dspodfl import rng
from dspodfl.errors import Count, Doc, InputError, Registry
from dspodfl.problem.data.validation import number, whole
from dspodfl.rng import Stream

_SHUFFLE, _ORDER, _TIES = 2**20, 2**20 + 1, 2**20 + 2  # k of an address, apart from the draws at k = 0
_MAX_WORDS_PER_CHUNK = 2**20


@dataclass(frozen=True, eq=False)
class Partition:
    """Indices of the samples each client holds, and what no client holds.

    Shapes: shards m × (samples of client i,), int64, each sorted. ``unused`` counts the samples that no client
    holds, those of ``unused_classes`` included.
    """

    shards: tuple[np.ndarray, ...]
    unused: int
    unused_classes: tuple[int, ...] = ()

    def report(self) -> dict[str, object]:
        """What a reader of results should know of this partition."""
        sizes = [len(shard) for shard in self.shards]
        return {
            "samples_min": min(sizes),
            "samples_max": max(sizes),
            "unused": self.unused,
            "unused_classes": self.unused_classes,
        }


PARTITIONS: Registry[Partition] = Registry("data.partition.kind", context=("y", "clients", "seed"))
"""The kinds of partitions. Facts: ``takes``, bytes and seconds for given numbers of
clients, samples and classes, and the parameters; if it is missing, those of an even division."""

_SAMPLE_BYTES = 40
"""A sample while it is assigned to a client."""
Alpha = Annotated[float, Ge(1e-9), Le(1e9)]
"""Concentrations at whose ends one client has everything, or all have the same to the last sample."""


@PARTITIONS.register()
def iid(y: np.ndarray, clients: int, seed: int) -> Partition:
    """Each client the same mix of classes and the same number of samples.

    Equal parts of a random order: ⌊n/m⌋ samples a client, n mod m unused. Shapes: y (n,).

    >>> [len(shard) for shard in iid(np.zeros(10), clients=3, seed=0).shards]
    [3, 3, 3]
    """
    clients = _count(clients, len(y))
    order = rng.permutation(seed, Stream.PARTITION, len(y), k=_SHUFFLE)
    return _collect(_divided(order, np.arange(clients), len(y)), clients)


@PARTITIONS.register(
    takes=lambda clients, samples, classes, per_client, allow_unused: (
        samples * _SAMPLE_BYTES + 8.0 * clients * min(per_client, classes),
        samples * classes * 1e-9 + clients * classes * 2e-7,
    )
)
def labels(
    y: np.ndarray,
    clients: int,
    seed: int,
    per_client: Annotated[Count, Doc("classes per client")] = 1,
    allow_unused: Annotated[bool, Doc("true: a class that no client holds is left out, and reported")] = False,
) -> Partition:
    """Exactly ``per_client`` classes per client, each class split evenly among its holders.

    The assignment is random and balanced: m·per_client places over C classes, the number of holders of two classes
    differing by at most one. A class without holder is an error unless ``allow_unused``. Shapes: y (n,), int64;
    the classes are those that occur in it.

    >>> y = np.arange(100) % 10
    >>> [np.unique(y[shard]).size for shard in labels(y, clients=5, seed=0, per_client=2).shards]
    [2, 2, 2, 2, 2]
    """
    names, codes, _ = _classes(y, "labels")
    clients = _count(clients, len(y))
    per_client = whole("data.partition.per_client", per_client, len(names), "the number of classes")
    if clients * per_client < len(names) and not allow_unused:
        raise InputError(
            "data.partition.per_client",
            per_client,
            f"at least {-(-len(names) // clients)}, for {clients} clients to hold all {len(names)} classes "
            "(or allow_unused = true)",
        )
    if clients * per_client > len(y):
        raise InputError("clients.count", clients, f"at most {len(y) // per_client}, for {per_client} classes each")
    held = _balanced(clients, len(names), per_client, seed)
    owner = np.full(len(y), -1)
    for code, members in enumerate(_members(codes, len(names), seed)):
        holders = np.flatnonzero((held == code).any(axis=1))
        if len(members) < len(holders):
            raise InputError(
                "clients.count",
                clients,
                f"smaller: class {names[code]} has {len(members)} samples, and {len(holders)} clients hold it",
            )
        if len(holders):
            owner[members] = _divided(np.arange(len(members)), holders, len(members))
    unheld = np.setdiff1d(np.arange(len(names)), held)
    return _collect(owner, clients, tuple(int(name) for name in names[unheld]))


@PARTITIONS.register(
    takes=lambda clients, samples, classes, alpha: (
        samples * _SAMPLE_BYTES + clients * classes * 60,
        samples * 1e-7 + clients * classes * 2e-6,
    )
)
def dirichlet(
    y: np.ndarray,
    clients: int,
    seed: int,
    alpha: Annotated[Alpha, Doc("the concentration; small values make clients unlike", example=0.3)],
) -> Partition:
    """Each class dealt in Dirichlet(alpha) proportions.

    Nothing is unused.

    A client that the draw leaves without samples is given one by the client that then holds most. Shapes: y (n,).
    """
    names, codes, sizes = _classes(y, "dirichlet")
    clients, alpha = _count(clients, len(y)), number("data.partition.alpha", alpha)
    numbers, classes = np.arange(clients)[:, None], np.arange(len(names))
    u = rng.uniform(seed, Stream.PARTITION, i=numbers, j=classes, count=2)
    counts = _fill(_apportion(_dirichlet(u, alpha), sizes))  # (clients, classes)
    owner = np.full(len(y), -1)
    for code, members in enumerate(_members(codes, len(names), seed)):
        owner[members] = np.repeat(np.arange(clients), counts[:, code])
    return _collect(owner, clients)


@PARTITIONS.register()
def shards(
    y: np.ndarray, clients: int, seed: int, per_client: Annotated[Count, Doc("pieces per client")] = 2
) -> Partition:
    """Sorted by label and cut into equal pieces, ``per_client`` of them per client.

    The m·per_client pieces are runs of the samples sorted by label, assigned to clients at random.

    Runs differ in length by at most one; nothing is unused. Shapes: y (n,), int64.
    """
    _classes(y, "shards")
    clients = _count(clients, len(y))
    most = len(y) // clients
    per_client = whole("data.partition.per_client", per_client, most, "the number of samples a client can have")
    runs = clients * per_client
    order = rng.permutation(seed, Stream.PARTITION, len(y), k=_SHUFFLE)
    order = order[np.argsort(y[order], kind="stable")]
    ends = np.arange(1, runs + 1) * len(y) // runs
    owner_of_run = np.empty(runs, dtype=np.int64)
    owner_of_run[rng.permutation(seed, Stream.PARTITION, runs, k=_ORDER)] = np.arange(runs) // per_client
    owner = np.full(len(y), -1)
    owner[order] = np.repeat(owner_of_run, np.diff(ends, prepend=0))
    return _collect(owner, clients)


@PARTITIONS.register()
def quantity(
    y: np.ndarray,
    clients: int,
    seed: int,
    alpha: Annotated[Alpha, Doc("the concentration; small values make sizes unlike", example=0.5)],
) -> Partition:
    """Each client the same mix of classes, in Dirichlet(alpha) sizes.

    n_i = 1 + Dirichlet(α, …, α)_i · (n − m), rounded to sum to n. Shapes: y (n,).
    """
    clients, alpha = _count(clients, len(y)), number("data.partition.alpha", alpha)
    u = rng.uniform(seed, Stream.PARTITION, i=np.arange(clients)[:, None], count=2)  # (clients, 1, 2)
    sizes = 1 + _apportion(_dirichlet(u, alpha), np.array([len(y) - clients]))[:, 0]
    owner = np.empty(len(y), dtype=np.int64)
    owner[rng.permutation(seed, Stream.PARTITION, len(y), k=_SHUFFLE)] = np.repeat(np.arange(clients), sizes)
    return _collect(owner, clients)


@PARTITIONS.register(
    takes=lambda clients, total, classes, samples: (8.0 * clients * samples * 2, clients * samples * 1e-7)
)
def shared(
    y: np.ndarray, clients: int, seed: int, samples: Annotated[Count, Doc("samples per client", example=500)]
) -> Partition:
    """Each client its own draw of samples: the only kind in which clients overlap.

    Client i holds the first ``samples`` distinct values of its own sequence of indices (of more than n/2, the others
    are drawn and left out), whatever the number of clients. Shapes: y (n,); the shards are rows of one matrix.
    """
    n, clients = len(y), whole("clients.count", clients)
    samples = whole("data.partition.samples", samples, n, "the number of training samples")
    drawn = samples if 2 * samples <= n else n - samples
    rows = np.empty((clients, samples), dtype=np.int64)
    step = max(1, _MAX_WORDS_PER_CHUNK // (n if drawn < samples else samples))
    for first in range(0, clients, step):
        some = np.arange(first, min(first + step, clients))
        chosen = _distinct(seed, some, drawn, n)
        if drawn < samples:
            kept = np.ones((len(some), n), dtype=bool)
            np.put_along_axis(kept, chosen, False, axis=1)
            chosen = np.nonzero(kept)[1].reshape(len(some), samples)
        rows[some] = np.sort(chosen, axis=1)
    held = np.zeros(n, dtype=bool)
    held[rows] = True
    return Partition(tuple(rows), n - int(held.sum()))


def _balanced(clients: int, classes: int, per_client: int, seed: int) -> np.ndarray:
    """Distinct classes for each client, loads differing by at most one. Shape: -> (clients, per_client).

    Each client in turn takes the classes with the fewest holders, ties at random. With loads L and L + 1 before,
    a of the former: either a ≥ per_client and some of those rise to L + 1, or all a do and per_client − a of the
    others rise to L + 2; two neighbouring loads again. The order of the clients is random, so that
    neither a client's number nor a class's says anything about the other.
    """
    held = np.empty((clients, per_client), dtype=np.int64)
    load = np.zeros(classes, dtype=np.int64)
    order = rng.permutation(seed, Stream.PARTITION, clients, k=_ORDER)
    for client, ties in zip(order, _tie_breaks(clients, classes, seed), strict=True):
        held[client] = np.lexsort((ties, load))[:per_client]
        load[held[client]] += 1
    return held


def _tie_breaks(clients: int, classes: int, seed: int) -> Iterator[np.ndarray]:
    step = max(1, _MAX_WORDS_PER_CHUNK // classes)
    for first in range(0, clients, step):
        some = np.arange(first, min(first + step, clients))
        yield from rng.uniform(seed, Stream.PARTITION, i=some, k=_TIES, count=classes)


def _members(codes: np.ndarray, classes: int, seed: int) -> Iterator[np.ndarray]:
    """The samples of each class, in random order."""
    for code in range(classes):
        members = np.flatnonzero(codes == code)
        yield members[rng.permutation(seed, Stream.PARTITION, len(members), i=code, k=_SHUFFLE)]


def _dirichlet(u: np.ndarray, alpha: float) -> np.ndarray:
    """Dirichlet(α, …, α) along the first axis, by inverse CDFs. Shapes: u (m, c, 2) -> (m, c), columns sum to 1.

    Gamma(α) = Gamma(α + 1) · U^{1/α}, in logarithms: for small α the draws themselves are below every float.
    """
    u = np.clip(u, 2.0**-54, 1 - 2.0**-53)
    z = alpha * np.log(scipy.special.gammaincinv(alpha + 1.0, u[..., 0])) + np.log(u[..., 1])  # α · log of the draw
    with np.errstate(over="ignore", under="ignore"):
        weights = np.exp((z - z.max(axis=0)) / alpha)
    return np.asarray(weights / weights.sum(axis=0))


def _apportion(shares: np.ndarray, totals: np.ndarray) -> np.ndarray:
    """Whole numbers near shares · totals, columns summing to totals. Shapes: (m, c), (c,) -> (m, c), int64."""
    cuts = np.floor(np.cumsum(shares, axis=0) * totals + 0.5).astype(np.int64)
    cuts = np.minimum(cuts, totals)
    cuts[-1] = totals
    return np.diff(cuts, axis=0, prepend=0)


def _fill(counts: np.ndarray) -> np.ndarray:
    """Counts without an empty row: each takes one of the largest class of the row that then has most."""
    totals = counts.sum(axis=1)
    richest = [(-int(total), row) for row, total in enumerate(totals) if total > 1]
    heapq.heapify(richest)
    for row in np.flatnonzero(totals == 0):
        total, giver = richest[0]
        code = int(counts[giver].argmax())
        counts[giver, code] -= 1
        counts[row, code] += 1
        heapq.heapreplace(richest, (total + 1, giver))
    return counts


def _distinct(seed: int, clients: np.ndarray, count: int, n: int) -> np.ndarray:
    """The first ``count`` distinct values of each client's sequence of indices. Shape: -> (clients, count)."""
    chosen = np.empty((len(clients), count), dtype=np.int64)
    left = np.arange(len(clients))
    expected = n * np.log(n / (n - count)) if count else 0.0
    draws = int(expected + 4 * np.sqrt(expected)) + 4
    while len(left) and count:
        words = rng.words(seed, Stream.PARTITION, i=clients[left], slots=draws)
        values = rng.index_below(words, n)
        order = np.argsort(values, axis=1, kind="stable")
        ranked = np.take_along_axis(values, order, axis=1)
        new = np.ones_like(values, dtype=bool)
        np.put_along_axis(new, order[:, 1:], ranked[:, 1:] != ranked[:, :-1], axis=1)
        seen = np.cumsum(new, axis=1)
        done = seen[:, -1] >= count
        chosen[left[done]] = values[done][(new & (seen <= count))[done]].reshape(-1, count)
        left, draws = left[~done], 2 * draws
    return chosen


def _divided(order: np.ndarray, holders: np.ndarray, n: int) -> np.ndarray:
    """Owner of each of n samples when ``order`` is cut evenly among the holders; −1 for the remainder."""
    part = len(order) // len(holders)
    owner = np.full(n, -1)
    owner[order[: part * len(holders)]] = np.repeat(holders, part)
    return owner


def _collect(owner: np.ndarray, clients: int, unused_classes: tuple[int, ...] = ()) -> Partition:
    order = np.argsort(owner, kind="stable")
    unused = int((owner < 0).sum())
    ends = unused + np.cumsum(np.bincount(owner[owner >= 0], minlength=clients))
    return Partition(tuple(np.split(order, [unused, *ends[:-1]])[1:]), unused, unused_classes)


def _classes(y: np.ndarray, kind: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    if y.dtype.kind not in "iu":
        raise InputError("data.partition.kind", kind, "iid, quantity or shared where there are no labels")
    names, codes, sizes = np.unique(y, return_inverse=True, return_counts=True)
    return names, codes.reshape(y.shape), sizes


def _count(clients: object, samples: int) -> int:
    return whole("clients.count", clients, samples, "the number of training samples")
