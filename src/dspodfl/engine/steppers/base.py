"""What a stepper is, and which one is chosen.

A stepper advances the models that a process holds through blocks of iterations. There is one family, for one process
and for several: what differs is the `dspodfl.engine.transport.base.Transport`, and how many rows of other processes
are needed (the halo of the `Shard`; none where a process works alone). All of them give the same models:

    plain.Plain                every model, rule and device    by the rule, with PyTorch's operations; full gradients
    compiled.Compiled          linear models on the CPU        whole blocks in machine code (Numba)
    compiled_methods…          linear models on the CPU        the same for rules with another kernel, in one process
    cuda_linear.CudaLinear     linear models on a GPU          two passes over the models an iteration (Triton)
    cuda_network.CudaNetwork   other models on a GPU           gradients of only the clients that step

`Plain` works for everything, and is what the others are tested against. All others but compiled_methods compute the
paper's update.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor

from dspodfl.algorithms import SIMULTANEOUS, Rule, fused_kernel, runs_directed
from dspodfl.engine.events import Block
from dspodfl.engine.exchange import Split
from dspodfl.engine.steppers.compiled import Compiled
from dspodfl.engine.steppers.compiled_methods import CompiledMethod
from dspodfl.engine.steppers.cuda_linear import CudaLinear
from dspodfl.engine.steppers.cuda_network import CudaNetwork
from dspodfl.engine.steppers.plain import Plain
from dspodfl.errors import InputError
from dspodfl.problem import Problem

_FUSED = (Compiled, CudaLinear, CudaNetwork)
"""Steppers that compute the paper's update; ``available`` of each returns whether it can advance a problem."""


class Stepper(Protocol):
    """Models that are advanced. Blocks are loaded in order, and their iterations made in order."""

    @property
    def theta(self) -> Tensor:
        """The models held here, packed. Shape: (clients, width)."""
        ...

    @property
    def state(self) -> Any:
        """What the rule carries besides the models."""
        ...

    def load(self, block: Block) -> None:
        """Take the events of the next block, of the clients and links held here."""
        ...

    def advance(self, first: int, last: int) -> None:
        """Make iterations first … last − 1 of the block."""
        ...

    def freeze(self, run: int) -> None:
        """Leave the models of a run as they are from now on."""
        ...

    rests: bool
    """Whether a run without events keeps its models without being frozen."""
    idles: bool
    """Whether a run that is over still costs time, so that a smaller stack is faster."""


def choose(split: Split, problem: Problem, rule: Rule, theta: Tensor, state: Any = None) -> Stepper:
    """Return the fastest stepper that there is for a rule, a model and a device.

    Args:
        split: The clients held here, and the transport to the others.
        problem: Data and model of these clients.
        rule: How mixed models and gradients become new models.
        theta: The initial models, packed, (clients, width). The stepper may overwrite them.
        state: What the rule carries, where a run is resumed; None: the rule begins.

    Returns:
        A stepper at the initial models.

    Raises:
        InputError: A run is directed, and the rule does not declare that it runs on directed graphs.
    """
    if split.shard.stack.directed and not runs_directed(rule):
        raise InputError("graph.directed", True, f"false for the rule {type(rule).__name__}, which mixes both ways")
    fused = fused_kernel(rule) == SIMULTANEOUS
    plain = problem.full is not None or split.shard.stack.attack is not None  # the kernels take minibatches and models
    for stepper in _FUSED if fused and not plain else ():
        if stepper.available(problem):
            return stepper(split, problem, theta)
    if not plain and CompiledMethod.available(split, problem, rule):
        return CompiledMethod(split, problem, rule, theta, state)
    return Plain(split, problem, rule, theta, state, mixes_first=fused)
