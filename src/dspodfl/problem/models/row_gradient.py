"""The gradient of one client's minibatch: what PyTorch's autograd gives of `Model.objective`, to the bit.

For linear models the backward pass is written out with the operations that autograd would call, which takes a third of
the time. The tests hold both to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.problem.models.linear import has_bias
from dspodfl.problem.models.model import Model

RowGradient = Callable[[Tensor, Tensor, Tensor], Tensor]
"""``(theta (p,), x (batch, *input_shape), y (batch,)) -> (p,)``."""


def row_gradient(model: Model) -> RowGradient:
    """Return the function that computes the gradient of a model's objective on one minibatch.

    Args:
        model: The model; its constants are in the precision of θ.

    Returns:
        ``(theta (p,), x (batch, *input_shape), y (batch,)) -> (p,)``, with the bits of `torch.autograd.grad`.

    >>> from dspodfl.problem.models import build
    >>> gradient = row_gradient(build("linear", (2,), 1))
    >>> gradient(torch.zeros(2), torch.tensor([[1.0, 2.0]]), torch.tensor([3.0])).tolist()
    [-3.0, -6.0]
    """
    if model.is_linear and model.loss in _SCORE_GRADIENTS and (model.loss != "squared_error" or model.outputs == 1):
        return _Linear(model)

    def by_autograd(theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        point = theta.detach().requires_grad_()
        (found,) = torch.autograd.grad(model.objective(point, x, y), point)
        return found

    return by_autograd


class _Linear:
    """The gradient of a linear model: scores, their gradient by the loss, and two products."""

    def __init__(self, model: Model) -> None:
        self._scores_gradient = _SCORE_GRADIENTS[model.loss]
        self._outputs, self._features = next(iter(model.shapes.values()))
        self._bias, self._l2 = has_bias(model), model.l2

    def __call__(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        shape, stride = (self._outputs, self._features), (self._features, 1)
        size = self._outputs * self._features
        rows = x.flatten(1)
        bias = theta[size:] if self._bias else None
        scores = torch.nn.functional.linear(rows, theta.as_strided(shape, stride), bias)
        found = self._scores_gradient(scores, y)
        out = torch.empty_like(theta)
        torch.mm(found.t(), rows, out=out.as_strided(shape, stride))
        if self._bias:
            torch.sum(found, 0, out=out[size:])
        return out.add_(theta * 2 * (self._l2 / 2)) if self._l2 else out


def _hinge(scores: Tensor, y: Tensor) -> Tensor:
    """Elementwise in NumPy, which takes half the time for arrays this small; the sum is PyTorch's, in its order."""
    values, place = scores.numpy(), y.numpy()
    rows = _counting(len(values))
    margins = np.subtract(1, values[rows, place])[:, None] + values
    positive = margins > 0
    positive[rows, place] = False
    found = torch.empty_like(scores)
    array = found.numpy()
    np.multiply(positive, _hinge_share(scores.shape, scores.dtype), out=array)
    array[rows, place] = -found.sum(1).numpy()
    return found


@lru_cache(8)
def _counting(count: int) -> np.ndarray:
    return np.arange(count)


@lru_cache(8)
def _hinge_share(shape: tuple[int, int], dtype: torch.dtype) -> Any:
    """1 / samples / outputs, in the precision of the scores."""
    return (torch.ones((), dtype=dtype) / shape[0] / shape[1]).numpy()[()]


def _cross_entropy(scores: Tensor, y: Tensor) -> Tensor:
    place, share = y.long()[:, None], scores.new_ones(()) / len(scores)
    output = torch.log_softmax(scores, -1)
    grad = torch.zeros_like(scores).scatter_(1, place, -share.expand(place.shape))
    found: Tensor = torch.ops.aten._log_softmax_backward_data(grad, output, -1, scores.dtype)
    return found


def _squared_error(scores: Tensor, y: Tensor) -> Tensor:
    gap = scores[:, 0] - y
    share = scores.new_ones(()) / len(scores) / 2
    return (share * (gap * 2))[:, None]


_SCORE_GRADIENTS: Mapping[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hinge": _hinge,
    "cross_entropy": _cross_entropy,
    "squared_error": _squared_error,
}
"""∂(mean loss)/∂scores by the name of the loss. Shapes: (batch, outputs), (batch,) -> (batch, outputs)."""
