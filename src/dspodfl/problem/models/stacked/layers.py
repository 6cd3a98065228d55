"""Layers of many clients in one pass, each with its own parameters: forward, and a written-out backward pass.

Activations have their channels last. Convolutions, normalizations and the last layer with its loss are those of
`dspodfl._kernels`; everything else is plain PyTorch. Nothing here waits for the device or depends on the values of
tensors, so that passes can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspodfl._kernels.cuda import Gate, Groups, Precision, conv
from dspodfl._kernels.cuda import group_norm as norm
from dspodfl._kernels.cuda import loss_head as head


@dataclass(frozen=True)
class Slot:
    """Where a tensor is: from ``start`` in θ, from ``offset`` in a packed vector, there with its axes permuted."""

    start: int
    offset: int
    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def size(self) -> int:
        """Numbers in the tensor."""
        return math.prod(self.shape)

    def view(self, packed: Tensor, *shape: int) -> Tensor:
        """The tensor inside packed vectors. Shapes: (n, width) -> (n, *shape)."""
        return packed[:, self.offset : self.offset + self.size].unflatten(1, shape or (self.size,))


@dataclass(eq=False)
class Pass:
    """What all layers need in the forward and the backward pass."""

    packed: Tensor
    index: Tensor | None
    precision: Precision
    out: Tensor | None = None
    l2: float = 0.0
    intermediate: dict[int, Tensor] = field(default_factory=dict)
    """What `Layer.backward` computes for `Layer.write`, by layer; held as long as the pass takes."""

    def own(self, slot: Slot, *shape: int) -> Tensor:
        """A tensor of the clients at work. Shapes: (G, *shape)."""
        value = slot.view(self.packed, *shape)
        return value if self.index is None else value.index_select(0, self.index)

    def write(self, slot: Slot, grad: Tensor) -> None:
        """Write the gradient with respect to a tensor, and that of the penalty, into its place."""
        assert self.out is not None
        target = slot.view(self.out, *grad.shape[1:])
        if self.l2:
            torch.add(grad, self.own(slot, *grad.shape[1:]), alpha=self.l2, out=target)
        else:
            target.copy_(grad)


Saved = tuple[Tensor, ...]
"""The tensors that a layer saves for the backward pass."""


class Layer(ABC):
    """One layer of all clients. Activations: (G, B, features) or (G, B, height, width, channels)."""

    slots: tuple[Slot, ...] = ()
    backward_first: bool = False
    """Whether `write` is to come after `backward`, which does much of its work; if not, the two run in parallel."""

    @abstractmethod
    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        """Outputs, and what `backward` needs."""

    def write(self, state: Pass, grad: Tensor, saved: Saved) -> None:  # noqa: B027 - most have none
        """Write the gradients with respect to the parameters into their places.

        It reads nothing that `backward` computes, unless ``backward_first``.
        """

    @abstractmethod
    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        """Return the gradients with respect to the inputs.

        Those of convolutions are with respect to pre-activations, before ReLU and pooling: ``gate`` is that of the
        layer before.
        """

    def gate(self, saved: Saved) -> Gate | None:
        """What is between pre-activations and outputs, if the layer's gradients are with respect to pre-activations."""
        return None


@dataclass(frozen=True)
class Convolution(Layer):
    """A 3×3 convolution, with the ReLU and the pooling behind it."""

    weight: Slot
    bias: Slot
    relu: bool = False
    pool: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", (self.weight, self.bias))

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        out, code = conv.forward(
            x,
            state.packed,
            self.weight.offset,
            self.bias.offset,
            self.bias.size,
            relu=self.relu,
            pool=self.pool,
            precision=state.precision,
            index=state.index,
        )
        return out, (x, out) if code is None else (x, out, code)

    def gate(self, saved: Saved) -> Gate | None:
        if self.pool:
            return Gate(code=saved[2], height=saved[0].shape[2], width=saved[0].shape[3])
        return Gate(output=saved[1]) if self.relu else None

    def write(self, state: Pass, grad: Tensor, saved: Saved) -> None:
        assert state.out is not None
        conv.weight_gradient(
            saved[0],
            grad,
            state.out,
            self.weight.offset,
            self.bias.offset,
            theta=state.packed,
            l2=state.l2,
            precision=state.precision,
            index=state.index,
        )

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        return conv.input_gradient(
            grad,
            state.packed,
            self.weight.offset,
            saved[0].shape[4],
            gate=gate,
            precision=state.precision,
            index=state.index,
        )


@dataclass(frozen=True)
class Linear(Layer):
    """A linear layer."""

    weight: Slot
    bias: Slot | None
    outputs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", (self.weight,) if self.bias is None else (self.weight, self.bias))

    def _weight(self, state: Pass) -> Tensor:
        return state.own(self.weight, self.outputs, self.weight.size // self.outputs)

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        x = x.to(state.packed.dtype)
        weight = self._weight(state)
        if self.bias is None:
            return torch.bmm(x, weight.mT), (x, weight)
        return torch.baddbmm(state.own(self.bias)[:, None], x, weight.mT), (x, weight)

    def write(self, state: Pass, grad: Tensor, saved: Saved) -> None:
        assert state.out is not None
        x, weight = saved
        grad = grad.to(x.dtype)
        target = self.weight.view(state.out, *weight.shape[1:])
        if state.l2:
            torch.baddbmm(weight, grad.mT, x, beta=state.l2, out=target)
        else:
            torch.bmm(grad.mT, x, out=target)
        if self.bias is not None:
            state.write(self.bias, grad.sum(dim=1))

    def close(self, state: Pass, x: Tensor, y: Tensor, loss: str) -> Tensor:
        """Compute forward pass, loss and backward pass of the last layer; return the gradients of its inputs."""
        assert state.out is not None
        return head.gradient(
            x,
            y,
            state.packed,
            self.weight.offset,
            None if self.bias is None else self.bias.offset,
            self.outputs,
            state.out,
            loss=loss,
            l2=state.l2,
            precision=state.precision,
            index=state.index,
        )

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        x, weight = saved
        return torch.bmm(grad.to(x.dtype), weight)


@dataclass(frozen=True)
class GroupNorm(Layer):
    """A group normalization, with the ReLU and the pooling behind it."""

    weight: Slot | None
    bias: Slot | None
    groups: Groups
    relu: bool = False
    pool: bool = False
    backward_first = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(s for s in (self.weight, self.bias) if s is not None))

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        x = x.contiguous()
        out, code, stats = norm.forward(
            x,
            state.packed,
            self.groups,
            relu=self.relu,
            pool=self.pool,
            precision=state.precision,
            index=state.index,
        )
        return out, (x, stats, out) if code is None else (x, stats, out, code)

    def gate(self, saved: Saved) -> Gate | None:
        if self.pool:
            return Gate(code=saved[3], height=saved[0].shape[2], width=saved[0].shape[3])
        return Gate(output=saved[2]) if self.relu else None

    def write(self, state: Pass, grad: Tensor, saved: Saved) -> None:
        x, stats = saved[:2]
        sums = state.intermediate.get(id(self))
        if sums is None:
            _, sums = norm.backward(grad, x, stats, state.packed, self.groups, inputs=False, precision=state.precision)
        sums = sums.sum(dim=1)
        if self.bias is not None:
            state.write(self.bias, sums[:, 0])
        if self.weight is not None:
            state.write(self.weight, sums[:, 1])

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        x, stats = saved[:2]
        out, state.intermediate[id(self)] = norm.backward(
            grad, x, stats, state.packed, self.groups, precision=state.precision, index=state.index
        )
        assert out is not None
        return out


class Relu(Layer):
    """ReLU behind what has none of its own."""

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        out = torch.relu(x)
        return out, (out,)

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        return grad.masked_fill(saved[0] <= 0, 0)


class Pool(Layer):
    """2×2 max pooling behind what has none of its own."""

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        out, code = conv.max_pool(x.contiguous())
        return out, (code, x)

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        code, x = saved
        return conv.max_pool_gradient(grad, code, x.shape[2], x.shape[3])


class Flatten(Layer):
    """Images as vectors, channels last."""

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        return x.flatten(2), (x,)

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        return grad.view(saved[0].shape).to(saved[0].dtype)


@dataclass(frozen=True)
class Copies(Layer):
    """Copies of one pixel, side by side."""

    side: int

    def forward(self, state: Pass, x: Tensor) -> tuple[Tensor, Saved]:
        return x.expand(-1, -1, self.side, self.side, -1), ()

    def backward(self, state: Pass, grad: Tensor, saved: Saved, gate: Gate | None) -> Tensor:
        return grad.sum(dim=(2, 3), keepdim=True)
