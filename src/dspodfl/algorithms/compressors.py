"""Compressors: what a client sends instead of a vector of p numbers, in fewer bytes.

Each is a frozen value. What it draws are words at the address of the client and the iteration (stream COMPRESS), the
same for all of the client's links, so that the receiver knows them too. ``encode`` makes of Q(x) what is really sent
between two processes, ``decode`` makes Q(x) of it again; in float32 it has as many bytes as ``sent`` says (of qsgd a
percent more). A contraction keeps a share δ in the mean,

    E‖Q(x) − x‖² ≤ (1 − δ)‖x‖²;

an unbiased compressor with E‖Q(x)‖² ≤ (1 + ω)‖x‖² becomes one, of δ = 1/(1 + ω), when it is divided by 1 + ω
(`contraction`). A vector of zeros becomes zeros. To add one, write a class and name it in `COMPRESSORS`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Protocol

import numpy as np

from dspodfl import rng
from dspodfl.algorithms import digits
from dspodfl.algorithms.base import FLOAT_BYTES

if TYPE_CHECKING:
    from torch import Tensor

INDEX_BYTES = 4
"""Bytes of the place of a number that is sent."""
Parts = tuple["Tensor", ...]
"""What is sent for one row: tensors of one row each."""


class Compressor(Protocol):
    """What stands for a vector: a frozen value."""

    lossless: ClassVar[bool]
    """Whether Q(x) = x."""

    def slots(self, p: int) -> int:
        """Return how many words ``compress`` needs for a vector of p numbers; 0: it draws nothing."""
        ...

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """Return Q(x). Shapes: x (rows, p), words (rows, slots) -> (rows, p)."""
        ...

    def sent(self, p: int) -> int:
        """Return the bytes of Q(x) for p numbers."""
        ...

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """Return what is sent for one row. Shapes: q = Q(x) / (1 + ω) (1, p), x (1, p), words (1, slots)."""
        ...

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """Return Q(x) / (1 + ω) of what was sent; ``words`` draws those of the sender. Shape: (1, p)."""
        ...

    def omega(self, p: int) -> float:
        """Return ω of an unbiased compressor; 0 for a contraction."""
        ...

    def delta(self, p: int) -> float:
        """Return a δ for which Q(x) / (1 + ω) is a contraction, whatever x."""
        ...


def contraction(compressor: Compressor, x: Tensor, words: Tensor) -> Tensor:
    """Compress rows so that E‖Q(x) − x‖² ≤ (1 − δ)‖x‖².

    Args:
        compressor: The compressor.
        x: The rows, (rows, p).
        words: Words of the rows, (rows, slots).

    Returns:
        Q(x) / (1 + ω), (rows, p).

    >>> import torch
    >>> contraction(TopK(0.5), torch.tensor([[3.0, -4.0]]), torch.zeros(1, 0)).tolist()
    [[0.0, -4.0]]
    """
    omega = compressor.omega(x.shape[-1])
    q = compressor.compress(x, words)
    return q / (1.0 + omega) if omega else q


def kept(share: float, p: int) -> int:
    """Return how many of p numbers a share is: at least one.

    Args:
        share: In (0, 1].
        p: The number of numbers.

    Returns:
        max(1, round(share · p)), at most p.

    >>> kept(0.1, 20), kept(0.01, 20)
    (2, 1)
    """
    return min(p, max(1, round(share * p)))


def _largest(x: Tensor, k: int) -> Tensor:
    """Which k numbers of each row are the largest, ties by index. Shapes: (rows, p) -> (rows, p), bool."""
    import torch

    if x.device.type == "cpu":  # NumPy selects in half of the time
        place = x.shape[-1] - k
        least = torch.from_numpy(np.partition(x.numpy(), place, axis=-1)[..., place : place + 1])
    else:
        least = x.topk(k, dim=-1, sorted=False).values.amin(dim=-1, keepdim=True)
    above, equal = x > least, x == least
    room = k - above.sum(dim=-1, keepdim=True, dtype=torch.int32)
    return above | (equal & (equal.cumsum(dim=-1, dtype=torch.int32) <= room))


@dataclass(frozen=True)
class Identity:
    """The vector itself."""

    lossless: ClassVar[bool] = True

    def slots(self, p: int) -> int:
        """None."""
        return 0

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """The rows as they are."""
        return x

    def sent(self, p: int) -> int:
        """One float32 a number."""
        return FLOAT_BYTES * p

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """The row as it is."""
        return (q,)

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """The row as it is."""
        return parts[0]

    def omega(self, p: int) -> float:
        """Nothing is lost."""
        return 0.0

    def delta(self, p: int) -> float:
        """Nothing is lost."""
        return 1.0


@dataclass(frozen=True)
class TopK:
    """The share of numbers that are largest in absolute value, ties by index."""

    share: float = 0.1
    lossless: ClassVar[bool] = False

    def slots(self, p: int) -> int:
        """None."""
        return 0

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """The k largest; 0 elsewhere."""
        return x.where(_largest(x.abs(), kept(self.share, x.shape[-1])), 0.0)

    def sent(self, p: int) -> int:
        """Values and places."""
        return (FLOAT_BYTES + INDEX_BYTES) * kept(self.share, p)

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """Values and places, (1, k) each; where fewer numbers are not 0, the first place is repeated."""
        place = q.new_zeros((1, kept(self.share, q.shape[-1]))).int()
        found = q[0].nonzero()[: place.shape[1], 0]
        place[0, : len(found)] = found
        return q.gather(1, place.long()), place

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """The values at their places; 0 elsewhere."""
        values, place = parts
        return values.new_zeros((1, p)).scatter_(1, place.long(), values)

    def omega(self, p: int) -> float:
        """It is a contraction."""
        return 0.0

    def delta(self, p: int) -> float:
        """The share that is kept."""
        return kept(self.share, p) / p


@dataclass(frozen=True)
class RandomK:
    """A share of the numbers at places that are drawn; the receiver knows the address, and so the places."""

    share: float = 0.1
    lossless: ClassVar[bool] = False

    def slots(self, p: int) -> int:
        """A word a number: the places of the k largest are kept."""
        return p

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """The numbers at the places of the k largest words; 0 elsewhere."""
        return x.where(_largest(words, kept(self.share, x.shape[-1])), 0.0)

    def sent(self, p: int) -> int:
        """Values alone."""
        return FLOAT_BYTES * kept(self.share, p)

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """The values at the places that were drawn, (1, k)."""
        return (q[_largest(words, kept(self.share, q.shape[-1]))][None],)

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """The values at the places that the sender drew; 0 elsewhere."""
        (values,) = parts
        return values.new_zeros((1, p)).masked_scatter_(_largest(words(), kept(self.share, p)), values)

    def omega(self, p: int) -> float:
        """It is a contraction: what is kept is not scaled up."""
        return 0.0

    def delta(self, p: int) -> float:
        """The share that is kept."""
        return kept(self.share, p) / p


@dataclass(frozen=True)
class Qsgd:
    """Stochastic rounding of |x| / ‖x‖ to s levels: ‖x‖ sign(x) ℓ/s, unbiased (Alistarh et al., NeurIPS 2017)."""

    levels: int = 16
    lossless: ClassVar[bool] = False

    def slots(self, p: int) -> int:
        """A word a number."""
        return p

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """Each number is rounded up with the probability that makes its mean right."""
        norm = x.norm(dim=-1, keepdim=True)
        level = (self.levels * x.abs() / norm.where(norm > 0, 1.0)).clamp(max=self.levels)
        whole = level.floor()
        up = rng.bernoulli(words, level - whole)
        return norm * x.sign() * (whole + up) / self.levels

    def sent(self, p: int) -> int:
        """The norm, and one of 2s + 1 values a number."""
        return FLOAT_BYTES + math.ceil(p * math.log2(2 * self.levels + 1) / 8)

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """The norm, (1, 1), and the levels with their signs as packed digits, (1, bytes)."""
        import torch

        norm = x.norm(dim=-1, keepdim=True)
        scale = self.levels * (1.0 + self.omega(q.shape[-1]))
        level = (scale * q.double() / norm.where(norm > 0, 1.0)).round().nan_to_num(0.0)
        level = level.clamp(-self.levels, self.levels) + self.levels
        return norm, torch.from_numpy(digits.pack(level[0].long().numpy(), 2 * self.levels + 1))[None]

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """‖x‖ sign(ℓ)|ℓ|/s, over 1 + ω."""
        import torch

        norm, data = parts
        level = torch.from_numpy(digits.unpack(data[0].numpy(), 2 * self.levels + 1, p) - self.levels)
        level = level.to(norm.dtype)[None]
        q = norm * level.sign() * level.abs() / self.levels
        return q / (1.0 + self.omega(p))

    def omega(self, p: int) -> float:
        """min(p/s², √p/s)."""
        return min(p / self.levels**2, math.sqrt(p) / self.levels)

    def delta(self, p: int) -> float:
        """1/(1 + ω), of Q(x) / (1 + ω)."""
        return 1.0 / (1.0 + self.omega(p))


@dataclass(frozen=True)
class Sign:
    """The signs, times the mean absolute value; the sign of 0 is +, since one bit is sent."""

    lossless: ClassVar[bool] = False

    def slots(self, p: int) -> int:
        """None."""
        return 0

    def compress(self, x: Tensor, words: Tensor) -> Tensor:
        """±‖x‖₁/p; zeros remain zeros."""
        mean = x.abs().mean(dim=-1, keepdim=True)
        return mean.expand_as(x).where(x >= 0, -mean)

    def sent(self, p: int) -> int:
        """The mean, and a bit a number."""
        return FLOAT_BYTES + math.ceil(p / 8)

    def encode(self, q: Tensor, x: Tensor, words: Tensor) -> Parts:
        """The mean, (1, 1), and the signs as bits, (1, bytes)."""
        import torch

        signs = np.packbits((x[0] >= 0).numpy(), bitorder="little")
        return x.abs().mean(dim=-1, keepdim=True), torch.from_numpy(signs)[None]

    def decode(self, parts: Parts, p: int, words: Callable[[], Tensor]) -> Tensor:
        """±‖x‖₁/p."""
        import torch

        mean, data = parts
        signs = torch.from_numpy(np.unpackbits(data[0].numpy(), bitorder="little", count=p))[None] != 0
        return mean.expand(1, p).where(signs, -mean)

    def omega(self, p: int) -> float:
        """It is a contraction."""
        return 0.0

    def delta(self, p: int) -> float:
        """The bound for any x, 1/p: that of one number apart from zeros. Of normal numbers it keeps 2/π."""
        return 1.0 / p


COMPRESSORS: Mapping[str, type] = MappingProxyType(
    {"identity": Identity, "qsgd": Qsgd, "random_k": RandomK, "sign": Sign, "top_k": TopK}
)
"""The compressors by name; their fields are settings of the methods that compress."""
