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


def philox(counter: tuple[Ints, Ints, Ints, Ints], key: tuple[Ints, Ints]) -> tuple[Ints, Ints, Ints, Ints]:
    """Philox4x32-10 of Salmon et al. (SC 2011): four words from a 128-bit counter and a 64-bit key.

    Products wrap modulo 2⁶⁴ in int64, whose bits are those of the unsigned product.
    """
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(10):
        p0, p1 = c0 * _M0, c2 * _M1
        c0, c1, c2, c3 = ((p1 >> 32) & MASK) ^ c1 ^ k0, p1 & MASK, ((p0 >> 32) & MASK) ^ c3 ^ k1, p0 & MASK
        k0, k1 = (k0 + _W0) & MASK, (k1 + _W1) & MASK
    return c0, c1, c2, c3


def _is_tensor(value: Any) -> bool:
    """Whether a value is a tensor; there is none where nobody has imported torch, which takes seconds."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(value, torch.Tensor)


def words(seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, slots: int = 1, first: int = 0) -> Ints:
    """Words at slots ``first … first + slots − 1`` of an address; inputs broadcast, slots are the last axis.

    Shapes: broadcast(seed, i, j, k) -> (..., slots), int64. ``first`` must be a multiple of 4.

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

        seed, i, j, k = (torch.as_tensor(a, dtype=torch.int64, device=tensor.device) for a in inputs)
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


def threshold(p: Any) -> Ints:
    """⌊p·2³²⌋, the integer below which a word means "fires"; p = 1 gives 2³², which is always."""
    if _is_tensor(p):
        import torch

        return torch.floor(p.double() * float(WORD)).long()
    return np.floor(np.asarray(p, dtype=np.float64) * float(WORD)).astype(np.int64)


def bernoulli(word: Ints, p: Any) -> Any:
    """Whether an event of probability p happens at this word: ``word < ⌊p·2³²⌋``."""
    return word < threshold(p)


def index_below(word: Ints, n: Ints) -> Ints:
    """An index in [0, n): ``(word · n) >> 32``, for n < 2³¹."""
    return (word * n) >> 32


def uniform(
    seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, count: int = 1, first: int = 0
) -> Any:
    """Uniforms in [0, 1) with 53 bits, the n-th from slots 2n and 2n + 1; counts are the last axis.

    Shapes: broadcast(seed, i, j, k) -> (..., count), float64. ``first`` must be a multiple of 2.
    """
    w = words(seed, stream, i, j, k, slots=2 * count, first=2 * first)
    high, low = w[..., 0::2] >> 5, w[..., 1::2] >> 6
    return (high * 67108864.0 + low) / 9007199254740992.0


def normal(seed: Ints, stream: Stream, i: Ints = 0, j: Ints = 0, k: Ints = 0, *, count: int = 1, first: int = 0) -> Any:
    """Standard normals by inverse CDF of `uniform`, kept off 0 by half its resolution. NumPy only."""
    u = np.asarray(uniform(seed, stream, i, j, k, count=count, first=first))
    return scipy.special.ndtri(np.clip(u + 2.0**-54, None, 1.0 - 2.0**-53))


def permutation(seed: int, stream: Stream, n: int, *, i: int = 0, j: int = 0, k: int = 0) -> np.ndarray:
    """A uniform permutation of 0 … n − 1: the order of n addressed uniforms, ties by index."""
    return np.argsort(uniform(seed, stream, i, j, k, count=n), kind="stable")
