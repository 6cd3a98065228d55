"""Any `nn.Module` as a model: from a factory, by name, or outright."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from dspodfl.errors import InputError, nearest, user_code
from dspodfl.problem.models.checks import check_module
from dspodfl.problem.models.model import Model
from dspodfl.rng import Stream, words

Factory = Callable[..., Any]
"""A function or class that gives a new `nn.Module`, with its own initial values, whenever it is called."""


def from_module(
    factory: Factory | nn.Module,
    input_shape: tuple[int, ...],
    outputs: int,
    loss: str | None = None,
    regression: bool = False,
    l2: float = 0.0,
    name: str = "custom",
    arguments: Mapping[str, Any] | None = None,
) -> Model:
    """Make a model from a factory of modules, or from one module.

    A factory receives those of ``input_shape`` and ``outputs`` that its signature accepts, and ``arguments``. Seed s
    starts from what it returns when torch's CPU generator is seeded with the 63-bit word at (s, INIT), so that the
    module's own initialization is used, repeatably; the global generator is left as it was. Buffers and parameters that
    are not trainable are those of seed 0, for every seed.

    A module given outright is copied; its parameters are the initial model of *every* seed.

    Args:
        factory: A function or class that returns a new module, or a module.
        input_shape: The shape of one sample.
        outputs: The number of classes; 1 for regression.
        loss: A name of `LOSSES`; if None, cross entropy, or half the squared error for regression.
        regression: Whether the targets are numbers.
        l2: λ of the penalty (λ/2)‖θ‖².
        name: What errors and results call the model.
        arguments: Keyword arguments of the factory.

    Returns:
        The model.

    Raises:
        InputError: The module is refused by `check_module`, or loss, arguments and data do not fit together.

    >>> def network(outputs, width=8):
    ...     return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, outputs))
    >>> model = from_module(network, (4,), 3)
    >>> model.parameters, torch.equal(model.initial(7), model.initial(7))
    (67, True)
    """
    loss = _checked_loss(loss, regression, outputs)
    draw: Callable[[int], Tensor] | None
    if isinstance(factory, nn.Module):
        if arguments:
            raise InputError("model.arguments", dict(arguments), "left out: the module is there already")
        module, draw = _copied(factory), None
    else:
        make = _maker(factory, input_shape, outputs, dict(arguments or {}))
        module = make(0)
        draw = _own_draw(make)
    check_module(module, tuple(input_shape), outputs)
    model = Model(name, module, loss, tuple(input_shape), outputs, l2, draw=draw)
    if draw is not None and not torch.equal(draw(0), _values(module)):
        raise InputError(
            "model.factory",
            _label(factory),
            "a factory that draws from torch's CPU generator only: called twice with one seed, it gave two models",
        )
    return model


def load_factory(path: str) -> Factory:
    """Import the factory named by ``"package.module:function"``.

    Args:
        path: The module and the name in it.

    Returns:
        The function or class.

    Raises:
        InputError: It cannot be imported, or cannot be called.

    >>> load_factory("torch.nn:Linear").__name__
    'Linear'
    """
    factory = user_code.load(path, "model.factory")
    if not callable(factory):
        raise InputError("model.factory", path, f"a function or class, not a {type(factory).__name__}")
    made: Factory = factory
    return made


def _checked_loss(loss: str | None, regression: bool, outputs: int) -> str:
    loss = loss or ("squared_error" if regression else "cross_entropy")
    if (loss == "squared_error") != regression:
        kind = "regression" if regression else "classification"
        allowed = "squared_error" if regression else "cross_entropy or hinge"
        raise InputError("model.loss", loss, f"{allowed} for {kind} data")
    if regression and outputs != 1:
        raise InputError("model.outputs", outputs, "1 for regression data")
    return loss


def _maker(
    factory: Factory, input_shape: tuple[int, ...], outputs: int, arguments: dict[str, Any]
) -> Callable[[int], nn.Module]:
    """The function seed -> new module, by a factory that is called with the arguments it accepts."""
    label = _label(factory)
    if not callable(factory):
        raise InputError("model.factory", label, f"an nn.Module or a callable, not a {type(factory).__name__}")
    offered = {"input_shape": tuple(input_shape), "outputs": outputs}
    try:
        signature = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):  # some callables of compiled code have none
        known, anything = list(arguments), False
    else:
        named = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        known = [p.name for p in signature if p.kind in named]
        anything = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature)
    for key, value in arguments.items():
        if key not in known and not anything:
            takes = f"takes {', '.join(known)}" if known else "takes no arguments"
            raise InputError(f"model.{key}", value, f"left out: {label} {takes}{nearest(key, known)}")
    arguments = {key: value for key, value in offered.items() if anything or key in known} | arguments

    def make(seed: int) -> nn.Module:
        high, low = (int(w) for w in words(seed, Stream.INIT, slots=2))
        with torch.random.fork_rng(devices=[]):
            # Not torch.manual_seed, which reseeds the generators of every accelerator as well.
            torch.default_generator.manual_seed(high << 31 | low >> 1)
            with user_code.guarded("model.factory", label, "a factory that works; it"):
                module = factory(**arguments)
        if not isinstance(module, nn.Module):
            got = type(module).__name__
            raise InputError("model.factory", label, f"a factory of nn.Module; it returned a {got}")
        return module

    return make


def _own_draw(make: Callable[[int], nn.Module]) -> Callable[[int], Tensor]:
    def draw(seed: int) -> Tensor:
        return _values(make(seed))

    return draw


def _values(module: nn.Module) -> Tensor:
    """A module's own trainable parameters as a new vector. Shape: (p,), float32."""
    return torch.cat([p.detach().float().reshape(-1) for p in module.parameters() if p.requires_grad])


def _copied(module: nn.Module) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as cause:
        raised = f"{type(cause).__name__}: {cause}"
        raise InputError("model.factory", type(module).__name__, f"a module that copies; it raised {raised}") from cause


def _label(factory: object) -> str:
    name = getattr(factory, "__qualname__", None) or type(factory).__qualname__
    return f"{getattr(factory, '__module__', '?')}:{name}"
