"""Nodes that lack one rule each; the simulator must notice."""

from dspodfl.protocol.effects import Checkpoint, Send, Store
from dspodfl.protocol.lockstep_link import LockstepLink
from dspodfl.protocol.lockstep_node import LockstepNode
from dspodfl.protocol.messages import VERSION, Hello
from dspodfl.protocol.session import FrameCounters

MUTANTS: dict[str, dict] = {}
"""Name of the rule that is missing → settings of the schedules."""


def link_without(rule):
    """Register a mutant of the link."""

    def register(link):
        MUTANTS[rule] = {"node_type": type("Node", (LockstepNode,), {"link_type": link})}
        return link

    return register


def node_without(rule):
    """Register a mutant of the node."""

    def register(node):
        MUTANTS[rule] = {"node_type": node}
        return node

    return register


def counters_without(rule):
    """Register a mutant of the counters of frames."""

    def register(counters):
        MUTANTS[rule] = {"counters_type": counters}
        return counters

    return register


# Held, and the order of STATEs


@node_without("a firing is never skipped")
class Skips(LockstepNode):
    def _complete(self, out):
        if self._offered and len(self._missing) == 1:
            peer = next(iter(self._missing))
            self.links[peer].held.setdefault((self.k, self.phase), (0, 0))
            self._missing.clear()
        super()._complete(out)


@link_without("what is received twice is dropped")
class TakesTwice(LockstepLink):
    def accept(self, position, payload, out):
        new = super().accept(position, payload, out)
        self.held.setdefault(position, payload)
        return new


@link_without("HELLO says what is needed")
class SilentHello(LockstepLink):
    def connect(self, nonce, durable, now, out):
        super().connect(nonce, durable, now, out)
        hello = out.pop().message
        out.append(
            Send(self.peer, Hello(VERSION, hello.id, "", nonce, hello.config, hello.schema, None, hello.durable))
        )


@link_without("HELLO needs nothing when two are held")
class Greedy(LockstepLink):
    def connect(self, nonce, durable, now, out):
        super().connect(nonce, durable, now, out)
        hello = out.pop().message
        need = self._told_need = self.expects
        out.append(
            Send(self.peer, Hello(VERSION, hello.id, "", nonce, hello.config, hello.schema, need, hello.durable))
        )


# When a STATE is sent


@link_without("a STATE is sent once in a session")
class Repeats(LockstepLink):
    def send(self, position, out):
        self._sent = None
        super().send(position, out)


@link_without("a STATE is sent when it is wanted")
class Pushes(LockstepLink):
    def goes_ahead(self, before):
        return True


@link_without("sending ahead needs a sign of progress")
class NoSign(LockstepLink):
    def goes_ahead(self, before):
        return before is not None and self._sent == before


@link_without("HELLO's need is no sign of progress")
class TrustsNeed(LockstepLink):
    def greet(self, hello, durable, out):
        if hello.need is not None:
            self.reached(hello.need)
        super().greet(hello, durable, out)


@link_without("the need of HELLO is answered")
class IgnoresNeedOfHello(LockstepLink):
    def greet(self, hello, durable, out):
        changed = Hello(VERSION, hello.id, "", hello.nonce, hello.config, hello.schema, None, hello.durable)
        super().greet(changed, durable, out)


@link_without("NEED is sent")
class NeverAsks(LockstepLink):
    def request(self, position, out):
        pass


@link_without("NEED is answered")
class IgnoresNeed(LockstepLink):
    def asked_for(self, position, out):
        pass


@link_without("a STATE is a wish for one")
class IgnoresStates(LockstepLink):
    def accept(self, position, payload, out):
        kept, self.kept = self.kept, {}
        wanted = self._wanted
        new = super().accept(position, payload, out)
        self.kept, self._wanted = kept, wanted
        return new


# What is kept


@link_without("what is sent is kept until it is durable")
class ForgetsSent(LockstepLink):
    def send(self, position, out):
        super().send(position, out)
        if position in self.kept and self._sent == position:
            del self.kept[position]
            self.amount -= self.plan.size(position[1])


@link_without("what is kept outlives connections")
class ForgetsAtCut(LockstepLink):
    def disconnect(self, now):
        super().disconnect(now)
        if self._entered is not None:
            self.kept.clear()
            self.amount = 0


@node_without("what is kept is part of the checkpoint")
class ForgetsAtCrash(LockstepNode):
    def _store(self, now, out):
        super()._store(now, out)
        full = out.pop().checkpoint
        self._storing = Checkpoint(full.k, full.value, {}, full.durable, full.end)
        out.append(Store(self._storing))


@link_without("what is kept is bounded")
class Unbounded(LockstepLink):
    def place(self, position, payload, out):
        retain = self.plan.retain
        object.__setattr__(self.plan, "retain", 10**9)
        placed = super().place(position, payload, out)
        object.__setattr__(self.plan, "retain", retain)
        self.ask(out)
        return placed


@link_without("a replay keeps nothing that is durable at the receiver")
class KeepsAll(LockstepLink):
    def place(self, position, payload, out):
        durable, self.durable = self.durable, 0
        placed = super().place(position, payload, out)
        self.durable = durable
        return placed


# SAVE


@link_without("SAVE is asked")
class NeverSave(LockstepLink):
    def ask(self, out):
        pass


@link_without("SAVE is asked again at every HELLO")
class AsksOnce(LockstepLink):
    def disconnect(self, now):
        asked = getattr(self, "_asked", None)
        super().disconnect(now)
        self._asked = asked


@link_without("SAVE is asked for the middle: first")
class AsksFirst(LockstepLink):
    def middle(self):
        return next(iter(self.kept))[0]


@link_without("SAVE is asked for the middle: beyond")
class AsksBeyond(LockstepLink):
    def middle(self):
        return min(list(self.kept)[-1][0] + 2, self.plan.iterations)


@node_without("SAVE has a k")
class SavesNow(LockstepNode):
    def _asked_to_save(self, link, k, now, out):
        self._save_asked = True
        self._settle(now, out)


@node_without("SAVE is carried out immediately")
class SavesAfter(LockstepNode):
    def _wants_checkpoint(self):
        planned = self._next_save
        if self.phase or self._offered:
            self._next_save = None
        wants = super()._wants_checkpoint()
        self._next_save = planned
        return wants


@node_without("SAVE of a later iteration is remembered")
class ForgetsSave(LockstepNode):
    def _asked_to_save(self, link, k, now, out):
        if k <= self.k:
            super()._asked_to_save(link, k, now, out)


# ACK


@node_without("only what is stored is confirmed")
class AcksEarly(LockstepNode):
    def _store(self, now, out):
        super()._store(now, out)
        for link in self.links.values():
            link.confirm(self.k, out)


@node_without("the oldest checkpoint is confirmed")
class AcksNewest(LockstepNode):
    def saved(self, k, now):
        out = super().saved(k, now)
        if not self.done:
            self.durable = k
            for link in self.links.values():
                link.confirm(k, out)
        return out


@node_without("ACK is sent")
class NeverAcks(LockstepNode):
    def saved(self, k, now):
        return [effect for effect in super().saved(k, now) if "Ack" not in repr(effect)]


@link_without("what became durable between the HELLOs is confirmed")
class ForgetsAck(LockstepLink):
    def greet(self, hello, durable, out):
        self._told_durable = durable
        super().greet(hello, durable, out)


# The end


@node_without("a node at K serves its neighbours")
class LeavesEarly(LockstepNode):
    def _settle(self, now, out):
        if self.end is None and self.k == self.durable == self.plan.iterations:
            self._finish("finished", self.k, now)
        return super()._settle(now, out)


@node_without("the end is stored before BYE")
class ByeBeforeStore(LockstepNode):
    @property
    def _settled(self):
        return self.end is not None


@node_without("a node waits for its neighbours' BYE")
class NoFarewell(LockstepNode):
    def _part(self, now, out):
        for link in self.links.values():
            link.farewell = True
        super()._part(now, out)


@node_without("a divergence is passed on")
class KeepsDivergence(LockstepNode):
    def _say_bye(self, link, out):
        if self.end[0] != "diverged":
            super()._say_bye(link, out)


# Sessions


@counters_without("a gap closes the connection")
class NoGaps(FrameCounters):
    __slots__ = ()

    def check(self, session, number):
        verdict = super().check(session, number)
        if verdict == "gap":
            self._received = number + 1
            return "take"
        return verdict


@counters_without("frames of other sessions and repeated ones are dropped")
class NoSessions(FrameCounters):
    __slots__ = ()

    def check(self, session, number):
        verdict = super().check(session, number)
        return "take" if verdict == "drop" and number else verdict


@node_without("no progress closes the connection")
class NoPatience(LockstepNode):
    @property
    def timer(self):
        return None
