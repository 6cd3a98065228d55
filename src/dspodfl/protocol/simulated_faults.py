"""The faults of a simulated network: frames lost, repeated, overtaken or stale; connections cut; partitions.

Crashes, rollbacks, slow and failing disks are actions of `simulated_world`.
"""

from __future__ import annotations

from dspodfl.protocol.simulated_world import World


class FaultyWorld(World):
    """A world in which things go wrong; every method is one fault."""

    def under_way(self, sender: int, receiver: int) -> int:
        """Return how many frames are under way.

        Args:
            sender: One end.
            receiver: The other end.

        Returns:
            The number.
        """
        connection = self.processes[receiver].connections.get(sender)
        return 0 if connection is None else len(connection.toward[receiver])

    def lose(self, sender: int, receiver: int, index: int) -> bool:
        """Lose a frame that is under way.

        Args:
            sender: One end.
            receiver: The other end.
            index: Which one.

        Returns:
            Whether there was one.
        """
        connection = self.processes[receiver].connections.get(sender)
        queue = None if connection is None else connection.toward[receiver]
        if not queue or queue[index % len(queue)] is None:
            return False
        self.say("lose", f"{sender} -> {receiver}: {index % len(queue)}")
        del queue[index % len(queue)]
        return True

    def duplicate(self, sender: int, receiver: int, index: int) -> bool:
        """Let a frame that is under way arrive a second time, now; the first one arrives in its turn.

        Args:
            sender: One end.
            receiver: The other end.
            index: Which one; 0 repeats, a later one overtakes those before it, which looks like a gap.

        Returns:
            Whether there was one.
        """
        connection = self.processes[receiver].connections.get(sender)
        queue = None if connection is None else connection.toward[receiver]
        frame = queue[index % len(queue)] if queue else None
        if frame is None:
            return False
        self.say("duplicate", f"{sender} -> {receiver}")
        self.arrive(sender, receiver, frame)
        return True

    def replay(self, index: int) -> bool:
        """Let a frame of an earlier connection arrive on the current one.

        Args:
            index: Which one.

        Returns:
            Whether there was one, and a connection for it.
        """
        if not self.stale:
            return False
        sender, receiver, frame = self.stale[index % len(self.stale)]
        connection = self.processes[receiver].connections.get(sender)
        if connection is None or connection.counters[receiver].session is None:
            return False
        self.say("stale", f"{sender} -> {receiver}")
        self.arrive(sender, receiver, frame)
        return True

    def cut(self, a: int, b: int, silently: bool = False) -> bool:
        """Cut a connection.

        Args:
            a: One end.
            b: The other end.
            silently: Whether the ends learn nothing.

        Returns:
            Whether there was one.
        """
        connection = self.processes[a].connections.get(b)
        if connection is None or connection.silent or self.processes[b].connections.get(a) is not connection:
            return False
        self.say("cut", f"{a} - {b}{' silently' if silently else ''}")
        for sender, receiver in ((a, b), (b, a)):
            queue = connection.toward[receiver]
            self.stale += [(sender, receiver, frame) for frame in queue if frame is not None and frame[1]]
            queue.clear()
            if not silently:
                queue.append(None)
        del self.stale[:-20]
        connection.silent = True
        return True

    def split(self, nodes: frozenset[int], silently: bool = False) -> None:
        """Cut a set of nodes off the others, until the next call.

        Args:
            nodes: The nodes; none: the network is whole again.
            silently: Whether the ends of cut connections learn nothing.
        """
        self.say("partition", f"{sorted(nodes)}")
        self.partition = nodes
        for a, b in self.problem.edges:
            if (a in nodes) != (b in nodes):
                self.cut(a, b, silently)
