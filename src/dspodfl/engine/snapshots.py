"""Snapshots of a stack of models: what an evaluation reads, and from which a loop can be resumed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, averaged_models, evaluated_models, evaluates_other_models
from dspodfl.engine.counters import Counters, Totals
from dspodfl.engine.stack import Stack
from dspodfl.engine.state import Held, Piece, State, cut
from dspodfl.engine.steppers.base import Stepper
from dspodfl.engine.transport.base import Transport
from dspodfl.problem import Problem


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The stacked models after ``iteration`` updates, and the runs that are to be evaluated there: none at a pause.

    It is valid until the loop continues, and so is its state, from which another loop can start.
    """

    iteration: int
    packed: Tensor  # (clients, width); rows of run r are stack.rows[r], or those of the shard that is held here
    runs: list[int]
    counters: list[Counters]  # of the runs above
    diverged: list[bool]  # of the runs above
    problem: Problem
    state: State
    ended: frozenset[int] = frozenset()  # runs that are over, here or before
    shrinks: bool = False  # the loop ends here although some runs are not over: they are to be stacked again
    lose: Callable[[int], None] = lambda run: None
    """Declares a run diverged although its parameters are finite: it is frozen, and over if it has a budget."""
    averaged: Tensor | None = None
    """Rows whose mean over the clients of a run is its average model, (clients, width); None: ``packed``."""

    @cached_property
    def theta(self) -> Tensor:
        """All models in the order of named_parameters. Shape: (clients, p)."""
        return self.problem.unpack(self.packed)

    def models(self, rows: slice) -> Tensor:
        """Some models in the order of named_parameters. Shape: (rows, p)."""
        return self.problem.unpack(self.packed[rows])


class Observer:
    """Takes snapshots of the models, and freezes the runs that have diverged.

    A snapshot may outlive the loop; the state behind it does not, or it would keep the memory of models that have
    failed for lack of it.

    Args:
        stack: The runs.
        problem: Data and model.
        rule: Says which models are evaluated.
        stepper: What advances the models.
        held: The rows and links that this process carries.
        transport: To the processes that hold the others.
    """

    def __init__(
        self, stack: Stack, problem: Problem, rule: Rule, stepper: Stepper, held: Held, transport: Transport
    ) -> None:
        self._rule = rule
        self._stack, self._problem, self._held, self._transport = stack, problem, held, transport
        self._stepper: Stepper | None = stepper
        self._diverged = [False] * len(stack.runs)
        self._iteration = 0
        self.ended: set[int] = set()

    def freeze(self, run: int) -> None:
        """Leave a run that has diverged as it is from now on; one with a budget is over."""
        assert self._stepper is not None
        self._diverged[run] = True
        self._stepper.freeze(run)
        if self._stack.runs[run].spends:
            self.ended.add(run)

    def freeze_diverged(self, state: State) -> None:
        """Leave the runs that had diverged in a state as they are."""
        for run, diverged in state.diverged.items():
            if diverged:
                self.freeze(run)

    def end(self, runs: Iterable[int]) -> None:
        """Leave runs that are over as they are from now on."""
        assert self._stepper is not None
        for run in set(runs) - self.ended:
            if not self._stepper.rests and not self._diverged[run]:
                self._stepper.freeze(run)
            self.ended.add(run)

    @property
    def finished(self) -> bool:
        """Whether all runs are over."""
        return len(self.ended) == len(self._stack.runs)

    @property
    def device(self) -> torch.device:
        """Where the models are."""
        return self._problem.device

    @property
    def small(self) -> bool:
        """Whether half of the clients belong to runs that are over."""
        runs = self._stack.runs
        return 2 * sum(runs[r].clients for r in range(len(runs)) if r not in self.ended) <= self._stack.clients

    def at(
        self,
        iteration: int,
        due: list[int],
        counters: list[Counters],
        counted: Callable[[], Totals],
        ends: Iterable[int] = (),
        shrinks: bool = False,
    ) -> Snapshot:
        """Take the snapshot of an iteration.

        Args:
            iteration: The number of updates made.
            due: The runs that are evaluated.
            counters: Of all runs; none is needed where no run is evaluated.
            counted: Returns what was counted before.
            ends: Runs that end here.
            shrinks: Whether the loop ends here, to be continued by a smaller stack.

        Returns:
            The snapshot.
        """
        assert self._stepper is not None
        self._iteration = iteration
        theta = evaluated_models(self._rule, self._stepper.theta, self._stepper.state)
        for r in _diverged(self._held, theta, due, self._transport) if due else ():
            if not self._diverged[r]:
                self.freeze(r)
        self.end(ends)
        lost, here = [self._diverged[r] for r in due], [counters[r] for r in due]
        state = State(iteration, lambda: self._pieces(iteration, counted()))
        ended = frozenset(self.ended)
        rows = averaged_models(self._rule, self._stepper.theta, self._stepper.state) if due else None
        return Snapshot(iteration, theta, due, here, lost, self._problem, state, ended, shrinks, self.freeze, rows)

    def _pieces(self, iteration: int, totals: Totals) -> Iterator[Piece]:
        stepper = self._stepper
        if stepper is None or iteration != self._iteration:
            raise RuntimeError(f"the loop is past iteration {iteration}: its state is no longer there")
        unpack, parameters = self._problem.unpack, self._problem.model.parameters
        models = partial(_unpacked, unpack, stepper.theta)
        evaluated = None
        if evaluates_other_models(self._rule):
            evaluated = partial(_unpacked, unpack, evaluated_models(self._rule, stepper.theta, stepper.state))
        return cut(self._stack, self._held, totals, models, parameters, stepper.state, self._diverged, evaluated)

    def close(self) -> None:
        """Release the models."""
        self._stepper = None


def _unpacked(unpack: Callable[[Tensor], Tensor], theta: Tensor, rows: slice) -> Tensor:
    return unpack(theta[rows])


def _diverged(held: Held, theta: Tensor, due: list[int], transport: Transport) -> list[int]:
    """Return the evaluated runs whose parameters are no longer all finite, in this process or another."""
    if len(due) < len(held.of_run):
        finite = [_finite(theta[held.of_run[r]]).all() for r in due]
        sound = torch.stack(finite).tolist()
    else:
        every = _finite(theta)
        sound = [True] * len(due) if bool(every.all()) else [bool(every[held.of_run[r]].all()) for r in due]
    gone = transport.all_reduce_sum(torch.tensor([not fine for fine in sound], dtype=torch.float64))
    return [r for r, count in zip(due, gone.tolist(), strict=True) if count]


def _finite(theta: Tensor) -> Tensor:
    """Whether all parameters of each client are finite. Shapes: (clients, width) -> (clients,)."""
    return theta.amin(dim=1).isfinite() & theta.amax(dim=1).isfinite()  # a NaN is both
