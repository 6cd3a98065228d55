"""Which algorithms run on nodes: processes that hold one client each, and exchange messages with their neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import Layout, Rule, needs_probability
from dspodfl.engine.client_events import Block, Link
from dspodfl.engine.client_step import ClientStep, NotOnNodesError, client_ends
from dspodfl.engine.messages import Message
from dspodfl.engine.run import Run
from dspodfl.problem.data import restrict_to_clients

_SHAPES = ((3, 2), (3,))


@dataclass(frozen=True)
class RowLayout:
    """Rows as they are: a `dspodfl.algorithms.Layout`."""

    shapes: tuple[tuple[int, ...], ...]
    parameters: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "parameters", sum(math.prod(shape) for shape in self.shapes))

    def flat(self, x: Tensor) -> Tensor:
        """Return rows in the order of ``named_parameters``. Shapes: (rows, p) -> (rows, p)."""
        return x

    def packed(self, x: Tensor) -> Tensor:
        """Return rows in the order of the models. Shapes: (rows, p) -> (rows, p)."""
        return x


def probed(rule: Rule, layout: Layout, dtype: torch.dtype, *, directed: bool) -> dict[int, Message]:
    """Return the messages of each phase of an iteration in which one link fires; gradients are 0.

    The other end sends the same back.

    Args:
        rule: The rule.
        layout: Of the model.
        dtype: Of the model.
        directed: Whether the graph is.

    Returns:
        Phase -> what is sent.

    Raises:
        NotOnNodesError: The rule asks for what a node does not have.
    """
    messages: dict[int, Message] = {}

    def echo(phase: int, sent: dict[int, Message]) -> dict[int, Message]:
        (messages[phase],) = sent.values()
        return sent

    one = torch.ones(1, 1, dtype=dtype)
    client: Any = SimpleNamespace(
        i=0,
        run=SimpleNamespace(seed=0),
        links=(Link(0, 0, 0),),
        directed=directed,
        layout=layout,
        one=one,
        zero=torch.zeros_like(one),
        n=2 * one,
        number=torch.zeros(1, 1, dtype=torch.int64),
        step_size=lambda value: one * value,
        events=SimpleNamespace(probability=lambda k: 1.0, link_rate=lambda k: 1.0),
        gradient=lambda x, block, t, number: torch.zeros_like(x),
    )
    weights = ([[0.5]],) * (4 if needs_probability(rule) else 3)
    block = Block(0, [True], [1.0], [(0,)], weights, None)
    theta = torch.zeros(1, layout.parameters, dtype=dtype)
    rule.step(theta, client_ends(rule.init(theta, 1), client.links), ClientStep(client, block, 0, echo))
    return messages


def run_of_client(run: Run, i: int) -> Run:
    """Return a run with the samples of one client alone: what a node needs of it.

    Args:
        run: The run, whose federation holds the client's samples.
        i: The number of the client.

    Returns:
        The same run; its dataset has the training samples of this client and all test samples.
    """
    place = np.flatnonzero(run.data.number == i)
    return replace(run, data=restrict_to_clients([run.data], [place])[0])


def runs_on_nodes(rule: Rule, run: Run) -> str | None:
    """Return why an algorithm does not run on nodes.

    Args:
        rule: Its rule.
        run: The run.

    Returns:
        The reason in one line, with the name of the algorithm; None: it runs there.
    """
    if run.server:
        return f"{run.algorithm} has a server, and every node is a client"
    if run.attack is not None:
        return f"{run.algorithm} is under attack: attackers are simulated, since they know what others send"
    if getattr(rule, "gates", False):
        return f"{run.algorithm} gates: which links fire depends on the models, and is not known in advance"
    try:
        probed(rule, RowLayout(getattr(rule, "shapes", None) or _SHAPES), torch.float64, directed=run.directed)
    except NotOnNodesError as error:
        return f"{run.algorithm} {error.reason}"
    except Exception:  # a rule for one model alone: its client will say what is wrong with it
        return None
    return None
