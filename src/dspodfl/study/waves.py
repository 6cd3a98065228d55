"""Which runs of a study advance together: waves that fit the memory of the device."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import torch
from torch import nn

from dspodfl.algorithms import SIMULTANEOUS, Rule, fused_kernel
from dspodfl.engine import Run, leaves, link_leaves
from dspodfl.errors import memory as machine
from dspodfl.problem import SAMPLES_AT_ONCE
from dspodfl.problem.models import Model

_SHARE = 0.85
"""Of the memory that is free, what a wave may take: estimates are rough, and allocators round up."""
_COPIES = 3.5
"""Matrices of the models' size at a time: models, new models, gradients, and a half for intermediate values."""
_LINK_BYTES, _FEW_LINKS = 200, 100_000
"""A link of a run that advances: its ends, rates, weights, events and delays; and those that are in `_BESIDES`."""
_BESIDES = {"cpu": 0.5 * 2**30, "cuda": 4 * 2**30}
"""What random words, scores under evaluation and libraries take, whatever the study."""


@dataclass(frozen=True)
class Plan:
    """The waves of a study, as numbers of its runs, and what they were made from; bytes all."""

    done: tuple[list[int], ...]
    left: tuple[list[int], ...]
    per_client: int
    fixed: int
    memory: int
    halvings: int = 0

    def finished(self) -> Plan:
        """Return the plan after the first wave."""
        return replace(self, done=(*self.done, self.left[0]), left=self.left[1:])

    def halved(self) -> Plan:
        """Return the plan with every wave to come cut in two, where it is of more than one run."""
        left = [half for wave in self.left for half in _cut(wave, 2) if half]
        return replace(self, left=tuple(left), halvings=self.halvings + 1)

    def too_large(self, clients: int, why: str) -> str:
        """Return the message about a run that does not fit alone."""
        need, have = (self.fixed + clients * self.per_client) / 2**30, self.memory / 2**30
        return (
            f"out of memory: one run of {clients:,} clients needs about {need:.1f} GiB, and {have:.1f} GiB were free; "
            f"use fewer clients, a smaller model or another device ({why})"
        )

    def report(self) -> dict[str, Any]:
        """Return what summary.json says of it."""
        return {
            "waves": [len(wave) for wave in (*self.done, *self.left)],
            "bytes_per_client": self.per_client,
            "bytes_besides": self.fixed,
            "bytes_free": self.memory,
            "halved_for_memory": self.halvings,
        }


def make_plan(
    runs: Sequence[Run],
    model: Model,
    batch_size: int,
    device: torch.device,
    dtype: torch.dtype,
    memory: int | None = None,
    fewest: int = 1,
    groups: Sequence[int] | None = None,
    rules: Sequence[Rule] | None = None,
) -> Plan:
    """Plan as few waves as fit, of about equal size; runs of one seed are next to each other: they share minibatches.

    Args:
        runs: The runs of the study.
        model: What they train.
        batch_size: Samples in a minibatch; 0: full gradients, which are computed some samples at a time.
        device: Where they are run.
        dtype: The type of the models.
        memory: What is free on the device, in bytes; None: as it says.
        fewest: No wave has fewer runs, unless its group has.
        groups: A number for each run; None: all are of one group. Runs of different groups are never in one wave, and
            the groups follow one another.
        rules: The rule of each run, whose state takes memory too; None: no rule has one.

    Returns:
        The plan; none of its waves is done.
    """
    free = free_memory(device) if memory is None else memory
    size = torch.finfo(dtype).bits // 8
    per_client = int(_COPIES * size * model.parameters + activations(model, batch_size) * size)
    datasets = dict.fromkeys(run.data.dataset for run in runs)  # runs may share one
    held = sum(d.x_train.nbytes + size * d.x_test.size for d in datasets)
    fixed = int(held + _BESIDES["cuda" if device.type == "cuda" else "cpu"])
    if not batch_size:
        fixed += _full_batch_bytes(model, size)
    kept = [0] * len(runs)
    if rules is not None:
        kept = [size * state_numbers(rule, run, model.parameters) for run, rule in zip(runs, rules, strict=True)]
    size_of = [
        run.clients * per_client + _link_bytes(run.topology.graph.links) + more
        for run, more in zip(runs, kept, strict=True)
    ]
    per_client += max((-(-more // run.clients) for run, more in zip(runs, kept, strict=True)), default=0)
    room = max(1.0, _SHARE * free - fixed)
    of_group: dict[int, list[int]] = {}
    for r in sorted(range(len(runs)), key=lambda r: runs[r].seed):
        of_group.setdefault(groups[r] if groups else 0, []).append(r)
    waves = [sorted(wave) for _, order in sorted(of_group.items()) for wave in _fitting(order, size_of, room, fewest)]
    return Plan((), tuple(waves), per_client, fixed, free)


def _fitting(order: list[int], size_of: Sequence[int], room: float, fewest: int) -> list[list[int]]:
    """As few waves of some runs as fit into a room, in bytes; none has fewer than ``fewest`` runs."""
    most = max(1, len(order) // fewest)
    count = min(most, math.ceil(sum(size_of[r] for r in order) / room))
    while True:
        waves = _cut(order, count)
        largest = max(sum(size_of[r] for r in wave) for wave in waves)
        if count == most or largest <= room:
            return waves
        count += 1


def _full_batch_bytes(model: Model, size: int) -> int:
    """What full gradients take in between, whoever they are of: inputs and activations of some samples."""
    return size * SAMPLES_AT_ONCE * (2 * math.prod(model.input_shape) + activations(model, 1))


def _link_bytes(links: int) -> int:
    return max(0, links - _FEW_LINKS) * _LINK_BYTES


def state_numbers(rule: Rule, run: Run, parameters: int) -> int:
    """Return how many numbers a rule keeps beside the models of a run: for its clients, and at the ends of its links.

    Args:
        rule: The rule; its ``init`` is asked on a device without memory.
        run: The run.
        parameters: p, the number of parameters of the model.

    Returns:
        The count; 0 of a custom rule that does not know such a device.
    """
    if fused_kernel(rule) == SIMULTANEOUS:  # a kernel computes it, without a state
        return 0
    try:
        state = rule.init(torch.empty((run.clients, parameters), device="meta"), run.topology.graph.links)
        return sum(leaf.numel() for leaf in (*leaves(state, run.clients), *link_leaves(state)))
    except Exception:  # a custom rule may raise anything on a meta tensor; the plan is rougher then
        return 0


def free_memory(device: torch.device) -> int:
    """Return the memory that is free on a device.

    Args:
        device: A CPU, or a GPU.

    Returns:
        Bytes.
    """
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine.available()


def activations(model: Model, batch_size: int) -> int:
    """Return the numbers that a network keeps of one client's minibatch, with their gradients; 0 for linear models."""
    if model.is_linear:
        return 0
    kept = 0

    def count(_module: nn.Module, _inputs: Any, out: Any) -> None:
        nonlocal kept
        kept += out.numel() if isinstance(out, torch.Tensor) else 0

    leaves = [part for part in model.module.modules() if not list(part.children())]
    hooks = [part.register_forward_hook(count) for part in leaves]
    try:
        theta = torch.empty(model.parameters, device="meta")
        with torch.no_grad():
            model.scores(theta, torch.empty((batch_size, *model.input_shape), device="meta"))
    except Exception:  # a module of a user's own may not know the meta device; the plan is rougher then
        kept = 0
    finally:
        for hook in hooks:
            hook.remove()
    return 2 * kept


def _cut(runs: list[int], parts: int) -> list[list[int]]:
    """In consecutive parts of about equal length."""
    ends = [round(n * len(runs) / parts) for n in range(parts + 1)]
    return [runs[start:end] for start, end in pairwise(ends)]
