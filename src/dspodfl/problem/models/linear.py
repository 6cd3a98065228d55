"""Gradients of a stack of clients: of linear models in closed form, of others client by client."""

from __future__ import annotations

import torch
from torch import Tensor

from dspodfl.problem.models.model import Model

_SUM = 2  # PyTorch's number for reduction = "sum"


def looped_gradient(model: Model, theta: Tensor, x: Tensor, y: Tensor, scale: Tensor | None = None) -> Tensor:
    """Minibatch gradients client by client; those whose scale is 0 are left at 0. Shapes as `linear_gradient`."""
    out = torch.zeros_like(theta)
    wanted = range(len(theta)) if scale is None else torch.nonzero(scale).flatten().tolist()
    for i in wanted:
        point = theta[i].detach().requires_grad_()
        (out[i],) = torch.autograd.grad(model.objective(point, x[i], y[i]), point)
    return out


def has_bias(model: Model) -> bool:
    """Return whether a linear model has biases besides its weights.

    Args:
        model: A model with ``is_linear``.

    Returns:
        True if θ = [W, b], False if θ = [W].
    """
    return len(model.shapes) > 1


def linear_parts(model: Model, theta: Tensor) -> tuple[Tensor, Tensor | None]:
    """Weights (clients, outputs, features) and biases (clients, outputs) inside θ = [W, b]; views."""
    outputs, features = next(iter(model.shapes.values()))
    size = outputs * features
    weight = theta[:, :size].view(-1, outputs, features)
    return weight, theta[:, size:] if has_bias(model) else None


def linear_gradient(
    model: Model,
    packed: Tensor,
    x: Tensor,
    y: Tensor,
    share: Tensor,
    scale: Tensor | None = None,
) -> Tensor:
    """Closed-form minibatch gradients of linear models: ∇W = (1/B) Σ_b (∂ℓ/∂s_b) x_bᵀ, times scale.

    A bias is the weight of a last feature that is always 1, so weights and biases are one (outputs, features)
    matrix a client. Scores are stored as (clients, outputs, B): every product runs over contiguous features.
    Shapes: packed (clients, p), x (clients, B, features), y (clients, B), share () = 1/B, scale (clients,) ->
    (clients, p).
    """
    clients, _, features = x.shape
    scores = torch.bmm(packed.view(clients, -1, features), x.transpose(1, 2))
    grad = LOSS_GRADIENTS[model.loss](scores, y, share)
    if scale is not None:
        grad *= scale.view(-1, 1, 1)
    out = torch.bmm(grad, x).view(packed.shape)
    if model.l2:
        out += model.l2 * packed if scale is None else (model.l2 * scale)[:, None] * packed
    return out


def linear_sum(model: Model, packed: Tensor, x: Tensor, y: Tensor, one: Tensor, weight: Tensor) -> Tensor:
    """Closed-form weighted sums of the samples' gradients, without the penalty: Σ_b w_b (∂ℓ/∂s_b) x_bᵀ.

    Shapes: packed (clients, p), x (clients, B, features), y (clients, B), one () = 1, weight (clients, B) ->
    (clients, p).
    """
    clients, _, features = x.shape
    scores = torch.bmm(packed.view(clients, -1, features), x.transpose(1, 2))
    grad = LOSS_GRADIENTS[model.loss](scores, y, one) * weight[:, None, :]
    return torch.bmm(grad, x).view(packed.shape)


def _hinge_gradient(scores: Tensor, y: Tensor, share: Tensor) -> Tensor:
    """∂/∂s of (1/C) Σ_{c≠y} max(0, 1 − s_y + s_c): PyTorch's own backward kernel of that loss, one call for all."""
    clients, outputs, batch = scores.shape
    rows = scores.transpose(1, 2).reshape(-1, outputs)
    if rows.dtype == torch.bfloat16:  # which the kernel does not know
        rows, share = rows.float(), share.float()
    grad = torch.ops.aten.multi_margin_loss_backward(share, rows, y.view(-1), 1, 1.0, None, _SUM)
    grad = grad.view(clients, batch, outputs).transpose(1, 2)
    return grad if grad.dtype == scores.dtype else grad.to(scores.dtype)


def _cross_entropy_gradient(scores: Tensor, y: Tensor, share: Tensor) -> Tensor:
    label = y[:, None, :]
    probability = torch.softmax(scores, dim=1)
    return probability.scatter_add_(1, label, -torch.ones_like(label, dtype=probability.dtype)).mul_(share)


LOSS_GRADIENTS = {
    "hinge": _hinge_gradient,
    "cross_entropy": _cross_entropy_gradient,
    "squared_error": lambda scores, y, share: (scores - y[:, None, :]).mul_(share),
}
"""share · ∂ℓ/∂s per sample. Shapes: scores (clients, outputs, batch), y (clients, batch) -> as the scores."""
