"""Floors: the time that no implementation can go below, from bytes that must move and products that must be formed.

    floor = max(bytes / bandwidth, FLOP / matrix rate)

both rates being the machine's own (`benchmarks.machine`). Per iteration of n clients with p parameters, of which a
take a step on B samples and e directed links are used:

    linear     bytes  2·4np (Θ is read once and written once) + a·B·(bytes of a sample)
               FLOP   4·B·p·a (scores, their gradients times inputs) + 2·p·(e + n) (mixing: links, and one's own share)
                      + 2·B·D·a (scale and shift of D inputs)
    network    bytes  4p·(2a + a) (weights read forward and backward, gradients written)
                      + 4p·(n + a + n) (Θ read, gradients read, Θ written) + a·B·(bytes of a sample)
               FLOP   3·B·(FLOP of a forward pass)·a + 2·p·(e + n)

Activations are left out, as if they never left the chip. Models that fit into a cache need not come from memory, so
a small run may lie below its floor.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import nn

from benchmarks.machine import Machine
from dspodfl.algorithms.common_draw import Common, Skipping
from dspodfl.algorithms.schedules import Sporadic
from dspodfl.engine import Run, Stack
from dspodfl.problem.models import Model

_CYCLE = 1000  # iterations over which probabilities that change with the iteration are averaged
_COUNTED = 500  # iterations whose events are counted, where probabilities are not known


@dataclass(frozen=True)
class Load:
    """Bytes that must move and floating-point operations that must be done."""

    bytes: float
    flops: float

    def __add__(self, other: Load) -> Load:
        return Load(self.bytes + other.bytes, self.flops + other.flops)

    def __mul__(self, times: float) -> Load:
        return Load(self.bytes * times, self.flops * times)

    def floor(self, machine: Machine, precision: str = "fp32") -> float:
        """Seconds."""
        return max(self.bytes / machine.bandwidth, self.flops / machine.rates[precision])


NOTHING = Load(0.0, 0.0)


@dataclass(frozen=True)
class Activity:
    """Clients that there are, clients that take a step, and directed links that are used; an iteration's mean."""

    clients: int
    steps: float
    uses: float


def activity(run: Run) -> Activity:
    """What a run is expected to do in an iteration."""
    if isinstance(run.schedule, Common) and not isinstance(run.schedule, Skipping):  # every client, all links together
        return Activity(run.clients, float(run.clients), 2.0 * run.rates.graph.links * run.schedule.probability)
    if not isinstance(run.schedule, Sporadic):  # counted
        (block,) = Stack([run]).blocks(_COUNTED, _COUNTED)
        steps, uses = block.v.sum() / _COUNTED, (block.active != 0).sum() / _COUNTED
        return Activity(run.clients, float(steps), 2.0 * float(uses))
    p, q = run.schedule.probabilities(np.arange(_CYCLE), run.rates)
    return Activity(run.clients, float(p.sum() / len(p)), 2.0 * float(q.sum() / len(q)))


def linear_load(parameters: int, batch_size: int, inputs: int, sample_bytes: int, who: Activity) -> Load:
    """One iteration of linear models."""
    moved = 2 * 4 * who.clients * parameters + who.steps * batch_size * sample_bytes
    products = 4.0 * batch_size * parameters * who.steps
    return Load(moved, products + _mixed(parameters, who) + 2.0 * batch_size * inputs * who.steps)


def network_load(parameters: int, forward: int, batch_size: int, sample_bytes: int, who: Activity) -> Load:
    """One iteration of networks; ``forward`` is the FLOP of one sample's forward pass."""
    moved = 4 * parameters * (4 * who.steps + 2 * who.clients) + who.steps * batch_size * sample_bytes
    return Load(moved, 3.0 * forward * batch_size * who.steps + _mixed(parameters, who))


def _mixed(parameters: int, who: Activity) -> float:
    return 2.0 * parameters * (who.uses + who.clients)


def load_of(model: Model, run: Run, batch_size: int) -> Load:
    """One iteration of a run."""
    sample, who = run.data.dataset.x_train[0], activity(run)
    if model.is_linear:
        return linear_load(model.parameters, batch_size, sample.size, sample.nbytes, who)
    return network_load(model.parameters, forward_flops(model), batch_size, sample.nbytes, who)


def looking(model: Model, models: int, samples: int) -> Load:
    """Scores of linear models on a test set: a read of the models, and 2p FLOP a sample."""
    return Load(4.0 * model.parameters * models, 2.0 * model.parameters * samples * models)


def forward_flops(model: Model) -> int:
    """Two for every product of a weight and an input, in the convolutions and linear layers of one sample's pass."""
    total = 0

    def count(layer: nn.Module, _inputs: object, out: torch.Tensor) -> None:
        nonlocal total
        weights = next(p for name, p in layer.named_parameters() if name == "weight")
        pixels = out[0, 0].numel() if out.ndim > 2 else 1
        total += 2 * weights.numel() * pixels

    layers = [
        part for part in model.module.modules() if isinstance(part, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d)
    ]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    try:
        with torch.no_grad():
            theta = torch.empty(model.parameters, device="meta")
            model.scores(theta, torch.empty((1, *model.input_shape), device="meta"))
    finally:
        for hook in hooks:
            hook.remove()
    return total
