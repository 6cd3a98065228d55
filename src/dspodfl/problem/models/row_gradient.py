"""The gradient of one client's minibatch: what PyTorch's autograd gives of `Model.objective`, to the bit.

For linear models the backward pass is written out with the operations that autograd would call, which takes a third of
the time. The tests hold both to the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

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
        size = self._outputs * self._features
        rows = x.reshape(len(x), -1)
        weight = theta[:size].view(self._outputs, self._features)
        scores = torch.nn.functional.linear(rows, weight, theta[size:] if self._bias else None)
        found = self._scores_gradient(scores, y)
        out = torch.empty_like(theta)
        torch.mm(found.t(), rows, out=out[:size].view(self._outputs, self._features))
        if self._bias:
            torch.sum(found, 0, out=out[size:])
        return out.add_(theta * 2 * (self._l2 / 2)) if self._l2 else out


def _hinge(scores: Tensor, y: Tensor) -> Tensor:
    place = y.long()[:, None]
    positive = (1 - scores.gather(1, place) + scores) > 0
    positive.scatter_(1, place, False)
    share = scores.new_ones(()) / len(scores) / scores.shape[1]
    found = positive * share
    return found.scatter_(1, place, -found.sum(1, keepdim=True))


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
