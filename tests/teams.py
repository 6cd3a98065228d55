"""Teams of threads: what processes do to each other, in one process, for tests of what needs no process."""

import threading

import torch


class Threads:
    """One of several threads that run a study together."""

    ahead = False

    def __init__(self, rank, ranks, board):
        self.rank, self.ranks, self.near, self.sent, self._board, self._turn = rank, ranks, ranks, 0, board, 0

    def _swap(self, item):
        """What every rank brought to this turn."""
        self._turn += 1
        with self._board["lock"]:
            self._board.setdefault(self._turn, {})[self.rank] = item
            self._board["lock"].notify_all()
            here = self._board[self._turn]
            self._board["lock"].wait_for(lambda: len(here) == self.ranks or "lost" in self._board, timeout=30)
        assert len(here) == self.ranks, "the other ranks did not come"
        return [self._board[self._turn][rank] for rank in range(self.ranks)]

    def start(self, send, receive):
        self.sent += sum(item.nbytes for item in send if item is not None)
        copies = [None if item is None else item.clone() for item in send]
        if any(item is not None and item.is_cuda for item in send):
            torch.cuda.current_stream().synchronize()  # the others read on streams of their own

        def wait():
            for rank, brought in enumerate(self._swap(copies)):
                item, room = brought[self.rank], receive[rank]
                assert (item is None) == (room is None), "one expects what the other does not send"
                if room is not None:
                    assert item.shape == room.shape
                    room.copy_(item)

        return wait

    def total(self, values):
        return sum(self._swap(values.clone()))

    def collect(self, values, sizes):
        found = self._swap(values.clone())
        assert [len(part) for part in found] == list(sizes)
        return found

    def gather(self, item):
        found = self._swap(item)
        return found if self.rank == 0 else None

    def share(self, item):
        return self._swap(item)[0]

    def any(self, flag):
        return any(self._swap(flag))

    def barrier(self):
        self._swap(None)

    def patience(self, timeout):
        pass

    def leave(self):
        pass


def together(ranks, work):
    """What ``work(team)`` gives on each rank."""
    board, found, lost = {"lock": threading.Condition()}, [None] * ranks, []

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
