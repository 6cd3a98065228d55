"""``dspodfl up``: all nodes of a study as processes of this machine, and at the end the folder of ``dspodfl run``."""

from __future__ import annotations

import json
import os
import secrets
import selectors
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dspodfl.config import Config, Nodes, Peer, dumps
from dspodfl.errors import DataError, DspodflError, InputError, Interrupt, Interrupted, bounded, user_code
from dspodfl.nodes.collection import Collection, collect
from dspodfl.nodes.folder_lock import locked
from dspodfl.nodes.job import check_study
from dspodfl.nodes.keys import new_keys
from dspodfl.nodes.node_folder import first_difference
from dspodfl.nodes.process import DIVERGED
from dspodfl.study import build
from dspodfl.study.store import write

NODES, KEYS, CONFIG, UP = "nodes", "keys", "config.toml", "up.json"
"""In the folder of a study: the folder of its nodes; in that: their keys, the configuration, how long they trained."""
_READ = 1 << 16
_RESTART_SECONDS = 0.2


class NodesError(DspodflError):
    """Nodes could not go on; the message says which, and why."""

    exit_code = 1


@dataclass
class NodeView:
    """What is known of a node.

    Attributes:
        id: The node.
        state: starting, training, finished, diverged, lost or stopped.
        status: What it said of itself last.
        restarts: How often it was started again.
        pid: Its process.
    """

    id: int
    state: str = "starting"
    status: dict[str, Any] = field(default_factory=dict)
    restarts: int = 0
    pid: int | None = None

    @property
    def ended(self) -> bool:
        """Whether it need not be started again."""
        return self.state in ("finished", "diverged", "stopped")


OnChange = Callable[[Sequence[NodeView]], None]
Say = Callable[[str], None]


def supervised(
    nursery: subprocess.Popen[bytes],
    config: Config,
    out: Path,
    *,
    max_restarts: int = 10,
    overwrite: bool = False,
    on_change: OnChange | None = None,
    say: Say | None = None,
) -> Collection:
    """Run all nodes of a study; see `dspodfl.nodes.up`, which starts the process that nodes are forked from."""
    resolved, study = build(config)
    check_study(resolved, study)
    clients = study.settings[0].rates.graph.clients
    del study
    tell = say or (lambda line: None)
    place = _Place.made(resolved, out, clients, overwrite)
    with locked(place.folder, "--out"):
        began = time.monotonic()
        if place.ready(resolved, clients):
            with Interrupt() as interrupt:
                _Team(nursery, place, clients, max_restarts, on_change or (lambda nodes: None), tell).run(interrupt)
        else:
            tell(f"{place.folder}: all nodes have finished; nothing is trained")
        seconds = place.spent(time.monotonic() - began)
        return collect([place.folder / str(id) for id in range(clients)], out, seconds=seconds, overwrite=True)


@dataclass(frozen=True)
class _Place:
    """The folder of nodes of a study."""

    folder: Path

    @staticmethod
    def made(config: Config, out: Path, clients: int, overwrite: bool) -> _Place:
        """Make the folder with keys and addresses, or take the one that is there."""
        folder = out / NODES
        if overwrite and folder.exists():
            with locked(folder, "--out"):
                shutil.rmtree(folder)
        if (folder / UP).exists():
            return _Place(folder)
        if out.exists() and any(out.iterdir()) and not overwrite:
            raise InputError("--out", str(out), "an empty folder, or that of the same study (or use --overwrite)")
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        try:
            folder.mkdir(parents=True, exist_ok=True)
            new_keys(folder / KEYS, range(clients))
            write(folder / CONFIG, _written(_with_nodes(config, folder, clients)))
            write(folder / UP, json.dumps({"kind": "up", "format": 1, "seconds": 0.0}).encode())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            for path in made[1:]:
                path.rmdir()
            raise
        return _Place(folder)

    def ready(self, config: Config, clients: int) -> bool:
        """Refuse another study, and give the nodes addresses that are free now; False: they have all finished."""
        before = bounded.parse_toml(bounded.read_text(self.folder / CONFIG, bounded.TOML))
        now = bounded.parse_toml(dumps(config.model_dump(mode="json")))
        for tables in (before, now):
            tables.pop("nodes", None)
            tables.pop("checkpoint", None)
        key = first_difference(now, before)
        if key is not None:
            allowed = f"the folder of the same study: {key} differs (or use --overwrite)"
            raise InputError("--out", str(self.folder.parent), allowed)
        previous = Config(**bounded.parse_toml(bounded.read_text(self.folder / CONFIG, bounded.TOML)))
        run_id = previous.nodes.run_id if previous.nodes else None
        changed = _with_nodes(config, self.folder, clients, run_id)
        if self._about().get("finished") is True:
            return False
        write(self.folder / CONFIG, _written(changed))
        return True

    def spent(self, seconds: float) -> float:
        """Add to the time that the nodes have trained, now that all have finished; return all of it."""
        about = self._about()
        total = float(about.get("seconds", 0.0)) + (0.0 if about.get("finished") is True else seconds)
        write(self.folder / UP, json.dumps({**about, "seconds": total, "finished": True}).encode())
        return total

    def _about(self) -> dict[str, Any]:
        found = bounded.read_json(self.folder / UP, 2**16)
        if not isinstance(found, dict) or not isinstance(found.get("seconds", 0.0), int | float):
            raise DataError(f"{self.folder / UP}: damaged")
        return found


def _written(config: Config) -> bytes:
    """Return a configuration as TOML; how often nodes save where it does not say is left to them."""
    tables = config.model_dump(mode="json")
    given = config.checkpoint.model_fields_set
    tables["checkpoint"] = {key: value for key, value in tables["checkpoint"].items() if key in given}
    return dumps(tables).encode()


def _with_nodes(config: Config, folder: Path, clients: int, run_id: str | None = None) -> Config:
    """Return the configuration with an entry for each node on this machine."""
    given = config.nodes or Nodes()
    ports = free_ports(clients)
    peers = [
        Peer(id=id, address=f"127.0.0.1:{port}", certificate=[str((folder / KEYS / f"{id}.crt").resolve())])
        for id, port in enumerate(ports)
    ]
    name = run_id or (given.run_id if "run_id" in given.model_fields_set else f"up-{secrets.token_hex(4)}")
    nodes = given.model_copy(update={"peer": peers, "run_id": name, "listen": None})
    return config.model_copy(update={"nodes": nodes})


def free_ports(count: int) -> list[int]:
    """Return ports of this machine that are free now.

    Args:
        count: How many.

    Returns:
        Distinct ports.
    """
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


class _Team:
    """The nodes, from their start to their end."""

    def __init__(
        self,
        nursery: subprocess.Popen[bytes],
        place: _Place,
        clients: int,
        max_restarts: int,
        on_change: OnChange,
        say: Say,
    ) -> None:
        self._nursery = nursery
        self.views = [NodeView(id) for id in range(clients)]
        self._place, self._max, self._on_change, self._say = place, max_restarts, on_change, say
        self._failure: NodesError | InputError | None = None
        self._waiting: list[tuple[float, int]] = []
        self._ready = False

    def run(self, interrupt: Interrupt) -> None:
        """Run until all nodes have ended."""
        try:
            with interrupt.deferred():
                self._watch(interrupt)
        except BaseException:
            self._nursery.kill()
            raise
        finally:
            for pipe in (self._nursery.stdout, self._nursery.stdin):
                assert pipe is not None
                with suppress(OSError):
                    pipe.close()
            self._nursery.wait()  # what nodes have written is whole
        if self._failure is not None:
            raise self._failure
        if interrupt.received is not None:
            raise interrupt.received

    def _command(self, **command: Any) -> None:
        assert self._nursery.stdin is not None
        try:
            self._nursery.stdin.write(json.dumps(command).encode() + b"\n")
            self._nursery.stdin.flush()
        except OSError:
            self._failure = self._failure or NodesError("the process that starts nodes is gone")

    def _watch(self, interrupt: Interrupt) -> None:
        folder = self._place.folder.resolve()
        request = {"config": str(folder / CONFIG), "out": str(folder), "keys": str(folder / KEYS)}
        request |= {"errors": str(folder / "stderr.log")}
        self._command(**request, search=[str(found) for found in user_code.searched()])
        assert self._nursery.stdout is not None
        stdout = self._nursery.stdout.fileno()
        os.set_blocking(stdout, False)
        buffer, drained, told = b"", False, 0.0
        with selectors.DefaultSelector() as selector:
            selector.register(stdout, selectors.EVENT_READ)
            while not all(view.ended for view in self.views):
                if (interrupt.received is not None or self._failure is not None) and not drained:
                    drained = True
                    self._say("stopping nodes; each saves a checkpoint")
                    self._command(drain=True)
                    if not self._ready:
                        return
                if selector.select(0.1):
                    more = os.read(stdout, _READ)
                    if not more:
                        break
                    *lines, buffer = (buffer + more).split(b"\n")
                    for line in lines:
                        self._event(json.loads(line), drained)
                self._restart(drained)
                if time.monotonic() - told > 0.2:
                    told = time.monotonic()
                    self._on_change(self.views)
        self._on_change(self.views)
        if self._failure is None and not all(view.ended for view in self.views):
            self._failure = NodesError(f"the process that starts nodes ended; see {folder / 'stderr.log'}")

    def _event(self, event: Mapping[str, Any], drained: bool) -> None:
        if "ready" in event:
            self._ready = True
            for view in self.views:
                self._command(start=view.id)
        elif "failed" in event:
            self._failure = NodesError(str(event["failed"]))
            self._failure.exit_code = int(event["code"])  # type: ignore[misc]
            for view in self.views:
                view.state = "stopped"
        elif "exited" in event:
            self._exited(self.views[int(event["exited"])], int(event["code"]), drained)
        elif "say" in event:
            if not drained:  # that all of them leave is known
                self._say(str(event["say"]))
        elif "error" in event:
            self.views[int(event["node"])].status["error"] = event["error"]
        elif "pid" in event:
            self.views[int(event["node"])].pid = int(event["pid"])
        elif "node" in event:
            view = self.views[int(event["node"])]
            view.state, view.status = "training", dict(event)

    def _exited(self, view: NodeView, code: int, drained: bool) -> None:
        error = view.status.get("error")
        if code in (0, DIVERGED):
            view.state = "diverged" if code == DIVERGED else "finished"
        elif code == 2 and error:
            view.state, self._failure = "stopped", self._failure or _input_failure(view.id, str(error))
        elif drained:
            view.state = "stopped"
        elif view.restarts < self._max:
            view.state, view.restarts = "lost", view.restarts + 1
            self._say(f"node {view.id} died ({_cause(code, error)}); it is started again")
            self._waiting.append((time.monotonic() + _RESTART_SECONDS, view.id))
        else:
            view.state = "stopped"
            why = f"node {view.id} died {view.restarts + 1} times, the last time by {_cause(code, error)}"
            self._failure = self._failure or NodesError(f"{why}; --max-restarts {self._max}")

    def _restart(self, drained: bool) -> None:
        now = time.monotonic()
        for entry in [entry for entry in self._waiting if entry[0] <= now]:
            self._waiting.remove(entry)
            if drained:
                self.views[entry[1]].state = "stopped"
            else:
                self._command(start=entry[1])


def _input_failure(id: int, text: str) -> NodesError:
    found = NodesError(f"node {id}: {text}")
    found.exit_code = 2  # type: ignore[misc]
    return found


def _cause(code: int, error: object) -> str:
    return f"signal {-code}" if code < 0 else str(error or f"exit code {code}")


__all__ = ["Interrupted", "NodeView", "NodesError", "free_ports", "supervised"]
