"""The plain loop: one run, one client, one neighbour, one parameter vector at a time.

Short and slow on purpose. It follows the paper's pseudocode, and the fast engine is tested against it; both share the
events, the minibatch indices and the model, and nothing of how they are computed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor

from dspodfl import rng
from dspodfl.engine.run import Run
from dspodfl.errors import InputError
from dspodfl.network import COSTS, DelayMeter, Events, Part, Spent
from dspodfl.problem.models import Model
from dspodfl.rng import Stream

Gradient = Callable[[int, Tensor], Tensor]
ORDERS = ("simultaneous", "combine_then_adapt", "adapt_then_combine")
"""The updates that the plain loop knows, by the names of `dspodfl.algorithms.RULES`."""


def plain_loop(
    run: Run, model: Model, initial: Tensor, *, iterations: int, batch_size: int, order: str = "simultaneous"
) -> Iterator[Tensor]:
    """Advance one run by the paper's pseudocode: the reference implementation of `simulate`.

    Args:
        run: The run; its budget and its cap end it.
        model: What each client minimises.
        initial: The initial models, (clients, p); their dtype is kept.
        iterations: The most iterations to make.
        batch_size: Samples of a minibatch; 0: all samples of a client.
        order: The name of the update: "simultaneous" (the paper's), "combine_then_adapt" or "adapt_then_combine".

    Yields:
        The models after 1, 2, … updates, (clients, p).

    Raises:
        InputError: No update has this name.
    """
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
