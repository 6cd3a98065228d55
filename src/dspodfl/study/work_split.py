"""How the work of a study is split over several processes: by its runs, or by the clients of each of its runs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import by_direction, draws_independently
from dspodfl.engine import LocalTransport, Piece, Run, Shard, Split, Stack, Transport, crossings
from dspodfl.errors import ConfigError, DataError, InputError, OutOfMemoryError
from dspodfl.problem.data import restrict_to_clients
from dspodfl.study.placement import assign, cut, place
from dspodfl.study.study import Setting, Study

T = TypeVar("T")
_SAMPLED = 256
"""Iterations from which the work of a run is estimated."""
_MIXING = 0.3
"""What mixing a model costs compared with a step, about."""


@dataclass(frozen=True, eq=False)
class WorkSplit:
    """Which runs, or which clients, each rank has.

    Args:
        team: The ranks.
        kind: ``alone`` (one process), ``runs`` or ``clients``.
        why: Why it is split this way, for summary.json.
        works: The work of each run, where runs are split.
        owners: The rank of each client of each run, shape (clients,), where clients are split.
        memory: Bytes that all ranks have free together; None: not known yet.
    """

    team: Transport
    kind: str
    why: str
    works: list[float]
    owners: list[np.ndarray]
    memory: int | None = None

    @staticmethod
    def alone() -> WorkSplit:
        """Return the split of one process, which has everything."""
        return WorkSplit(LocalTransport(), "alone", "one process", [], [])

    @property
    def fewest(self) -> int:
        """Runs that a wave needs for every rank to have one."""
        return self.team.ranks if self.kind == "runs" else 1

    def here(self, wave: Sequence[int]) -> list[int]:
        """Return the runs of a wave that advance here."""
        if self.kind != "runs":
            return list(wave)
        ranks = assign([self.works[r] for r in wave], self.team.ranks)
        return [r for r, rank in zip(wave, ranks, strict=True) if rank == self.team.rank]

    def check(self, waves: Sequence[Sequence[int]], together: bool = True) -> None:
        """Refuse waves, planned for another number of ranks, that have fewer runs than there are ranks.

        Args:
            waves: The runs of each wave.
            together: Whether all runs are at one iteration; otherwise their clients cannot be split.

        Raises:
            InputError: The number of ranks does not fit the waves.
        """
        if self.kind == "clients" and not together:
            allowed = "1, or as many as have a run each: the runs of this checkpoint are at different iterations"
            raise InputError("ranks", self.team.ranks, allowed)
        few = min((len(wave) for wave in waves), default=self.fewest)
        if few < self.fewest:
            raise InputError(
                "ranks", self.team.ranks, f"at most {few}, the runs that advance together in this checkpoint"
            )

    def split(self, stack: Stack, wave: Sequence[int]) -> Split:
        """Return which clients of a wave's stack are held here, and how the others are reached."""
        if self.kind != "clients":
            return Split.local(stack)
        shard = Shard.of(stack, [self.owners[r] for r in wave], self.team.rank, self.team.ranks)
        return Split(shard, self.team)

    def assembled(self, values: Tensor, run: int) -> Tensor:
        """Return what all ranks hold of the clients of a run, in their order; where clients are split, all call it.

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
        """Return the clients of a run that are held here."""
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
        memory = mine[torch.from_numpy(ends.reshape(-1)[piece.ends["number"].numpy()])] if piece.ends else None
        return replace(
            piece,
            client=piece.client[clients],
            link=piece.link[links],
            clients={name: values[clients] for name, values in piece.clients.items()},
            links={name: values[links] for name, values in piece.links.items()},
            ends={name: values[memory] for name, values in piece.ends.items()},
        )

    def report(self, runs: Sequence[Run]) -> dict[str, Any]:
        """Return what summary.json says of it."""
        about: dict[str, Any] = {"split": self.kind, "ranks": self.team.ranks, "why": self.why}
        if self.kind == "runs":
            about["runs_of_rank"] = np.bincount(assign(self.works, self.team.ranks)).tolist()
        if self.kind == "clients":
            ranks = range(self.team.ranks)
            about["clients_of_rank"] = [sum(int((owner == q).sum()) for owner in self.owners) for q in ranks]
            graphs = [run.rates.graph for run in runs]
            about["links"] = sum(graph.links for graph in graphs)
            about["links_cut"] = sum(cut(graph, owner) for graph, owner in zip(graphs, self.owners, strict=True))
        return about


def choose_split(wanted: str, runs: Sequence[Run], ranks: int) -> tuple[str, str]:
    """Choose what is split over ranks: runs where there are at least as many as ranks, else the clients of each.

    Args:
        wanted: ``auto``, or what the configuration says: ``runs`` or ``clients``.
        runs: The runs of the study.
        ranks: The number of ranks.

    Returns:
        ``runs`` or ``clients``, and why.

    Raises:
        InputError: There are too few runs, or too few clients, for so many ranks.
    """
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


def split_work(wanted: str, study: Study, team: Transport, free: int | None = None) -> WorkSplit:
    """Split the work of a study over ranks; all of them call it.

    Args:
        wanted: What is split: ``auto``, ``runs`` or ``clients``.
        study: What is run.
        team: The ranks.
        free: The memory that this rank may take, in bytes.

    Returns:
        The same split on all ranks.

    Raises:
        InputError: There are too few runs, or too few clients, for so many ranks.
    """
    if team.ranks == 1:
        return WorkSplit.alone()
    ranks, runs = team.ranks, study.runs
    kind, why = agreed(team, lambda: choose_split(wanted, runs, ranks))
    memory = int(team.all_reduce_sum(torch.tensor(float(free or 0), dtype=torch.float64)))
    if kind == "runs":
        return WorkSplit(team, kind, why, [work(run) for run in runs], [], memory)
    # All ranks take the answer of rank 0: libraries of other versions may place clients elsewhere.
    placed = team.broadcast([_placed(setting, ranks) for setting in study.settings] if team.rank == 0 else [])
    of_runs = [placed[s] for s in study.setting_of]
    # A server is held by rank 0.
    owner = [np.append(some, 0) if run.server else some for run, some in zip(runs, of_runs, strict=True)]
    return WorkSplit(team, kind, why, [], owner, memory)


def _placed(setting: Setting, ranks: int) -> np.ndarray:
    """Return the rank of each client of a setting. Shape: (clients,)."""
    d = setting.rates.sgd(np.zeros(1, dtype=np.int64))[0]
    return place(setting.rates.graph, setting.data.sizes, d, ranks)


def release_data(study: Study, work_split: WorkSplit) -> Study:
    """Keep the samples of the clients that this rank holds, where clients are split; release all others.

    Args:
        study: With the data of all clients.
        work_split: Which clients are held here.

    Returns:
        The study with what is left of its data; the study itself where clients are not split.
    """
    if work_split.kind != "clients":
        return study
    run_of = {s: r for r, s in reversed(list(enumerate(study.setting_of)))}
    every = [(work_split.owned(run_of[s]), study.runs[run_of[s]].members) for s in range(len(study.settings))]
    kept = restrict_to_clients([setting.data for setting in study.settings], [some[some < n] for some, n in every])
    here = work_split.team.rank == 0
    settings = [replace(s, data=data, holds_server=here) for s, data in zip(study.settings, kept, strict=True)]
    return replace(study, settings=settings)


class Pace:
    """Where all ranks meet: at evaluations, and as often as rank 0 wants in between.

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
    """Take a step on all ranks, or on none: an error on one of them is an error on all.

    Args:
        team: The ranks; all call this.
        step: What each of them does.

    Returns:
        What the step returned on this rank.

    Raises:
        InputError, ConfigError, DataError, OutOfMemoryError, OSError: What the step raised on this rank.
        DataError: The step failed on another rank only.
    """
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
    """Return what an iteration of a run costs, in SGD steps: those expected, and mixing."""
    return steps(run) + _MIXING * run.clients


def steps(run: Run) -> float:
    """Return the SGD steps expected in an iteration of a run."""
    k = np.arange(_SAMPLED)
    if draws_independently(run.schedule):
        return float(run.rates.marginal(*run.schedule.probabilities(k, run.rates))[0].mean() * run.clients)
    return float(run.rates.sgd(k).mean() * run.clients)


def expected_rows(run: Run, owner: np.ndarray, first: int, last: int, block: int = 64) -> float | None:
    """Return how many rows cross between ranks at iterations first … last − 1, from the rates alone.

    None for a custom schedule, whose probabilities are not known.

    Row i crosses to rank q if one of its links to clients of q fires: Σ_k Σ_(i,q) 1 − Π (1 − p) rows are expected.
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
        p = run.rates.marginal(np.ones((1, run.clients)), p)[1]
        if run.directed:  # one direction that fires is enough
            there, back = by_direction(p, len(edges))
            p = 1.0 - (1.0 - there) * (1.0 - back)
        present = run.topology.at(k)[0]
        p = np.broadcast_to(p if present is None else p * present, (len(k), len(edges)))
        total += sum(float(pairs.expected(row).sum()) for row in p)
    return total * (last - first) if constant else total
