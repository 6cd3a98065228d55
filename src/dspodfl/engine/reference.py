"""The plain loop: one run, one client, one neighbour, one parameter vector at a time.

Short and slow on purpose. Without a rule it follows the paper's pseudocode, and the fast engine is tested against it;
both share the events, the minibatch indices and the model, and nothing of how they are computed. With a rule it is a
loop over clients as nodes compute them (`dspodfl.engine.Client`), whose models are those of nodes to the bit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.algorithms import Rule
from dspodfl.engine.client import Client, ClientState
from dspodfl.engine.messages import Message
from dspodfl.engine.on_nodes import runs_on_nodes
from dspodfl.engine.run import Run
from dspodfl.errors import InputError
from dspodfl.network import COSTS, DelayMeter, Events, Part, Spent
from dspodfl.problem.models import Model
from dspodfl.rng import Stream

Gradient = Callable[[int, Tensor], Tensor]
ORDERS = ("simultaneous", "combine_then_adapt", "adapt_then_combine")
"""The updates that the plain loop knows, by the names of `dspodfl.algorithms.RULES`."""


def plain_loop(
    run: Run,
    model: Model,
    initial: Tensor,
    *,
    iterations: int,
    batch_size: int,
    order: str = "simultaneous",
    rule: Rule | None = None,
) -> Iterator[Tensor]:
    """Advance one run one client at a time: the reference implementation of `simulate`.

    Args:
        run: The run; its budget and its cap end it.
        model: What each client minimises.
        initial: The initial models, (clients, p); their dtype is kept.
        iterations: The most iterations to make.
        batch_size: Samples of a minibatch; 0: all samples of a client.
        order: The name of the update: "simultaneous" (the paper's), "combine_then_adapt" or "adapt_then_combine". It is
            not read where there is a rule.
        rule: Any rule that runs on nodes (`runs_on_nodes`); None: the paper's pseudocode, in the order of ``order``.

    Yields:
        The models after 1, 2, … updates, (clients, p); of a rule those that are evaluated.

    Raises:
        InputError: No update has this name.
    """
    if rule is None:
        yield from _pseudocode(run, model, initial, iterations, batch_size, order)
        return
    clients = all_clients(run, rule, model, batch_size=batch_size, dtype=initial.dtype)
    for states in client_loop(clients, initial, iterations):
        yield torch.cat([client.evaluated(state) for client, state in zip(clients, states, strict=True)])


def all_clients(run: Run, rule: Rule, model: Model, *, batch_size: int, dtype: torch.dtype) -> list[Client]:
    """Return all clients of a run, one at a time.

    Args:
        run: The run.
        rule: How models change.
        model: What clients minimise.
        batch_size: Samples of a minibatch; 0: all samples of a client.
        dtype: Of the models.

    Returns:
        The clients, in their order.

    Raises:
        InputError: The rule does not run on nodes.
    """
    reason = runs_on_nodes(rule, run)
    if reason is not None:
        raise InputError("algorithms", run.algorithm, f"one that runs client by client: {reason}")
    return [Client(run, rule, model, i, batch_size=batch_size, dtype=dtype) for i in range(run.clients)]


def client_loop(clients: list[Client], initial: Tensor, iterations: int) -> Iterator[list[ClientState]]:
    """Advance all clients of a run together, one at a time.

    A client that needs messages which others have not made yet makes its iteration again later: rules are pure.
    Gradients are not computed again.

    Args:
        clients: All clients of a run, in their order.
        initial: The initial models, (clients, p).
        iterations: The most iterations to make.

    Yields:
        The states of the clients after 1, 2, … iterations.
    """
    states = [client.begin(initial[i : i + 1]) for i, client in enumerate(clients)]
    for k in range(last_iteration(clients[0].run, iterations)):
        sent: dict[tuple[int, int, int], Message] = {}
        new: dict[int, ClientState] = {}
        for client in clients:
            client.memo = {}
        while len(new) < len(clients):
            for i in sorted(set(range(len(clients))) - new.keys()):
                try:
                    new[i] = clients[i].step(states[i], k, _Swap(i, sent))
                except _MissingError:
                    continue
        states = [new[i] for i in range(len(clients))]
        yield states


class _MissingError(Exception):
    """A neighbour has not made its message yet."""


class _Swap:
    """Takes the messages of client i, and returns those of its neighbours once they are there."""

    def __init__(self, i: int, sent: dict[tuple[int, int, int], Message]) -> None:
        self._i, self._sent = i, sent

    def __call__(self, phase: int, messages: dict[int, Message]) -> Mapping[int, Message]:
        self._sent.update({(self._i, peer, phase): message for peer, message in messages.items()})
        try:
            return {peer: self._sent[peer, self._i, phase] for peer in messages}
        except KeyError:
            raise _MissingError from None


def last_iteration(run: Run, iterations: int) -> int:
    """Return the iteration that a run ends at by its events, unless it diverges before.

    Args:
        run: The run, with its budget and its cap.
        iterations: The most iterations to make.

    Returns:
        At most ``iterations``.
    """
    most = run.last(iterations)
    if not run.spends:
        return most
    from dspodfl.engine.horizon import last_iterations

    return last_iterations([replace(run, cap=most)])[0]


def _pseudocode(
    run: Run, model: Model, initial: Tensor, iterations: int, batch_size: int, order: str
) -> Iterator[Tensor]:
    """Yield the models of the paper's pseudocode, (clients, p)."""
    if order not in ORDERS:
        raise InputError("order", order, f"one of {', '.join(ORDERS)}")
    graph, data = run.rates.graph, run.data
    dtype = initial.dtype
    inputs = torch.from_numpy(data.dataset.normalized(data.dataset.x_train))
    targets = torch.from_numpy(data.dataset.y_train)
    theta = [row.clone() for row in initial]
    part = Part.whole(graph, run.seed)
    meter, steps, uses = DelayMeter(graph.edges, graph.n, run.link_models), 0, 0

    for k in range(run.last(iterations)):
        at = np.array([k])
        present, weight, degree = run.topology.at(at)
        events = run.rates.masked(run.schedule(at, part, run.rates), at, part)
        fired = events if present is None else Events(events.v, events.v_hat & present)
        shown = present if run.topology.time_varying_weights else None
        delays = meter.add(fired, run.rates.sgd(at), run.rates.link(at), degree, shown)
        uses += int(fired.v_hat.sum())
        steps += int(fired.v.sum())
        raw, normalized = (delays.processing[0], delays.transmission[0]), delays.processing_normalized[0]
        spent = Spent(*raw, normalized, delays.transmission_normalized[0], steps, uses, k + 1, run.link_bytes)
        alpha = np.broadcast_to(run.step_sizes(at), (1, graph.n))[0].tolist()

        def gradient(i: int, point: Tensor, k: int = k) -> Tensor:
            shard = data.shards[i]
            if batch_size:
                word = rng.words(run.seed, Stream.BATCH, i, k=k, slots=batch_size)
                shard = shard[rng.index_below(word, len(shard))]
            rows = torch.from_numpy(shard)
            y = targets[rows].to(dtype) if targets.is_floating_point() else targets[rows]
            point = point.detach().requires_grad_()
            (g,) = torch.autograd.grad(model.objective(point, inputs[rows].to(dtype), y), point)
            return g

        def mixed(models: list[Tensor], present=present, weight=weight, events=events) -> list[Tensor]:  # type: ignore[no-untyped-def]
            out = [m.clone() for m in models]
            for e, (i, j) in enumerate(graph.edges.tolist()):
                if events.v_hat[0, e] and (present is None or present[0, e]):
                    out[i] += float(weight[0, e]) * (models[j] - models[i])
                    out[j] += float(weight[0, e]) * (models[i] - models[j])
            return out

        def adapted(models: list[Tensor], at_models: list[Tensor], events=events, alpha=alpha) -> list[Tensor]:  # type: ignore[no-untyped-def]
            return [m - alpha[i] * gradient(i, at_models[i]) if events.v[0, i] else m for i, m in enumerate(models)]

        if order == "simultaneous":
            theta = adapted(mixed(theta), theta)
        elif order == "combine_then_adapt":
            combined = mixed(theta)
            theta = adapted(combined, combined)
        else:
            theta = mixed(adapted(theta, theta))
        yield torch.stack(theta)
        if run.budget is not None and COSTS[run.budget.kind].of(spent) >= run.budget.value:
            return
