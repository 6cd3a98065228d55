"""What a study that is run yields, from where it is resumed, and what it calls meanwhile."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from dspodfl.analysis import MetricsRow
from dspodfl.engine import Block, Piece, Snapshot, Split
from dspodfl.study.timing import Stopwatch
from dspodfl.study.waves import Plan


@dataclass(frozen=True, eq=False)
class Measurement:
    """What was measured at one iteration: a row for each run evaluated, and each client's accuracy behind it.

    At a pause nothing is evaluated, and there is no row. Where runs are split, only those of this process are seen.
    """

    iteration: int
    rows: list[MetricsRow]
    accuracies: list[Tensor | None]  # a run evaluated each, (clients,)
    runs: list[int]  # numbers in the study
    wave: list[int]  # numbers of all runs that advance together here
    plan: Plan  # the wave is the first of those left
    ended: frozenset[int]  # numbers of the runs of this wave that are over
    _members: Members
    _snapshot: Snapshot | None
    stopped: bool = False
    """Whether the evaluation was ended between two batches: the runs are still to be evaluated here."""
    resumed_at: Mapping[int, int] = field(default_factory=dict)
    """Run of this wave -> its iteration, for runs that were resumed at another iteration than this one."""
    waiting: Sequence[int] = ()
    """Those of them that are still to be evaluated at their iteration."""

    @property
    def over(self) -> bool:
        """Whether every run of this wave is over, here."""
        return len(self.ended) == len(self.wave)

    @property
    def places(self) -> dict[int, int]:
        """Run of this wave -> its iteration."""
        return dict.fromkeys(self.wave, self.iteration) | dict(self.resumed_at)

    def models(self, run: int) -> Tensor:
        """Return the models of a run of this wave as they are now; where clients are split, all ranks call it.

        Args:
            run: Its number in the study.

        Returns:
            The models, shape (clients, p).
        """
        return self._members.models(run, self._snapshot)

    def pieces(self) -> Iterator[Piece]:
        """Return all that the runs of this wave carry, by their numbers in the study; valid until the study goes on."""
        return self._members.pieces(self._snapshot)

    def unstacked(self) -> Measurement:
        """Return the same without the stack: what its runs carry has been copied to the members that are left."""
        return replace(self, _snapshot=None)

    def copies(self, left: Mapping[int, object]) -> list[Piece]:
        """Return what the runs carry, in memory of its own, except that of the runs that are ``left`` already."""
        return [_copied(piece) for piece in self.pieces() if piece.run not in left]

    @property
    def shrinks(self) -> bool:
        """Whether the stack ends here, because some of its runs are over and would still cost time."""
        return self._snapshot is not None and self._snapshot.shrinks


def _copied(piece: Piece) -> Piece:
    every = (piece.clients, piece.links, piece.whole, piece.ends)
    tables = ({name: values.clone() for name, values in table.items()} for table in every)
    return Piece(piece.run, piece.client, piece.link, *tables)


@dataclass(eq=False)
class Members:
    """The runs of a wave: those that are stacked, and the pieces of those that are over and no longer stacked."""

    stacked: list[int]  # numbers in the study
    split: Split | None  # None where no run is stacked any more
    left: dict[int, list[Piece]]  # by numbers in the study, held here
    assembled: Callable[[Tensor, int], Tensor]
    """All clients' rows of a run, by its number in the study, from those that are held here."""

    def models(self, run: int, snapshot: Snapshot | None) -> Tensor:
        """Return the models of a run. Shape: (clients, p)."""
        if run in self.left:
            held = sorted(self.left[run], key=lambda piece: int(piece.client[0]) if len(piece.client) else -1)
            return self.assembled(
                torch.cat([piece.clients.get("model", piece.clients["theta"]) for piece in held]), run
            )
        assert snapshot is not None
        assert self.split is not None
        rows = self.split.shard.rows[self.stacked.index(run)]
        return self.assembled(snapshot.models(rows), run)

    def pieces(self, snapshot: Snapshot | None) -> Iterator[Piece]:
        """Yield all that the runs carry, by their numbers in the study."""
        for pieces in self.left.values():
            yield from pieces
        for piece in snapshot.state.pieces() if snapshot is not None else ():
            yield replace(piece, run=self.stacked[piece.run])


@dataclass(frozen=True, eq=False)
class Start:
    """Where a study is resumed: the waves to come, and what the runs of those that had begun carry."""

    plan: Plan
    iteration: int = 0
    pieces: Sequence[Piece] = ()  # by their numbers in the study
    reached: Mapping[int, int] = field(default_factory=dict)
    """Run -> the last iteration that was measured of it."""
    ended: Mapping[int, int] = field(default_factory=dict)
    """Run -> the iteration that it ended at, of those that have."""
    pending: Sequence[int] = ()
    """Runs whose evaluation, at their iteration, was ended before its end."""
    behind: Mapping[int, int] = field(default_factory=dict)
    """Run -> its iteration, of those that are not at ``iteration`` yet."""

    @property
    def meets(self) -> bool:
        """Whether ranks that have different runs meet at that iteration before any goes on: one may still be at it."""
        return bool(self.pending or self.behind)

    def of(self, wave: Sequence[int]) -> tuple[list[Piece], dict[int, int]]:
        """Return what the runs of a wave carry, and where those of them ended that have; nothing if it had not begun.

        Args:
            wave: The numbers of its runs.
        """
        runs = set(wave)
        pieces = [piece for piece in self.pieces if piece.run in runs]
        return pieces, {r: k for r, k in self.ended.items() if r in runs} if pieces else {}


@dataclass(eq=False)
class Hooks:
    """Functions that are called while a study runs; the default ones do nothing."""

    tick: Callable[[int, int], None] = lambda iteration, runs: None
    """After every iteration of a wave, with the iteration and the number of its runs."""
    block: Callable[[Block, list[int]], None] = lambda block, runs: None
    """With the events of each block of some runs."""
    plan: Callable[[Plan], None] = lambda plan: None
    """With the plan before it begins, and again whenever it changes."""
    reach: Callable[[int], int] | None = None
    """Returns how far a wave may go from an iteration before it pauses, which is a measurement of nothing."""
    waits: Callable[[], bool] = lambda: False
    """Returns whether other processes still have runs of this wave to advance, once all of them are over here."""
    stop: Callable[[], bool] | None = None
    """Between the batches of an evaluation: returns whether to end it there."""
    batch: Callable[[float], None] | None = None
    """Before each batch of an evaluation, with the share of it that is done."""
    timing: Stopwatch = field(default_factory=Stopwatch)
    """Counts what the time goes into."""
