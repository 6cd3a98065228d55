"""Random schedules of a simulated run, each a function of its seed, and the verdict on it.

A schedule draws a run (graph, firings, phases, limits), lets random actions and faults happen for a number of steps,
then stops the faults and lets the world go on until every process has ended. Nodes, disks and directions of links are
fast or slow. ``python -m dspodfl.protocol.check`` prints a schedule.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

from dspodfl.protocol.exact import Problem
from dspodfl.protocol.lockstep_node import LockstepNode
from dspodfl.protocol.plan import Plan
from dspodfl.protocol.session import LEAST_PATIENCE, FrameCounters
from dspodfl.protocol.simulated_faults import FaultyWorld
from dspodfl.protocol.simulated_process import ViolationError

LINGER = 100.0
"""Seconds that ended nodes wait for neighbours, plus one for every step: longer than all faults together."""
MAX_ACTIONS = 8_000
"""Actions after the faults stopped, before a run is called stuck."""


@dataclass(frozen=True)
class Settings:
    """What schedules are drawn from.

    Attributes:
        steps: Actions before the faults stop.
        nodes: The number of nodes; None: drawn from 3 to 5.
        retain: The most that is kept for a neighbour, in states; None: drawn from the least possible to 20.
        faults: The share of faults among the actions; None: drawn.
        node_type: The state machine.
        counters_type: The counters of frames.
    """

    steps: int = 250
    nodes: int | None = None
    retain: int | None = None
    faults: float | None = None
    node_type: type[LockstepNode] = LockstepNode
    counters_type: type[FrameCounters] = FrameCounters


@dataclass(frozen=True)
class Verdict:
    """How a schedule went.

    Attributes:
        seed: Its seed.
        violation: What does not hold; None: everything does.
        actions: The number of actions.
        count: Action → how often it was carried out.
        log: The schedule, if it was recorded.
    """

    seed: int
    violation: str | None
    actions: int
    count: dict[str, int]
    log: list[str] = field(default_factory=list)


def check(seed: int, settings: Settings | None = None, record: bool = False) -> Verdict:
    """Run one schedule.

    Args:
        seed: What it is drawn from.
        settings: What it is drawn within.
        record: Whether to record every action.

    Returns:
        The verdict.

    >>> check(4711).violation is None
    True
    """
    log: list[str] | None = [] if record else None
    run = Schedule(seed, settings or Settings(), log)
    violation = None
    try:
        run.disturb()
        run.settle()
    except (ViolationError, ValueError, KeyError, AssertionError) as error:
        violation = f"{type(error).__name__}: {error}" if not isinstance(error, ViolationError) else str(error)
    count = run.world.count
    return Verdict(seed, violation, sum(count.values()), count, log or [])


class Schedule:
    """One run, drawn from a seed.

    Attributes:
        rng: Where everything is drawn from.
        world: The processes and the network.
        faults: The share of faults among the actions.
        kinds: The faults that this schedule has: few kinds reach further than all of them.
    """

    def __init__(self, seed: int, settings: Settings, log: list[str] | None = None) -> None:
        """Draw a run.

        Args:
            seed: What it is drawn from.
            settings: What it is drawn within.
            log: Receives a line for every action.
        """
        self.rng = rng = random.Random(seed)  # noqa: S311 - a schedule is a function of its seed
        self.settings = settings
        problem = draw_problem(rng, settings.nodes or rng.randint(3, 5))
        sizes = (1, 3)[: problem.phases] if seed % 5 == 1 else (1,)
        least = sum(sizes[min(phase, len(sizes) - 1)] for phase in range(problem.phases)) + max(sizes)
        retain = max(least, settings.retain or (least if rng.random() < 0.4 else rng.randint(least, 20)))
        keep = rng.randint(1, 2)
        every = rng.choice([None, None, 1, 2, 5])
        self.faults = settings.faults if settings.faults is not None else rng.choice([0.0, 0.05, 0.15, 0.3])
        self.kinds = rng.sample(range(14), rng.randint(1, 14))
        self.slow = rng.choice([0.0, 0.3, 0.6])
        self.period = rng.choice([10, 25, 60])
        diverges = None
        if rng.random() < 0.1:
            diverges = (rng.randrange(problem.nodes), rng.randint(1, problem.iterations))
        if log is not None:
            log.append(
                f"seed {seed}: {problem.nodes} nodes, links {list(problem.edges)}, {problem.iterations} iterations of "
                f"{problem.phases} phase(s) of sizes {sizes}, retain {retain}, keep {keep}, checkpoints every {every}, "
                f"diverges {diverges}; links that fire: {[list(row) for row in problem.fired]}"
            )

        def plan(i: int) -> Plan:
            return Plan(
                i,
                problem.neighbours(i),
                problem.firing(i).__getitem__,
                problem.iterations,
                phases=problem.phases,
                sizes=sizes,
                retain=retain,
                keep=keep,
                every_iterations=every,
                every_seconds=None,
                linger=LINGER + settings.steps,
            )

        self.world = FaultyWorld(problem, plan, diverges, settings.node_type, settings.counters_type, log)
        self.pairs = [pair for a, b in problem.edges for pair in ((a, b), (b, a))]
        self.draw_speeds()

    def draw_speeds(self) -> None:
        """Draw which workers, disks and directions of links are slow for a while."""
        rng, slow = self.rng.random, self.slow
        nodes = range(len(self.world.processes))
        self.speeds = [0.03 if rng() < slow else 1.0 for _ in nodes]
        self.disks = [0.03 if rng() < slow else 1.0 for _ in nodes]
        self.delays = [0.03 if rng() < slow else 1.0 for _ in self.pairs]

    def disturb(self) -> None:
        """Let random actions and faults happen."""
        random_number = self.rng.random
        steps = self.settings.steps
        last = int(random_number() * 2 * steps)  # the faults may stop earlier: what they left must heal by itself
        for step in range(steps):
            if step % self.period == 0:
                self.draw_speeds()
            if step < last and random_number() < self.faults:
                self.fault()
            else:
                self.act()

    def act(self) -> None:
        """Let something ordinary happen: a frame, a worker's move, a checkpoint written, a connection, a process."""
        world, random_number = self.world, self.rng.random
        for _ in range(40):
            draw = random_number()
            i = int(random_number() * len(world.processes))
            if draw < 0.5:
                pair = int(random_number() * len(self.pairs))
                happened = random_number() < self.delays[pair] and world.deliver(*self.pairs[pair])
            elif draw < 0.75:
                happened = random_number() < self.speeds[i] and world.work(i)
            elif draw < 0.85:
                happened = random_number() < self.disks[i] and world.write(i)
            elif draw < 0.98:
                a, b = self.pairs[2 * int(random_number() * (len(self.pairs) // 2))]
                happened = world.connect(a, b)
            else:
                happened = world.processes[i].node is None and world.processes[i].reason in (None, "draining")
                if happened:
                    self.restart(i)
            if happened:
                return
        world.say("nothing")
        self.wait(LEAST_PATIENCE / 20)

    def wait(self, seconds: float) -> None:
        """Let time pass; sometimes a partition ends.

        Args:
            seconds: How long.
        """
        world = self.world
        if world.partition and self.rng.random() < 0.5:
            world.split(frozenset())
            return
        world.now += seconds
        for i in range(len(world.processes)):
            world.timer(i)

    def restart(self, i: int) -> None:
        """Start a process, sometimes from an earlier checkpoint.

        Args:
            i: The node.
        """
        self.world.start(i, rollback=self.rng.randint(0, 1))

    def fault(self) -> None:
        """Let something go wrong."""
        world, rng = self.world, self.rng
        i = rng.randrange(len(world.processes))
        kind = rng.choice(self.kinds)
        if kind <= 4:
            self.network_fault(kind)
        elif kind == 5:
            cut_off = frozenset(j for j in range(len(world.processes)) if rng.random() < 0.5)
            world.split(frozenset() if world.partition else cut_off, silently=rng.random() < 0.3)
        elif kind == 6:
            world.write(i, fails=True)
        elif kind == 7:
            self.wait(LEAST_PATIENCE)
        elif kind == 8:
            world.drain(i)
        elif kind >= 12:
            self.ambush(roll_back=kind == 12)
        else:
            nodes = rng.choice(self.pairs) if kind == 11 else (i,)
            for j in nodes:
                world.crash(j, finished_writing=rng.random() < 0.5)
            for j in nodes:
                if rng.random() < 0.7:
                    self.restart(j)

    def ambush(self, roll_back: bool) -> None:
        """Disturb the link of which an end holds most, while everything else is fast.

        Args:
            roll_back: Whether the other end is killed and then slow; otherwise the connection is cut, and the HELLOs
                of the next one are slow.
        """
        world = self.world
        holders = [
            (len(link.held), self.rng.random(), process.id, peer)
            for process in world.processes
            if process.node is not None
            for peer, link in process.node.links.items()
        ]
        if not holders:
            return
        _, _, holder, other = max(holders)
        self.speeds, self.disks = [1.0] * len(self.speeds), [1.0] * len(self.disks)
        self.delays = [1.0] * len(self.delays)
        if roll_back:
            world.crash(other)
            self.restart(other)
            self.speeds[other] = 0.03
        else:
            world.cut(holder, other)
            self.delays = [0.03 if holder in pair and other in pair else 1.0 for pair in self.pairs]
        for sender, receiver in self.pairs:
            if other in (sender, receiver):
                world.deliver(sender, receiver)
                world.connect(min(sender, receiver), max(sender, receiver))

    def network_fault(self, kind: int) -> None:
        """Let something go wrong on one connection.

        Args:
            kind: 0: a frame is lost; 1: one is repeated; 2: one of an earlier session arrives; others: a cut.
        """
        world, rng = self.world, self.rng
        busy = [pair for pair in self.pairs if world.under_way(*pair)]
        sender, receiver = rng.choice(busy or self.pairs)
        if kind == 0:
            world.lose(sender, receiver, rng.randrange(4))
        elif kind == 1:
            world.duplicate(sender, receiver, rng.randrange(2))
        elif kind == 2:
            world.replay(rng.randrange(20))
        else:
            world.cut(sender, receiver, silently=rng.random() < 0.3)

    def settle(self) -> None:
        """Stop the faults, let the world go on until all processes have ended, and check how they did.

        Raises:
            ViolationError: A process is stuck, or ended in another way than it should.
        """
        world = self.world
        if world.partition:
            world.split(frozenset())
        before = sum(world.count.values())
        while any(process.reason in (None, "draining") for process in world.processes):
            if not self.sweep():
                due = [process.node.timer for process in world.processes if process.node is not None]
                times = [time for time in due if time is not None]
                if not times:
                    raise ViolationError("stuck: nothing can happen")
                world.now = max(world.now, min(times))
            if sum(world.count.values()) - before > MAX_ACTIONS:
                raise ViolationError(f"stuck: not ended after {MAX_ACTIONS} actions without faults")
        self.verify()

    def sweep(self) -> bool:
        """Let everything happen that can, once.

        Returns:
            Whether anything could.
        """
        world = self.world
        happened = False
        for i, process in enumerate(world.processes):
            if process.node is None and process.reason in (None, "draining"):
                world.start(i)
                happened = True
            happened |= world.work(i)
            happened |= world.write(i)
            happened |= world.timer(i)
        for a, b in world.problem.edges:
            happened |= world.connect(a, b)
        for sender, receiver in self.pairs:
            while world.deliver(sender, receiver):
                happened = True
        return happened

    def verify(self) -> None:
        """Check how the processes ended.

        Raises:
            ViolationError: One ended in another way than it should.
        """
        world = self.world
        for process in world.processes:
            expected = "finished" if world.diverges is None else "diverged"
            if process.reason != expected and not (expected == "diverged" and process.reason == "finished"):
                raise ViolationError(f"node {process.id} ended as {process.reason}, not as {expected}")
            last = process.disk[-1]
            if last.value != world.expected[process.id][last.k]:
                raise ViolationError(f"node {process.id}: its last checkpoint is wrong")
            if expected == "finished" and (last.k != world.problem.iterations or any(last.kept.values())):
                raise ViolationError(f"node {process.id} ended at {last.k} and keeps {last.kept}")


def draw_problem(rng: random.Random, nodes: int) -> Problem:
    """Draw a connected graph and the links that fire.

    Args:
        rng: Where it is drawn from.
        nodes: The number of nodes.

    Returns:
        The problem.
    """
    edges = {(rng.randrange(j), j) for j in range(1, nodes)}
    extra = rng.choice([0.0, 0.3, 0.8])
    edges |= {(a, b) for b in range(nodes) for a in range(b) if rng.random() < extra}
    ordered = tuple(sorted(edges))
    rate = rng.choice([0.3, 0.6, 1.0])
    iterations = rng.randint(4, 12)
    fired = tuple(tuple(e for e in range(len(ordered)) if rng.random() < rate) for _ in range(iterations))
    return Problem(nodes, ordered, fired, rng.randint(1, 2))
