"""The process from which ``dspodfl up`` forks its nodes: PyTorch is imported and the study built once for all of them.

It reads commands from standard input, a JSON object a line, and writes events to standard output, one a line:

| command | meaning |
|---|---|
| ``{"start": 3}`` | start node 3 |
| ``{"drain": true}`` | all nodes save a checkpoint and leave |
| ``{"kill": true}`` | all nodes are killed |

Events: ``{"ready": …}``, ``{"failed": …, "code": …}``, ``{"exited": 3, "code": 0}``, and those of nodes. It ends with
its standard input. The nodes end with it.
"""

from __future__ import annotations

import ctypes
import gc
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

_LONGEST_LINE = 3500
"""Characters of an event; shorter than what a pipe takes in one piece."""

_LEAVE_SECONDS = 20.0
"""How long nodes may take to save a checkpoint when the supervisor is gone."""


def emit(event: dict[str, Any]) -> None:
    """Write an event, so that lines of several processes do not mix; where nobody reads, it is dropped."""
    line = json.dumps(event)
    if len(line) > _LONGEST_LINE:
        line = json.dumps({key: str(value)[:500] for key, value in event.items()})
    with suppress(OSError):  # the supervisor is gone: standard input says so, and all nodes are told to leave
        os.write(1, line.encode() + b"\n")


def main() -> None:
    """Build the study, then obey commands until the standard input ends."""
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # the supervisor says when to stop
    try:
        _import()
        line = sys.stdin.buffer.readline()
        if not line:  # what was given to the supervisor cannot be used
            return
        request = json.loads(line)
        errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        os.dup2(errors, 2)
        os.close(errors)
        start = _prepared(request)
    except BaseException as error:  # the supervisor reports it
        emit({"failed": str(error) or type(error).__name__, "code": getattr(error, "exit_code", 1)})
        return
    _Nursery(start).run()


def _import() -> None:
    """Import what nodes need, while the supervisor does what is to be done before there is a request."""
    from dspodfl.config import load  # noqa: F401
    from dspodfl.nodes.process import Node  # noqa: F401
    from dspodfl.study import build  # noqa: F401


def _prepared(request: dict[str, Any]) -> Callable[[int], int]:
    """Return what runs a node and returns its exit code."""
    import torch

    from dspodfl.config import load
    from dspodfl.errors import user_code
    from dspodfl.nodes.job import Job, check_study
    from dspodfl.nodes.process import Node, NodeOptions, restricted
    from dspodfl.study import build

    torch.set_num_threads(1)
    config_file = Path(request["config"])
    user_code.search(*(Path(folder) for folder in request["search"]))
    config, study = build(load(config_file))
    check_study(config, study)
    out = Path(request["out"])

    def start(id: int) -> int:
        assert config.nodes is not None
        peer = next(peer for peer in config.nodes.peer if peer.id == id)
        keys = Path(request["keys"])
        tls = config.nodes.tls.model_copy(
            update={"certificate": str(keys / f"{id}.crt"), "key": str(keys / f"{id}.key"), "ca": None}
        )
        nodes = config.nodes.model_copy(update={"tls": tls, "listen": peer.address})
        mine = config.model_copy(update={"nodes": nodes})
        say: Callable[[str], None] = lambda text: emit({"node": id, "say": text})  # noqa: E731
        options = NodeOptions(id, out / str(id), status=emit, say=say, wait=_LEAVE_SECONDS + 5)
        return Node(mine, restricted(mine, study, id), options).run()

    _warm_up(Job(config, restricted(config, study, 0), 0, 0))
    gc.freeze()  # what is shared stays shared: the collector does not write to it
    return start


def _warm_up(job: Any) -> None:
    """Do in this process what every node would do first: import, compile, and allocate."""
    from dspodfl.engine import packed

    state, client = job.begin(), job.client
    job.plan()
    for k in range(min(2, job.iterations)):
        echo = lambda phase, sent: {peer: client.unpacked(phase, packed(sent[peer])) for peer in sent}  # noqa: E731
        state = client.step(state, k, echo)
    if job.iterations:
        client.gradient(state.theta, *client.events.at(0))


class _Nursery:
    """Starts nodes, and says when they end."""

    def __init__(self, start: Callable[[int], int]) -> None:
        self._start, self._running = start, dict[int, int]()  # pid -> node

    def run(self) -> None:
        read, write = os.pipe()
        for end in (read, write):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, lambda *_: self._all(signal.SIGTERM))
        emit({"ready": os.getpid()})
        buffer = b""
        while True:
            ready, _, _ = select.select([0, read], [], [])
            if read in ready:
                os.read(read, 4096)
                self._reap()
            if 0 in ready:
                more = os.read(0, 65536)
                if not more:
                    break
                *lines, buffer = (buffer + more).split(b"\n")
                for line in lines:
                    self._obey(json.loads(line))
        self._end()

    def _end(self) -> None:
        """Tell all nodes to leave, and kill those that do not."""
        self._all(signal.SIGTERM)
        end = time.monotonic() + _LEAVE_SECONDS
        while self._running and time.monotonic() < end:
            self._reap()
            time.sleep(0.02)
        self._all(signal.SIGKILL)

    def _obey(self, command: dict[str, Any]) -> None:
        if "start" in command:
            self._fork(int(command["start"]))
        elif "drain" in command:
            self._all(signal.SIGTERM)
        elif "kill" in command:
            self._all(signal.SIGKILL)

    def _fork(self, id: int) -> None:
        pid = os.fork()
        if pid:
            self._running[pid] = id
            emit({"node": id, "pid": pid})
            return
        code = 1
        try:
            _become_node()
            code = self._start(id)
        except BaseException as error:  # the supervisor reports it
            code = int(getattr(error, "exit_code", 1))
            emit({"node": id, "error": f"{type(error).__name__}: {error}" if code == 1 else str(error)})
            if os.environ.get("DSPODFL_TRACEBACK") == "1":
                import traceback

                traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)

    def _reap(self) -> None:
        while self._running:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if pid in self._running:
                emit({"exited": self._running.pop(pid), "code": os.waitstatus_to_exitcode(status)})

    def _all(self, number: int) -> None:
        for pid in self._running:
            os.kill(pid, number)


def _become_node() -> None:
    """Forget what belongs to the parent, and end with it."""
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)


if __name__ == "__main__":
    main()
