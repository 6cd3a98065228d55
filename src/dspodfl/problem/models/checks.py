"""What a model must be for clients to train and mix it; whatever it is not is said before a run begins."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.modules.dropout import _DropoutNd
from torch.nn.modules.instancenorm import _InstanceNorm
from torch.nn.parameter import is_lazy

from dspodfl.errors import InputError, guarded

STATISTICS = (
    "its running statistics are not among the parameters that clients mix and train; use GroupNorm or LayerNorm instead"
)
MASKS = (
    "its random masks are not drawn by address, so a run could not be repeated, split or resumed; "
    "regularize with weight decay (model.l2) instead"
)


def positive_integers(field: str, value: Sequence[int]) -> list[int]:
    """A list of at least one positive integer, or an error that names the field."""
    sizes = list(value) if isinstance(value, list | tuple) else []
    if not sizes or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise InputError(field, value, "a list of one or more positive integers")
    return sizes


def check_classes(name: str, outputs: int) -> None:
    """A classifier needs two classes."""
    if outputs < 2:
        raise InputError("model.name", name, f"used with at least 2 classes, but the data have {outputs}")


def check_images(name: str, input_shape: tuple[int, ...], least: int) -> tuple[int, int, int]:
    """Inputs (channels, height, width) of at least ``least`` pixels a side."""
    if len(input_shape) != 3:
        raise InputError(
            "model.name", name, f"used with images (channels, height, width); the inputs are {input_shape}"
        )
    channels, height, width = input_shape
    if min(height, width) < least:
        raise InputError(
            "model.name", name, f"used with images of at least {least}×{least}; the inputs are {input_shape}"
        )
    return channels, height, width


def check_module(module: nn.Module, input_shape: tuple[int, ...], outputs: int) -> None:
    """Refuse a module whose training could not be simulated exactly; the message has advice.

    Not allowed: batch normalization and other running statistics, dropout and other random numbers in the forward pass,
    uninitialized (lazy) parameters, parameters that are not floats or not on the CPU, no trainable parameter, and a
    forward pass that does not map zeros of shape (2, *input_shape) to (2, outputs).

    Args:
        module: The module.
        input_shape: The shape of one sample.
        outputs: The number of scores of a sample.

    Raises:
        InputError: The module is one of these.

    >>> check_module(nn.Linear(4, 3), (5,), 3)  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    dspodfl.errors.base.InputError: model.factory = 'Linear': must be a module that takes a float32 batch of shape ...
    """
    _check_layers(module)
    _check_parameters(module)
    _check_forward(module, input_shape, outputs)


def _check_layers(module: nn.Module) -> None:
    for path, layer in module.named_modules():
        kind = type(layer).__name__
        where = f" (at {path!r})" if path else ""
        if isinstance(layer, _BatchNorm) or (isinstance(layer, _InstanceNorm) and layer.track_running_stats):
            raise InputError("model.factory", kind, f"a module without {kind}{where}: {STATISTICS}")
        if isinstance(layer, _DropoutNd) and layer.p > 0:
            raise InputError("model.factory", kind, f"a module without {kind}{where}: {MASKS}")
        if isinstance(layer, nn.RNNBase | nn.MultiheadAttention) and layer.dropout > 0:
            raise InputError("model.factory", kind, f"a module whose {kind}{where} has dropout = 0: {MASKS}")


def _check_parameters(module: nn.Module) -> None:
    kind = type(module).__name__
    for name, value in [*module.named_parameters(), *module.named_buffers()]:
        if is_lazy(value):
            advice = f"{name!r} is uninitialized: use the class without Lazy"
            raise InputError("model.factory", kind, f"a module whose tensors have shapes, but {advice}")
        if value.device.type != "cpu":
            advice = f"built on the CPU, but {name!r} is on {value.device}: the run moves it where it belongs"
            raise InputError("model.factory", kind, advice)
    for name, p in module.named_parameters():
        if not p.is_floating_point():
            raise InputError("model.factory", kind, f"a module of float parameters, but {name!r} is {p.dtype}")
    if not any(p.requires_grad and p.numel() for p in module.parameters()):
        raise InputError("model.factory", kind, "a module with at least one trainable parameter")


def _check_forward(module: nn.Module, input_shape: tuple[int, ...], outputs: int) -> None:
    kind = type(module).__name__
    before = {name: buffer.clone() for name, buffer in module.named_buffers()}
    values = {name: p.detach().float() for name, p in module.named_parameters() if p.requires_grad}
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        state = torch.get_rng_state()
        what = f"a module that takes a float32 batch of shape {(2, *input_shape)}; its forward pass"
        with guarded("model.factory", kind, what):
            out = functional_call(module, values, (torch.zeros(2, *input_shape),))
        drew = not torch.equal(state, torch.get_rng_state())
    if not isinstance(out, Tensor) or out.shape != (2, outputs):
        got = f"shape {tuple(out.shape)}" if isinstance(out, Tensor) else f"a {type(out).__name__}"
        wanted = f"a tensor of shape {(2, outputs)} to inputs of shape {(2, *input_shape)}; it gave {got}"
        raise InputError("model.factory", kind, f"a module that gives {wanted}")
    if drew:
        raise InputError("model.factory", kind, f"a module without random numbers in its forward pass: {MASKS}")
    for name, buffer in module.named_buffers():
        if name not in before or not torch.equal(before[name], buffer):
            advice = f"a module whose forward pass leaves its buffers alone, but {name!r} changed"
            raise InputError("model.factory", kind, f"{advice}: {STATISTICS}")


def features(input_shape: tuple[int, ...]) -> int:
    """Numbers in one flattened input, after a check that the shape is one."""
    if not input_shape or min(input_shape) < 1:
        raise ValueError(f"input_shape {input_shape} must have at least one axis and no empty one")
    return math.prod(input_shape)
