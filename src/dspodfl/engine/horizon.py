"""How long runs take to spend their budgets: expected, from rates and graph; and exactly, from their events alone."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dspodfl.algorithms import by_direction, draws_independently
from dspodfl.engine import Run, Stack
from dspodfl.engine.counters import costs_of
from dspodfl.network import COSTS, LONGEST, SLACK, Budget, Part, Spent

_TRIED = 256
"""Iterations of a custom schedule from which its cost is estimated: its probabilities are not known."""
_MAX_ELEMENTS_PER_CHUNK = 2_000_000
_MAX_ELEMENTS = 100_000_000
"""Probabilities that are added up exactly; what comes after them costs what they did on average."""


def cap(run: Run, budget: Budget, iterations: int | None) -> tuple[int, int]:
    """Return the most iterations of a run, and how many it is expected to take.

    Args:
        run: Graph, rates, schedule and ``link_bytes``; its own budget and cap are not read.
        budget: What it may spend.
        iterations: The cap that the configuration gives, if it does.

    Returns:
        The cap and the expected number, at most the cap. A cap that is not given is 1.5 times the expected number, at
        most 10⁶ (a budget of iterations is its own cap). A recorded schedule ends with its record. Where models decide
        which links fire, the number is that of a run whose links all fire, and the cap is of one whose links never do.
    """
    if budget.kind == "iterations":
        most = min(iterations or LONGEST * LONGEST, math.ceil(budget.value))
        return most, most
    longest = min(iterations or LONGEST, getattr(run.schedule, "recorded", None) or LONGEST)
    need = expected(run, budget, longest)
    slowest = expected(run, budget, longest, links=False) if run.gated else need
    most = longest if iterations is not None or math.isinf(slowest) else min(longest, math.ceil(SLACK * slowest))
    return max(1, most), int(max(1, min(need, most)))


def expected(run: Run, budget: Budget, longest: int = LONGEST, *, links: bool = True) -> float:
    """Return the number of iterations after which a run is expected to have spent a budget; infinite if never.

    The expectation is over the events, with rates and graphs given: Σ_k Σ_i p_i(k) / d_i(k) / m + …, as in `delay`.

    Args:
        run: Graph, rates, schedule and ``link_bytes``.
        budget: What it may spend.
        longest: The most iterations to consider.
        links: Whether links fire as the schedule says, or never.

    Returns:
        The number of iterations, at most ``longest``; or infinity.
    """
    entities = run.clients + run.rates.graph.links
    length = max(1, min(1000, _MAX_ELEMENTS_PER_CHUNK // max(1, entities)))
    constant = _constant(run)
    spent, k = 0.0, 0
    while k < longest:
        rows = np.arange(k, min(k + (1 if constant else length), longest))
        cost = _expected_costs(run, budget, rows, links)
        total = spent + np.cumsum(cost)
        if not constant and total[-1] >= budget.value:
            return k + int(np.argmax(total >= budget.value)) + 1
        if constant or k * entities > _MAX_ELEMENTS or len(cost) < len(rows):
            mean = float(np.mean(cost)) if k == 0 else (spent + float(np.sum(cost))) / (k + len(cost))
            return k + math.ceil((budget.value - spent) / mean) if mean > 0 else math.inf
        spent, k = float(total[-1]), k + len(rows)
    return math.inf


def _constant(run: Run) -> bool:
    """Return whether every iteration is expected to cost the same."""
    same = draws_independently(run.schedule) and run.schedule.constant(run.rates)
    return same and run.rates.fixed and run.topology.constant and not run.topology.time_varying_weights


def _expected_costs(run: Run, budget: Budget, k: np.ndarray, links: bool) -> np.ndarray:
    """Return what iterations are expected to cost, (iterations,); fewer than k has for a custom schedule."""
    if draws_independently(run.schedule):
        p, q = run.schedule.probabilities(k, run.rates)
        p, q = run.rates.marginal(p, 1.0 - (1.0 - q) ** 2 if run.rates.two_sided else q)
    else:
        k = k[: min(_TRIED, getattr(run.schedule, "recorded", _TRIED))]
        part = Part.whole(run.rates.graph, run.seed)
        events = run.rates.masked(run.schedule(k, part, run.rates), k, part)
        p, q = events.v.astype(float), events.v_hat.astype(float)
        q = q if events.back is None else np.concatenate([q, events.back.astype(float)], axis=1)
    present, _, degree = run.topology.at(k)
    if run.directed:
        arcs = run.rates.graph.both_ways().arcs
        assert arcs is not None
        q = np.concatenate(by_direction(q, run.rates.graph.links), axis=1) * arcs.T.reshape(-1)
        present = None if present is None else np.tile(present, 2)
    q = (q if present is None else q * present) * links
    step, use = costs_of(run, k, degree)
    every = use if present is None or not run.topology.time_varying_weights else np.where(present, use, 0.0)
    raw, normalized = [], []
    for probability, cost, whole in ((p, step, step), (q, use, every)):
        fired, all_fire = (probability * cost).sum(axis=1), np.broadcast_to(whole, cost.shape).sum(axis=1)
        raw.append(fired)
        normalized.append(fired / np.where(all_fire > 0, all_fire, np.inf))
    counts = (p.sum(axis=1), q.sum(axis=1), np.ones(len(k)), run.use_bytes)
    counted = Spent(raw[0], raw[1], normalized[0], normalized[1], *counts)
    return np.broadcast_to(COSTS[budget.kind].of(counted), (len(k),))


def last_iterations(runs: Sequence[Run]) -> list[int]:
    """Return the iteration that each run ends at, from its events: no model is needed.

    Divergence is not foreseen: a run that diverges ends earlier.

    Args:
        runs: With their budgets and caps.

    Returns:
        The last iteration of each run; of one whose models decide which links fire, the most that it takes.
    """
    if any(run.gated for run in runs):
        known = iter(last_iterations(ahead) if (ahead := [run for run in runs if not run.gated]) else ())
        return [run.last(run.cap or LONGEST) if run.gated else next(known) for run in runs]
    most = max(run.last(LONGEST if run.cap is None else run.cap) for run in runs)
    found: dict[int, int] = {}
    stack = Stack(runs)
    length = max(1, min(1000, _MAX_ELEMENTS_PER_CHUNK // max(1, stack.clients + stack.all_links)))
    for block in stack.blocks(most, length):
        found |= block.ends
        if len(found) == len(runs):
            break
    return [found[r] for r in range(len(runs))]
