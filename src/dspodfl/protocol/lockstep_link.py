"""One end of a link in lockstep: what is kept for the neighbour, what is held of it, and when a STATE is sent.

The rules, with the words of the design:

- *Held.* At most two STATEs of the neighbour are held: that of the position this node is at and one that came early.
  Only the next one in order is taken; what is received twice is dropped.
- *Sent.* In a session the STATE of a position is sent once, and when the neighbour is known to want it: the ``need`` of
  its HELLO, its NEED, or its own STATE; or, on entering a position, if the one before was sent in this session and the
  neighbour has shown in this session that it reached that one. The neighbour holds everything before the ``need`` of
  its HELLO, so a STATE that it sends for a replay asks for nothing.
- *Need.* An end that enters a position without the neighbour's STATE, and has not sent its own in this session, sends
  NEED.
- *Kept.* What was sent stays until the neighbour confirms a checkpoint past it; it is part of this node's checkpoint
  and outlives connections. It is bounded by ``Plan.retain``: above half of it, and at every HELLO above half, the
  neighbour is asked to save at an iteration in the middle of what is kept. At the limit this link alone waits.

A link emits effects by appending to a list. The node (`lockstep_node`) decides what follows for the iteration.
"""

from __future__ import annotations

from typing import Any

from dspodfl.protocol.effects import Effect, Note, Send
from dspodfl.protocol.messages import VERSION, Ack, Hello, Need, Position, Save, State
from dspodfl.protocol.plan import Plan
from dspodfl.protocol.session import Liveness

MAX_HELD = 2
"""STATEs of a neighbour that an end holds."""


class LockstepLink:
    """One end of a link.

    Attributes:
        peer: The neighbour.
        kept: Position → payload of what was sent and may be needed again, in order.
        amount: The size of what is kept.
        held: Position → payload of what the neighbour sent and the worker has not received.
        expects: The next position whose STATE is not held; None if there is none.
        durable: The start of this iteration is safe at the neighbour.
        save_wanted: The neighbour asked for a checkpoint at this iteration or a later one; None: it did not.
        farewell: Whether the neighbour said that it ended and needs nothing more.
        awaits: The position of this node, if the neighbour's STATE of it is missing.
        full: The (position, payload) that waits at the limit; None: nothing does.
        open: Whether there is a connection.
        bye_said: Whether this end has said BYE in this session.
        live: Whether both HELLOs have been exchanged: the session stands.
        nonce: The random bytes of this end of the connection; None while there is none.
        liveness: Signs of life of the connection.
        down_since: When the last connection ended.
    """

    __slots__ = (
        "_asked",
        "_entered",
        "_floor",
        "_full_said",
        "_reached",
        "_sent",
        "_told_durable",
        "_told_need",
        "_wanted",
        "amount",
        "awaits",
        "bye_said",
        "down_since",
        "durable",
        "expects",
        "farewell",
        "full",
        "held",
        "kept",
        "live",
        "liveness",
        "nonce",
        "open",
        "peer",
        "plan",
        "save_wanted",
    )

    def __init__(self, peer: int, plan: Plan, k: int, kept: dict[Position, Any], durable: int, now: float) -> None:
        self.peer = peer
        self.plan = plan
        self.kept = dict(kept)
        self.amount = sum(plan.size(phase) for _, phase in self.kept)
        self.held: dict[Position, Any] = {}
        self.expects = plan.first(peer, k)
        self.durable = durable
        self.save_wanted: int | None = None
        self.farewell = False
        self.awaits: Position | None = None
        self.full: tuple[Position, Any] | None = None
        self.down_since = now
        self.liveness = Liveness(now, plan.patience)
        self._entered: Position | None = None  # the position of this link that the node entered last
        self._full_said = False
        self.disconnect(now)

    # The session

    def disconnect(self, now: float) -> None:
        """Forget the session; what is kept and held stays.

        Args:
            now: The time in seconds.
        """
        self.open = False
        self.live = False
        self.nonce: bytes | None = None
        self.bye_said = False
        self.down_since = now
        self._sent: Position | None = None  # the last STATE sent in this session
        self._wanted: Position | None = None  # what the neighbour is known to want
        self._reached: Position | None = None  # the furthest position that it has shown to have entered
        self._floor: Position | None = None  # it holds everything before this
        self._asked: int | None = None  # the SAVE that is under way
        self._told_need: Position | None = None
        self._told_durable = 0

    def connect(self, nonce: bytes, durable: int, now: float, out: list[Effect]) -> None:
        """Begin a session with HELLO.

        Args:
            nonce: Random bytes of this end.
            durable: The iteration whose start is safe at this node.
            now: The time in seconds.
            out: Receives the effects.
        """
        self.disconnect(now)
        plan = self.plan
        self.open = True
        self.nonce = nonce
        self.liveness = Liveness(now, plan.patience, self.liveness.round_trip)
        self._told_need = None if len(self.held) >= MAX_HELD else self.expects
        self._told_durable = durable
        hello = Hello(VERSION, plan.id, plan.run_id, nonce, plan.config, plan.schema, self._told_need, durable)
        out.append(Send(self.peer, hello))

    def greet(self, hello: Hello, durable: int, out: list[Effect]) -> None:
        """Take the neighbour's HELLO, which was found in order: the session stands.

        Args:
            hello: The neighbour's HELLO.
            durable: The iteration whose start is safe at this node, which may have moved since this end's HELLO.
            out: Receives the effects.
        """
        self.live = self.liveness.greeted = True
        self._wanted = self._floor = hello.need
        if durable > self._told_durable:
            self.confirm(durable, out)
        if self.awaits is not None and self.awaits != self._told_need:
            out.append(Send(self.peer, Need(*self.awaits)))
        self.acknowledged(hello.durable, out)
        if self._wanted is not None:
            self.send(self._wanted, out)

    def confirm(self, durable: int, out: list[Effect]) -> None:
        """Tell the neighbour what is safe at this node.

        Args:
            durable: The iteration whose start is safe.
            out: Receives the effects.
        """
        if self.live:
            self._told_durable = durable
            out.append(Send(self.peer, Ack(durable)))

    # What this end sends

    def enter(self, position: Position, payload: Any, out: list[Effect]) -> None:
        """Enter a position with this end's own message.

        Args:
            position: The position at which the link fires.
            payload: The message.
            out: Receives the effects.
        """
        before, self._entered = self._entered, position
        placed = self.place(position, payload, out)
        self.awaits = None if position in self.held else position
        if not self.live:
            return
        if placed and (self._wanted == position or self.goes_ahead(before)):
            self.send(position, out)
        if self.awaits is not None and self._sent != position:
            self.request(position, out)

    def goes_ahead(self, before: Position | None) -> bool:
        """Return whether the next STATE may be sent unasked.

        Args:
            before: The position of this link before the one that is entered.

        Returns:
            Whether the STATE before was sent in this session, and the neighbour has shown that it was there.
        """
        return before is not None and self._sent == before and self._reached is not None and self._reached >= before

    def request(self, position: Position, out: list[Effect]) -> None:
        """Ask for the neighbour's STATE.

        Args:
            position: The position.
            out: Receives the effects.
        """
        out.append(Send(self.peer, Need(*position)))

    def send(self, position: Position, out: list[Effect]) -> None:
        """Send a kept STATE, unless this session has seen it.

        Args:
            position: The position; nothing happens if it is not kept.
            out: Receives the effects.
        """
        if (self._sent is None or position > self._sent) and position in self.kept:
            self._sent = position
            out.append(Send(self.peer, State(*position), self.kept[position]))

    def place(self, position: Position, payload: Any, out: list[Effect]) -> bool:
        """Keep an own message until the neighbour has saved past it, or wait at the limit.

        Args:
            position: The position.
            payload: The message.
            out: Receives the effects.

        Returns:
            Whether it needs to wait no longer.
        """
        self.full = None
        if position[0] < self.durable:
            return True  # a replay: the neighbour will never ask for it
        size = self.plan.size(position[1])
        if self.amount + size > self.plan.retain:
            self.full = (position, payload)
            if not self._full_said:
                self._full_said = True
                text = (
                    f"iteration {position[0]} waits: what is kept for node {self.peer} has reached nodes.retain, and "
                )
                out.append(Note(f"{text}its last saved iteration is {self.durable}", self.peer))
            self.ask(out)
            return False
        self.kept[position] = payload
        self.amount += size
        self.ask(out)
        return True

    def ask(self, out: list[Effect]) -> None:
        """Ask the neighbour to save, if more than half of the limit is kept and nothing was asked yet.

        Args:
            out: Receives the effects.
        """
        if not self.live or 2 * self.amount <= self.plan.retain:
            return
        if self._asked is not None and self._asked > self.durable:
            return
        self._asked = self.middle()
        out.append(Send(self.peer, Save(self._asked)))

    def middle(self) -> int:
        """Return the iteration in the middle of what is kept; a checkpoint there frees at least one iteration."""
        positions = list(self.kept)
        return max(positions[len(positions) // 2][0], positions[0][0] + 1)

    # What the neighbour sends

    def accept(self, position: Position, payload: Any, out: list[Effect]) -> bool:
        """Take a STATE of the neighbour.

        Args:
            position: The position, which need not exist.
            payload: The message.
            out: Receives the effects.

        Returns:
            Whether it was new.
        """
        new = position == self.expects and len(self.held) < MAX_HELD
        if new:
            self.held[position] = payload
            self.expects = self.plan.after(self.peer, position)
            if position == self.awaits:
                self.awaits = None
        elif not self.plan.exists(self.peer, *position):
            return False
        self.reached(position)
        if self._floor is None or position >= self._floor:
            self.want(position, out)
        return new

    def asked_for(self, position: Position, out: list[Effect]) -> None:
        """Take a NEED of the neighbour.

        Args:
            position: The position, which need not exist.
            out: Receives the effects.
        """
        if self.plan.exists(self.peer, *position):
            self.reached(position)
            self.want(position, out)

    def reached(self, position: Position) -> None:
        """Record that the neighbour has entered a position in this session.

        Args:
            position: The position.
        """
        if self._reached is None or position > self._reached:
            self._reached = position

    def want(self, position: Position, out: list[Effect]) -> None:
        """Record that the neighbour wants a STATE, and send it if it is there.

        Args:
            position: The position.
            out: Receives the effects.
        """
        if self._wanted is None or position > self._wanted:
            self._wanted = position
        self.send(position, out)

    def acknowledged(self, durable: int, out: list[Effect]) -> bool:
        """Release what the neighbour will never ask for again.

        Args:
            durable: The iteration whose start is safe there; one before the last, or past the end, is ignored.
            out: Receives the effects.

        Returns:
            Whether something that waited at the limit waits no longer.
        """
        if self.durable < durable <= self.plan.iterations:
            self.durable = durable
            for position in [position for position in self.kept if position[0] < durable]:
                del self.kept[position]
                self.amount -= self.plan.size(position[1])
        waited = self.full
        if waited is None:
            self.ask(out)
            return False
        if not self.place(*waited, out):
            return False
        if self.live and self._wanted == waited[0]:
            self.send(waited[0], out)
        return True
