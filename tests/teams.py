"""A `Transport` between threads: ranks of one process, for tests of what needs no process.

Tensors behave as they do over gloo: what one rank sends another comes in the order in which it was sent and is taken in
the order in which it was expected, whatever it was meant for; receives may be posted ahead; a tensor on its way is read
where it is until it was waited for. Objects are pickled on their way, so that no rank sees another one's.
"""

import pickle
import threading
from collections import defaultdict

import torch


class Threads:
    """One of several threads that run a study together."""

    prepost_receives = True

    def __init__(self, rank, ranks, board):
        self.rank, self.ranks, self.local_ranks, self.sent = rank, ranks, ranks, 0
        self._board, self._turn, self._timeout = board, 0, 30
        self._bells = 0
        self._expected = defaultdict(int)  # tensors asked for so far, by the rank that is to send them

    def _swap(self, item):
        """What every rank brought to this turn."""
        self._turn += 1
        with self._board["lock"]:
            self._board.setdefault(self._turn, {})[self.rank] = item
            self._board["lock"].notify_all()
            here = self._board[self._turn]
            self._board["lock"].wait_for(
                lambda: len(here) == self.ranks or "lost" in self._board, timeout=self._timeout
            )
        assert len(here) == self.ranks, "the other ranks did not come"
        return [self._board[self._turn][rank] for rank in range(self.ranks)]

    def start(self, send, receive):
        self.sent += sum(item.nbytes for item in send if item is not None)
        if any(item is not None and item.is_cuda for item in send):
            torch.cuda.current_stream().synchronize()  # the others read on streams of their own
        lock, links, mine, expected = self._board["lock"], self._board["links"], [], []
        with lock:
            for other in range(self.ranks):
                if send[other] is not None:
                    mine.append(letter := {"values": send[other], "taken": False})
                    links[self.rank, other].append(letter)
                if receive[other] is not None:
                    expected.append((other, self._expected[other], receive[other]))
                    self._expected[other] += 1
            lock.notify_all()

        def wait():
            for other, number, room in expected:
                with lock:
                    came = links[other, self.rank]
                    lock.wait_for(lambda n=number, c=came: len(c) > n or "lost" in self._board, timeout=self._timeout)
                    assert len(came) > number, f"rank {self.rank} waits for what rank {other} does not send"
                    letter, came[number] = came[number], None
                    assert letter["values"].shape == room.shape, "one expects what the other does not send"
                    room.copy_(letter["values"])
                    if room.is_cuda:
                        torch.cuda.current_stream().synchronize()
                    letter["taken"] = True
            with lock:
                for letter in mine:
                    if not letter["taken"]:  # from now on the sender may write into it again
                        letter["values"] = letter["values"].clone()
                        if letter["values"].is_cuda:  # the others read it on streams of their own
                            torch.cuda.current_stream().synchronize()

        return wait

    def all_reduce_sum(self, values):
        return sum(self._swap(values.clone()))

    def all_gather(self, values, sizes):
        found = self._swap(values.clone())
        assert [len(part) for part in found] == list(sizes)
        return [part.clone() for part in found]

    def gather(self, item):
        found = self._swap(pickle.dumps(item))
        return [pickle.loads(data) for data in found] if self.rank == 0 else None

    def broadcast(self, item):
        found = self._swap(pickle.dumps(item if self.rank == 0 else None))[0]
        return item if self.rank == 0 else pickle.loads(found)

    def any(self, flag):
        return any(self._swap(flag))

    def bell(self):
        self._bells += 1
        return Bell(self._board, f"bell {self._bells}")

    def barrier(self):
        self._swap(None)

    def set_timeout(self, timeout):
        if timeout != self._timeout:  # a new process group, which all ranks make together
            self._timeout = timeout
            self._swap(None)

    def leave(self):
        self.barrier()


class Bell:
    """An entry of the board that all threads see."""

    def __init__(self, board, key):
        self._board, self._key = board, key

    def ring(self):
        self._board[self._key] = True

    def rung(self):
        return self._key in self._board


def together(ranks, work):
    """What ``work(team)`` gives on each rank."""
    board, found, lost = {"lock": threading.Condition(), "links": defaultdict(list)}, [None] * ranks, []

    def run(rank):
        try:
            found[rank] = work(Threads(rank, ranks, board))
        except BaseException as error:
            lost.append(error)
            with board["lock"]:
                board["lost"] = True
                board["lock"].notify_all()

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    if lost:
        raise lost[0]
    return found


def place(packed, shards):
    """Rows of all shards in the order of the stack. Shapes: ranks × (owned, width) -> (clients, width)."""
    out = torch.empty((shards[0].stack.clients, packed[0].shape[1]), dtype=packed[0].dtype)
    for part, shard in zip(packed, shards, strict=True):
        out[torch.from_numpy(shard.own)] = part.cpu()
    return out
