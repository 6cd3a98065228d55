"""PowerGossip: neighbours find the largest part of their difference by power iteration, and send only its factors."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

from dspodfl import rng
from dspodfl.algorithms.base import FLOAT_BYTES
from dspodfl.algorithms.entry import Entry
from dspodfl.algorithms.step import PerLink
from dspodfl.rng import Stream

if TYPE_CHECKING:
    from torch import Tensor

    from dspodfl.algorithms.step import Arc, Step

FIRST, LEFT, RIGHT = 0.0, 1.0, 2.0
"""Turns of a link: its first, from the right with the vector that both ends begin with; then left and right in turn."""

Shapes = tuple[tuple[int, ...], ...]

ENTRY = Entry(
    label="PowerGossip",
    line="sends products of weight matrices with a vector that both ends of a link know: rank-one gossip",
    schedule="dspodfl.algorithms.schedules:dspodfl",
    rule=f"{__name__}:PowerGossip",
    reference="Vogels, Karimireddy and Jaggi, NeurIPS 2020",
    order=510,
    sends="a row or a column of each weight matrix in turn, and all biases",
    update="Θ̂ = Θ − αVG; where link (i, j) fires, for each weight matrix M, with a unit vector q that both ends know:\n"
    "u = (M_i − M_j) q,  M_i ← M_i − r_ij u qᵀ,  M_j ← M_j + r_ij u qᵀ;  the next turn is from the left, with u/‖u‖",
    when="Weight matrices are large: a use of a link sends a row or a column of each. There is nothing to tune. "
    "Consensus takes more iterations than with whole models.",
)


class Matrix(NamedTuple):
    """A weight matrix in a flat model."""

    number: int
    """Of its parameter tensor."""
    first: int
    """Its first parameter."""
    rows: int
    columns: int

    @property
    def longest(self) -> int:
        """The length of the longer of its two kinds of vectors."""
        return max(self.rows, self.columns)

    def of(self, flat: Tensor) -> Tensor:
        """Cut it out of models. Shapes: (models, p) -> (models, rows, columns)."""
        return flat[:, self.first : self.first + self.rows * self.columns].view(-1, self.rows, self.columns)


def matrices(shapes: Shapes) -> tuple[Matrix, ...]:
    """Return the weight matrices of a model; what has one row or one column is sent as it is, as biases are.

    Args:
        shapes: The shapes of the parameter tensors. A convolution is a matrix with one row for each output channel.

    Returns:
        Those of at least two rows and two columns.

    >>> [(m.first, m.rows, m.columns) for m in matrices(((4, 3, 5, 5), (4,), (2, 4), (1, 6)))]
    [(0, 4, 75), (304, 2, 4)]
    """
    found, first = [], 0
    for number, shape in enumerate(shapes):
        size = math.prod(shape)
        if len(shape) > 1 and shape[0] > 1 and size > shape[0]:
            found.append(Matrix(number, first, shape[0], size // shape[0]))
        first += size
    return tuple(found)


@dataclass(frozen=True)
class PowerGossip:
    """Θ̂ = Θ − αVG; then rank-one gossip of each weight matrix, and plain gossip of vectors and biases.

    Memory at the ends of links: the vectors, whose turn it is, and which end it is, +1 or −1, so that both have the
    same u. Both begin with a vector that is drawn once and for all, and do so again where u = 0. The turn belongs to
    the link: it advances when the link fires.
    """

    shapes: Shapes | None = None
    """Of the model: `fit` sets it. Without it, memory is as wide as a model, and ``sent`` is that of a whole model."""

    def fit(self, shapes: Shapes) -> PowerGossip:
        """Return the same rule for a model of these shapes."""
        return replace(self, shapes=shapes)

    def init(self, theta: Tensor, links: int) -> PerLink:
        """The vectors of all matrices next to each other, the turn, and the end."""
        width = theta.shape[1] if self.shapes is None else sum(m.longest for m in matrices(self.shapes))
        side = theta.new_ones(links, 2)
        side[:, 1] = -1
        return PerLink((theta.new_zeros(2 * links, width), theta.new_zeros(2 * links), side.view(-1)))

    def step(self, theta: Tensor, state: PerLink, at: Step) -> tuple[Tensor, Any]:
        """One iteration."""
        half = theta - at.gradient(theta, at.lr * at.v)
        ends = _Ends(matrices(at.layout.shapes))
        change, memory = at.exchange(at.layout.flat(half), ends.send, ends.receive, state)
        return half + at.layout.packed(change), memory

    def sent(self, p: int) -> int:
        """Numbers sent in two turns, halved: the rows and the columns of each matrix, and whatever is no matrix."""
        if self.shapes is None:
            return FLOAT_BYTES * p
        found = matrices(self.shapes)
        rest = p - sum(m.rows * m.columns for m in found)
        return FLOAT_BYTES * rest + FLOAT_BYTES * sum(m.rows + m.columns for m in found) // 2


@lru_cache(maxsize=256)
def _start(matrix: Matrix, length: int, dtype: Any, device: Any) -> Tensor:
    """The unit vector that both ends begin with, drawn at seed 0, and zeros behind it. Shape: (longest,)."""
    import torch

    start = rng.normal(0, Stream.COMPRESS, 0, 1 + matrix.number, count=matrix.longest)
    start[length:] = 0.0
    return torch.from_numpy(start / (start**2).sum() ** 0.5).to(device, dtype)


@dataclass(frozen=True)
class _Ends:
    """What the end of a link sends and receives, matrix by matrix.

    A message has the product of each matrix with its vector, as long as the longer side and with zeros behind it, and
    the model without its matrices.
    """

    matrices: tuple[Matrix, ...]

    def vectors(self, memory: Any) -> Iterator[tuple[Matrix, Tensor, Tensor]]:
        """Each matrix, the vectors of the ends (ends, longest), and whether they are for its right, (ends, 1)."""
        right, first, at = (memory[1] != LEFT)[:, None], (memory[1] == FIRST)[:, None], 0
        for matrix in self.matrices:
            q = memory[0][:, at : at + matrix.longest]
            at += matrix.longest
            start = _start(matrix, matrix.columns, q.dtype, q.device)
            yield matrix, start.expand_as(q).where(first, q), right

    def send(self, x: Tensor, memory: Any) -> tuple[Tensor, ...]:
        """Mq from the right, or Mᵀq from the left, of each matrix; then the rest."""
        products = []
        for matrix, q, right in self.vectors(memory):
            m, a, b = matrix.of(x), matrix.rows, matrix.columns
            product = q.new_zeros(q.shape)
            product[:, :a] = (m @ q[:, :b, None])[:, :, 0].where(right, 0.0)
            product[:, :b] += (q[:, None, :a] @ m)[:, 0].where(~right, 0.0)
            products.append(product)
        return (*products, self._rest(x))

    def receive(self, x: Tensor, mine: Any, theirs: Any, memory: Any, arc: Arc) -> tuple[Tensor, Any]:
        """Add r (M_j − M_i) q qᵀ, or r q qᵀ (M_j − M_i), and take up the direction for the next turn."""
        added, next_vectors = arc.into * self._whole(theirs[-1] - mine[-1], x), memory[0].clone()
        at = 0
        for n, (matrix, q, right) in enumerate(self.vectors(memory)):
            a, b = matrix.rows, matrix.columns
            gap = theirs[n] - mine[n]
            left, top = gap.where(right, q)[:, :a, None], q.where(right, gap)[:, None, :b]
            matrix.of(added)[:] = arc.into[:, :, None] * (left * top)
            norm = gap.norm(dim=1, keepdim=True)
            for_left, for_right = (_start(matrix, length, q.dtype, q.device) for length in (a, b))
            again = for_left.expand_as(q).where(right, for_right)
            unit = memory[2][:, None] * gap / norm.where(norm > 0, 1.0)
            next_vectors[:, at : at + matrix.longest] = unit.where(norm > 0, again)
            at += matrix.longest
        turn = RIGHT - (memory[1] != LEFT).to(memory[1].dtype)  # left after the first and after right
        return added, (next_vectors, turn, memory[2])

    def _places(self) -> Iterator[tuple[int, int | None]]:
        """What is no matrix, as first and last place."""
        at = 0
        for matrix in self.matrices:
            yield at, matrix.first
            at = matrix.first + matrix.rows * matrix.columns
        yield at, None

    def _rest(self, x: Tensor) -> Tensor:
        """The parameters that are in no matrix. Shapes: (ends, p) -> (ends, rest)."""
        import torch

        return torch.cat([x[:, first:last] for first, last in self._places()], dim=1)

    def _whole(self, rest: Tensor, x: Tensor) -> Tensor:
        """The converse, with zeros in matrices. Shapes: (ends, rest), (ends, p) -> (ends, p)."""
        whole, at = x.new_zeros(x.shape), 0
        for first, last in self._places():
            part = whole[:, first:last]
            part[:] = rest[:, at : at + part.shape[1]]
            at += part.shape[1]
        return whole
