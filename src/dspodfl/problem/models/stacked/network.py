"""Networks of many clients in one pass, by explicit forward and backward passes: efficient convolutions on a GPU.

`Stacked.of` reads a model's module as a list of layers it knows. Activations have their channels last, so parameters
are stored in another order than in θ: `Stacked.pack` and `Stacked.unpack` convert.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from dspodfl._kernels.cuda import Precision, conv
from dspodfl._kernels.cuda import loss_head as head
from dspodfl.problem.models.model import Model
from dspodfl.problem.models.stacked.from_module import ALIGN, Reader, Unknown
from dspodfl.problem.models.stacked.layers import Convolution, Flatten, GroupNorm, Layer, Linear, Pass, Slot

_MAX_ACTIVATION_BYTES = 2 * 10**9
"""Bytes of activations held at a time while evaluating."""


@dataclass(frozen=True, eq=False)
class Stacked:
    """A model as layers of many clients.

    ``width`` is the length of a packed parameter vector: θ in another order, with zeros between some tensors.
    """

    model: Model
    precision: Precision
    layers: tuple[Layer, ...] = field(repr=False)
    slots: tuple[Slot, ...] = field(repr=False)
    width: int

    @staticmethod
    def of(model: Model, precision: Precision = "fp32") -> Stacked | None:
        """The model's layers, or None if its module holds anything but those known here.

        ``precision`` is that of convolutions; linear layers multiply by torch's own setting.

        >>> from dspodfl.problem.models import build
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
        reader = Reader(starts, tuple(model.input_shape))
        try:
            reader.read(model.module)
        except Unknown:
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
        """The tensors inside packed vectors, as they are stored there."""
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

        ``ready(start, stop)`` is called, last layer first, as soon as these columns of ``out`` are on their way, and
        all that reads these columns of ``packed``: it may then wait for the current stream and for ``aside``, on which
        gradients with respect to parameters are computed, since the backward pass to the inputs does not wait for them.
        Columns that belong to no tensor are left as they are, and counted as ready: they should hold zeros.
        Shapes: packed (n, width), x (G, B, *input_shape), y (G, B), out (G, width), index (G,); n = G without one.
        """
        state = Pass(packed, index, self.precision, out, self.model.l2)

        def done(layer: Layer) -> None:
            if ready is not None:
                last = layer.slots[-1]
                ready(layer.slots[0].offset, -(-(last.offset + last.size) // ALIGN) * ALIGN)

        h = self._entered(x)
        saved = []
        for layer in self.layers[:-1]:
            h, own = layer.forward(state, h)
            saved.append(own)
        if aside is not None:
            aside.wait_stream(torch.cuda.current_stream(x.device))
        layers, last = self.layers, self.layers[-1]
        first = next(number for number, layer in enumerate(layers) if layer.slots)
        if isinstance(last, Linear) and first < len(layers) - 1 and head.available(h, packed, last.outputs):
            grad = last.close(state, h, y, self.model.loss)
            done(last)
            layers = layers[:-1]
        else:
            h, own = last.forward(state, h)
            saved.append(own)
            grad = LOSS_GRADIENTS[self.model.loss](h, y)
        grads = []  # held until both streams have met again: their memory is the current one's
        for number in range(len(layers) - 1, first - 1, -1):
            layer = layers[number]
            grads.append(grad)
            for backward in (layer.backward_first, not layer.backward_first):  # both, in the order that the layer wants
                if backward and number > first:
                    gate = layers[number - 1].gate(saved[number - 1])
                    grad = layer.backward(state, grad, saved[number], gate)
                    if gate is not None and not isinstance(layer, Convolution):
                        grad = conv.through(grad, gate, precision=self.precision)
                elif not backward and layer.slots:
                    if aside is not None:
                        aside.wait_stream(torch.cuda.current_stream(x.device))
                    with torch.cuda.stream(aside):
                        layer.write(state, grads[-1], saved[number])
            if layer.slots:
                done(layer)
        if aside is not None:
            torch.cuda.current_stream(x.device).wait_stream(aside)

    def scores(self, packed: Tensor, x: Tensor) -> Tensor:
        """Every model's scores of every sample. Shapes: packed (M, width), x (S, *input_shape) -> (M, S, outputs)."""
        models, samples = self.chunks(len(packed), len(x), packed.element_size())
        rows = []
        for m in range(0, len(packed), models):
            state = Pass(packed[m : m + models], None, self.precision)
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
        images = x.ndim == 5 and not isinstance(self.layers[0], Flatten)
        return x.permute(0, 1, 3, 4, 2).contiguous() if images else x

    def chunks(self, models: int, samples: int, size: int) -> tuple[int, int]:
        """How many models and samples to evaluate at a time, by an upper bound of their activations."""
        shape: tuple[int, ...] = self.model.input_shape
        largest = total = math.prod(shape)
        for layer in self.layers:
            if isinstance(layer, Convolution):
                shape = (layer.bias.size, *shape[1:])
            if isinstance(layer, Convolution | GroupNorm) and layer.pool:
                shape = (shape[0], *(v // 2 for v in shape[1:]))
            total = max(total, math.prod(shape) + largest)
            largest = math.prod(shape)
        most = max(1, _MAX_ACTIVATION_BYTES // (4 * size * total))
        together = min(models, most)
        return together, min(samples, max(1, most // together))


def _after(slot: Slot) -> tuple[int, ...]:
    """The axes of a slot, behind that of the clients."""
    return (0, *(axis + 1 for axis in slot.axes))


def _cross_entropy_gradient(scores: Tensor, y: Tensor) -> Tensor:
    probability = torch.softmax(scores, dim=-1)
    label = torch.arange(scores.shape[-1], device=scores.device) == y[..., None]
    return (probability - label.to(probability.dtype)).div_(y.shape[1])


def _hinge_gradient(scores: Tensor, y: Tensor) -> Tensor:
    classes = scores.shape[-1]
    label = torch.arange(classes, device=scores.device) == y[..., None]
    above = (1 - scores.gather(-1, y[..., None]) + scores > 0) & ~label
    pushed = above.to(scores.dtype)
    return (pushed - label * pushed.sum(dim=-1, keepdim=True)).div_(classes * y.shape[1])


def _squared_error_gradient(scores: Tensor, y: Tensor) -> Tensor:
    return (scores - y[..., None]).div_(y.shape[1])


LOSS_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "hinge": _hinge_gradient,
    "cross_entropy": _cross_entropy_gradient,
    "squared_error": _squared_error_gradient,
}
"""(1/B) ∂ℓ/∂s. Shapes: scores (G, B, C), y (G, B) -> (G, B, C)."""
