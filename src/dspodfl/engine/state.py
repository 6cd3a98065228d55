"""What runs carry from one iteration to the next: models, the rule's state, and what was counted so far.

It holds no generator, since draws are addressed. It consists of pieces, each of some clients and links of one run: a
process saves the pieces of the clients that it holds, and a process that resumes reads those of its own clients.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dspodfl.algorithms import PerLink
from dspodfl.engine.counters import Totals
from dspodfl.engine.stack import Stack
from dspodfl.errors import InputError

MAX_ELEMENTS_PER_PIECE = 2**26
"""Parameters of a piece, at most (256 MB in float32), unless one client has more."""


@dataclass(frozen=True, eq=False)
class Piece:
    """What some clients and links of one run carry, on the CPU. The first axis is that of the clients, or the links."""

    run: int  # number in the stack
    client: Tensor  # (clients,) their numbers in the run
    link: Tensor  # (links,)
    clients: dict[str, Tensor]
    """"theta" (clients, p) as named_parameters, "spent" (clients,), "rule.<n>" (clients, …), and "model" (clients, p)
    where other models than θ are evaluated."""
    links: dict[str, Tensor]  # "spent" (links,); of a directed run (links, 2), of i → j and of j → i
    whole: dict[str, Tensor]  # of the run: "normalized" (2,), "fired" (2,), "diverged" ()
    ends: dict[str, Tensor] = field(default_factory=dict)
    """Memory at the ends of links, which goes with the clients there: "number" (ends,), "rule.<n>" (ends, …); end 2e is
    that of the first client of link e of the run, end 2e + 1 that of the second."""


@dataclass(frozen=True, eq=False)
class Held:
    """The rows and links of a stack that a process carries from iteration to iteration, run by run and in order."""

    stack: Stack
    rows: np.ndarray  # (held,) rows of the stack
    links: np.ndarray  # (held,) links of the stack; every link is held by one process
    of_run: list[slice]  # of the held rows
    links_of_run: list[slice]  # of the held links
    touching: np.ndarray  # (touching,) links of the stack with an end at a held client, in order

    @staticmethod
    def all(stack: Stack) -> Held:
        """Return all rows and links of a stack."""
        every = np.arange(stack.all_links)
        return Held(stack, np.arange(stack.clients), every, stack.rows, stack.links, every)

    def ends(self, run: int, client: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the ends of links that belong to some clients of a run: their numbers in the run, and their rows here.

        Rows here are those of a `dspodfl.algorithms.PerLink`: two for each link that touches a held client.
        """
        edges, first = self.stack.runs[run].rates.graph.edges, self.stack.links[run].start
        number = np.flatnonzero(np.isin(edges.reshape(-1), client))
        here = np.searchsorted(self.touching, first + number // 2)
        return number, 2 * here + number % 2

    def place(self, piece: Piece) -> tuple[Tensor, Tensor]:
        """Return which clients of a piece are held, by their places in it, and their rows here."""
        rows = self.stack.rows[piece.run].start + piece.client.numpy()
        here = np.searchsorted(self.rows, rows)
        found = np.flatnonzero(self.rows[np.minimum(here, len(self.rows) - 1)] == rows)
        return torch.from_numpy(found), torch.from_numpy(here[found])


@dataclass(frozen=True, eq=False)
class State:
    """A stack of runs after ``iteration`` updates. The pieces are valid until the loop continues."""

    iteration: int
    pieces: Callable[[], Iterator[Piece]]

    def theta(self, held: Held, out: Tensor, pack: Callable[[Tensor], Tensor]) -> None:
        """Write the models that are held, packed. Shape: (held, width)."""
        for piece in self.pieces():
            some, rows = held.place(piece)
            out[rows.to(out.device)] = pack(piece.clients["theta"][some].to(out.device, out.dtype))

    def totals(self, stack: Stack) -> Totals:
        """Return what was counted before."""
        runs = len(stack.runs)
        client, link = (torch.zeros(count, dtype=torch.float64) for count in (stack.clients, stack.uses[-1].stop))
        normalized, fired = torch.zeros((runs, 2), dtype=torch.float64), torch.zeros((runs, 2), dtype=torch.int64)
        for piece in self.pieces():
            client[stack.rows[piece.run].start + piece.client] = piece.clients["spent"]
            link[_counted(stack, piece.run, piece.link)] = piece.links["spent"]
            normalized[piece.run], fired[piece.run] = piece.whole["normalized"], piece.whole["fired"]
        return Totals(self.iteration, client, link, normalized, fired)

    def rule(self, held: Held, template: Any) -> Any:
        """Return the rule's state of the rows that are held.

        Args:
            held: The rows.
            template: A state of the same form, as ``rule.init`` returns it.
        """
        blank = [leaf.clone() for leaf in leaves(template, len(held.rows))]
        memory = [leaf.clone() for leaf in link_leaves(template)]
        for piece in self.pieces():
            some, rows = held.place(piece)
            for n, leaf in enumerate(blank):
                leaf[rows.to(leaf.device)] = piece.clients[f"rule.{n}"][some].to(leaf.device, leaf.dtype)
            if memory and len(some):
                number, here = held.ends(piece.run, piece.client[some].numpy())
                found = torch.from_numpy(np.searchsorted(piece.ends["number"].numpy(), number))
                for n, leaf in enumerate(memory):
                    values = piece.ends[f"rule.{n}"][found]
                    leaf[torch.from_numpy(here).to(leaf.device)] = values.to(leaf.device, leaf.dtype)
        return filled(template, iter(blank), iter(memory))

    @property
    def diverged(self) -> dict[int, bool]:
        """Run -> whether it is frozen."""
        return {piece.run: bool(piece.whole["diverged"]) for piece in self.pieces()}


def cut(
    stack: Stack,
    held: Held,
    totals: Totals,
    models: Callable[[slice], Tensor],
    parameters: int,
    rule: Any,
    diverged: Sequence[bool],
    evaluated: Callable[[slice], Tensor] | None = None,
) -> Iterator[Piece]:
    """Cut the held state of a stack into pieces.

    Args:
        stack: The runs.
        held: The rows and links that this process carries.
        totals: What was counted so far.
        models: Returns the models of some held rows, (rows, p).
        parameters: p, the number of parameters of a model.
        rule: The state of the rule.
        diverged: Whether each run is frozen.
        evaluated: Returns the models of some held rows that are evaluated, (rows, p); None: they are ``models``.

    Yields:
        The pieces, run by run, on the CPU.
    """
    carried, memory = leaves(rule, len(held.rows)), link_leaves(rule)
    step = max(1, MAX_ELEMENTS_PER_PIECE // parameters)
    for r, (rows, links) in enumerate(zip(held.of_run, held.links_of_run, strict=True)):
        for first in range(rows.start, rows.stop, step):
            here = slice(first, min(first + step, rows.stop))
            its = links if first == rows.start else slice(links.start, links.start)  # links go with the first clients
            client, link = (torch.from_numpy(numbers) for numbers in (held.rows[here], held.links[its]))
            clients = {"theta": models(here).cpu(), "spent": totals.client[client.to(totals.client.device)].cpu()}
            clients |= {"model": evaluated(here).cpu()} if evaluated is not None else {}
            clients |= {f"rule.{n}": leaf[here].cpu() for n, leaf in enumerate(carried)}
            ends: dict[str, Tensor] = {}
            if memory:
                number, row = held.ends(r, held.rows[here] - stack.rows[r].start)
                at = torch.from_numpy(row)
                ends = {f"rule.{n}": leaf[at.to(leaf.device)].cpu() for n, leaf in enumerate(memory)}
                ends["number"] = torch.from_numpy(number)
            whole = {"normalized": totals.normalized[r].cpu(), "fired": totals.fired[r].cpu()}
            yield Piece(
                r,
                client - stack.rows[r].start,
                link - stack.links[r].start,
                clients,
                {"spent": totals.link[_counted(stack, r, link - stack.links[r].start).to(totals.link.device)].cpu()},
                {name: values.clone() for name, values in whole.items()} | {"diverged": torch.tensor(diverged[r])},
                ends,
            )


def _counted(stack: Stack, run: int, link: Tensor) -> Tensor:
    """Where links of a run are counted, (links,); of a directed one both directions of each, (links, 2)."""
    at = stack.uses[run].start + link
    return torch.stack([at, at + stack.runs[run].rates.graph.links], dim=1) if stack.runs[run].directed else at


def leaves(state: Any, clients: int) -> list[Tensor]:
    """Return the tensors of a rule's state; memory at the ends of links (`link_leaves`) is not among them.

    Args:
        state: None, a tensor, or tuples, lists and dictionaries of them; the first axis is that of the clients.
        clients: The number of clients.

    Returns:
        The tensors, in order.

    Raises:
        InputError: The state holds something else.

    >>> import torch
    >>> [tuple(leaf.shape) for leaf in leaves({"m": torch.zeros(3, 2), "steps": (torch.zeros(3), None)}, clients=3)]
    [(3, 2), (3,)]
    """
    if state is None or isinstance(state, PerLink):
        return []
    if isinstance(state, Tensor) and state.ndim and len(state) == clients:
        return [state]
    if isinstance(state, tuple | list):
        return [leaf for part in state for leaf in leaves(part, clients)]
    if isinstance(state, dict):
        return [leaf for part in state.values() for leaf in leaves(part, clients)]
    what = f"a tensor of shape {tuple(state.shape)}" if isinstance(state, Tensor) else f"a {type(state).__name__}"
    allowed = f"None, or tensors of {clients} rows (one a client) in tuples, lists or dictionaries"
    raise InputError("the state of the rule", what, allowed)


def link_leaves(state: Any) -> list[Tensor]:
    """Return the tensors of a rule's state that belong to the ends of links, two rows for each link.

    Args:
        state: The state.

    Returns:
        The tensors of every `PerLink`, in order.
    """
    if isinstance(state, PerLink):
        return list(state.rows)
    if isinstance(state, tuple | list):
        return [leaf for part in state for leaf in link_leaves(part)]
    if isinstance(state, dict):
        return [leaf for part in state.values() for leaf in link_leaves(part)]
    return []


def unfrozen(alive: Tensor | None, new: Any, old: Any) -> Any:
    """Return the new values of clients that advance, and the old ones of those that are frozen.

    Args:
        alive: Which clients advance, (clients,), bool; None: all.
        new: Tensors of a row a client, in tuples, lists and dictionaries, as `leaves` knows them.
        old: The same before.
    """
    if alive is None or isinstance(new, PerLink):  # links of a run that is frozen do not fire
        return new
    if isinstance(new, Tensor):
        same = isinstance(old, Tensor) and new.ndim and new.shape == old.shape and len(new) == len(alive)
        return torch.where(alive.view(-1, *[1] * (new.ndim - 1)), new, old) if same else new
    if isinstance(new, dict):
        return {key: unfrozen(alive, part, old.get(key)) for key, part in new.items()}
    if isinstance(new, tuple | list):
        parts = [unfrozen(alive, part, before) for part, before in zip(new, old, strict=True)]
        return type(new)(*parts) if hasattr(new, "_fields") else type(new)(parts)
    return new


def filled(template: Any, found: Iterator[Tensor], memory: Iterator[Tensor]) -> Any:
    """Return a state of the form of another one, with other tensors.

    Args:
        template: The state of a rule.
        found: The tensors in place of those of `leaves`, in order.
        memory: The tensors in place of those of `link_leaves`, in order.

    Returns:
        The state.
    """
    if template is None:
        return None
    if isinstance(template, Tensor):
        return next(found)
    if isinstance(template, PerLink):
        return PerLink(tuple(next(memory) for _ in template.rows))
    if isinstance(template, dict):
        return {key: filled(part, found, memory) for key, part in template.items()}
    parts = [filled(part, found, memory) for part in template]
    return type(template)(*parts) if hasattr(template, "_fields") else type(template)(parts)
