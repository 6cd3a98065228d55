"""Networks of many clients at once, by explicit passes forward and back: what convolutions are worth on a GPU.

`Stacked.of` reads a model's module as a list of layers it knows. Activations have their channels last, so parameters
lie in another order than in θ: `Stacked.pack` and `Stacked.unpack` convert. Convolutions are those of
`dspodfl.kernels.conv`; everything else is plain PyTorch. Nothing here waits for the device or depends on the values of
tensors, so that `gradient` can be captured in a CUDA graph.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from dspodfl.kernels import conv, head, norm
from dspodfl.kernels.conv import Gate, Precision
from dspodfl.kernels.norm import Groups
from dspodfl.models.model import Model
from dspodfl.models.vgg import VGG, Spread

ALIGN = 32
"""Tensors start at multiples of so many numbers (128 bytes) in a packed vector: loads are whole."""
_ACTIVATIONS_AT_ONCE = 2 * 10**9
"""Bytes of activations held at a time while evaluating."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor lies: from ``start`` in θ, from ``offset`` in a packed vector, there with its axes permuted."""

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
class _Pass:
    """What all layers need on the way back, and on the way forward."""

    packed: Tensor
    index: Tensor | None
    precision: Precision
    out: Tensor | None = None
    l2: float = 0.0

    def own(self, slot: Slot, *shape: int) -> Tensor:
        """A tensor of the clients at work. Shapes: (G, *shape)."""
        value = slot.view(self.packed, *shape)
        return value if self.index is None else value.index_select(0, self.index)

    def write(self, slot: Slot, slope: Tensor) -> None:
        """A slope by a tensor, and the penalty's, into its place."""
        assert self.out is not None
        target = slot.view(self.out, *slope.shape[1:])
        if self.l2:
            torch.add(slope, self.own(slot, *slope.shape[1:]), alpha=self.l2, out=target)
        else:
            target.copy_(slope)


Kept = tuple[Tensor, ...]
"""What a layer keeps for the way back."""


class _Layer(ABC):
    """One layer of all clients. Activations: (G, B, features) or (G, B, height, width, channels)."""

    slots: tuple[Slot, ...] = ()

    @abstractmethod
    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        """Outputs, and what `backward` needs."""

    def write(self, state: _Pass, slope: Tensor, kept: Kept) -> None:  # noqa: B027 - most have none
        """Slopes by the parameters into their places; reads nothing that `backward` makes."""

    @abstractmethod
    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        """Slopes by the inputs.

        Slopes of convolutions are by their sums, before ReLU and pooling: ``gate`` is that of the layer before.
        """

    def gate(self, kept: Kept) -> Gate | None:
        """What lies between the layer's sums and its outputs, if its slopes are by its sums."""
        return None


@dataclass(frozen=True)
class _Convolution(_Layer):
    weight: Slot
    bias: Slot
    relu: bool = False
    pool: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", (self.weight, self.bias))

    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
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

    def gate(self, kept: Kept) -> Gate | None:
        if self.pool:
            return Gate(code=kept[2], height=kept[0].shape[2], width=kept[0].shape[3])
        return Gate(output=kept[1]) if self.relu else None

    def write(self, state: _Pass, slope: Tensor, kept: Kept) -> None:
        assert state.out is not None
        conv.weight_gradient(
            kept[0],
            slope,
            state.out,
            self.weight.offset,
            self.bias.offset,
            theta=state.packed,
            l2=state.l2,
            precision=state.precision,
            index=state.index,
        )

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        return conv.input_gradient(
            slope,
            state.packed,
            self.weight.offset,
            kept[0].shape[4],
            gate=gate,
            precision=state.precision,
            index=state.index,
        )


@dataclass(frozen=True)
class _Linear(_Layer):
    weight: Slot
    bias: Slot | None
    outputs: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", (self.weight,) if self.bias is None else (self.weight, self.bias))

    def _weight(self, state: _Pass) -> Tensor:
        return state.own(self.weight, self.outputs, self.weight.size // self.outputs)

    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        x = x.to(state.packed.dtype)
        weight = self._weight(state)
        if self.bias is None:
            return torch.bmm(x, weight.mT), (x, weight)
        return torch.baddbmm(state.own(self.bias)[:, None], x, weight.mT), (x, weight)

    def write(self, state: _Pass, slope: Tensor, kept: Kept) -> None:
        assert state.out is not None
        x, weight = kept
        slope = slope.to(x.dtype)
        target = self.weight.view(state.out, *weight.shape[1:])
        if state.l2:
            torch.baddbmm(weight, slope.mT, x, beta=state.l2, out=target)
        else:
            torch.bmm(slope.mT, x, out=target)
        if self.bias is not None:
            state.write(self.bias, slope.sum(dim=1))

    def close(self, state: _Pass, x: Tensor, y: Tensor, loss: str) -> Tensor:
        """As the last layer of all: there, through the loss, and back. Slopes by the inputs; the others are written."""
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

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        x, weight = kept
        return torch.bmm(slope.to(x.dtype), weight)


@dataclass(frozen=True)
class _GroupNorm(_Layer):
    weight: Slot | None
    bias: Slot | None
    groups: Groups
    relu: bool = False
    pool: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "slots", tuple(s for s in (self.weight, self.bias) if s is not None))

    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
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

    def gate(self, kept: Kept) -> Gate | None:
        if self.pool:
            return Gate(code=kept[3], height=kept[0].shape[2], width=kept[0].shape[3])
        return Gate(output=kept[2]) if self.relu else None

    def write(self, state: _Pass, slope: Tensor, kept: Kept) -> None:
        x, stats = kept[:2]
        sums = norm.parameter_sums(slope, x, stats, state.packed, self.groups, precision=state.precision)
        if self.bias is not None:
            state.write(self.bias, sums[:, 0])
        if self.weight is not None:
            state.write(self.weight, sums[:, 1])

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        x, stats = kept[:2]
        return norm.input_gradient(
            slope, x, stats, state.packed, self.groups, precision=state.precision, index=state.index
        )


class _Relu(_Layer):
    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        out = torch.relu(x)
        return out, (out,)

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        return slope.masked_fill(kept[0] <= 0, 0)


class _Pool(_Layer):
    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        out, code = conv.max_pool(x.contiguous())
        return out, (code, x)

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        code, x = kept
        return conv.max_pool_gradient(slope, code, x.shape[2], x.shape[3])


class _Flatten(_Layer):
    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        return x.flatten(2), (x,)

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        return slope.view(kept[0].shape).to(kept[0].dtype)


@dataclass(frozen=True)
class _Spread(_Layer):
    side: int

    def forward(self, state: _Pass, x: Tensor) -> tuple[Tensor, Kept]:
        return x.expand(-1, -1, self.side, self.side, -1), ()

    def backward(self, state: _Pass, slope: Tensor, kept: Kept, gate: Gate | None) -> Tensor:
        return slope.sum(dim=(2, 3), keepdim=True)


class _Unknown(Exception):  # noqa: N818 - no error: the caller has another way
    """A module holds something that is no layer here."""


@dataclass
class _Reader:
    """Reads a module, layer by layer, with the shape that activations have got."""

    starts: dict[int, int]
    shape: tuple[int, ...]
    layers: list[_Layer] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    width: int = 0
    pixels: tuple[int, ...] | None = None
    """The shape (channels, height, width) that was flattened last, with its channels last."""

    def slot(self, parameter: Tensor, shape: tuple[int, ...], *axes: int) -> Slot:
        """Room for a parameter, seen in a shape, with its axes permuted."""
        if id(parameter) not in self.starts:  # shared with a layer before, or not trainable
            raise _Unknown
        made = Slot(self.starts.pop(id(parameter)), self.width, shape, axes or tuple(range(len(shape))))
        self.slots.append(made)
        self.width += -(-made.size // ALIGN) * ALIGN
        return made

    def read(self, module: nn.Module) -> None:
        """Append the layers of a module, or raise `_Unknown`."""
        if module._forward_hooks or module._forward_pre_hooks:
            raise _Unknown
        kind = type(module)
        if kind is nn.Sequential:
            for part in module.children():
                self.read(part)
        elif isinstance(module, VGG) and kind is VGG:
            for part in (module.features, module.avgpool, nn.Flatten(), module.classifier):
                self.read(part)
        elif kind is not nn.Identity:
            reader = _READERS.get(kind)
            if reader is None:
                raise _Unknown
            reader(self, module)

    def convolution(self, module: nn.Conv2d) -> None:
        """A 3×3 convolution."""
        usual = (module.kernel_size, module.padding, module.stride, module.dilation, module.groups)
        if usual != ((3, 3), (1, 1), (1, 1), (1, 1), 1) or module.padding_mode != "zeros" or module.bias is None:
            raise _Unknown
        self._expect(3)
        weight = self.slot(module.weight, tuple(module.weight.shape), 0, 2, 3, 1)
        self.layers.append(_Convolution(weight, self.slot(module.bias, (module.out_channels,))))
        self.shape = (module.out_channels, *self.shape[1:])

    def relu(self, module: nn.ReLU) -> None:
        """ReLU: a part of the convolution or normalization before it, if there is one."""
        last = self.layers[-1] if self.layers else None
        if isinstance(last, _Convolution | _GroupNorm) and not last.pool:
            self.layers[-1] = replace(last, relu=True)
        else:
            self.layers.append(_Relu())

    def pool(self, module: nn.MaxPool2d) -> None:
        """2×2 max pooling: a part of the convolution or normalization before it, if there is one."""
        sizes = [(v, v) if isinstance(v, int) else tuple(v) for v in (module.kernel_size, module.stride)]
        others = [(v, v) if isinstance(v, int) else tuple(v) for v in (module.padding, module.dilation)]
        if sizes != [(2, 2)] * 2 or others != [(0, 0), (1, 1)] or module.ceil_mode or module.return_indices:
            raise _Unknown
        self._expect(3)
        last = self.layers[-1] if self.layers else None
        if isinstance(last, _Convolution | _GroupNorm) and not last.pool:
            self.layers[-1] = replace(last, pool=True)
        else:
            self.layers.append(_Pool())
        self.shape = (self.shape[0], self.shape[1] // 2, self.shape[2] // 2)

    def flatten(self, module: nn.Flatten) -> None:
        """Flattening of what a sample is; the inputs themselves are flattened as they are."""
        if (module.start_dim, module.end_dim) != (1, -1):
            raise _Unknown
        if len(self.shape) > 1:
            self.pixels = self.shape if self.layers else None
            self.layers.append(_Flatten())
            self.shape = (math.prod(self.shape),)

    def linear(self, module: nn.Linear) -> None:
        """A linear layer; behind convolutions, its inputs come with their channels last."""
        self._expect(1)
        if self.pixels is None:
            weight = self.slot(module.weight, tuple(module.weight.shape))
        else:
            weight = self.slot(module.weight, (module.out_features, *self.pixels), 0, 2, 3, 1)
        bias = None if module.bias is None else self.slot(module.bias, (module.out_features,))
        self.layers.append(_Linear(weight, bias, module.out_features))
        self.shape, self.pixels = (module.out_features,), None

    def norm(self, module: nn.GroupNorm) -> None:
        """Group normalization of images."""
        self._expect(3)
        sizes = (module.num_channels,)
        weight, bias = (None if p is None else self.slot(p, sizes) for p in (module.weight, module.bias))
        offsets = (None if slot is None else slot.offset for slot in (weight, bias))
        self.layers.append(_GroupNorm(weight, bias, Groups(module.num_groups, module.eps, *offsets)))

    def spread(self, module: Spread) -> None:
        """Copies of one pixel."""
        if self.shape[1:] != (1, 1):
            raise _Unknown
        self.layers.append(_Spread(module.side))
        self.shape = (self.shape[0], module.side, module.side)

    def _expect(self, axes: int) -> None:
        if len(self.shape) != axes:
            raise _Unknown


_READERS: dict[type[nn.Module], Callable[[_Reader, Any], None]] = {
    nn.Conv2d: _Reader.convolution,
    nn.ReLU: _Reader.relu,
    nn.MaxPool2d: _Reader.pool,
    nn.Flatten: _Reader.flatten,
    nn.Linear: _Reader.linear,
    nn.GroupNorm: _Reader.norm,
    Spread: _Reader.spread,
}


@dataclass(frozen=True, eq=False)
class Stacked:
    """A model as layers of many clients.

    ``width`` is the length of a packed parameter vector: θ in another order, with zeros between some tensors.
    """

    model: Model
    precision: Precision
    layers: tuple[_Layer, ...] = field(repr=False)
    slots: tuple[Slot, ...] = field(repr=False)
    width: int

    @staticmethod
    def of(model: Model, precision: Precision = "fp32") -> Stacked | None:
        """The model's layers, or None if its module holds anything but those known here.

        ``precision`` is that of convolutions; linear layers multiply by torch's own setting.

        >>> from dspodfl.models import build
        >>> stacked = Stacked.of(build("cnn", (1, 8, 8), 3, channels=[4]))
        >>> stacked.width, stacked.model.parameters
        (320, 235)
        """
        if any(True for _ in model.module.buffers()):
            return None
        starts, start = {}, 0
        for parameter in model.module.parameters():
            if not parameter.requires_grad:
                return None
            starts[id(parameter)] = start
            start += parameter.numel()
        reader = _Reader(starts, tuple(model.input_shape))
        try:
            reader.read(model.module)
        except _Unknown:
            return None
        if starts or len(reader.shape) != 1 or not reader.slots:
            return None
        return Stacked(model, precision, tuple(reader.layers), tuple(reader.slots), reader.width)

    def pack(self, theta: Tensor) -> Tensor:
        """Models in the order of the layers. Shapes: (n, p) -> (n, width)."""
        packed = theta.new_zeros(len(theta), self.width)
        for slot, ours in self._parts(packed):
            ours.copy_(theta[:, slot.start : slot.start + slot.size].unflatten(1, slot.shape).permute(*_after(slot)))
        return packed

    def unpack(self, packed: Tensor) -> Tensor:
        """The inverse of `pack`. Shapes: (n, width) -> (n, p)."""
        theta = packed.new_empty(len(packed), self.model.parameters)
        for slot, ours in self._parts(packed):
            theta[:, slot.start : slot.start + slot.size].unflatten(1, slot.shape).permute(*_after(slot)).copy_(ours)
        return theta

    def _parts(self, packed: Tensor) -> Iterator[tuple[Slot, Tensor]]:
        """The tensors inside packed vectors, as they lie there."""
        for slot in self.slots:
            yield slot, slot.view(packed, *(slot.shape[axis] for axis in slot.axes))

    def gradient(
        self,
        packed: Tensor,
        x: Tensor,
        y: Tensor,
        out: Tensor,
        index: Tensor | None = None,
        ready: Callable[[int, int], None] | None = None,
        aside: torch.cuda.Stream | None = None,
    ) -> None:
        """Gradients of `Model.objective` into ``out``; client a's model is row ``index[a]`` of ``packed``, or row a.

        ``ready(start, stop)`` is called, last layer first, as soon as these columns of ``out`` are on their way.
        Slopes by parameters are computed on the stream ``aside``, which is the current one for ``ready``: the way back
        to the inputs does not wait for them.
        Shapes: packed (n, width), x (G, B, *input_shape), y (G, B), out (G, width), index (G,); n = G without one.
        """
        state = _Pass(packed, index, self.precision, out, self.model.l2)
        for slot in self.slots:
            end = slot.offset + slot.size
            if end % ALIGN:
                out[:, end : end + ALIGN - end % ALIGN] = 0

        def done(layer: _Layer) -> None:
            if ready is not None:
                last = layer.slots[-1]
                ready(layer.slots[0].offset, -(-(last.offset + last.size) // ALIGN) * ALIGN)

        h = self._entered(x)
        kept = []
        for layer in self.layers[:-1]:
            h, own = layer.forward(state, h)
            kept.append(own)
        layers, last = self.layers, self.layers[-1]
        first = next(number for number, layer in enumerate(layers) if layer.slots)
        if isinstance(last, _Linear) and first < len(layers) - 1 and head.available(h, packed, last.outputs):
            slope = last.close(state, h, y, self.model.loss)
            done(last)
            layers = layers[:-1]
        else:
            h, own = last.forward(state, h)
            kept.append(own)
            slope = SLOPES[self.model.loss](h, y)
        slopes = []  # held until both streams have met again: their memory is the current one's
        for number in range(len(layers) - 1, first - 1, -1):
            layer = layers[number]
            slopes.append(slope)
            if layer.slots:
                if aside is not None:
                    aside.wait_stream(torch.cuda.current_stream(x.device))
                with torch.cuda.stream(aside):
                    layer.write(state, slope, kept[number])
                    done(layer)
            if number > first:
                gate = layers[number - 1].gate(kept[number - 1])
                slope = layer.backward(state, slope, kept[number], gate)
                if gate is not None and not isinstance(layer, _Convolution):
                    slope = conv.through(slope, gate, precision=self.precision)
        if aside is not None:
            torch.cuda.current_stream(x.device).wait_stream(aside)

    def scores(self, packed: Tensor, x: Tensor) -> Tensor:
        """Every model's scores of every sample. Shapes: packed (M, width), x (S, *input_shape) -> (M, S, outputs)."""
        models, samples = self._chunks(len(packed), len(x), packed.element_size())
        rows = []
        for m in range(0, len(packed), models):
            state = _Pass(packed[m : m + models], None, self.precision)
            parts = []
            for s in range(0, len(x), samples):
                h = self._entered(x[None, s : s + samples]).expand(len(state.packed), *([-1] * x.ndim))
                for layer in self.layers:
                    h, _ = layer.forward(state, h)
                parts.append(h)
            rows.append(torch.cat(parts, dim=1))
        return torch.cat(rows)

    def _entered(self, x: Tensor) -> Tensor:
        """Inputs as the first layer takes them: images with their channels last, side by side in memory."""
        images = x.ndim == 5 and not isinstance(self.layers[0], _Flatten)
        return x.permute(0, 1, 3, 4, 2).contiguous() if images else x

    def _chunks(self, models: int, samples: int, size: int) -> tuple[int, int]:
        """How many models and samples to evaluate at a time, by an upper bound of their activations."""
        shape: tuple[int, ...] = self.model.input_shape
        largest = total = math.prod(shape)
        for layer in self.layers:
            if isinstance(layer, _Convolution):
                shape = (layer.bias.size, *shape[1:])
            if isinstance(layer, _Convolution | _GroupNorm) and layer.pool:
                shape = (shape[0], *(v // 2 for v in shape[1:]))
            total = max(total, math.prod(shape) + largest)
            largest = math.prod(shape)
        most = max(1, _ACTIVATIONS_AT_ONCE // (4 * size * total))
        together = min(models, most)
        return together, min(samples, max(1, most // together))


def _after(slot: Slot) -> tuple[int, ...]:
    """The axes of a slot, behind that of the clients."""
    return (0, *(axis + 1 for axis in slot.axes))


def _cross_entropy_slope(scores: Tensor, y: Tensor) -> Tensor:
    chance = torch.softmax(scores, dim=-1)
    label = torch.arange(scores.shape[-1], device=scores.device) == y[..., None]
    return (chance - label.to(chance.dtype)).div_(y.shape[1])


def _hinge_slope(scores: Tensor, y: Tensor) -> Tensor:
    classes = scores.shape[-1]
    label = torch.arange(classes, device=scores.device) == y[..., None]
    above = (1 - scores.gather(-1, y[..., None]) + scores > 0) & ~label
    pushed = above.to(scores.dtype)
    return (pushed - label * pushed.sum(dim=-1, keepdim=True)).div_(classes * y.shape[1])


def _squared_error_slope(scores: Tensor, y: Tensor) -> Tensor:
    return (scores - y[..., None]).div_(y.shape[1])


SLOPES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hinge": _hinge_slope,
    "cross_entropy": _cross_entropy_slope,
    "squared_error": _squared_error_slope,
}
"""(1/B) ∂ℓ/∂s. Shapes: scores (G, B, C), y (G, B) -> (G, B, C)."""
