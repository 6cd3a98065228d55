"""Initial values by address: element e of tensor t is uniform number e at (seed, INIT, entity 0, k = t).

t counts the trainable tensors in the order of `nn.Module.named_parameters`. Values are drawn in float64 on the
CPU and rounded to float32, so they are the same whatever device the model runs on and however it is split.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from dspodfl import rng
from dspodfl.rng import Stream

CHUNK = 2**16
"""Elements drawn at a time: what is live stays in cache, and memory beyond the result is a few megabytes."""


@dataclass(frozen=True)
class InitialDistribution:
    """The distribution of a tensor's elements: uniform on ±scale, normal of deviation scale, or all equal to scale."""

    kind: Literal["uniform", "normal", "constant"]
    scale: float


LayerDistributions = Callable[[nn.Module], dict[str, InitialDistribution]]
"""The distributions of a layer's own parameters by name (``weight``, ``bias``), from its class and shapes."""


def default_distributions(layer: nn.Module) -> dict[str, InitialDistribution]:
    """PyTorch's own: weights and biases uniform on ±1/√fan_in; normalization starts as the identity.

    >>> default_distributions(nn.Linear(16, 3))["bias"]
    InitialDistribution(kind='uniform', scale=0.25)
    """
    if isinstance(layer, nn.Linear | nn.Conv2d):
        distribution = InitialDistribution("uniform", 1 / math.sqrt(layer.weight[0].numel()))
        return {"weight": distribution, "bias": distribution}
    return _identity(layer)


def he_distributions(layer: nn.Module) -> dict[str, InitialDistribution]:
    """For deep ReLU networks: convolutions normal of deviation √(2/fan_out), linear layers 0.01, biases 0.

    (He et al., 2015, with fan_out = output channels × kernel size.)
    """
    if isinstance(layer, nn.Conv2d):
        fan_out = layer.weight.numel() // layer.weight.shape[1]
        return {
            "weight": InitialDistribution("normal", math.sqrt(2 / fan_out)),
            "bias": InitialDistribution("constant", 0.0),
        }
    if isinstance(layer, nn.Linear):
        return {"weight": InitialDistribution("normal", 0.01), "bias": InitialDistribution("constant", 0.0)}
    return _identity(layer)


def _identity(layer: nn.Module) -> dict[str, InitialDistribution]:
    if isinstance(layer, nn.GroupNorm):
        return {"weight": InitialDistribution("constant", 1.0), "bias": InitialDistribution("constant", 0.0)}
    return {}


def tensor(distribution: InitialDistribution, count: int, seed: int, t: int, out: Tensor | None = None) -> Tensor:
    """Elements 0 … count − 1 of tensor number t, drawn in chunks, into ``out``. Shape: (count,), float32."""
    if out is None:
        out = torch.empty(count)
    if distribution.kind == "constant":
        return out.fill_(distribution.scale)
    for first in range(0, count, CHUNK):
        size = min(CHUNK, count - first)
        if distribution.kind == "uniform":
            values = 2 * rng.uniform(seed, Stream.INIT, k=t, count=size, first=first) - 1
        else:
            values = rng.normal(seed, Stream.INIT, k=t, count=size, first=first)
        out[first : first + size] = torch.from_numpy(np.asarray(distribution.scale * values))
    return out


def addressed(
    module: nn.Module,
    distributions: LayerDistributions = default_distributions,
    given: Mapping[str, Tensor] | None = None,
) -> Callable[[int], Tensor]:
    """A model's ``draw``: seed -> θ (p,), every tensor by its distribution, but those in ``given`` as they are.

    A tensor keeps its number t, and so its values, whatever else is given.
    """
    given = given or {}
    plan: list[tuple[str, int, InitialDistribution | None]] = []
    for path, layer in module.named_modules():
        own = distributions(layer)
        for name, p in layer.named_parameters(recurse=False):
            full = f"{path}.{name}" if path else name
            plan.append((full, p.numel(), None if full in given else own[name]))

    def draw(seed: int) -> Tensor:
        theta = torch.empty(sum(size for _, size, _ in plan))
        for t, ((name, size, distribution), part) in enumerate(
            zip(plan, theta.split([size for _, size, _ in plan]), strict=True)
        ):
            if distribution is None:
                part.copy_(given[name].reshape(size))
            else:
                tensor(distribution, size, seed, t, out=part)
        return theta

    return draw
