"""Many nodes, a network, disks and their faults, in one process and in exact arithmetic.

A `World` holds the processes of a run. Everything that can happen is an action: a method that changes the world by one
small step, such as the delivery of one frame, one move of a worker, or a crash. What drives the world (`schedules`, or
Hypothesis in the tests) decides what happens next. After every action the world checks what must always hold, and
raises `ViolationError` otherwise: models equal those of the plain loop, bounds are kept, at most two STATEs are held.

This module has what happens without faults; `simulated_faults` adds them.
"""

from __future__ import annotations

from collections.abc import Callable

from dspodfl.protocol import exact
from dspodfl.protocol.effects import Close, Deliver, Done, Effect, Send, Store
from dspodfl.protocol.exact import Problem, Vector
from dspodfl.protocol.lockstep_link import MAX_HELD
from dspodfl.protocol.lockstep_node import LockstepNode
from dspodfl.protocol.messages import Hello, Position, State
from dspodfl.protocol.plan import Plan
from dspodfl.protocol.session import FrameCounters, session_id
from dspodfl.protocol.simulated_process import Connection, Frame, Process, ViolationError

TICK = 0.001
"""Seconds that an action takes."""


class World:
    """All processes of a run and the network between them.

    Attributes:
        problem: The learning problem.
        now: The time in seconds.
        processes: One for every node.
        partition: Nodes that cannot reach the others.
        stale: Frames of earlier connections: (sender, receiver, frame).
        log: Receives a line for every action; None: nothing is logged.
        count: Action → how often it was carried out.
    """

    def __init__(
        self,
        problem: Problem,
        plan: Callable[[int], Plan],
        diverges: tuple[int, int] | None = None,
        node_type: type[LockstepNode] = LockstepNode,
        counters_type: type[FrameCounters] = FrameCounters,
        log: list[str] | None = None,
    ) -> None:
        """Create a world whose processes have not started.

        Args:
            problem: The learning problem.
            plan: The plan of every node.
            diverges: The node and the iteration whose model is not finite; None: all are.
            node_type: The state machine.
            counters_type: The counters of frames.
            log: Receives a line for every action.
        """
        self.problem = problem
        self.expected = problem.plain_loop()
        self.firing = [problem.firing(i) for i in range(problem.nodes)]
        self.diverges = diverges
        self.node_type = node_type
        self.counters_type = counters_type
        self.now = 0.0
        self.processes = [Process(plan(i)) for i in range(problem.nodes)]
        self.partition: frozenset[int] = frozenset()
        self.stale: list[tuple[int, int, Frame]] = []
        self.log = log
        self.count: dict[str, int] = {}
        self.opened = 0
        for i in range(problem.nodes):
            self.start(i)

    def say(self, action: str, text: str = "") -> None:
        """Count an action, and log it.

        Args:
            action: Its name.
            text: What it was about.
        """
        self.count[action] = self.count.get(action, 0) + 1
        self.now += TICK
        if self.log is not None:
            self.log.append(f"{len(self.log):5d}  {action} {text}")

    # Processes

    def start(self, i: int, rollback: int = 0) -> None:
        """Start a process from one of its checkpoints.

        Args:
            i: The node.
            rollback: 0 for the last checkpoint, 1 for the one before because the last is damaged, and so on.
        """
        process = self.processes[i]
        if process.node is not None or process.reason in ("finished", "diverged"):
            return
        del process.disk[max(1, len(process.disk) - rollback) :]
        checkpoint = process.disk[-1]
        self.say("start", f"node {i} at {checkpoint.k}")
        process.reason = None
        saved = [stored.k for stored in process.disk]
        process.node = self.node_type(process.plan, checkpoint, saved, self.now)
        self._enter(process, checkpoint.k, checkpoint.value)
        self._apply(process, process.node.start(self.now))

    def crash(self, i: int, finished_writing: bool = False) -> None:
        """Kill a process.

        Args:
            i: The node.
            finished_writing: Whether the checkpoint that is being written reaches the disk all the same.
        """
        process = self.processes[i]
        if process.node is None:
            return
        self.say("crash", f"node {i}")
        if process.writing is not None and finished_writing:
            self._put(process)
        self._exit(process)

    def drain(self, i: int) -> None:
        """Ask a process to leave.

        Args:
            i: The node.
        """
        process = self.processes[i]
        if process.node is not None:
            self.say("drain", f"node {i}")
            self._apply(process, process.node.drain(self.now))

    def work(self, i: int) -> bool:
        """Let the worker of a node make its next move.

        Args:
            i: The node.

        Returns:
            Whether there was one.
        """
        process = self.processes[i]
        node, todo = process.node, process.todo
        if node is None or todo is None or node.end is not None:
            return False
        k = node.k
        process.todo = None
        if todo == "offer":
            self.say("offer", f"node {i}: ({k}, {process.phase})") if self.log is not None else self.say("offer")
            sent = exact.messages(process.model, self.firing[i][k])
            self._apply(process, node.offer(k, process.phase, sent, self.now))
            return True
        self.say("advance", f"node {i}: {k + 1}") if self.log is not None else self.say("advance")
        model = exact.stepped(process.model, i, k)
        if model != self.expected[i][k + 1]:
            raise ViolationError(f"node {i}: the model of iteration {k + 1} is not that of the plain loop")
        if self.diverges == (i, k + 1):
            self._apply(process, node.diverged(k + 1, self.now))
            return True
        self._enter(process, k + 1, model)
        self._apply(process, node.advance(k + 1, model, self.now))
        return True

    def write(self, i: int, fails: bool = False) -> bool:
        """End the writing of a checkpoint.

        Args:
            i: The node.
            fails: Whether the disk is full.

        Returns:
            Whether one was being written.
        """
        process = self.processes[i]
        node, writing = process.node, process.writing
        if node is None or writing is None:
            return False
        self.say("full disk" if fails else "saved", f"node {i}: {writing.k}")
        if fails:
            process.writing = None
            self._apply(process, node.unsaved(writing.k, self.now))
        else:
            self._put(process)
            self._apply(process, node.saved(writing.k, self.now))
        return True

    def timer(self, i: int) -> bool:
        """Call a node's timer, if it is due.

        Args:
            i: The node.

        Returns:
            Whether it was.
        """
        node = self.processes[i].node
        due = None if node is None else node.timer
        if node is None or due is None or due > self.now:
            return False
        self.say("timer", f"node {i}")
        self._apply(self.processes[i], node.on_timer(self.now))
        return True

    # The network

    def connect(self, a: int, b: int) -> bool:
        """Connect two neighbours, if the dialling end (the higher id) knows of no connection.

        Args:
            a: The lower id.
            b: The higher id.

        Returns:
            Whether they were connected.
        """
        low, high = self.processes[a], self.processes[b]
        if low.node is None or high.node is None or a in high.connections:
            return False
        if self.partition and (a in self.partition) != (b in self.partition):
            return False
        self.say("connect", f"{a} - {b}")
        replaced = low.connections.get(b)
        if replaced is not None:
            self._drop(low, b)
        self.opened += 1
        connection = Connection(a, b, self.opened, self.counters_type)
        low.connections[b] = high.connections[a] = connection
        self._apply(low, low.node.opened(b, connection.nonces[a], self.now))
        self._apply(high, high.node.opened(a, connection.nonces[b], self.now))
        if replaced is not None:  # the end of the earlier one is noticed late
            self._apply(low, low.node.closed(b, self.now, replaced.nonces[a]))
        return True

    def deliver(self, sender: int, receiver: int) -> bool:
        """Deliver the next frame of a connection.

        Args:
            sender: One end.
            receiver: The other end, whose connection it is.

        Returns:
            Whether there was one.
        """
        connection = self.processes[receiver].connections.get(sender)
        queue = None if connection is None else connection.toward[receiver]
        if not queue:
            return False
        self.arrive(sender, receiver, queue.popleft())
        return True

    def arrive(self, sender: int, receiver: int, frame: Frame | None) -> None:
        """Let a frame arrive on the connection of a receiver.

        Args:
            sender: The other end.
            receiver: The end at which it arrives, which has a connection.
            frame: The frame; None: the other end has closed.
        """
        process = self.processes[receiver]
        connection = process.connections[sender]
        node = process.node
        assert node is not None
        if frame is None:
            self.say("closed", f"{sender} -> {receiver}")
            self._drop(process, sender)
            self._apply(process, node.closed(sender, self.now))
            return
        session, number, message, payload = frame
        self.say("frame", f"{sender} -> {receiver}: {number} {message}") if self.log is not None else self.say("frame")
        counters = connection.counters[receiver]
        verdict = counters.check(session, number)
        if verdict == "gap":
            self._hang_up(process, sender)
            self._apply(process, node.closed(sender, self.now))
        if verdict != "take":
            return
        if type(message) is Hello:
            counters.agree(session_id(receiver, connection.nonces[receiver], sender, message.nonce))
        self._apply(process, node.received(sender, message, payload, self.now))

    # What follows from effects

    def _apply(self, process: Process, effects: list[Effect]) -> None:
        """Carry out effects, and check what must always hold."""
        for effect in effects:
            if isinstance(effect, Send):
                self._send(process, effect)
            elif isinstance(effect, Deliver):
                process.model = exact.mixed(process.model, process.id, effect.phase, effect.payloads)
                process.phase = effect.phase + 1
                process.todo = "offer" if process.phase < self.problem.phases else "advance"
            elif isinstance(effect, Store):
                if process.writing is not None:
                    raise ViolationError(f"node {process.id} writes two checkpoints at a time")
                process.writing = effect.checkpoint
            elif isinstance(effect, Close):
                self._hang_up(process, effect.peer)
                if effect.refused:
                    raise ViolationError(f"node {process.id} refuses {effect.peer}: {effect.reason}")
            elif isinstance(effect, Done):
                self.say("done", f"node {process.id}: {effect}")
                process.reason = effect.reason
                self._exit(process)
        if process.node is not None:
            self._check(process.node)

    def _send(self, process: Process, effect: Send) -> None:
        connection = process.connections.get(effect.peer)
        if connection is None:
            raise ViolationError(f"node {process.id} sends {effect} without a connection")
        message = effect.message
        if isinstance(message, State):
            self._check_state(process.id, effect.peer, connection, (message.k, message.phase))
        if not connection.silent:
            stamp = connection.counters[process.id].stamp()
            connection.toward[effect.peer].append((*stamp, message, effect.payload))

    def _check(self, node: LockstepNode) -> None:
        for link in node.links.values():
            if link.amount > node.plan.retain or len(link.held) > MAX_HELD:
                raise ViolationError(
                    f"node {node.plan.id} keeps {link.amount} of {node.plan.retain} and holds {len(link.held)} "
                    f"for node {link.peer}"
                )

    def _check_state(self, sender: int, receiver: int, connection: Connection, position: Position) -> None:
        """Check that a STATE is sent once in a session, and that its receiver has room for it whatever comes next."""
        if not connection.first_time(sender, position):
            raise ViolationError(f"node {sender} sends STATE {position} twice in a session")
        process = self.processes[receiver]
        if process.node is None or process.connections.get(sender) is not connection:
            return
        link = process.node.links[sender]
        next_one = link.expects
        if next_one is None or position < next_one:
            return
        coming = [frame[2] for frame in connection.toward[receiver] if frame is not None]
        new = [message for message in coming if isinstance(message, State) and (message.k, message.phase) >= next_one]
        if len(link.held) + len(new) >= MAX_HELD:
            raise ViolationError(f"node {sender} sends STATE {position}, for which node {receiver} may have no room")

    def _enter(self, process: Process, k: int, model: Vector) -> None:
        process.model = model
        process.phase = 0
        if k == self.problem.iterations:
            process.todo = None
        else:
            process.todo = "offer" if self.firing[process.id][k] else "advance"

    def _put(self, process: Process) -> None:
        """Put the checkpoint that is being written on the disk."""
        assert process.writing is not None
        process.disk = [*process.disk, process.writing][-process.plan.keep :]
        process.writing = None

    def _hang_up(self, process: Process, peer: int) -> None:
        """Close one end: what was sent still arrives, then the other end learns."""
        connection = process.connections[peer]
        if not connection.silent:
            connection.toward[peer].append(None)
        self._drop(process, peer)

    def _drop(self, process: Process, peer: int) -> None:
        """Forget a connection at one end; what was under way to it can turn up later."""
        connection = process.connections.pop(peer)
        queue = connection.toward[process.id]
        self.stale += [(peer, process.id, frame) for frame in queue if frame is not None and frame[1]]
        queue.clear()
        del self.stale[:-20]

    def _exit(self, process: Process) -> None:
        for peer in list(process.connections):
            self._hang_up(process, peer)
        process.node = None
        process.writing = None
        process.todo = None
