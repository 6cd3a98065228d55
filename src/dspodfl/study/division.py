"""How a study is divided over several processes: its runs, or the clients of each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import draws_independently
from dspodfl.engine import LocalTransport, Piece, Run, Shard, Split, Stack, Transport, crossings
from dspodfl.errors import ConfigError, DataError, InputError, OutOfMemoryError
from dspodfl.study.placement import cut, deal, place

T = TypeVar("T")
_LOOKED_AT = 256
"""Iterations from which the work of a run is guessed."""
_MIXING = 0.3
"""What mixing a model costs beside a step, about."""


@dataclass(frozen=True, eq=False)
class Division:
    """Which runs, or which clients, each rank of a team has."""

    team: Transport
    kind: str  # "alone", "runs" or "clients"
    why: str
    works: list[float]  # of each run, where runs are divided
    owners: list[np.ndarray]  # of each client of each run, where clients are
    memory: int | None = None  # bytes that all ranks have free together; None: to be asked

    @staticmethod
    def alone(runs: Sequence[Run]) -> Division:
        """Everything here."""
        return Division(LocalTransport(), "alone", "one process", [], [])

    @property
    def fewest(self) -> int:
        """Runs that a wave needs for every rank to have one."""
        return self.team.ranks if self.kind == "runs" else 1

    def here(self, wave: Sequence[int]) -> list[int]:
        """The runs of a wave that advance here."""
        if self.kind != "runs":
            return list(wave)
        ranks = deal([self.works[r] for r in wave], self.team.ranks)
        return [r for r, rank in zip(wave, ranks, strict=True) if rank == self.team.rank]

    def check(self, waves: Sequence[Sequence[int]], together: bool = True) -> None:
        """Refuse waves, planned by a team of another size, that have fewer runs than there are ranks.

        Runs that do not stand at one iteration (``together``) cannot have their clients split.
        """
        if self.kind == "clients" and not together:
            allowed = "1, or as many as have a run each: the runs of this checkpoint stand at different iterations"
            raise InputError("ranks", self.team.ranks, allowed)
        few = min((len(wave) for wave in waves), default=self.fewest)
        if few < self.fewest:
            raise InputError(
                "ranks", self.team.ranks, f"at most {few}, the runs that advance together in this checkpoint"
            )

    def split(self, stack: Stack, wave: Sequence[int]) -> Split:
        """Which clients of a wave's stack are held here, and how the others are reached."""
        if self.kind != "clients":
            return Split.local(stack)
        shard = Shard.of(stack, [self.owners[r] for r in wave], self.team.rank, self.team.ranks)
        return Split(shard, self.team)

    def assembled(self, values: Tensor, run: int) -> Tensor:
        """What all ranks hold of the clients of a run, in their order; where clients are split, all call it together.

        Shapes: (clients of the run held here, ...) -> (clients of the run, ...).
        """
        if self.kind != "clients":
            return values
        owner = self.owners[run]
        owned = [np.flatnonzero(owner == rank) for rank in range(self.team.ranks)]
        parts = self.team.all_gather(values, [len(numbers) for numbers in owned])
        out = values.new_empty((len(owner), *values.shape[1:]))
        for numbers, part in zip(owned, parts, strict=True):
            out[torch.from_numpy(numbers).to(out.device)] = part
        return out

    def owned(self, run: int) -> np.ndarray:
        """The clients of a run that are held here."""
        return np.flatnonzero(self.owners[run] == self.team.rank)

    def held(self, piece: Piece, ends: np.ndarray) -> Piece:
        """Restrict a piece of a run to what is held here: its clients, and the links whose first client is one of them.

        Args:
            piece: What some clients and links of a run carry, by its number in the study.
            ends: The links of the run, shape (links, 2).

        Returns:
            The piece itself where clients are not split.
        """
        if self.kind != "clients":
            return piece
        mine = torch.from_numpy(self.owners[piece.run] == self.team.rank)
        clients = mine[piece.client]
        links = mine[torch.from_numpy(ends[piece.link.numpy(), 0].astype(np.int64))]
        return replace(
            piece,
            client=piece.client[clients],
            link=piece.link[links],
            clients={name: values[clients] for name, values in piece.clients.items()},
            links={name: values[links] for name, values in piece.links.items()},
        )

    def report(self, runs: Sequence[Run]) -> dict[str, Any]:
        """What summary.json says of it."""
        about: dict[str, Any] = {"split": self.kind, "ranks": self.team.ranks, "why": self.why}
        if self.kind == "runs":
            about["runs_of_rank"] = np.bincount(deal(self.works, self.team.ranks)).tolist()
        if self.kind == "clients":
            ranks = range(self.team.ranks)
            about["clients_of_rank"] = [sum(int((owner == q).sum()) for owner in self.owners) for q in ranks]
            graphs = [run.rates.graph for run in runs]
            about["links"] = sum(graph.links for graph in graphs)
            about["links_cut"] = sum(cut(graph, owner) for graph, owner in zip(graphs, self.owners, strict=True))
        return about


def choose_split(wanted: str, runs: Sequence[Run], ranks: int) -> tuple[str, str]:
    """Runs where there are at least as many as ranks, else the clients of each, or as ``wanted`` says; and why."""
    count = len(runs)
    kind, why = wanted, "scale.split"
    if wanted == "auto":
        kind = "runs" if count >= ranks else "clients"
        why = f"{count} run{'s' * (count != 1)} for {ranks} ranks"
    if kind == "runs" and count < ranks:
        raise InputError("scale.split", "runs", f"'clients': there are {count} runs for {ranks} ranks")
    few = min(run.clients for run in runs)
    if kind == "clients" and few < ranks:
        raise InputError("ranks", ranks, f"at most {few}, the number of clients of a run that is split")
    return kind, why


def divide(wanted: str, runs: Sequence[Run], team: Transport, free: int | None = None) -> Division:
    """Divide a study over a team; ``free`` is the memory that this rank may take, in bytes."""
    if team.ranks == 1:
        return Division.alone(runs)
    ranks = team.ranks
    kind, why = agreed(team, lambda: choose_split(wanted, runs, ranks))
    memory = int(team.all_reduce_sum(torch.tensor(float(free or 0), dtype=torch.float64)))
    if kind == "runs":
        return Division(team, kind, why, [work(run) for run in runs], [], memory)
    owners: dict[int, np.ndarray] = {}
    for run in runs:
        if id(run.rates) not in owners and team.rank == 0:
            d = run.rates.sgd(np.zeros(1, dtype=np.int64))[0]
            owners[id(run.rates)] = place(run.rates.graph, run.data.sizes, d, ranks)
    # Rank 0's answer is everybody's: libraries of other versions may place clients elsewhere.
    placed = team.broadcast([owners.get(id(run.rates)) for run in runs])
    return Division(team, kind, why, [], placed, memory)


class Pace:
    """Where all ranks of a team meet: at evaluations, and as often as rank 0 wants to look up in between.

    Between two meetings ranks that have different runs may be at different iterations. ``first`` is where they meet
    first, where they are resumed within an evaluation; 0 otherwise.
    """

    def __init__(
        self, team: Transport, every: int, iterations: int, ahead: Callable[[int], int] | None, first: int = 0
    ) -> None:
        self._team, self._every, self._iterations, self._ahead = team, every, iterations, ahead
        self._next, self._before = first, 0
        self.over = False
        """Whether every run of the wave is over, on all ranks, as of the last meeting."""

    def reach(self, iteration: int) -> int:
        """How far to go from an iteration: to the next meeting."""
        if iteration >= self._next or iteration < self._before:  # we have met, or a new wave begins
            wanted = self._team.broadcast(self._ahead(iteration) if self._ahead else self._iterations)
            regular = iteration - iteration % self._every + self._every
            self._next = max(iteration + 1, min(wanted, regular, self._iterations))
        self._before = iteration
        return self._next

    def met(self, iteration: int) -> bool:
        """Whether all ranks are at this iteration now."""
        return iteration in (0, self._next)


def agreed(team: Transport, step: Callable[[], T]) -> T:
    """A step that all ranks take, or none: what goes wrong on one of them is an error on all."""
    failure: Exception | None = None
    try:
        done = step()
    except (InputError, ConfigError, DataError, OutOfMemoryError, OSError) as error:
        failure = error
    said = team.broadcast(team.gather(None if failure is None else str(failure)))
    for rank, line in enumerate(said):
        if line is not None:
            failure = failure or DataError(f"rank {rank}: {line}")
            failure.agreed = True  # type: ignore[attr-defined]  # all ranks know: one of them says it
            raise failure
    return done


def work(run: Run) -> float:
    """What an iteration of a run costs, in steps: those expected, and mixing."""
    return steps(run) + _MIXING * run.clients


def steps(run: Run) -> float:
    """SGD steps expected in an iteration of a run."""
    k = np.arange(_LOOKED_AT)
    if draws_independently(run.schedule):
        return float(run.schedule.probabilities(k, run.rates)[0].mean() * run.clients)
    return float(run.rates.sgd(k).mean() * run.clients)


def expected_rows(run: Run, owner: np.ndarray, first: int, last: int, block: int = 64) -> float | None:
    """How many rows cross between ranks at iterations first … last − 1, from the rates alone.

    None for a custom schedule, whose probabilities are not known.

    A row i crosses to rank q with the chance that one of its links to clients of q fires: Σ_k Σ_(i,q) 1 − Π (1 − p).
    """
    if not draws_independently(run.schedule):
        return None
    edges = run.rates.graph.edges
    i, j = np.concatenate([edges, edges[:, ::-1]]).T
    link = np.tile(np.arange(len(edges)), 2)
    cutting = owner[i] != owner[j]
    pairs = crossings(i[cutting], owner[j[cutting]], link[cutting], int(owner.max()) + 1)
    constant = run.schedule.constant(run.rates) and run.topology.constant
    total = 0.0
    for start in range(first, first + 1 if constant else last, block):
        k = np.arange(start, start + 1 if constant else min(start + block, last))
        p = run.schedule.probabilities(k, run.rates)[1]
        p = 1.0 - (1.0 - p) ** 2 if run.rates.two_sided else p
        present = run.topology.at(k)[0]
        p = np.broadcast_to(p if present is None else p * present, (len(k), len(edges)))
        total += sum(float(pairs.expected(row).sum()) for row in p)
    return total * (last - first) if constant else total
