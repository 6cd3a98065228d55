"""Reads a PyTorch module as a list of the layers of `dspodfl.problem.models.stacked.layers`."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor, nn

from dspodfl._kernels.cuda import Groups
from dspodfl.problem.models.stacked.layers import (
    Convolution,
    Copies,
    Flatten,
    GroupNorm,
    Layer,
    Linear,
    Pool,
    Relu,
    Slot,
)
from dspodfl.problem.models.vgg import VGG, Spread

ALIGN = 32
"""Tensors start at multiples of this many numbers (128 bytes) in a packed vector: loads are whole."""


class Unknown(Exception):  # noqa: N818 - no error: the caller has another way
    """A module holds something that is no layer here."""


@dataclass
class Reader:
    """Reads a module, layer by layer, with the shape that activations have got."""

    starts: dict[int, int]
    shape: tuple[int, ...]
    layers: list[Layer] = field(default_factory=list)
    slots: list[Slot] = field(default_factory=list)
    width: int = 0
    pixels: tuple[int, ...] | None = None
    """The shape (channels, height, width) that was flattened last, with its channels last."""

    def slot(self, parameter: Tensor, shape: tuple[int, ...], *axes: int) -> Slot:
        """Room for a parameter, seen in a shape, with its axes permuted."""
        if id(parameter) not in self.starts:  # shared with a layer before, or not trainable
            raise Unknown
        made = Slot(self.starts.pop(id(parameter)), self.width, shape, axes or tuple(range(len(shape))))
        self.slots.append(made)
        self.width += -(-made.size // ALIGN) * ALIGN
        return made

    def read(self, module: nn.Module) -> None:
        """Append the layers of a module, or raise `Unknown`."""
        if module._forward_hooks or module._forward_pre_hooks:
            raise Unknown
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
                raise Unknown
            reader(self, module)

    def convolution(self, module: nn.Conv2d) -> None:
        """A 3×3 convolution."""
        usual = (module.kernel_size, module.padding, module.stride, module.dilation, module.groups)
        if usual != ((3, 3), (1, 1), (1, 1), (1, 1), 1) or module.padding_mode != "zeros" or module.bias is None:
            raise Unknown
        self._expect(3)
        weight = self.slot(module.weight, tuple(module.weight.shape), 0, 2, 3, 1)
        self.layers.append(Convolution(weight, self.slot(module.bias, (module.out_channels,))))
        self.shape = (module.out_channels, *self.shape[1:])

    def relu(self, module: nn.ReLU) -> None:
        """ReLU: a part of the convolution or normalization before it, if there is one."""
        last = self.layers[-1] if self.layers else None
        if isinstance(last, Convolution | GroupNorm) and not last.pool:
            self.layers[-1] = replace(last, relu=True)
        else:
            self.layers.append(Relu())

    def pool(self, module: nn.MaxPool2d) -> None:
        """2×2 max pooling: a part of the convolution or normalization before it, if there is one."""
        sizes = [(v, v) if isinstance(v, int) else tuple(v) for v in (module.kernel_size, module.stride)]
        others = [(v, v) if isinstance(v, int) else tuple(v) for v in (module.padding, module.dilation)]
        if sizes != [(2, 2)] * 2 or others != [(0, 0), (1, 1)] or module.ceil_mode or module.return_indices:
            raise Unknown
        self._expect(3)
        last = self.layers[-1] if self.layers else None
        if isinstance(last, Convolution | GroupNorm) and not last.pool:
            self.layers[-1] = replace(last, pool=True)
        else:
            self.layers.append(Pool())
        self.shape = (self.shape[0], self.shape[1] // 2, self.shape[2] // 2)

    def flatten(self, module: nn.Flatten) -> None:
        """Flattening of what a sample is; the inputs themselves are flattened as they are."""
        if (module.start_dim, module.end_dim) != (1, -1):
            raise Unknown
        if len(self.shape) > 1:
            self.pixels = self.shape if self.layers else None
            self.layers.append(Flatten())
            self.shape = (math.prod(self.shape),)

    def linear(self, module: nn.Linear) -> None:
        """A linear layer; behind convolutions, its inputs come with their channels last."""
        self._expect(1)
        if self.pixels is None:
            weight = self.slot(module.weight, tuple(module.weight.shape))
        else:
            weight = self.slot(module.weight, (module.out_features, *self.pixels), 0, 2, 3, 1)
        bias = None if module.bias is None else self.slot(module.bias, (module.out_features,))
        self.layers.append(Linear(weight, bias, module.out_features))
        self.shape, self.pixels = (module.out_features,), None

    def norm(self, module: nn.GroupNorm) -> None:
        """Group normalization of images."""
        self._expect(3)
        sizes = (module.num_channels,)
        weight, bias = (None if p is None else self.slot(p, sizes) for p in (module.weight, module.bias))
        offsets = (None if slot is None else slot.offset for slot in (weight, bias))
        self.layers.append(GroupNorm(weight, bias, Groups(module.num_groups, module.eps, *offsets)))

    def spread(self, module: Spread) -> None:
        """Copies of one pixel."""
        if self.shape[1:] != (1, 1):
            raise Unknown
        self.layers.append(Copies(module.side))
        self.shape = (self.shape[0], module.side, module.side)

    def _expect(self, axes: int) -> None:
        if len(self.shape) != axes:
            raise Unknown


_READERS: dict[type[nn.Module], Callable[[Reader, Any], None]] = {
    nn.Conv2d: Reader.convolution,
    nn.ReLU: Reader.relu,
    nn.MaxPool2d: Reader.pool,
    nn.Flatten: Reader.flatten,
    nn.Linear: Reader.linear,
    nn.GroupNorm: Reader.norm,
    Spread: Reader.spread,
}
