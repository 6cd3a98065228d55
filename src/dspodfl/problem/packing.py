"""The order in which the parameters of models are stored while they train."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dspodfl.problem.models import Model
from dspodfl.problem.models.linear import has_bias, linear_parts
from dspodfl.problem.models.stacked.network import Stacked

_LANE = 4  # numbers in the 16 bytes that a GPU thread reads at a time


class Packing:
    """Converts models between their flat order and the order that gradients are computed in, *packed*.

    A packed linear model has each row of weights next to its bias. A packed network with convolutions on a GPU has its
    channels last. Other models are packed as they are.

    Args:
        model: the model.
        device: where packed models are stored.
        stacked: the network as the GPU computes it, or None.
    """

    def __init__(self, model: Model, device: torch.device, stacked: Stacked | None) -> None:
        self.features = math.prod(model.input_shape) + has_bias(model)
        """Inputs of a linear model, with the constant 1 that its biases weigh."""
        self.stride = -(-self.features // _LANE) * _LANE if device.type == "cuda" else self.features
        """Numbers from one output's weights to the next in a packed linear model."""
        if model.is_linear:
            self.width = model.outputs * self.stride
        else:
            self.width = stacked.width if stacked is not None else model.parameters
        self._outputs, self._has_bias, self._stacked = model.outputs, has_bias(model), stacked
        self._order = _linear_order(model, device) if model.is_linear else None
        self._inverse = None if self._order is None else torch.argsort(self._order)

    def pack(self, theta: Tensor) -> Tensor:
        """Convert models to the packed order. Shapes: (clients, p) -> (clients, width)."""
        if self._stacked is not None:
            return self._stacked.pack(theta)
        if self._order is None:
            return theta
        if self.stride == self.features:
            return theta[:, self._order]
        out = theta.new_zeros((len(theta), self._outputs, self.stride))
        out[:, :, : self.features] = theta[:, self._order].view(len(theta), -1, self.features)
        return out.view(len(theta), -1)

    def unpack(self, packed: Tensor) -> Tensor:
        """Convert packed models back to the flat order. Shapes: (clients, width) -> (clients, p)."""
        if self._stacked is not None:
            return self._stacked.unpack(packed)
        if self._inverse is None:
            return packed
        dense = packed.view(len(packed), -1, self.stride)[:, :, : self.features].reshape(len(packed), -1)
        return dense[:, self._inverse]

    def augmented(self, x: Tensor) -> Tensor:
        """Add the constant 1 and the padding of packed linear models to flat inputs. (..., D) -> (..., stride)."""
        out = x.new_zeros((*x.shape[:-1], self.stride))
        out[..., : x.shape[-1]] = x
        if self._has_bias:
            out[..., x.shape[-1]] = 1.0
        return out


def _linear_order(model: Model, device: torch.device) -> Tensor:
    """Index of each packed number in θ = [W, b]. Shape: (p,)."""
    weight, bias = linear_parts(model, torch.arange(model.parameters, device=device)[None])
    return (weight if bias is None else torch.cat([weight, bias[:, :, None]], dim=2)).reshape(-1)
