"""Exact gradients of a stack of clients: the mean over all samples that each of them holds.

g_i = ∇F_i(θ_i) = (1/n_i) Σ_s ∇ℓ(θ_i; s) + λθ_i

A client's samples are taken in pieces, whose length is a power of two; the last one is filled up with samples of weight
0. Lengths depend on the client's own samples alone, not on who is stacked with it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.func import grad, vmap

from dspodfl.problem.models import Model
from dspodfl.problem.models.linear import linear_sum
from dspodfl.problem.models.losses import LOSSES
from dspodfl.problem.sampling import TrainingSamples

PIECE = 256
"""Samples of a piece, at most."""
SAMPLES_AT_ONCE = 4096
"""Samples whose gradients are computed in one batch, at most (one piece at least)."""
_PIECES_PER_CHUNK = 64
"""Pieces whose gradients are computed at a time by vmap."""
_MAX_KEPT_INPUTS = 2**23
"""Inputs that are kept from one iteration to the next, where there are no more in all."""


@dataclass(frozen=True, eq=False)
class Holdings:
    """Which samples the clients of a stack hold: client n holds order[offset[n] : offset[n] + size[n]]."""

    order: np.ndarray  # training rows
    offset: np.ndarray  # (clients,)
    size: np.ndarray  # (clients,)


@dataclass(frozen=True, eq=False)
class _Pieces:
    """Pieces of one length, of different clients each."""

    client: Tensor  # (pieces,)
    rows: Tensor  # (pieces, length) training rows
    weight: Tensor  # (pieces, length): 1/n_i, or 0 where a sample only fills up

    def some(self, which: Tensor) -> _Pieces:
        return _Pieces(self.client[which], self.rows[which], self.weight[which])

    def to(self, device: torch.device, dtype: torch.dtype) -> _Pieces:
        return _Pieces(self.client.to(device), self.rows.to(device), self.weight.to(device, dtype))


class FullBatch:
    """Computes the exact gradients of packed models.

    Args:
        held: the samples of each client.
        samples: the training samples.
        model: the model, with its constants in ``compute``.
        dtype: of the models and of their gradients.
        compute: the dtype that gradients are computed in.
        looped: compute piece by piece, where grouped convolutions are slower than a loop.
    """

    def __init__(
        self,
        held: Holdings,
        samples: TrainingSamples,
        model: Model,
        *,
        dtype: torch.dtype,
        compute: torch.dtype,
        looped: bool,
    ) -> None:
        self._samples, self._model, self._dtype, self._compute = samples, model, dtype, compute
        device = samples.x.device
        self._one = torch.ones((), dtype=compute, device=device)
        self._pieces = [part.to(device, compute) for part in _cut(held)]
        self._sum = self._linear if model.is_linear else self._looped if looped else self._mapped
        inputs = sum(part.rows.numel() for part in self._pieces) * (samples.x[0].numel() if len(samples.x) else 0)
        self._kept: dict[int, tuple[Tensor, Tensor]] | None = {} if inputs <= _MAX_KEPT_INPUTS else None

    def gradient(self, packed: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute the gradients of all clients, each times its ``scale`` if there is one.

        Shapes: packed (clients, width), scale (clients,) -> (clients, width).
        """
        point, out = packed.to(self._compute), torch.zeros_like(packed)
        for number, pieces in self._active(scale):
            x, y = self._gathered(number, pieces)
            found = self._sum(point.index_select(0, pieces.client), x, y, pieces.weight)
            out.index_add_(0, pieces.client, found.to(self._dtype))
        if self._model.l2:
            out += self._model.l2 * packed
        return out if scale is None else out.mul_(scale[:, None])

    def _active(self, scale: Tensor | None) -> Iterator[tuple[int | None, _Pieces]]:
        """The pieces that are needed, with their number where they are whole; on a GPU all are, so that it never waits.

        Where some clients do not step, the pieces of the others.
        """
        needed = None
        if scale is not None and scale.device.type == "cpu":
            steps = scale != 0
            needed = None if bool(steps.all()) else steps
        for number, pieces in enumerate(self._pieces):
            if needed is None:
                yield number, pieces
                continue
            which = needed[pieces.client].nonzero().flatten()
            if len(which):
                yield None, pieces.some(which)

    def _gathered(self, number: int | None, pieces: _Pieces) -> tuple[Tensor, Tensor]:
        """The inputs and targets of some pieces. Shapes: (pieces, length, ...), (pieces, length)."""
        found = self._kept.get(number) if self._kept is not None and number is not None else None
        if found is None:
            found = self._samples.inputs(pieces.rows).to(self._compute), self._samples.targets(pieces.rows)
            if self._kept is not None and number is not None:
                self._kept[number] = found
        return found

    def _linear(self, point: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        return linear_sum(self._model, point, x, y, self._one, weight)

    def _loss(self, theta: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        """Σ_b w_b ℓ(s(θ; x_b), y_b) of one piece. Shapes: (p,), (length, ...), (length,), (length,) -> ()."""
        model = self._model
        return (LOSSES[model.loss](model.scores(theta, x), y) * weight).sum()

    def _mapped(self, point: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        mapped: Callable[..., Tensor] = vmap(grad(self._loss), chunk_size=_PIECES_PER_CHUNK)
        return mapped(point, x, y, weight)

    def _looped(self, point: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
        one = grad(self._loss)
        return torch.stack([one(*piece) for piece in zip(point, x, y, weight, strict=True)])


def _cut(held: Holdings) -> Iterator[_Pieces]:
    """Cut the samples of all clients into pieces; no client is twice in one of what is yielded."""
    length = np.minimum(PIECE, 2 ** np.ceil(np.log2(held.size)).astype(np.int64))
    count = -(-held.size // length)
    for some in np.unique(length).tolist():
        for first in range(int(count[length == some].max())):
            clients = np.flatnonzero((length == some) & (count > first))
            place = first * some + np.arange(some)[None]
            size = held.size[clients][:, None]
            rows = held.order[held.offset[clients][:, None] + np.where(place < size, place, 0)]
            weight = np.where(place < size, 1.0 / size, 0.0)
            step = max(1, SAMPLES_AT_ONCE // some)
            for n in range(0, len(clients), step):
                yield _Pieces(*(torch.from_numpy(array[n : n + step]) for array in (clients, rows, weight)))
