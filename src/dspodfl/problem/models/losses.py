"""Losses per sample, usable under `torch.func.vmap` and `torch.func.grad`.

Every loss maps scores ``(..., C)`` and targets ``(...)`` to one number a sample, ``(...)``; the mean over a
minibatch is the caller's (`Model.objective`), because a client's F_i is the *mean* loss over its samples.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

Loss = Callable[[Tensor, Tensor], Tensor]
"""``(scores (..., C), target (...)) -> (...)``: the loss of every sample."""


def _score_of_target(scores: Tensor, target: Tensor) -> Tensor:
    """s_y, with the class axis kept. Shapes: (..., C), (...) -> (..., 1)."""
    return scores.gather(-1, target.long()[..., None])


def hinge(scores: Tensor, target: Tensor) -> Tensor:
    """Compute the multi-class hinge of margin 1, averaged over classes: (1/C) Σ_{c≠y} max(0, 1 − s_y + s_c).

    At a kink the subgradient is 0, as that of ReLU. The paper's SVM experiments use this loss.

    Args:
        scores: Shape (..., C).
        target: The labels, integers of shape (...).

    Returns:
        The loss of every sample, shape (...).

    >>> hinge(torch.tensor([[2.0, 1.5, -3.0]]), torch.tensor([0]))  # ⅓ max(0, 1 − 2 + 1.5)
    tensor([0.1667])
    """
    classes = scores.shape[-1]
    others = torch.arange(classes, device=scores.device) != target[..., None]
    margins = torch.relu(1 - _score_of_target(scores, target) + scores)
    return torch.where(others, margins, 0).sum(-1) / classes


def cross_entropy(scores: Tensor, target: Tensor) -> Tensor:
    """Compute the negative log-likelihood of the softmax: −s_y + log Σ_c exp s_c.

    Args:
        scores: Shape (..., C).
        target: The labels, integers of shape (...).

    Returns:
        The loss of every sample, shape (...).

    >>> cross_entropy(torch.zeros(1, 4), torch.tensor([2]))  # log 4
    tensor([1.3863])
    """
    return -_score_of_target(torch.log_softmax(scores, -1), target)[..., 0]


def half_squared_error(scores: Tensor, target: Tensor) -> Tensor:
    """Compute half the squared error of one output: ½(s − y)².

    Args:
        scores: Shape (..., 1) or (...).
        target: Shape (...).

    Returns:
        The loss of every sample, shape (...).

    Raises:
        ValueError: There is not one score per target.

    >>> half_squared_error(torch.tensor([[3.0]]), torch.tensor([1.0]))
    tensor([2.])
    """
    if scores.ndim == target.ndim + 1 and scores.shape[-1] == 1:
        scores = scores[..., 0]
    if scores.shape != target.shape:
        raise ValueError(f"scores {tuple(scores.shape)} do not give one number per target {tuple(target.shape)}")
    return (scores - target).square() / 2


LOSSES: Mapping[str, Loss] = {
    "hinge": hinge,
    "cross_entropy": cross_entropy,
    "squared_error": half_squared_error,
}
"""The losses by the names that configurations use."""
