"""Minibatch gradients of a stack of clients: closed forms for linear models, fused on a GPU, else by autograd."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import grad, vmap

from dspodfl.problem.models import Model
from dspodfl.problem.models.linear import linear_gradient, looped_gradient
from dspodfl.problem.models.stacked.network import Stacked

_CLIENTS_PER_CHUNK = 64
"""Networks whose gradients are computed at a time by vmap, so that what it keeps in between stays small."""


class Gradients:
    """Computes the gradients of packed models on their minibatches.

    Args:
        model: the model, with its constants in ``compute``.
        batch_size: samples in a minibatch.
        device: where the models are stored.
        dtype: of the models and of their gradients.
        compute: the dtype that gradients are computed in.
        stacked: the network as the GPU computes it, or None.
        looped: compute client by client, where grouped convolutions are slower than a loop.
    """

    def __init__(
        self,
        model: Model,
        batch_size: int,
        *,
        device: torch.device,
        dtype: torch.dtype,
        compute: torch.dtype,
        stacked: Stacked | None,
        looped: bool,
    ) -> None:
        self._model, self._dtype, self._compute, self._stacked = model, dtype, compute, stacked
        self.looped = looped
        self._share = torch.tensor(1.0 / batch_size, dtype=compute, device=device)

    def of_all(self, packed: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
        """Compute the gradients of all clients, each times its ``scale`` if there is one: diag(scale) G.

        Shapes: packed (clients, width), x (clients, B, ...), y (clients, B), scale (clients,) -> (clients, width).
        """
        model, compute = self._model, self._compute
        if model.is_linear and compute == self._dtype == x.dtype:
            return linear_gradient(model, packed, x, y, self._share, scale)
        if self._stacked is not None:
            out = torch.zeros_like(packed)
            self._stacked.gradient(packed, x, y, out)
            return out if scale is None else out.mul_(scale[:, None])
        point, x = packed.to(compute), x.to(compute)
        if model.is_linear:
            out = linear_gradient(model, point, x, y, self._share)
        elif self.looped:
            out = looped_gradient(model, point, x, y, scale)
        else:
            out = vmap(grad(model.objective), chunk_size=_CLIENTS_PER_CHUNK)(point, x, y)
        out = out.to(self._dtype)
        return out if scale is None else out.mul_(scale[:, None])

    def of_some(
        self,
        packed: Tensor,
        model_row: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        ready: Callable[[int, int], None] | None = None,
        aside: torch.cuda.Stream | None = None,
    ) -> None:
        """Compute the gradients of some clients of a network, whose models are rows ``model_row`` of ``packed``.

        ``ready(first, last)`` is called as soon as columns first … last − 1 of ``out`` are on their way, and what reads
        these columns of the models, on the current stream or on ``aside``, a stream that parts of the work may use (see
        `Stacked.gradient`).
        Shapes: packed (rows, width), model_row (some,), x (some, B, ...), y (some, B), out (some, width).
        """
        if self._stacked is not None:
            self._stacked.gradient(packed, x, y, out, model_row, ready, aside)
            return
        out.copy_(self.of_all(packed.index_select(0, model_row), x, y))
        if ready is not None:
            ready(0, packed.shape[1])
