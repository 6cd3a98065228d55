"""A small TCP relay in front of a node, which cuts, delays and throttles what goes through it."""

import contextlib
import random
import select
import socket
import threading
import time


class Relay:
    """Forwards connections to an address of this machine.

    Args:
        port: Where they are forwarded to.
        delay: Seconds that bytes are late, in each direction.
        rate: Bytes a second in each direction; None: as fast as it goes.
    """

    def __init__(self, port, delay=0.0, rate=None):
        self._target, self.delay, self.rate = ("127.0.0.1", port), delay, rate
        self._server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._server.getsockname()[1]}"
        self._open, self._down = set(), False
        self.cuts = self.forwarded = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                near, _ = self._server.accept()
                if self._down:
                    near.close()
                    continue
                try:
                    far = socket.create_connection(self._target)
                except OSError:
                    near.close()
                    continue
                self._open.add((near, far))
                threading.Thread(target=self._carry, args=(near, far), daemon=True).start()

    def _carry(self, near, far):
        late = []
        try:
            while True:
                wait = max(0.0, late[0][0] - time.monotonic()) if late else None
                for sock in select.select([near, far], [], [], wait)[0]:
                    data = sock.recv(65536 if self.rate is None else max(1, min(65536, int(self.rate * 0.02))))
                    late.append((time.monotonic() + self.delay, far if sock is near else near, data))
                    if self.rate is not None:
                        time.sleep(len(data) / self.rate)
                while late and late[0][0] <= time.monotonic():
                    _, to, data = late.pop(0)
                    if not data:
                        return
                    to.sendall(data)
                    self.forwarded += len(data)
        except OSError:
            pass
        finally:
            self._open.discard((near, far))
            for sock in (near, far):
                sock.close()

    def cut(self):
        """Reset all connections, wherever they are in a frame."""
        for near, far in list(self._open):
            self.cuts += 1
            for sock in (near, far):
                with contextlib.suppress(OSError):
                    sock.shutdown(socket.SHUT_RDWR)

    def part(self, seconds):
        """Cut all connections and accept no others for a while."""
        self._down = True
        self.cut()
        time.sleep(seconds)
        self._down = False

    def cut_at_random(self, stop, mean, seed):
        """Cut again and again until an event is set, in a thread."""
        chance = random.Random(seed)

        def work():
            while not stop.wait(chance.expovariate(1 / mean)):
                self.cut()

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        return thread

    def close(self):
        self._server.close()
        self.cut()
