"""Random numbers by address: every draw is a pure function of where it is used.

Philox4x32-10 is a counter-based generator: 64 bits of key and 128 bits of counter give four 32-bit words, and
nothing is consumed. An address ``(seed, stream, entity, k, slot)`` is laid out as

    key      = (seed mod 2³², seed div 2³²)
    counter  = (i, j, k, stream · 2²⁶ + slot div 4)        a client i has j = 0; a link (i, j) has i < j
    word     = philox(key, counter)[slot mod 4]

so the two ends of a link agree on its events without talking, and neither stacking nor splitting clients
changes a number. The functions take Python integers, NumPy int64 arrays or torch int64 tensors (on any device),
and give the same words for all of them. Known-answer tests pin the layout and the stream numbers.
"""

from __future__ import annotations

import hashlib
import sys
from enum import IntEnum
from typing import Any

import numpy as np
import scipy  # its submodules are imported where they are first used

from dspodfl import _kernels

MASK = 0xFFFFFFFF
"""The 32 bits of a word."""
WORD = 2**32
"""The number of different words."""
MAX_SLOT = 2**28
"""The number of words that one address has, at most."""
_M0, _M1 = 0xD2511F53, 0xCD9E8D57
_W0, _W1 = 0x9E3779B9, 0xBB67AE85

Ints = Any
"""A Python integer, a NumPy int64 array or a torch int64 tensor; words are integers in [0, 2³²)."""


class Stream(IntEnum):
    """What a number is drawn for. A number once given never changes its meaning."""

    GRAPH = 0  # seed of a random graph's generator, k = attempt
    RATE_SGD = 1  # d_i, k = epoch
    RATE_LINK = 2  # b_ij, k = epoch
    PARTITION = 3  # which samples a client holds
    INIT = 4  # initial parameters, k = tensor number
    BATCH = 5  # minibatch indices, slot = position in the batch
    SGD = 6  # v_i(k)
    LINK = 7  # v̂_ij(k); slot 1 is the other end's draw of `two_sided`
    TOPOLOGY = 8  # links that go up and down
    MOBILITY = 9  # waypoints, k = leg
    DATA = 10  # synthetic data
    EVAL_SAMPLE = 11  # test samples that are evaluated, at seed 0
    EVAL_CLIENT = 12  # clients that are evaluated
    METHOD = 13  # what a schedule draws of its own, at a seed of its own (`seed_of`)
    COMMON_DRAW = 14  # whether all links of a run fire together
    CLOCK = 15  # which client wakes or ticks, and the neighbour that it picks, at i = j = 2³² − 1
    AVAILABLE = 16  # clients that are available or not, and phases of cycles
    CHANNEL = 17  # links that are good or bad
    JOB = 18  # how long a straggler's jobs take, k = job
    COMPRESS = 19  # what a compressor draws, slot = number of the vector
    ATTACK = 20  # what attackers send
    CHURN = 21  # clients that are there or absent


def philox(counter: tuple[Ints, Ints, Ints, Ints], key: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints, Ints]:
    """Compute Philox4x32-10 of Salmon et al. (SC 2011): four words from a 128-bit counter and a 64-bit key.

    Products wrap modulo 2⁶⁴ in int64, whose bits are those of the unsigned product.

    Args:
        counter: Four words; arrays broadcast.
        key: Two words; arrays broadcast.

    Returns:
        Four words, each of the broadcast shape.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + _W0) & MASK, (k1 + _W1) & MASK
    return c0, c1, c2, c3


def _is_tensor(value: Any) -> bool:
    """Return whether a value is a tensor; torch, which takes seconds to import, is not imported for it."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def words(seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, slots: int = 1, first: int = 0) -> Ints:
    """Return the words at slots ``first … first + slots − 1`` of addresses.

    Args:
        seed: Of the run, in [0, 2⁶³). It broadcasts with i, j and k.
        stream: What the words are drawn for.
        i: A client, or the smaller end of a link.
        j: The larger end of a link; 0 for a client.
        k: The iteration, or what the stream has in its place.
        slots: The number of words of each address.
        first: The first slot, a multiple of 4.

    Returns:
        Integers in [0, 2³²), int64, (..., slots) with the broadcast shape of seed, i, j and k in front. A tensor where
        one of them is a tensor, on its device; else a NumPy array.

    Raises:
        ValueError: ``first`` is no multiple of 4, or a slot is past the 2²⁸ of an address.

    >>> words(0, Stream.SGD, i=3, k=np.arange(2)).shape
    (2, 1)
    """
    if first % 4 or first + slots > MAX_SLOT:
        raise ValueError(f"slots {first}…{first + slots - 1}: first must be a multiple of 4 and the last below 2²⁸")
    inputs, kernel = (seed, i, j, k), _kernels.philox
    tensor = next((a for a in inputs if _is_tensor(a)), None)
    blocks: Ints
    if tensor is not None:
        import torch

        seed, i, j, k = (
            torch.full((), a, dtype=torch.int64, device=tensor.device)  # copying a number would wait
            if isinstance(a, int)
            else torch.as_tensor(a, dtype=torch.int64, device=tensor.device)
            for a in inputs
        )
        if kernel.available(tensor.device) and max(a.ndim for a in (seed, i, j, k)) == 2:
            return kernel.words(seed, i, j, k, int(stream), slots, first)
        if tensor.device.type == "cpu":
            found = kernel.words_on_cpu(seed.numpy(), i.numpy(), j.numpy(), k.numpy(), int(stream), slots, first)
            if found is not None:
                return torch.from_numpy(found)
        seed, i, j, k = (a[..., None] for a in (seed, i, j, k))
        blocks = torch.arange(first // 4, (first + slots + 3) // 4, device=tensor.device)
        shape = np.broadcast_shapes(seed.shape, i.shape, j.shape, k.shape, blocks.shape)
    else:
        seed, i, j, k = (np.asarray(a, dtype=np.int64) for a in inputs)
        found = kernel.words_on_cpu(seed, i, j, k, int(stream), slots, first)
        if found is not None:
            return found
        seed, i, j, k = (a[..., None] for a in (seed, i, j, k))
        blocks = np.arange(first // 4, (first + slots + 3) // 4, dtype=np.int64)
        shape = np.broadcast_shapes(seed.shape, i.shape, j.shape, k.shape, blocks.shape)
    counter = (i, j, k, blocks + (int(stream) << 26))
    out = philox(counter, (seed & MASK, (seed >> 32) & MASK))
    if tensor is not None:
        stacked: Any = torch.stack([torch.broadcast_to(w, shape) for w in out], dim=-1)
    else:
        stacked = np.stack([np.broadcast_to(w, shape) for w in out], axis=-1)
    return stacked.reshape(*shape[:-1], 4 * shape[-1])[..., :slots]


def seed_of(seed: int, name: str) -> int:
    """Return the seed at which a named sub-stream of `Stream.METHOD` is drawn.

    Args:
        seed: Of the run.
        name: Of the sub-stream: a registered method, or ``"module:object"``.

    Returns:
        An integer in [0, 2⁶³), of two words of METHOD at ``seed``: i, j and k are the first 12 bytes of the SHA-256 of
        the name, in little-endian order.

    >>> seed_of(0, "pairwise") == seed_of(0, "pairwise"), seed_of(0, "pairwise") == seed_of(0, "together")
    (True, False)
    """
    digest = hashlib.sha256(name.encode()).digest()
    i, j, k = (int.from_bytes(digest[n : n + 4], "little") for n in (0, 4, 8))
    low, high = (int(word) for word in words(seed, Stream.METHOD, i, j, k, slots=2))
    return (low | high << 32) & (2**63 - 1)


def threshold(p: Any) -> Ints:
    """Return ⌊p·2³²⌋, the number of words for which an event of probability p happens.

    Args:
        p: A probability, an array or a tensor of them.

    Returns:
        An integer array or tensor of the shape of p; 2³² where p = 1.

    >>> int(threshold(0.5)) == 2**31
    True
    """
    if _is_tensor(p):
        import torch

        return torch.floor(p.double() * float(WORD)).long()
    return np.floor(np.asarray(p, dtype=np.float64) * float(WORD)).astype(np.int64)


def bernoulli(word: Ints, p: Any) -> Any:
    """Return whether an event of probability p happens at a word: ``word < ⌊p·2³²⌋``.

    Args:
        word: Words; they broadcast with p.
        p: Probabilities.

    Returns:
        Bool, of the broadcast shape.

    >>> bernoulli(np.array([0, 2**31]), 0.5).tolist()
    [True, False]
    """
    return word < threshold(p)


def index_below(word: Ints, n: Ints) -> Ints:
    """Return the index in [0, n) of a word: ``(word · n) >> 32``.

    Args:
        word: Words; they broadcast with n.
        n: The number of indices, below 2³¹.

    Returns:
        Integers of the broadcast shape.

    >>> index_below(np.array([0, 2**31, 2**32 - 1]), 10).tolist()
    [0, 5, 9]
    """
    return (word * n) >> 32


def uniform(
    seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, count: int = 1, first: int = 0
) -> Any:
    """Return uniforms in [0, 1) with 53 bits, the n-th of slots 2n and 2n + 1.

    Args:
        seed: Of the run; seed, i, j and k are as in `words`, and broadcast.
        stream: What the numbers are drawn for.
        i: A client, or the smaller end of a link.
        j: The larger end of a link; 0 for a client.
        k: The iteration.
        count: The number of uniforms of each address.
        first: The first of them, a multiple of 2.

    Returns:
        float64, (..., count) with the broadcast shape in front.
    """
    w = words(seed, stream, i, j, k, slots=2 * count, first=2 * first)
    high, low = w[..., 0::2] >> 5, w[..., 1::2] >> 6
    return (high * 67108864.0 + low) / 9007199254740992.0


def normal(seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, count: int = 1, first: int = 0) -> Any:
    """Return standard normals by inverse CDF of `uniform`, kept off 0 by half its resolution.

    Args:
        seed: Of the run; seed, i, j and k are as in `words`, and broadcast. No tensors.
        stream: What the numbers are drawn for.
        i: A client, or the smaller end of a link.
        j: The larger end of a link; 0 for a client.
        k: The iteration.
        count: The number of normals of each address.
        first: The first of them, a multiple of 2.

    Returns:
        A NumPy array of float64, (..., count) with the broadcast shape in front.
    """
    u = np.asarray(uniform(seed, stream, i, j, k, count=count, first=first))
    return scipy.special.ndtri(np.clip(u + 2.0**-54, None, 1.0 - 2.0**-53))


def permutation(seed: int, stream: Stream, n: int, *, i: int = 0, j: int = 0, k: int = 0) -> np.ndarray:
    """Return a uniform permutation: the order of n addressed uniforms, ties by index.

    Args:
        seed: Of the run.
        stream: What the permutation is drawn for.
        n: The number of items.
        i: A client, or the smaller end of a link.
        j: The larger end of a link; 0 for a client.
        k: The iteration.

    Returns:
        The numbers 0 … n − 1 in their new order, (n,).
    """
    return np.argsort(uniform(seed, stream, i, j, k, count=n), kind="stable")
