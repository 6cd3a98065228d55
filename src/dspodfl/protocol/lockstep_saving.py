"""Checkpoints and the end of a run in lockstep: when a node saves, what it confirms, and when it may leave.

*Checkpoints.* A checkpoint is always that of the start of the current iteration, and can be taken at any instant: the
replay from there computes the very same messages again. It is taken by number of iterations or time (``Plan``), when a
neighbour asks (SAVE{k}: immediately if the node is at or past k, otherwise when it gets there), and at the end. One is
written at a time. What is confirmed to neighbours (``durable``) is the oldest of the last ``Plan.keep`` checkpoints.

*End.* A node at K serves what it keeps until its own and every neighbour's durable iteration is K. Only then it has
*finished*; it stores that, says BYE{finished}, and leaves when every neighbour said so too. So a node that is killed in
between finds its neighbours still there, or knows that it need not. A divergence ends every node in the same way. A
neighbour that cannot be reached is waited for during ``Plan.linger`` seconds.
"""

from __future__ import annotations

from collections.abc import Sequence

from dspodfl.protocol.effects import Checkpoint, Done, Effect, Note, Send, Store
from dspodfl.protocol.lockstep_link import LockstepLink
from dspodfl.protocol.messages import Bye, Reason
from dspodfl.protocol.plan import Plan

RETRY_SECONDS = 5.0
"""Time after which a checkpoint that could not be written is tried again."""


class LockstepSaving:
    """The part of a node that saves and ends; `LockstepNode` adds the network and the worker."""

    link_type = LockstepLink

    def __init__(self, plan: Plan, checkpoint: Checkpoint, saved: Sequence[int], now: float) -> None:
        self.plan = plan
        self.k = checkpoint.k
        self.end: tuple[Reason, int] | None = checkpoint.end
        self.done = False
        self.links = {
            peer: self.link_type(
                peer, plan, self.k, checkpoint.kept.get(peer, {}), checkpoint.durable.get(peer, 0), now
            )
            for peer in plan.neighbours
        }
        self._value = checkpoint.value
        self._saved = list(saved or (checkpoint.k,))[-plan.keep :]
        self.durable = self._saved[0]
        self._storing: Checkpoint | None = None
        self._ends_saved = int(self.end is not None)
        self._stored_at = now
        self._stored_k = self.k
        self._retry_at: float | None = None
        self._save_asked = False
        self._next_save: int | None = None
        self._drains = False
        self._drained_from = 0
        self._ended_at = now

    def save(self, now: float) -> list[Effect]:
        """Take a checkpoint of the start of the current iteration, as soon as none is being written.

        Args:
            now: The time in seconds.

        Returns:
            Effects.
        """
        self._save_asked = True
        return self._settle(now, [])

    def saved(self, k: int, now: float) -> list[Effect]:
        """Take note that the checkpoint that was to be stored is safe on disk.

        Args:
            k: Its iteration.
            now: The time in seconds.

        Returns:
            Effects.

        Raises:
            ValueError: No checkpoint of this iteration is being written.
        """
        stored, self._storing = self._storing, None
        if stored is None or stored.k != k:
            raise ValueError(f"no checkpoint of iteration {k} is being written")
        out: list[Effect] = []
        self._saved = [*self._saved, k][-self.plan.keep :]
        self._ends_saved = self._ends_saved + 1 if stored.end is not None else 0
        if self._saved[0] > self.durable:
            self.durable = self._saved[0]
            for link in self.links.values():
                link.confirm(self.durable, out)
            self._plan_saves()
        return self._settle(now, out)

    def unsaved(self, k: int, now: float) -> list[Effect]:
        """Take note that a checkpoint could not be written; it is tried again after a while.

        Args:
            k: Its iteration.
            now: The time in seconds.

        Returns:
            Effects.
        """
        self._storing = None
        self._save_asked = True
        self._retry_at = now + RETRY_SECONDS
        return [Note(f"the checkpoint of iteration {k} could not be written; it is tried again")]

    def drain(self, now: float) -> list[Effect]:
        """Leave as soon as the current iteration's start, or a later one, is saved: the run is resumed from there.

        The worker may go on meanwhile: what it does after the checkpoint is done again.

        Args:
            now: The time in seconds.

        Returns:
            Effects.
        """
        if not self._drains:
            self._drains, self._drained_from = True, self.k
        return self._settle(now, [])

    def diverged(self, k: int, now: float) -> list[Effect]:
        """End the run: the model is no longer finite.

        Args:
            k: The iteration whose model is not finite.
            now: The time in seconds.

        Returns:
            Effects.
        """
        out: list[Effect] = []
        if not self.done and (self.end is None or self.end[0] != "diverged"):
            self._finish("diverged", k, now)
            self._settle(now, out)
        return out

    # Steps

    def _asked_to_save(self, link: LockstepLink, k: int, now: float, out: list[Effect]) -> None:
        """Take a SAVE."""
        if k > self.plan.iterations:
            return
        if k <= self.durable:
            link.confirm(self.durable, out)
            return
        link.save_wanted = k
        self._plan_saves()
        self._settle(now, out)

    def _plan_saves(self) -> None:
        """Find the first iteration at which a neighbour wants a checkpoint."""
        wanted = [link.save_wanted for link in self.links.values() if link.save_wanted is not None]
        self._next_save = min((k for k in wanted if k > self.durable), default=None)

    def _finish(self, reason: Reason, k: int, now: float) -> None:
        self.end = (reason, k)
        self._ended_at = now

    @property
    def _settled(self) -> bool:
        """Whether the end is stored in every checkpoint that the node could resume from."""
        return self.end is not None and self._ends_saved >= self.plan.keep

    def _linger_until(self, link: LockstepLink) -> float:
        return max(link.down_since, self._ended_at) + self.plan.linger

    def _say_bye(self, link: LockstepLink, out: list[Effect]) -> None:
        if self.end is not None and link.live and not link.bye_said:
            link.bye_said = True
            out.append(Send(link.peer, Bye(*self.end)))

    def _wants_checkpoint(self) -> bool:
        if self.end is not None:
            return not self._settled or self._save_asked
        if self.k == self.plan.iterations and self.durable < self.k:
            return True
        return self._save_asked or (self._next_save is not None and self._next_save <= self.k)

    def _settle(self, now: float, out: list[Effect]) -> list[Effect]:
        """Do what follows for checkpoints and for the end of the run, after anything that could change them."""
        if self.done:
            return out
        last = self.plan.iterations
        links = self.links.values()
        if self.end is None and self.k == self.durable == last and all(link.durable == last for link in links):
            self._finish("finished", last, now)
        if self._storing is None and self._retry_at is None:
            drained = self._drains and self._saved[-1] >= self._drained_from and not self._save_asked
            if drained:
                self._leave("draining", self._saved[-1], out)
            elif self._wants_checkpoint() or self._drains:
                self._store(now, out)
        if self._settled and not self.done:
            self._part(now, out)
        return out

    def _store(self, now: float, out: list[Effect]) -> None:
        """Write a checkpoint of the start of the current iteration."""
        k = self.k
        kept = {
            peer: {position: payload for position, payload in link.kept.items() if position[0] < k}
            for peer, link in self.links.items()
        }
        durable = {peer: link.durable for peer, link in self.links.items()}
        self._storing = Checkpoint(k, self._value, kept, durable, self.end)
        self._stored_at, self._stored_k = now, k
        self._save_asked = False
        out.append(Store(self._storing))

    def _part(self, now: float, out: list[Effect]) -> None:
        """Say BYE once the end is stored, and leave when no neighbour needs this node."""
        for link in self.links.values():
            self._say_bye(link, out)
        if all(link.farewell or (not link.open and now >= self._linger_until(link)) for link in self.links.values()):
            assert self.end is not None
            self._leave(*self.end, out)

    def _leave(self, reason: Reason, k: int, out: list[Effect]) -> None:
        self.done = True
        if reason == "draining":
            out += [Send(link.peer, Bye("draining", k)) for link in self.links.values() if link.live]
        out.append(Done(reason, k))
