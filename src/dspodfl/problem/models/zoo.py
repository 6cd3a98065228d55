"""The named models, and `build`, which makes one from a configuration's words.

Trainable parameters are on the meta device: a module here is structure, its values come from `Model.initial`.
"""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dspodfl.errors import InputError, nearest
from dspodfl.problem.models.checks import check_classes, check_images, features, positive_integers
from dspodfl.problem.models.initialization import addressed
from dspodfl.problem.models.model import Model
from dspodfl.problem.models.vgg import vgg11


def _named(
    name: str,
    layers: Mapping[str, nn.Module],
    loss: str,
    input_shape: tuple[int, ...],
    outputs: int,
    l2: float,
    is_linear: bool = False,
) -> Model:
    module = nn.Sequential(OrderedDict(layers))
    return Model(name, module, loss, input_shape, outputs, l2, is_linear, draw=addressed(module))


def _affine(name: str, loss: str, input_shape: tuple[int, ...], outputs: int, l2: float, bias: bool = True) -> Model:
    with torch.device("meta"):
        layers = {"flatten": nn.Flatten(), "linear": nn.Linear(features(input_shape), outputs, bias=bias)}
    return _named(name, layers, loss, input_shape, outputs, l2, is_linear=True)


def svm(input_shape: tuple[int, ...], outputs: int, *, l2: float = 0.0) -> Model:
    """Make a linear support vector machine: scores Wx + b under the multi-class hinge, as in the paper on FMNIST.

    Args:
        input_shape: The shape of one sample; it is flattened.
        outputs: The number of classes, at least 2.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model, with outputs · (features + 1) parameters.

    Raises:
        InputError: There are fewer than 2 classes.
    """
    check_classes("svm", outputs)
    return _affine("svm", "hinge", input_shape, outputs, l2)


def logistic(input_shape: tuple[int, ...], outputs: int, *, l2: float = 0.0) -> Model:
    """Make a multinomial logistic regression: scores Wx + b under cross entropy, plus (l2/2)‖θ‖².

    The penalty is over weights and biases. With l2 > 0 it is smooth and l2-strongly convex, which the hinge is not.

    Args:
        input_shape: The shape of one sample; it is flattened.
        outputs: The number of classes, at least 2.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model, with outputs · (features + 1) parameters.

    Raises:
        InputError: There are fewer than 2 classes.
    """
    check_classes("logistic", outputs)
    return _affine("logistic", "cross_entropy", input_shape, outputs, l2)


def linear(input_shape: tuple[int, ...], outputs: int = 1, *, l2: float = 0.0) -> Model:
    """Make a linear regression without intercept: ½(wᵀx − y)² + (l2/2)‖w‖²; ridge regression for l2 > 0.

    Args:
        input_shape: The shape of one sample; it is flattened.
        outputs: 1.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model, with one weight a feature as its parameters.

    Raises:
        InputError: There is more than one output.
    """
    if outputs != 1:
        raise InputError("model.name", "linear", f"used with regression data (one output), not {outputs} classes")
    return _affine("linear", "squared_error", input_shape, outputs, l2, bias=False)


def mlp(input_shape: tuple[int, ...], outputs: int, *, hidden: Sequence[int] = (64,), l2: float = 0.0) -> Model:
    """Make a fully connected ReLU network; cross entropy, or half the squared error where there is one output.

    Args:
        input_shape: The shape of one sample; it is flattened.
        outputs: The number of classes; 1 for regression.
        hidden: The widths of the hidden layers.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model.

    Raises:
        InputError: A width is not a positive integer.
    """
    sizes = [features(input_shape), *positive_integers("model.hidden", hidden)]
    with torch.device("meta"):
        layers: dict[str, nn.Module] = {"flatten": nn.Flatten()}
        for number, (inputs, width) in enumerate(pairwise(sizes)):
            layers |= {f"linear{number}": nn.Linear(inputs, width), f"relu{number}": nn.ReLU()}
        layers["output"] = nn.Linear(sizes[-1], outputs)
    return _named("mlp", layers, _loss(outputs), input_shape, outputs, l2)


def cnn(input_shape: tuple[int, ...], outputs: int, *, channels: Sequence[int] = (16, 32), l2: float = 0.0) -> Model:
    """Make a network of blocks of 3×3 convolution, ReLU and 2×2 max pooling, then a linear layer; loss as in `mlp`.

    Args:
        input_shape: The shape of an image, (channels, height, width).
        outputs: The number of classes; 1 for regression.
        channels: The output channels of each block.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model.

    Raises:
        InputError: Inputs are no images, or too small for the blocks.
    """
    widths = positive_integers("model.channels", channels)
    depth, height, width = check_images("cnn", input_shape, least=2 ** len(widths))
    with torch.device("meta"):
        layers: dict[str, nn.Module] = {}
        for number, (inputs, outputs_of_block) in enumerate(zip([depth, *widths], widths, strict=False)):
            layers |= {
                f"conv{number}": nn.Conv2d(inputs, outputs_of_block, 3, padding=1),
                f"relu{number}": nn.ReLU(),
                f"pool{number}": nn.MaxPool2d(2),
            }
        pixels = (height >> len(widths)) * (width >> len(widths))
        layers |= {"flatten": nn.Flatten(), "output": nn.Linear(widths[-1] * pixels, outputs)}
    return _named("cnn", layers, _loss(outputs), input_shape, outputs, l2)


def _loss(outputs: int) -> str:
    return "squared_error" if outputs == 1 else "cross_entropy"


MODELS: Mapping[str, Callable[..., Model]] = {
    "svm": svm,
    "logistic": logistic,
    "linear": linear,
    "mlp": mlp,
    "cnn": cnn,
    "vgg11": vgg11,
}
"""The named models: ``(input_shape, outputs, **params) -> Model``."""


def build(name: str, input_shape: tuple[int, ...], outputs: int, **params: Any) -> Model:
    """Make a named model.

    Args:
        name: A name of `MODELS`.
        input_shape: The shape of one sample.
        outputs: The number of classes; 1 for regression.
        **params: The parameters of the model.

    Returns:
        The model.

    Raises:
        InputError: The name or a parameter is unknown; the message names the nearest valid one.

    >>> build("mlp", (4,), 3, hidden=[5]).parameters  # 4·5 + 5 + 5·3 + 3
    43
    """
    if name not in MODELS:
        raise InputError("model.name", name, f"one of {', '.join(MODELS)}{nearest(str(name), MODELS)}")
    known = [
        key
        for key, parameter in inspect.signature(MODELS[name]).parameters.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    ]
    for key, value in params.items():
        if key not in known:
            takes = f"left out: {name} takes {', '.join(known)}{nearest(key, known)}"
            raise InputError(f"model.{key}", value, takes)
    return MODELS[name](tuple(input_shape), outputs, **params)
