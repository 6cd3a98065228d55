"""The loop: all runs advance together, yielding the models wherever they are to be looked at."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import cached_property, partial

import torch
from torch import Tensor

from dspodfl.engine import split as splitting
from dspodfl.engine.advance import Advance, choose, in_huge_pages
from dspodfl.engine.ledger import Ledger, Tally, Totals
from dspodfl.engine.split import Split
from dspodfl.engine.stack import Block, Stack
from dspodfl.engine.state import Held, Piece, State, cut
from dspodfl.problem import Problem
from dspodfl.rule import Rule

_WORDS_AT_ONCE = {"cpu": 2_000_000, "cuda": 128_000_000}
"""Random words drawn for a block: enough to keep the device busy, few enough to stay small beside the models."""
_LONGEST_BLOCK = {"cpu": 250, "cuda": 1000}


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
    every: int,
    at_delay: Sequence[float] = (),
    tick: Callable[[int], None] | None = None,
    on_block: Callable[[Block], None] | None = None,
    longest: int | None = None,
    reach: Callable[[int], int] | None = None,
    split: Split | None = None,
    pending: Sequence[int] = (),
) -> Iterator[Snapshot]:
    """Advance all runs together:  Θ⁽ᵏ⁺¹⁾ = P⁽ᵏ⁾Θ⁽ᵏ⁾ − α⁽ᵏ⁾V⁽ᵏ⁾G⁽ᵏ⁾, or whatever the rule makes of it.

    Yields at 0, every multiple of ``every``, the last iteration, and, run by run, where the cumulative raw total
    delay first reaches each of ``at_delay``. A run whose parameters are no longer finite is frozen. ``tick`` hears
    of every iteration; ``on_block`` sees the events, of at most ``longest`` iterations at a time. ``reach(k)`` says
    how far to go from k before the loop yields, whether or not there is anything to look at there.

    Started from a state, it goes on as if it had never stopped: what was looked at is not looked at again, except for
    the ``pending`` runs, whose evaluation at that iteration was not finished.
    With a ``split``, problem and models are those of the clients held here, in the order of the shard's rows.
    Shapes: initial (clients, p), or a run each (p,).
    """
    device = problem.device.type
    resumed = initial if isinstance(initial, State) else None
    totals = resumed.totals(stack) if resumed else _nothing(stack)
    held = Held.all(stack) if split is None else split.shard.held
    theta = _start(held, problem, initial)
    carried = resumed.rule(held, rule.init(theta)) if resumed else None
    if split is None:
        advance = choose(stack, problem, rule, theta, carried)
    else:
        advance = splitting.choose(split, problem, rule, theta, carried)
    del theta  # it is used up, and may be large
    everyone = list(range(len(stack.runs)))
    with closing(_Lookout(stack, problem, advance, held, split)) as lookout:
        for run, lost in resumed.diverged.items() if resumed else ():
            if lost:
                lookout.freeze(run)
        if resumed is None:
            yield lookout.at(0, everyone, [Counters()] * len(everyone), lambda: totals)
        elif pending:
            yield lookout.at(
                totals.iteration, list(pending), Counters.of(totals, stack, problem.device), lambda: totals
            )
        words = stack.clients * (problem.batch_size + 1) + stack.all_links
        length = max(1, min(longest or _LONGEST_BLOCK[device], _WORDS_AT_ONCE[device] // words))
        for block in stack.blocks(iterations, length, problem.device, problem.dtype, totals):
            if on_block:
                on_block(block)
            advance.load(block if split is None else split.shard.block(block))
            start, end = int(block.k[0]), int(block.k[-1]) + 1
            due = _crossings(block, at_delay)
            regular = {k for k in range(start + 1, end + 1) if k % every == 0 or k == iterations}
            reached = max(start, totals.iteration)
            for stop in sorted({*regular, *due, end}):
                while reached < stop:
                    pause = min(stop, max(reached + 1, reach(reached))) if reach else stop
                    advance.go(reached - start, pause - start)
                    if tick:
                        for k in range(reached, pause):
                            tick(k + 1)
                    reached = pause
                    here = everyone if reached in regular else due.get(reached, [])
                    if here or reach:
                        counters = Counters.after(block.tally, reached - start - 1) if here else []
                        counted = partial(block.tally.totals, reached, reached - start)
                        yield lookout.at(reached, here, counters, counted)


class _Lookout:
    """Looks at models on their way: freezes the runs that are lost, and takes snapshots.

    A snapshot outlives the loop in the hands of whoever took it; what it could be gone on from does not, or it would
    keep the memory of models that have failed for lack of it.
    """

    def __init__(self, stack: Stack, problem: Problem, advance: Advance, held: Held, split: Split | None) -> None:
        self._stack, self._problem, self._held, self._split = stack, problem, held, split
        self._advance: Advance | None = advance
        self._diverged = [False] * len(stack.runs)
        self._iteration = 0

    def freeze(self, run: int) -> None:
        """Leave a run as it is from now on."""
        assert self._advance is not None
        self._diverged[run] = True
        self._advance.freeze(run)

    def at(self, iteration: int, due: list[int], counters: list[Counters], counted: Callable[[], Totals]) -> Snapshot:
        """The snapshot of an iteration, for some runs; ``counted`` says what was counted before it."""
        assert self._advance is not None
        self._iteration = iteration
        theta = self._advance.theta
        for r in _lost(self._held, theta, due, self._split) if due else ():
            if not self._diverged[r]:
                self.freeze(r)
        lost, here = [self._diverged[r] for r in due], [counters[r] for r in due]
        state = State(iteration, lambda: self._pieces(iteration, counted()))
        return Snapshot(iteration, theta, due, here, lost, self._problem, state)

    def _pieces(self, iteration: int, totals: Totals) -> Iterator[Piece]:
        way = self._advance
        if way is None or iteration != self._iteration:
            raise RuntimeError(f"the loop has gone on from iteration {iteration}, whose state was asked for")
        unpack, parameters = self._problem.unpack, self._problem.model.parameters
        models = partial(_unpacked, unpack, way)
        return cut(self._stack, self._held, totals, models, parameters, way.state, self._diverged)

    def close(self) -> None:
        """Let go of the models."""
        self._advance = None


def _unpacked(unpack: Callable[[Tensor], Tensor], way: Advance, rows: slice) -> Tensor:
    return unpack(way.theta[rows])


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


def _lost(held: Held, theta: Tensor, due: list[int], split: Split | None) -> list[int]:
    """Those among the runs looked at whose parameters are no longer all finite, here or elsewhere."""
    if len(due) < len(held.of_run):
        finite = [_finite(theta[held.of_run[r]]).all() for r in due]
        sound = torch.stack(finite).tolist()
    else:
        every = _finite(theta)
        sound = [True] * len(due) if bool(every.all()) else [bool(every[held.of_run[r]].all()) for r in due]
    if split is not None:
        gone = torch.tensor([not fine for fine in sound], dtype=torch.float64, device=theta.device)
        sound = [count == 0 for count in split.team.total(gone).tolist()]
    return [r for r, fine in zip(due, sound, strict=True) if not fine]


def _finite(theta: Tensor) -> Tensor:
    """Whether all parameters of each client are finite. Shapes: (clients, width) -> (clients,)."""
    return theta.amin(dim=1).isfinite() & theta.amax(dim=1).isfinite()  # a NaN is both


def _crossings(block: Block, at_delay: Sequence[float]) -> dict[int, list[int]]:
    """Iteration -> runs whose cumulative raw total delay first reaches one of the values there, in this block."""
    due: dict[int, list[int]] = {}
    if not at_delay:
        return due
    total, before = block.tally.total.T.contiguous(), block.tally.before
    values = torch.tensor(list(at_delay), dtype=total.dtype, device=total.device)
    places = torch.searchsorted(total, values.expand(len(total), -1).contiguous()).cpu()  # (runs, values)
    fresh = (before[:, None] < values).cpu()
    for r in range(len(total)):
        for t in sorted({int(t) for t, new in zip(places[r], fresh[r], strict=True) if new and t < len(block.k)}):
            due.setdefault(int(block.k[0]) + t + 1, []).append(r)
    return due
