"""Nodes as real processes over mutual TLS, and the plain loop that their models are compared with."""

import contextlib
import functools
import json
import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import torch
from tests.nodes.harness import World

from dspodfl import Config
from dspodfl.config import Nodes, Peer, dumps
from dspodfl.config.nodes import Tls
from dspodfl.nodes import StoredModels, new_keys
from dspodfl.nodes.supervisor import free_ports

ROOT = Path(__file__).parents[2]
SECONDS = float(os.environ.get("FAULT_SECONDS", "240"))
"""How long anything may take on a busy machine."""


def environment():
    paths = os.pathsep.join([str(ROOT / "src"), str(ROOT), *(path for path in sys.path if path)])
    return {**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}


def until(condition, seconds=SECONDS, every=0.01):
    """Wait until something holds; return it."""
    end = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen"
        time.sleep(every)
    return found


class Farm:
    """Starts commands in processes that are forked from one with PyTorch in it."""

    def __init__(self):
        command = [sys.executable, "-m", "tests.nodes.farm"]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self._process = subprocess.Popen(command, **pipes, env=environment(), cwd=ROOT)
        self._buffer, self._count = b"", 0
        self._pids, self._codes = {}, {}

    def start(self, words, stderr, **what):
        """Start ``dspodfl WORDS``; return its number."""
        self._count += 1
        command = {"start": self._count, "words": [str(word) for word in words], "stderr": str(stderr), **what}
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()
        until(lambda: self._listen() or self._count in self._pids)
        return self._count

    def _listen(self):
        out = self._process.stdout.fileno()
        while select.select([out], [], [], 0)[0]:
            more = os.read(out, 65536)
            assert more, "the farm is gone"
            *lines, self._buffer = (self._buffer + more).split(b"\n")
            for line in map(json.loads, lines):
                if "pid" in line:
                    self._pids[line["started"]] = line["pid"]
                else:
                    self._codes[line["exited"]] = line["code"]

    def signal(self, number, which):
        self._listen()
        if number not in self._codes:
            os.kill(self._pids[number], which)

    def code(self, number):
        """The exit code; None while it runs."""
        self._listen()
        return self._codes.get(number)

    def wait(self, number, seconds=SECONDS):
        until(lambda: self.code(number) is not None, seconds)
        return self._codes[number]

    def kill_all(self):
        for number in self._pids:
            with contextlib.suppress(ProcessLookupError):
                self.signal(number, signal.SIGKILL)
        for number in self._pids:
            self.wait(number)

    def close(self):
        self._process.stdin.close()
        self._process.wait(30)
        self._process.stdout.close()


@functools.cache
def _plain(text, number):
    world = World(Config.model_validate_json(text), Path())
    world.number, world.run = number, world.study.runs[number]
    return world.plain()


def plain(config, number=0):
    """The models of the plain loop after every iteration, computed once for every study."""
    return _plain(config.model_copy(update={"nodes": None}).model_dump_json(exclude_unset=True), number)


class Cluster:
    """The nodes of a study, a process each, in folders and with keys of their own.

    Args:
        farm: What starts them.
        folder: Where they are.
        config: The study.
        **nodes: Keys of ``[nodes]``.
    """

    def __init__(self, farm, folder, config, *, peers=None, keys=None, **nodes):
        self.farm, self.folder, self.config = farm, folder, config
        self.clients = config.clients.count
        self.keys = keys or folder / "keys"
        if keys is None:
            new_keys(self.keys, range(self.clients))
        self.ports = free_ports(self.clients)
        self.addresses = [f"127.0.0.1:{port}" for port in self.ports]
        self.numbers, self.starts = {}, dict.fromkeys(range(self.clients), 0)
        self.given = {"run_id": "test", "patience": 2.0, **nodes}

    def write(self, i, *, tls=None, peers=None, changes=None, **nodes):
        """Write the configuration of a node; return the file."""
        peers = peers or [
            Peer(id=j, address=self.addresses[j], certificate=str(self.keys / f"{j}.crt")) for j in range(self.clients)
        ]
        tls = tls or Tls(certificate=str(self.keys / f"{i}.crt"), key=str(self.keys / f"{i}.key"))
        table = Nodes(tls=tls, peer=peers, **{"listen": self.addresses[i], **self.given, **nodes})
        config = Config(**{**self.config.model_dump(exclude_unset=True), **(changes or {}), "nodes": table})
        path = self.folder / f"{i}.toml"
        path.write_text(dumps(config.model_dump(mode="json", exclude_unset=True)))
        return path

    def out(self, i):
        return self.folder / f"node{i}"

    def start(self, i, *words, data=None, config=None, **what):
        """Start node i, or start it again."""
        path = config or self.folder / f"{i}.toml"
        if not path.exists():
            self.write(i)
        more = ["--data", data] if data else []
        given = ["node", path, "--id", i, "--out", self.out(i), *more, *words]
        self.numbers[i] = self.farm.start(given, self.folder / f"{i}.err", **what)
        self.starts[i] += 1

    def start_all(self, **what):
        for i in range(self.clients):
            self.start(i, **what)
        return self

    def signal(self, i, which=signal.SIGKILL):
        self.farm.signal(self.numbers[i], which)

    def kill(self, *nodes):
        for i in nodes:
            self.signal(i)
        for i in nodes:
            self.farm.wait(self.numbers[i])

    def ends(self, seconds=SECONDS):
        """The exit codes of all nodes, when they have ended, or one has failed (the others may wait for it)."""
        codes = lambda: {i: self.farm.code(number) for i, number in self.numbers.items()}  # noqa: E731
        until(lambda: None not in codes().values() or set(codes().values()) - {None, 0, 3}, seconds)
        return codes()

    def stderr(self, i):
        path = self.folder / f"{i}.err"
        return path.read_text() if path.exists() else ""

    def events(self, i, event=None):
        path = self.out(i) / "events.jsonl"
        lines = path.read_text().splitlines() if path.exists() else []
        found = [json.loads(line) for line in lines]
        return [one for one in found if event in (None, one["event"])]

    def reached(self, i, k):
        """Whether node i has written k models of its first run; no node may have failed."""
        for j, number in self.numbers.items():
            assert self.farm.code(number) in (None, 0, -9), self.stderr(j)[-1500:]
        paths = sorted((self.out(i) / "models").glob("*.rows"))
        if not paths or paths[0].stat().st_size < 200:
            return False
        try:
            return len(StoredModels.read(paths[0]).iterations) >= k
        except Exception:  # it is being written
            return False

    def models(self, i, number=0):
        world = World(self.config, self.folder, number)
        header = world.job(i).header()
        stored = StoredModels.read(self.out(i) / "models" / f"{header.name}.rows")
        return {k: torch.from_numpy(stored.at(k).model.copy()) for k in stored.iterations}

    def assert_equal(self, number=0):
        """The models of all nodes after every iteration are those of the plain loop, to the bit."""
        wanted = plain(self.config, number)
        for i in range(self.clients):
            found = self.models(i, number)
            assert sorted(found) == list(range(1, len(wanted) + 1)), i
            for k, theta in enumerate(wanted, start=1):
                assert torch.equal(found[k], theta[i]), (i, k)

    def assert_finished(self):
        codes = self.ends()
        assert codes == dict.fromkeys(range(self.clients), 0), {i: self.stderr(i)[-1500:] for i in codes}
        self.assert_equal()
