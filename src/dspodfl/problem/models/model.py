"""A model as a function of one flat vector: θ ∈ ℝᵖ goes in, scores and the objective come out.

Clients mix *vectors*, so everything outside this package sees parameters as ``theta (..., p)``; the structure of
the module (layers, names, shapes) stays here. The flat order is that of `nn.Module.named_parameters`: an
`nn.Linear` is its weight, row by row, then its bias.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.func import functional_call

from dspodfl.errors import InputError, nearest
from dspodfl.problem.models.losses import LOSSES


@dataclass(frozen=True, eq=False)
class Model:
    """A module's structure, its loss and its initial values.

    ``module`` is structure only: the values of its trainable parameters are never read when a ``draw`` is given (those
    of the named models are on the meta device, without storage). Buffers and parameters that are not trainable are
    constants: every client has the module's own, they are not mixed, and they are no part of θ.

    Attributes:
        name: What errors and results call the model.
        module: The layers.
        loss: A name of `LOSSES`.
        input_shape: The shape of one sample.
        outputs: The number of classes; 1 for regression. Scores may be wider, as with VGG11's 1000-way head.
        l2: λ of the penalty (λ/2)‖θ‖².
        is_linear: Whether the scores are one affine map of the flattened input, so that θ = [W, b] row by row, or [W]
            where the map has no bias.
        draw: seed -> the initial θ, shape (p,); None: the values that the module holds.

    Raises:
        InputError: The loss is unknown, or l2 is negative or not finite.

    >>> from dspodfl.problem.models import build
    >>> model = build("svm", input_shape=(1, 28, 28), outputs=10)
    >>> model.parameters, {name: tuple(shape) for name, shape in model.shapes.items()}
    (7850, {'linear.weight': (10, 784), 'linear.bias': (10,)})
    >>> theta = model.initial(seed=0)
    >>> model.scores(theta, torch.zeros(5, 1, 28, 28)).shape
    torch.Size([5, 10])
    """

    name: str
    module: nn.Module = field(repr=False)
    loss: str
    input_shape: tuple[int, ...]
    outputs: int
    l2: float = 0.0
    is_linear: bool = False
    draw: Callable[[int], Tensor] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.loss not in LOSSES:
            hint = nearest(str(self.loss), LOSSES)
            raise InputError("model.loss", self.loss, f"one of {', '.join(LOSSES)}{hint}")
        number = isinstance(self.l2, int | float) and not isinstance(self.l2, bool)
        if not (number and math.isfinite(self.l2) and self.l2 >= 0):
            raise InputError("model.l2", self.l2, "a finite number, at least 0")

    @cached_property
    def shapes(self) -> dict[str, torch.Size]:
        """The shapes of the trainable parameters, in the order in which they are stored in θ."""
        return {name: p.shape for name, p in self.module.named_parameters() if p.requires_grad}

    @cached_property
    def parameters(self) -> int:
        """The number p of trainable parameters."""
        return sum(shape.numel() for shape in self.shapes.values())

    def flatten(self, state: Mapping[str, Tensor]) -> Tensor:
        """Join named tensors to one vector; other names in ``state`` are ignored.

        Args:
            state: Tensors by name, shape (..., *shape), with one common lead.

        Returns:
            The vector, shape (..., p).

        Raises:
            ValueError: A tensor is missing, or has another shape.
        """
        missing = [name for name in self.shapes if name not in state]
        if missing:
            raise ValueError(f"no value for {', '.join(missing)}")
        parts = []
        for name, shape in self.shapes.items():
            value = state[name]
            lead = value.shape[: value.ndim - len(shape)]
            if value.shape != lead + shape:
                raise ValueError(f"{name} has shape {tuple(value.shape)}, which does not end in {tuple(shape)}")
            parts.append(value.reshape(*lead, shape.numel()))
        return torch.cat(parts, dim=-1)

    def unflatten(self, theta: Tensor) -> dict[str, Tensor]:
        """Return the named tensors inside a vector, as views of it.

        Args:
            theta: The vector, shape (..., p).

        Returns:
            Tensors by name, shape (..., *shape).

        Raises:
            ValueError: The last axis is not p.
        """
        if theta.ndim == 0 or theta.shape[-1] != self.parameters:
            raise ValueError(f"theta has shape {tuple(theta.shape)}; its last axis must be {self.parameters}")
        state, start = {}, 0
        for name, shape in self.shapes.items():
            size = shape.numel()
            state[name] = theta[..., start : start + size].view((*theta.shape[:-1], *shape))
            start += size
        return state

    def initial(self, seed: int) -> Tensor:
        """Return the common initial model of a seed, the same on every machine.

        Args:
            seed: The seed; without a ``draw`` the result is what the module holds, whatever the seed.

        Returns:
            θ, shape (p,), float32, on the CPU; a new tensor.
        """
        if self.draw is not None:
            return self.draw(seed)
        values = {name: p.detach().float() for name, p in self.module.named_parameters() if p.requires_grad}
        return self.flatten(values)

    def scores(self, theta: Tensor, x: Tensor) -> Tensor:
        """Compute the module's outputs at θ.

        Args:
            theta: The parameters, shape (p,).
            x: Inputs, shape (batch, *input_shape).

        Returns:
            Shape (batch, outputs).
        """
        out: Tensor = functional_call(self.module, self.unflatten(theta), (x,))
        return out

    def objective(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Compute the mean loss of a minibatch plus the penalty: (1/B) Σ_b ℓ(s(θ; x_b), y_b) + (λ/2)‖θ‖².

        The penalty covers all of θ, also biases.

        Args:
            theta: The parameters, shape (p,).
            x: Inputs, shape (batch, *input_shape).
            y: Labels or targets, shape (batch,).

        Returns:
            The objective, shape ().
        """
        loss = LOSSES[self.loss](self.scores(theta, x), y).mean()
        return loss + self.l2 / 2 * theta.square().sum() if self.l2 else loss

    def to(self, device: torch.device | str | None = None, dtype: torch.dtype | None = None) -> Model:
        """Return the same model with its constants on a device and, where they are floats, in a dtype.

        θ and the data are the caller's to move. A model without constants, as every named one, is returned as it is.

        Args:
            device: The device; None: unchanged.
            dtype: The dtype of floats; None: unchanged.

        Returns:
            The model.
        """

        def moved(value: Tensor) -> Tensor:
            return value.detach().to(device, dtype if value.is_floating_point() else None)

        trainable = {id(p): p for p in self.module.parameters() if p.requires_grad}
        if len(trainable) == len(list(self.module.parameters())) and not list(self.module.buffers()):
            return self
        module = copy.deepcopy(self.module, dict(trainable))
        for part in module.modules():
            for name, buffer in list(part.named_buffers(recurse=False)):
                setattr(part, name, moved(buffer))
            for name, p in list(part.named_parameters(recurse=False)):
                if not p.requires_grad:
                    setattr(part, name, nn.Parameter(moved(p), requires_grad=False))
        return replace(self, module=module)
