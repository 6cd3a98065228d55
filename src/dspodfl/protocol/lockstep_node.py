"""A node in lockstep as a pure state machine: inputs are method calls, effects come back as a list.

The worker (training), the network and the disk give inputs. The worker's cycle for an iteration k at which links fire:
``offer(k, 0, messages)`` → effect `Deliver(k, 0)` → … one round for every phase … → ``advance(k + 1, value)``. At an
iteration without a firing link it just advances. A firing is never skipped: `Deliver` comes when every neighbour's
message of the phase is here and every own message is kept for its receiver.
Checkpoints and the end of a run are in `lockstep_saving`.

What carries a node out over a network has to: give every connection to `opened` with fresh random bytes, and messages
of the current connection alone to `received`, in order (`session.FrameCounters`); report parts of long frames with
`progressed`; call `on_timer` at ``timer``; carry out effects in order; connect again, with a growing delay, whatever
`Close` says, until `Done`; and stop the worker when ``end`` is set.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dspodfl.protocol.effects import Checkpoint, Close, Deliver, Effect, Note, Send
from dspodfl.protocol.hello import refusal
from dspodfl.protocol.lockstep_link import LockstepLink
from dspodfl.protocol.lockstep_saving import LockstepSaving
from dspodfl.protocol.messages import Ack, AnyMessage, Bye, Hello, Need, Ping, Pong, Save, State
from dspodfl.protocol.plan import Plan


class LockstepNode(LockstepSaving):
    """One node of a run in lockstep.

    Attributes:
        plan: The run as this node sees it.
        k: The iteration that the node is in.
        phase: The phase that comes next, or that waits for messages.
        durable: The start of this iteration is safe here: the node will never roll back before it.
        end: How the run ended, (reason, k); None while it goes on.
        done: Whether the node has left.
        links: Neighbour → this end of the link.
    """

    def __init__(self, plan: Plan, checkpoint: Checkpoint, saved: Sequence[int] = (), now: float = 0.0) -> None:
        """Create a node that begins, or resumes, at a checkpoint.

        Args:
            plan: The run as this node sees it.
            checkpoint: Where to begin; a new run begins at ``Checkpoint(0, value)``.
            saved: The iterations of the intact checkpoints on disk up to this one, oldest first. Default: this one.
            now: The time in seconds, of any clock that never goes back.
        """
        super().__init__(plan, checkpoint, saved, now)
        self.phase = 0
        self._offered = False
        self._missing: set[int] = set()

    # Inputs of the network

    def start(self, now: float) -> list[Effect]:
        """Begin; the worker may begin too.

        Args:
            now: The time in seconds.

        Returns:
            Effects.
        """
        return self._settle(now, [])

    def opened(self, peer: int, nonce: bytes, now: float) -> list[Effect]:
        """Begin a session: an authenticated connection to a neighbour is open. It replaces an earlier one.

        Args:
            peer: The neighbour.
            nonce: 16 random bytes, drawn for this connection.
            now: The time in seconds.

        Returns:
            Effects.
        """
        out: list[Effect] = []
        link = self.links.get(peer)
        if link is not None and not self.done:
            link.connect(nonce, self.durable, now, out)
        return out

    def closed(self, peer: int, now: float, nonce: bytes | None = None) -> list[Effect]:
        """End a session: the connection is gone.

        Args:
            peer: The neighbour.
            now: The time in seconds.
            nonce: This end's random bytes of the connection, so that the end of an earlier one changes nothing; None:
                the current one.

        Returns:
            Effects.
        """
        link = self.links.get(peer)
        if link is not None and link.open and nonce in (None, link.nonce):
            link.disconnect(now)
        return []

    def progressed(self, peer: int, now: float) -> list[Effect]:
        """Record that a part of a frame arrived or was sent: the connection is alive.

        Args:
            peer: The neighbour.
            now: The time in seconds.

        Returns:
            Effects.
        """
        link = self.links.get(peer)
        if link is not None:
            link.liveness.heard(now)
        return []

    def received(self, peer: int, message: AnyMessage, payload: Any, now: float) -> list[Effect]:
        """Take a message of the current session.

        Args:
            peer: The neighbour at the other end of the connection, by its certificate.
            message: The message.
            payload: What came with it; None except for STATE.
            now: The time in seconds.

        Returns:
            Effects.
        """
        out: list[Effect] = []
        link = self.links.get(peer)
        if self.done or link is None or not link.open:
            return out
        link.liveness.heard(now)
        if not link.live:
            self._greet(link, message, now, out)
        elif isinstance(message, State):
            if payload is not None and link.accept((message.k, message.phase), payload, out):
                self._deliver(link, out)
        elif isinstance(message, Need):
            link.asked_for((message.k, message.phase), out)
        elif isinstance(message, Ping):
            out.append(Send(peer, Pong(message.t)))
        elif isinstance(message, Pong):
            link.liveness.pong(message.t, now)
        elif isinstance(message, Ack):
            self._acknowledged(link, message.durable, now, out)
        elif isinstance(message, Save):
            self._asked_to_save(link, message.k, now, out)
        elif isinstance(message, Bye):
            self._bye(link, message, now, out)
        return out

    # Inputs of the worker

    def offer(self, k: int, phase: int, payloads: Mapping[int, Any], now: float) -> list[Effect]:
        """Enter a phase with the worker's own messages.

        Args:
            k: The iteration that the node is in.
            phase: The phase.
            payloads: Neighbour → message, for every link that fires at ``k``.
            now: The time in seconds.

        Returns:
            Effects.

        Raises:
            ValueError: It is not the turn of this phase, or the neighbours are not those whose links fire.
        """
        firing = self.plan.firing(k)
        if (k, phase) != (self.k, self.phase) or self._offered or payloads.keys() != set(firing) or not firing:
            raise ValueError(f"messages for {list(payloads)} of iteration {k}, phase {phase}, are out of turn")
        out: list[Effect] = []
        if self.done or phase >= self.plan.phases_at(k):
            return out
        self._offered = True
        position = (k, phase)
        missing = self._missing
        for peer in firing:
            link = self.links[peer]
            link.enter(position, payloads[peer], out)
            if link.awaits is not None or link.full is not None:
                missing.add(peer)
        self._complete(out)
        return out

    def advance(self, k: int, value: Any, now: float) -> list[Effect]:
        """Enter the next iteration.

        Args:
            k: The iteration that is entered.
            value: The opaque state at its start, which must not change any more.
            now: The time in seconds.

        Returns:
            Effects.

        Raises:
            ValueError: An iteration, or a link that fires, would be skipped.
        """
        plan = self.plan
        if k != self.k + 1 or k > plan.iterations or (plan.firing(self.k) and self.phase < plan.phases_at(self.k)):
            raise ValueError(f"iteration {k} is out of turn: the node is in iteration {self.k}, phase {self.phase}")
        out: list[Effect] = []
        if self.done:
            return out
        self.k = k
        self.phase = 0
        self._value = value
        iterations, seconds = plan.every_iterations, plan.every_seconds
        by_number = iterations is not None and k - self._stored_k >= iterations
        if by_number or (seconds is not None and now - self._stored_at >= seconds):
            self._save_asked = True
        if self._save_asked or self._next_save is not None or k == plan.iterations or self._drains:
            self._settle(now, out)
        return out

    # Time

    @property
    def timer(self) -> float | None:
        """When to call `on_timer` next; None: not before another input."""
        if self.done:
            return None
        times = [link.liveness.due for link in self.links.values() if link.open]
        if self._retry_at is not None:
            times.append(self._retry_at)
        missed = [link for link in self.links.values() if not link.farewell]
        if self._settled and not any(link.open for link in missed):
            times.append(max((self._linger_until(link) for link in missed), default=self._ended_at))
        return min(times, default=None)

    def on_timer(self, now: float) -> list[Effect]:
        """Do what is due.

        Args:
            now: The time in seconds.

        Returns:
            Effects.
        """
        out: list[Effect] = []
        if self.done:
            return out
        for link in self.links.values():
            if not link.open or now < link.liveness.due:
                continue
            verdict = link.liveness.check(now)
            if verdict == "ping":
                out.append(Send(link.peer, Ping(link.liveness.ping(now))))
            elif verdict == "lost":
                self._close(link, f"no progress for {link.liveness.patience:.3g} s", now, out)
        if self._retry_at is not None and now >= self._retry_at:
            self._retry_at = None
        return self._settle(now, out)

    # What a person may want to know

    def waiting_for(self) -> list[int]:
        """Return the neighbours that the current phase waits for, in the order of the links."""
        return [peer for peer in self.plan.firing(self.k) if peer in self._missing]

    # Steps

    def _greet(self, link: LockstepLink, message: AnyMessage, now: float, out: list[Effect]) -> None:
        """Check the first message of a session."""
        if not isinstance(message, Hello):
            self._close(link, "the first message is not HELLO", now, out)
            return
        why = refusal(self.plan, link.peer, message, link.durable)
        if why is not None:
            out.append(Send(link.peer, Bye("refused", self.k, why)))
            self._close(link, why, now, out, refused=True)
            return
        full = link.full is not None
        link.greet(message, self.durable, out)
        out.append(Send(link.peer, Ping(link.liveness.ping(now))))
        if full and link.full is None:
            self._deliver(link, out)
        self._settle(now, out)

    def _acknowledged(self, link: LockstepLink, durable: int, now: float, out: list[Effect]) -> None:
        if link.acknowledged(durable, out):
            self._deliver(link, out)
        if self.k == self.plan.iterations:
            self._settle(now, out)

    def _deliver(self, link: LockstepLink, out: list[Effect]) -> None:
        """Take a link off the list of those that are waited for, if nothing of it is missing."""
        if link.peer in self._missing and link.awaits is None and link.full is None:
            self._missing.discard(link.peer)
            self._complete(out)

    def _complete(self, out: list[Effect]) -> None:
        """Deliver the phase, if nothing is missing."""
        if self._offered and not self._missing:
            position = (self.k, self.phase)
            payloads = {peer: self.links[peer].held.pop(position) for peer in self.plan.firing(self.k)}
            self._offered = False
            self.phase += 1
            out.append(Deliver(*position, payloads))

    def _bye(self, link: LockstepLink, message: Bye, now: float, out: list[Effect]) -> None:
        """Take a BYE."""
        if message.reason == "diverged":
            if message.k <= self.plan.iterations:
                if self.end is None:
                    out.append(Note(f"node {link.peer} says that the run diverged at iteration {message.k}", link.peer))
                link.farewell = True
                out += self.diverged(message.k, now)
        elif message.reason == "finished":
            link.farewell |= self.durable == link.durable == self.plan.iterations
        else:
            told = "refused this node" if message.reason == "refused" else f"left: {message.reason}; it is waited for"
            out.append(Note(f"node {link.peer} {told}" + (f": {message.text}" if message.text else ""), link.peer))
            self._close(link, f"BYE: {message.reason}", now, out, refused=message.reason == "refused")
        self._settle(now, out)

    def _close(self, link: LockstepLink, why: str, now: float, out: list[Effect], refused: bool = False) -> None:
        link.disconnect(now)
        out.append(Close(link.peer, why, refused))
