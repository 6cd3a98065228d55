"""Hypothesis drives the simulated world, and shrinks what it finds."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule

from dspodfl.protocol.schedules import Schedule, Settings

INDEX = st.integers(0, 19)
FLAG = st.booleans()


class Machine(RuleBasedStateMachine):
    """A world in which anything may happen next; at the end the faults stop."""

    @initialize(seed=st.integers(0, 10_000), retain=st.sampled_from([2, 3, 8]))
    def begin(self, seed, retain):
        self.schedule = Schedule(seed, Settings(steps=0, faults=0.0, retain=retain), [])
        self.world = self.schedule.world
        for _ in range(3):
            self.schedule.sweep()

    def pair(self, index):
        return self.schedule.pairs[index % len(self.schedule.pairs)]

    def node(self, index):
        return index % len(self.world.processes)

    @rule(times=st.integers(1, 4))
    def sweep(self, times):
        for _ in range(times):
            self.schedule.sweep()

    @rule(index=INDEX, times=st.integers(1, 4))
    def sweep_without(self, index, times):
        """Everything goes on, except the worker, the disk and the links of one node."""
        still = self.node(index)
        for _ in range(times):
            for i in set(range(len(self.world.processes))) - {still}:
                self.world.work(i)
                self.world.write(i)
            for pair in self.schedule.pairs:
                while still not in pair and self.world.deliver(*pair):
                    pass

    @rule(index=INDEX)
    def deliver(self, index):
        self.world.deliver(*self.pair(index))

    @rule(index=INDEX)
    def work(self, index):
        self.world.work(self.node(index))

    @rule(index=INDEX, fails=FLAG)
    def write(self, index, fails):
        self.world.write(self.node(index), fails)

    @rule(index=INDEX)
    def connect(self, index):
        a, b = sorted(self.pair(index))
        self.world.connect(a, b)

    @rule(index=INDEX, which=INDEX)
    def lose(self, index, which):
        self.world.lose(*self.pair(index), which)

    @rule(index=INDEX, which=INDEX)
    def duplicate(self, index, which):
        self.world.duplicate(*self.pair(index), which)

    @rule(which=INDEX)
    def replay(self, which):
        self.world.replay(which)

    @rule(index=INDEX, silently=FLAG)
    def cut(self, index, silently):
        self.world.cut(*self.pair(index), silently)

    @rule(nodes=st.frozensets(st.integers(0, 4)), silently=FLAG)
    def split(self, nodes, silently):
        self.world.split(nodes, silently)

    @rule(index=INDEX, finished=FLAG, rollback=st.integers(0, 1), restarts=FLAG)
    def crash(self, index, finished, rollback, restarts):
        self.world.crash(self.node(index), finished)
        if restarts:
            self.world.start(self.node(index), rollback)

    @rule(index=INDEX)
    def drain(self, index):
        self.world.drain(self.node(index))

    @rule(seconds=st.sampled_from([0.1, 2.5, 6.0]))
    def wait(self, seconds):
        self.world.now += seconds
        for i in range(len(self.world.processes)):
            self.world.timer(i)

    def teardown(self):
        if hasattr(self, "schedule"):
            self.schedule.settle()


TestMachine = Machine.TestCase
TestMachine.settings = settings(stateful_step_count=40)
