"""VGG11: configuration A of Simonyan & Zisserman (2015), under torchvision's parameter names."""

from __future__ import annotations

import os
from typing import Literal

import torch
from torch import Tensor, nn

from dspodfl.errors import InputError
from dspodfl.problem.models.checks import check_classes, check_images
from dspodfl.problem.models.initialization import addressed, he_distributions
from dspodfl.problem.models.model import Model
from dspodfl.problem.models.pretrained import read_weights

CONFIGURATION_A = (64, "pool", 128, "pool", 256, 256, "pool", 512, 512, "pool", 512, 512, "pool")
IMAGENET_CLASSES = 1000
GROUPS = 32
SIDE = 32  # five poolings by two: the smallest image that leaves a pixel


class Spread(nn.Module):
    """Copies of one pixel: (batch, channels, 1, 1) -> (batch, channels, side, side).

    What adaptive average pooling does to 1×1 maps, with a backward pass that is the same every time on a GPU.
    """

    def __init__(self, side: int) -> None:
        super().__init__()
        self.side = side

    def forward(self, x: Tensor) -> Tensor:
        """Spread the pixel over a square."""
        return x.expand(-1, -1, self.side, self.side)


class VGG(nn.Module):
    """Features, pooling, classifier: (batch, channels, height, width) -> (batch, scores)."""

    def __init__(self, features: nn.Module, avgpool: nn.Module, classifier: nn.Module) -> None:
        super().__init__()
        self.features = features
        self.avgpool = avgpool
        self.classifier = classifier

    def forward(self, x: Tensor) -> Tensor:
        """Scores of a batch of images."""
        scores: Tensor = self.classifier(self.avgpool(self.features(x)).flatten(1))
        return scores


def _features(channels: int, norm: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in CONFIGURATION_A:
        if isinstance(width, str):
            layers.append(nn.MaxPool2d(2))
            continue
        layers.append(nn.Conv2d(channels, width, 3, padding=1))
        if norm == "group":
            layers.append(nn.GroupNorm(GROUPS, width))
        layers.append(nn.ReLU())
        channels = width
    return nn.Sequential(*layers)


def _imagenet_classifier() -> nn.Sequential:
    """torchvision's, whose dropout at 2 and 5 is an identity here: the names of what follows stay."""
    return nn.Sequential(
        nn.Linear(512 * 7 * 7, 4096),
        nn.ReLU(),
        nn.Identity(),
        nn.Linear(4096, 4096),
        nn.ReLU(),
        nn.Identity(),
        nn.Linear(4096, IMAGENET_CLASSES),
    )


def vgg11(
    input_shape: tuple[int, ...],
    outputs: int,
    *,
    norm: Literal["none", "group"] = "none",
    head: Literal["cifar", "imagenet"] = "cifar",
    weights: str | os.PathLike[str] | None = None,
    l2: float = 0.0,
) -> Model:
    """Make VGG11 under cross entropy, from scratch or from a file of weights.

    Initial values do not follow PyTorch's default distribution, under which eleven layers without normalization hardly
    train: convolutions are normal of deviation √(2/fan_out) (He et al., 2015), linear layers normal of deviation 0.01,
    biases 0.

    Args:
        input_shape: The shape of an image, (channels, height, width), at least 32×32.
        outputs: The number of classes.
        norm: "group" puts a GroupNorm of 32 groups behind every convolution, which eases training from scratch.
        head: "cifar": one Linear(512, outputs) after the features of 32×32 images. "imagenet": torchvision's classifier
            without its dropout. Its scores are 1000 wide, the data's classes are the first of them, and all 1000 are in
            the cross entropy, as in the public code of the paper's CIFAR-10 experiments.
        weights: A .safetensors, .pth or .pt file in torchvision's naming of a plain VGG11. With the CIFAR head only its
            ``features.*`` are used, and the classifier is drawn.
        l2: λ of the penalty (λ/2)‖θ‖².

    Returns:
        The model.

    Raises:
        InputError: Inputs, head, norm and weights do not fit together.
        DataError: The file of weights is damaged, or is not that of a VGG11.
    """
    for field, value, allowed in (("norm", norm, ("none", "group")), ("head", head, ("cifar", "imagenet"))):
        if value not in allowed:
            raise InputError(f"model.{field}", value, " or ".join(repr(a) for a in allowed))
    if weights is not None and norm != "none":
        raise InputError("model.weights", os.fspath(weights), 'used with norm = "none"')
    check_classes("vgg11", outputs)
    channels, height, width = check_images("vgg11", input_shape, least=SIDE)
    with torch.device("meta"):
        avgpool: nn.Module
        classifier: nn.Module
        if head == "cifar":
            if (height, width) != (SIDE, SIDE):
                raise InputError("model.head", head, f"'imagenet' for inputs other than 32×32, as {input_shape}")
            avgpool, classifier = nn.Identity(), nn.Linear(512, outputs)
        else:
            if outputs > IMAGENET_CLASSES:
                raise InputError("model.head", head, f"'cifar' for more than 1000 classes; the data have {outputs}")
            one_pixel = max(height, width) < 2 * SIDE
            avgpool = Spread(7) if one_pixel else nn.AdaptiveAvgPool2d(7)
            classifier = _imagenet_classifier()
        module = VGG(_features(channels, norm), avgpool, classifier)
    given: dict[str, Tensor] = {}
    if weights is not None:
        prefix = "features." if head == "cifar" else ""
        shapes = {name: p.shape for name, p in module.named_parameters() if name.startswith(prefix)}
        given = read_weights(weights, shapes, prefix)
    draw = addressed(module, he_distributions, given)
    return Model("vgg11", module, "cross_entropy", tuple(input_shape), outputs, l2, draw=draw)
