"""One client of a run, as a process that holds it alone computes it: a row, its samples, its ends of links.

`dspodfl.engine.plain_loop` with a rule is a loop over such clients, so that nodes and loop are equal to the bit on one
machine and build of PyTorch, with one thread.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import Rule, evaluated_models
from dspodfl.engine.client_events import Block, ClientEvents
from dspodfl.engine.client_step import ClientStep, Swap, client_ends
from dspodfl.engine.messages import Message, Schema, schema_of
from dspodfl.engine.on_nodes import RowLayout, probed
from dspodfl.engine.run import Run
from dspodfl.engine.state import filled, leaves, link_leaves
from dspodfl.errors import InputError
from dspodfl.problem.models import Model, row_gradient


@dataclass(frozen=True, eq=False)
class ClientState:
    """What a client carries from one iteration to the next."""

    theta: Tensor  # (1, p)
    rule: Any
    """The state of the rule; memory at the ends of links has one row for each link of the client, in their order."""
    k: int
    """The number of iterations made: the next one."""

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Return the state as arrays; `Client.from_arrays` is the converse.

        Returns:
            "k" (), "theta" (1, p), "rule.<n>" (1, …) and "end.<n>" (links, …); views of the state, where it is on the
            CPU.
        """
        found = {"k": np.array(self.k), "theta": self.theta.numpy()}
        found |= {f"rule.{n}": leaf.numpy() for n, leaf in enumerate(leaves(self.rule, 1))}
        return found | {f"end.{n}": leaf.numpy() for n, leaf in enumerate(link_leaves(self.rule))}


class Client:
    """Client i of a run.

    Args:
        run: The run; its federation has to hold the samples of this client, and may hold no others
            (`dspodfl.problem.data.restrict_to_clients`).
        rule: How the model changes.
        model: What clients minimise.
        i: The number of the client.
        batch_size: Samples of a minibatch; 0: all samples of the client.
        dtype: Of the model.

    Raises:
        InputError: There is no such client, or the federation does not hold its samples.
    """

    def __init__(
        self,
        run: Run,
        rule: Rule,
        model: Model,
        i: int,
        *,
        batch_size: int,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        held = np.flatnonzero(run.data.number == i)
        if not 0 <= i < run.clients or not len(held):
            raise InputError("client", i, "one of the run, whose samples are held")
        self.run, self.rule, self.i, self.dtype, self.directed = run, rule, i, dtype, run.directed
        self.model = model.to("cpu", dtype)
        dataset, shard = run.data.dataset, run.data.shards[int(held[0])]
        self._x, self._y = torch.from_numpy(dataset.x_train[shard]), torch.from_numpy(dataset.y_train[shard])
        self._normalizing = dataset.scale, dataset.shift
        self._gradient = row_gradient(self.model)
        self.events = ClientEvents(run, rule, i, len(shard), batch_size)
        self.links = self.events.links
        self.neighbours = tuple(link.peer for link in self.links)
        """The clients at the other ends of the links, in the order of the graph's edges."""
        self.one, self.zero = torch.ones(1, 1, dtype=dtype), torch.zeros(1, 1, dtype=dtype)
        self.n = self.one * run.clients
        self.number = torch.tensor([[i]])
        self.layout = RowLayout(tuple(tuple(shape) for shape in self.model.shapes.values()))
        self.memo: dict[tuple[int, int], Tensor] | None = None
        """Gradients by iteration and number, where steps are repeated (`plain_loop`)."""

        self._step_size: tuple[float, Tensor] = (1.0, self.one)

    def step_size(self, value: float) -> Tensor:
        """Return a step size as a tensor, (1, 1); the last one is remembered, since most runs have one alone."""
        known = self._step_size
        if known[0] != value:
            known = self._step_size = (value, self.one * value)
        return known[1]

    def begin(self, theta: Tensor) -> ClientState:
        """Return the state before the first iteration.

        Args:
            theta: The initial model, (1, p).

        Returns:
            The state.

        Raises:
            InputError: The model is of another shape.
        """
        if tuple(theta.shape) != (1, self.layout.parameters):
            allowed = f"of shape {(1, self.layout.parameters)}"
            raise InputError("the initial model", f"of shape {tuple(theta.shape)}", allowed)
        theta = theta.detach().to(self.dtype).clone()
        return ClientState(theta, client_ends(self.rule.init(theta, len(self.links)), self.links), 0)

    def fires(self, k: int) -> tuple[int, ...]:
        """Return the neighbours whose links fire at an iteration, in the order of the graph's edges."""
        block, t = self.events.at(k)
        return tuple(self.neighbours[link] for link in block.fired[t])

    def steps(self, k: int) -> bool:
        """Return whether the client takes a gradient step at an iteration."""
        block, t = self.events.at(k)
        return block.v[t]

    def step(self, state: ClientState, k: int, swap: Swap) -> ClientState:
        """Make one iteration.

        Args:
            state: The state before it; it is not changed.
            k: The number of the iteration.
            swap: Called for each phase in which a link fires with the messages by neighbour; returns theirs.

        Returns:
            The state after it.

        Raises:
            InputError: The rule exchanges otherwise than in other iterations.
        """
        at = ClientStep(self, *self.events.at(k), swap)
        theta, rule = self.rule.step(state.theta, state.rule, at)
        if at.phase != self.phases:
            what = f"{at.phase} exchanges at iteration {k}"
            raise InputError(f"rule of {self.run.algorithm!r}", what, f"one of {self.phases} in every iteration")
        return ClientState(theta, rule, k + 1)

    @property
    def phases(self) -> int:
        """How often messages are exchanged in an iteration."""
        return len(self.schema.phases)

    @cached_property
    def schema(self) -> Schema:
        """The messages of each phase, found by an iteration in which one link fires and the own message comes back."""
        messages = probed(self.rule, self.layout, self.dtype, directed=self.directed)
        return schema_of(messages, self.model.shapes)

    def unpacked(self, phase: int, buffer: Any) -> Message:
        """Return the message of a phase in a buffer; see `Schema.unpacked`."""
        return self.schema.unpacked(phase, buffer)

    def gradient(self, x: Tensor, block: Block, t: int, number: int = 1) -> Tensor:
        """Compute the gradient on the minibatch of an iteration.

        Args:
            x: The point, (1, p).
            block: The events of the iteration.
            t: Its place in them.
            number: How often a gradient was asked for in this iteration, with this one.

        Returns:
            The gradient, (1, p).
        """
        if self.memo is None:
            return self._gradient(x[0], *self._minibatch(block, t))[None]
        key = block.first + t, number
        if key not in self.memo:
            self.memo[key] = self._gradient(x[0], *self._minibatch(block, t))[None]
        return self.memo[key].clone()

    def _minibatch(self, block: Block, t: int) -> tuple[Tensor, Tensor]:
        """Return inputs and labels, (batch, *input_shape) and (batch,)."""
        return self._whole if block.rows is None else self._samples(block.rows[t])

    @cached_property
    def _whole(self) -> tuple[Tensor, Tensor]:
        return self._samples(torch.arange(len(self._x)))

    def _samples(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self._normalizing
        x, y = self._x.index_select(0, rows).float(), self._y.index_select(0, rows)
        if scale != 1.0:
            x = x.mul_(scale)
        if shift != 0.0:
            x = x.add_(shift)
        return x.to(self.dtype), y.to(self.dtype) if y.is_floating_point() else y

    def evaluated(self, state: ClientState) -> Tensor:
        """Return the model that is evaluated: θ, unless the rule has another one. Shape: (1, p)."""
        return evaluated_models(self.rule, state.theta, state.rule)

    def from_arrays(self, arrays: Mapping[str, np.ndarray]) -> ClientState:
        """Return a state from the arrays of `ClientState.to_arrays`.

        Args:
            arrays: The arrays.

        Returns:
            The state, with copies of the arrays.

        Raises:
            InputError: An array is missing, or has another shape or type than a state of this client.
        """
        like = self.begin(torch.zeros(1, self.layout.parameters, dtype=self.dtype))
        expected = like.to_arrays()
        for name, array in expected.items():
            found = arrays.get(name)
            if found is None or found.shape != array.shape or found.dtype != array.dtype:
                what = "missing" if found is None else f"{found.dtype} of shape {found.shape}"
                raise InputError(f"state of client {self.i}: {name}", what, f"{array.dtype} of shape {array.shape}")
        tensors = {
            name: torch.tensor(arrays[name]) for name in expected
        }  # PyTorch's memory: products depend on where it begins
        own, memory = ([t for name, t in tensors.items() if name.startswith(kind)] for kind in ("rule.", "end."))
        return ClientState(tensors["theta"], filled(like.rule, iter(own), iter(memory)), int(arrays["k"]))
