"""The loop: all runs advance together, yielding the models wherever they are to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dspodfl.algorithms import Rule, evaluated_models
from dspodfl.engine.counters import Ledger, Tally, Totals
from dspodfl.engine.exchange import Split
from dspodfl.engine.stack import Block, Stack
from dspodfl.engine.state import Held, Piece, State, cut
from dspodfl.engine.steppers.base import Stepper, choose
from dspodfl.engine.steppers.compiled import in_huge_pages
from dspodfl.engine.transport.base import Transport
from dspodfl.problem import Problem

_WORDS_AT_ONCE = {"cpu": 2_000_000, "cuda": 128_000_000}
"""Random words drawn for a block: enough to keep the device busy, few enough to stay small beside the models."""
_LONGEST_BLOCK = {"cpu": 250, "cuda": 1000}
SHRINKS = 250
"""A stack is made smaller at multiples of this number of iterations."""


@dataclass(frozen=True, eq=False)
class Counters:
    """Counts and raw and normalized delays of one run, summed over the events before an iteration."""

    delay_processing: float = 0.0
    delay_transmission: float = 0.0
    delay_processing_normalized: float = 0.0
    delay_transmission_normalized: float = 0.0
    sgd_steps: int = 0
    link_uses: int = 0

    @staticmethod
    def after(tally: Tally, t: int) -> list[Counters]:
        """The counters of every run after the t-th iteration of a block."""
        delays = (
            tally.processing,
            tally.transmission,
            tally.processing_normalized,
            tally.transmission_normalized,
        )
        found = torch.stack([column[t] for column in delays]).cpu().T.tolist()
        counts = torch.stack([tally.sgd_steps[t], tally.link_uses[t]]).cpu().T.tolist()
        return [Counters(*d, *c) for d, c in zip(found, counts, strict=True)]

    @staticmethod
    def of(totals: Totals, stack: Stack, device: torch.device) -> list[Counters]:
        """The counters of every run where it is resumed; the numbers are those of `after`, to the last bit."""
        delays = (*Ledger(stack.runs, device, totals).raw, *totals.normalized.T)
        found = torch.stack([column.cpu() for column in delays]).T.tolist()
        return [Counters(*d, *c) for d, c in zip(found, totals.fired.tolist(), strict=True)]


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The stacked models after ``iteration`` updates, and the runs that are to be evaluated there: none at a pause.

    It is good until the loop goes on, and so is its state, from which another loop can go on.
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
    """Takes a run for diverged although its parameters are finite: it is frozen, and over if it has a budget."""

    @cached_property
    def theta(self) -> Tensor:
        """All models in the order of named_parameters. Shape: (clients, p)."""
        return self.problem.unpack(self.packed)

    def models(self, rows: slice) -> Tensor:
        """Some models in the order of named_parameters. Shape: (rows, p)."""
        return self.problem.unpack(self.packed[rows])


def simulate(
    stack: Stack,
    problem: Problem,
    rule: Rule,
    initial: Tensor | Sequence[Tensor] | State,
    *,
    iterations: int,
    every: int | None,
    at_delay: Sequence[float] = (),
    points: int | None = None,
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
    longest: int | None = None,
    reach: Callable[[int], int] | None = None,
    split: Split | None = None,
    shrink: bool = False,
    pending: Sequence[int] | None = None,
) -> Iterator[Snapshot]:
    """Advance all runs together:  Θ⁽ᵏ⁺¹⁾ = P⁽ᵏ⁾Θ⁽ᵏ⁾ − α⁽ᵏ⁾V⁽ᵏ⁾G⁽ᵏ⁾, or whatever the rule makes of it.

    Yields at 0, at every multiple of ``every``, and, run by run, where its cumulative raw total delay first reaches
    each of ``at_delay``, where its cost first reaches each of ``points`` equal parts of its budget, and where it ends:
    at the first iteration at which its cost is at least its budget, or at its cap. A run is not evaluated after its
    end, and the loop ends with the last of them. A run whose parameters are no longer finite is frozen; one with a
    budget ends there.
    ``tick`` is called with every iteration; ``on_block`` sees the events, of at most ``longest`` iterations at a time.
    ``reach(k)`` says how far to go from k before the loop yields, whether or not anything is evaluated there.

    With ``shrink``, the loop ends early where half of the clients belong to runs that are over and still cost time
    (`shrunk` says where): the others go on, from the last snapshot's state, as a smaller stack.

    Started from a state, it goes on as if it had never stopped: what was evaluated is not evaluated again, except for
    the ``pending`` runs, whose evaluation at that iteration was not finished. Unless it is None, the loop yields there,
    even if no run is pending.
    With a ``split``, problem and models are those of the clients held here, in the order of the shard's rows; without
    one, all clients are held here.
    Shapes: initial (clients, p), or a run each (p,).
    """
    device = problem.device.type
    resumed = initial if isinstance(initial, State) else None
    totals = resumed.totals(stack) if resumed else _nothing(stack)
    split = split or Split.local(stack)
    held = split.shard.held
    theta = _start(held, problem, initial)
    carried = resumed.rule(held, rule.init(theta, len(split.shard.link))) if resumed else None
    stepper = choose(split, problem, rule, theta, carried)
    del theta  # it is used up, and may be large
    everyone = list(range(len(stack.runs)))
    with closing(_Lookout(stack, problem, rule, stepper, held, split.transport)) as lookout:
        for run, lost in resumed.diverged.items() if resumed else ():
            if lost:
                lookout.freeze(run)
        if resumed is None:
            yield lookout.at(0, everyone, [Counters()] * len(everyone), lambda: totals)
        else:
            over = stack.over(totals, iterations, problem.device)
            if (yield from _made_up_for(lookout, stack, totals, over, pending, shrink and stepper.idles)):
                return
        words = stack.clients * (problem.batch_size + 1) + stack.all_links
        length = max(1, min(longest or _LONGEST_BLOCK[device], _WORDS_AT_ONCE[device] // words))
        for block in stack.blocks(iterations, length, problem.device, problem.dtype, totals):
            lookout.end(block.over)
            if len(lookout.ended) == len(everyone):
                return
            if on_block:
                on_block(block)
            stepper.load(split.shard.block(block))
            start, end = int(block.k[0]), int(block.k[-1]) + 1
            due = _due(block, every, at_delay, points, lookout.ended)
            reached = max(start, totals.iteration)
            shrinking = set(range(start, end + 1)) & _shrinking(end) if shrink and stepper.idles else set()
            for stop in sorted({*due, *shrinking, end}):
                while reached < stop:
                    pause = min(stop, max(reached + 1, reach(reached))) if reach else stop
                    stepper.advance(reached - start, pause - start)
                    if tick:
                        for k in range(reached, pause):
                            tick(k + 1)
                    reached = pause
                    here = [r for r in due.get(reached, ()) if r not in lookout.ended]
                    ends = [r for r in here if block.ends.get(r) == reached]
                    counted = partial(block.tally.totals, reached, reached - start)
                    if here or reach:
                        counters = Counters.after(block.tally, reached - start - 1) if here else []
                        yield lookout.at(reached, here, counters, counted, ends)
                    if len(lookout.ended) == len(everyone):
                        return
                    if reached in shrinking and lookout.small:
                        yield lookout.at(reached, [], [], counted, shrinks=True)
                        return


def _made_up_for(
    lookout: _Lookout, stack: Stack, totals: Totals, over: set[int], pending: Sequence[int] | None, shrink: bool
) -> Generator[Snapshot, None, bool]:
    """Evaluate the runs whose evaluation was ended before its end, where a loop is resumed.

    Gives whether the loop ends there, to be started again as a smaller stack.
    """
    lookout.end(over - set(pending or ()))
    if pending is None:
        return False
    counters = Counters.of(totals, stack, lookout.device)
    yield lookout.at(totals.iteration, list(pending), counters, lambda: totals, over & set(pending))
    if not shrink or totals.iteration % SHRINKS or not lookout.small or len(lookout.ended) == len(stack.runs):
        return False
    yield lookout.at(totals.iteration, [], [], lambda: totals, shrinks=True)
    return True


def _shrinking(last: int) -> set[int]:
    """The iterations at which a stack may be made smaller, up to one."""
    return set(range(SHRINKS, last + 1, SHRINKS))


def shrunk(ended: Mapping[int, int], clients: Sequence[int], iteration: int) -> list[int]:
    """Say which runs are still stacked after an iteration; a function of where runs have ended, and of nothing else.

    Args:
        ended: Run -> the iteration that it ended at, of those that have.
        clients: How many clients each run has.
        iteration: The number of iterations made.

    >>> shrunk({0: 10, 1: 300}, [5, 5, 5], 400)
    [0, 1, 2]
    >>> shrunk({0: 10, 1: 300}, [5, 5, 5], 500)
    [2]
    """
    stacked = list(range(len(clients)))
    for at in sorted({-(-end // SHRINKS) * SHRINKS for end in ended.values()}):
        live = [r for r in stacked if ended.get(r, at + 1) > at]
        if at <= iteration and 2 * sum(clients[r] for r in live) <= sum(clients[r] for r in stacked):
            stacked = live
    return stacked


class _Lookout:
    """Looks at models on their way: freezes the runs that are lost, and takes snapshots.

    A snapshot outlives the loop in the hands of whoever took it; what it could be gone on from does not, or it would
    keep the memory of models that have failed for lack of it.
    """

    def __init__(
        self, stack: Stack, problem: Problem, rule: Rule, stepper: Stepper, held: Held, transport: Transport
    ) -> None:
        self._stack, self._problem, self._held, self._transport = stack, problem, held, transport
        self._rule = rule
        self._stepper: Stepper | None = stepper
        self._diverged = [False] * len(stack.runs)
        self._iteration = 0
        self.ended: set[int] = set()

    def freeze(self, run: int) -> None:
        """Leave a run whose models are lost as it is from now on; one with a budget is over."""
        assert self._stepper is not None
        self._diverged[run] = True
        self._stepper.freeze(run)
        if self._stack.runs[run].spends:
            self.ended.add(run)

    def end(self, runs: Iterable[int]) -> None:
        """Leave runs that are over as they are from now on."""
        assert self._stepper is not None
        for run in set(runs) - self.ended:
            if not self._stepper.rests and not self._diverged[run]:
                self._stepper.freeze(run)
            self.ended.add(run)

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
        """The snapshot of an iteration, for some runs; ``counted`` gives what was counted before, ``ends`` end here."""
        assert self._stepper is not None
        self._iteration = iteration
        theta = evaluated_models(self._rule, self._stepper.theta, self._stepper.state)
        for r in _lost(self._held, theta, due, self._transport) if due else ():
            if not self._diverged[r]:
                self.freeze(r)
        self.end(ends)
        lost, here = [self._diverged[r] for r in due], [counters[r] for r in due]
        state = State(iteration, lambda: self._pieces(iteration, counted()))
        ended = frozenset(self.ended)
        return Snapshot(iteration, theta, due, here, lost, self._problem, state, ended, shrinks, self.freeze)

    def _pieces(self, iteration: int, totals: Totals) -> Iterator[Piece]:
        stepper = self._stepper
        if stepper is None or iteration != self._iteration:
            raise RuntimeError(f"the loop has gone on from iteration {iteration}, whose state was asked for")
        unpack, parameters = self._problem.unpack, self._problem.model.parameters
        models = partial(_unpacked, unpack, stepper)
        return cut(self._stack, self._held, totals, models, parameters, stepper.state, self._diverged)

    def close(self) -> None:
        """Let go of the models."""
        self._stepper = None


def _unpacked(unpack: Callable[[Tensor], Tensor], stepper: Stepper, rows: slice) -> Tensor:
    return unpack(stepper.theta[rows])


def _nothing(stack: Stack) -> Totals:
    """What is counted before the first iteration."""
    client, link = (torch.zeros(count, dtype=torch.float64) for count in (stack.clients, stack.all_links))
    runs = (len(stack.runs), 2)
    return Totals(0, client, link, torch.zeros(runs, dtype=torch.float64), torch.zeros(runs, dtype=torch.int64))


def _start(held: Held, problem: Problem, initial: Tensor | Sequence[Tensor] | State) -> Tensor:
    """The packed initial models, in memory of their own."""
    if isinstance(initial, Tensor):
        return problem.pack(initial.to(problem.device, problem.dtype)).clone()
    shape, dtype = (len(held.rows), problem.width), problem.dtype
    if problem.device.type == "cpu":
        theta = in_huge_pages(shape, dtype)
    else:
        theta = torch.empty(shape, device=problem.device, dtype=dtype)
    if isinstance(initial, State):
        initial.theta(held, theta, problem.pack)
        return theta
    for rows, model in zip(held.of_run, initial, strict=True):
        theta[rows] = problem.pack(model.to(problem.device, problem.dtype)[None])
    return theta


def _lost(held: Held, theta: Tensor, due: list[int], transport: Transport) -> list[int]:
    """Those among the runs looked at whose parameters are no longer all finite, here or elsewhere."""
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


def _due(
    block: Block, every: int | None, at_delay: Sequence[float], points: int | None, ended: Collection[int]
) -> dict[int, list[int]]:
    """Iteration -> the runs that are evaluated there, in this block; none after its end."""
    start, end = int(block.k[0]), int(block.k[-1]) + 1
    runs = [r for r in range(len(block.stack.runs)) if r not in ended]
    due: dict[int, set[int]] = {}
    for k in range(start + every - start % every, end + 1, every) if every else ():
        due.setdefault(k, set()).update(runs)
    tally = block.tally
    crossed = [_crossings(block, tally.total, tally.before, {r: list(at_delay) for r in runs})] if at_delay else []
    if points:
        budgets = {r: budget for r in runs if (budget := block.stack.runs[r].budget)}
        marks = {r: budget.points(points) for r, budget in budgets.items()}
        crossed.append(_crossings(block, tally.cost, tally.cost_before, marks))
    for r, k in [pair for pairs in crossed for pair in pairs] + list(block.ends.items()):
        due.setdefault(k, set()).add(r)
    last = {r: block.ends.get(r, end) for r in runs}
    found = {k: sorted(r for r in some if k <= last.get(r, 0)) for k, some in sorted(due.items())}
    return {k: some for k, some in found.items() if some}


def _crossings(
    block: Block, cost: Tensor, before: Tensor, marks: Mapping[int, Sequence[float]]
) -> list[tuple[int, int]]:
    """Runs and the iterations in this block at which their cost first reaches each of their marks.

    Shapes: cost (iterations, runs), before (runs,).
    """
    if not marks:
        return []
    some = list(marks)
    after, first = cost.T[some].contiguous(), before[some]
    values = torch.tensor([list(marks[r]) for r in some], dtype=after.dtype, device=after.device)  # (runs, marks)
    places = torch.searchsorted(after, values)
    new = (first[:, None] < values) & (places < len(block.k))
    which, _ = torch.nonzero(new, as_tuple=True)
    at = int(block.k[0]) + places[new] + 1
    return list({(some[n], k) for n, k in zip(which.tolist(), at.tolist(), strict=True)})
