"""A node: one client of a study in a process of its own, its runs one after the other.

| exit code | what happened |
|---|---|
| 0 | all runs are finished |
| 1 | the program itself is at fault |
| 2 | what was given cannot be used: configuration, key, certificate, data, folder, a graph without this node |
| 3 | a run diverged, here or at another node |
| 4 | the address cannot be listened on; it may be free later |
| 129, 130, 143 | SIGHUP, Ctrl-C, SIGTERM: drained; the same command resumes |
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dspodfl._version import __version__
from dspodfl.config import Config, Nodes, dumps
from dspodfl.errors import DspodflError, InputError, available_signals
from dspodfl.nodes.checkpoint_files import CheckpointFiles
from dspodfl.nodes.folder_lock import locked
from dspodfl.nodes.identity import Identity
from dspodfl.nodes.job import Job, check_study
from dspodfl.nodes.log import Log
from dspodfl.nodes.node_folder import NodeFolder, digest
from dspodfl.nodes.own_data import own_federation, own_score, write_description
from dspodfl.nodes.runner import Outcome, Runner
from dspodfl.nodes.transport import TlsTransport, Transport, split_address
from dspodfl.problem.data import restrict_to_clients, samples_on_demand
from dspodfl.study import Study, UserInputs, build

EVENTS, CHECKPOINTS = "events.jsonl", "checkpoints"
"""In the folder of a node: its log, and the folder of checkpoints of its runs."""
DIVERGED, PORT = 3, 4
"""Exit codes of a node."""
_STATUS_SECONDS = 0.5


class ListenError(DspodflError):
    """The address of a node cannot be listened on.

    >>> ListenError.exit_code
    4
    """

    exit_code = PORT


@dataclass(frozen=True)
class NodeOptions:
    """What a node is started with.

    Args:
        id: The client that it is.
        out: Its folder.
        data: A folder with data of its own (train.npz, test.npz); None: its shard of ``[data]``.
        status: Called with what it is doing, twice a second; None: nobody wants to know.
        say: Gets sentences for a person; None: standard error.
        wrap: Wraps the transport of each run, for tests.
        algorithm: Runs this algorithm alone; None: all of the study.
        seed: Runs this seed alone; None: all of the study.
        wait: Seconds to wait for the process that used the folder before.
        beside: The folder with node.crt and node.key, where ``nodes.tls`` does not name them.
    """

    id: int
    out: Path
    data: Path | None = None
    status: Callable[[dict[str, Any]], None] | None = None
    say: Callable[[str], None] | None = None
    wrap: Callable[[Transport], Transport] | None = None
    algorithm: str | None = None
    seed: int | None = None
    wait: float = 3.0
    beside: Path = Path()

    def chosen(self, study: Study) -> list[int]:
        """Return the numbers of the runs of a study that this node runs.

        Args:
            study: The study.

        Returns:
            The numbers, ascending.

        Raises:
            InputError: The study has no such algorithm or seed.
        """
        names, seeds = _names(study)
        if self.algorithm is not None and self.algorithm not in names:
            raise InputError("--algorithm", self.algorithm, f"one of {', '.join(names)}")
        if self.seed is not None and self.seed not in seeds:
            raise InputError("--seed", self.seed, f"one of {', '.join(map(str, seeds))}")
        runs = [(run.algorithm, run.seed) for run in study.runs]
        wanted = [(name, seed) for name, seed in runs if self.algorithm in (None, name) and self.seed in (None, seed)]
        return [number for number, run in enumerate(runs) if run in wanted]

    def choose_one(self, study: Study) -> None:
        """Refuse a choice that leaves several runs.

        Args:
            study: The study.

        Raises:
            InputError: It does; the option that is missing is named.
        """
        if len(self.chosen(study)) > 1:
            names, seeds = _names(study)
            if self.algorithm is None and len(names) > 1:
                raise InputError("--algorithm", None, f"given, since the study has several: {', '.join(names)}")
            raise InputError("--seed", None, f"given, since the study has several: {', '.join(map(str, seeds))}")


def _names(study: Study) -> tuple[list[str], list[int]]:
    """The algorithms and seeds of a study, in its order."""
    return list(dict.fromkeys(run.algorithm for run in study.runs)), sorted({run.seed for run in study.runs})


def prepare(config: Config, options: NodeOptions) -> tuple[Config, Study]:
    """Build a study as a node needs it: its own samples and no others.

    Args:
        config: The configuration.
        options: What the node is started with.

    Returns:
        The configuration, resolved, and the study.

    Raises:
        InputError: The study does not run on nodes, or has no such client.
        DataError: The data cannot be read.
    """
    inputs = UserInputs()
    if options.data is not None:
        inputs = UserInputs(data=own_federation(options.data, options.id, config.clients.count))
    with samples_on_demand():
        resolved, study = build(config, inputs)
    return resolved, restricted(resolved, study, options.id)


def restricted(config: Config, study: Study, id: int) -> Study:
    """Return a study with the samples of one client alone.

    Args:
        config: The configuration.
        study: The study, with all samples.
        id: The client.

    Returns:
        The study of this client.

    Raises:
        InputError: The study does not run on nodes, or has no such client.
    """
    check_study(config, study)
    count = study.settings[0].rates.graph.clients
    if not 0 <= id < count:
        raise InputError("--id", id, f"a node of the graph, from 0 to {count - 1}")
    data = restrict_to_clients([setting.data for setting in study.settings], [np.array([id])] * len(study.settings))
    settings = [replace(setting, data=held) for setting, held in zip(study.settings, data, strict=True)]
    return replace(study, settings=settings, pairs=study.pairs)


def neighbours(edges: np.ndarray, id: int) -> set[int]:
    """Return the neighbours of a client.

    Args:
        edges: The links, (links, 2).
        id: The client.

    Returns:
        The clients at the other ends of its links.
    """
    touching = edges[(edges == id).any(axis=1)]
    return {int(end) for end in touching.reshape(-1)} - {id}


@dataclass(eq=False)
class Node:
    """One client of a study in this process.

    Args:
        config: The configuration, resolved.
        study: The study, with the samples of this client.
        options: What it is started with.
    """

    config: Config
    study: Study
    options: NodeOptions
    _drain: asyncio.Event | None = field(default=None, init=False)
    _signal: int = field(default=0, init=False)
    _runner: Runner | None = field(default=None, init=False)

    def run(self) -> int:
        """Run all runs of the study; resume those that were begun.

        Returns:
            The exit code.

        Raises:
            InputError, DataError: Something that was given cannot be used.
        """
        torch.set_num_threads(1)
        id, out = self.options.id, self.options.out
        run_id = self.nodes.run_id
        identity = self._identity()
        text = dumps(self.config.model_dump(mode="json"))
        folder = NodeFolder(out, id, run_id, text, own_test=self._own_test)
        folder.open({"dspodfl": __version__, "torch": torch.__version__})
        if self.options.data is not None:
            write_description(out, self.study.runs[0].data.dataset)
        jobs = [Job(self.config, self.study, number, id) for number in self.options.chosen(self.study)]
        with locked(out, "--out", self.options.wait):
            return asyncio.run(self._all(jobs, folder, identity))

    @property
    def nodes(self) -> Nodes:
        """The table ``[nodes]``."""
        return self.config.nodes or Nodes()

    @property
    def _neighbours(self) -> frozenset[int]:
        """The neighbours in any run: graphs of other seeds have other links."""
        id, runs = self.options.id, [self.study.runs[number] for number in self.options.chosen(self.study)]
        return frozenset(peer for run in runs for peer in neighbours(run.rates.graph.edges, id))

    @property
    def _own_test(self) -> bool:
        return self.options.data is not None and (self.options.data / "test.npz").exists()

    def _identity(self) -> Identity:
        nodes, id = self.nodes, self.options.id
        peers = {peer.id: peer for peer in nodes.peer}
        needed = sorted(self._neighbours)
        for peer in needed:
            if peer not in peers:
                allowed = f"an entry for each neighbour: node {peer} is a neighbour of node {id} and has none"
                raise InputError("nodes.peer", f"{len(peers)} entries", allowed)
            if not peers[peer].certificate and nodes.tls.ca is None:
                raise InputError(f"nodes.peer.{peer}.certificate", "", "given: there is no nodes.tls.ca")
        certificates = {peer: [Path(name) for name in peers[peer].certificate] for peer in needed}
        tls, beside = nodes.tls, self.options.beside
        identity = Identity(
            id,
            beside / (tls.certificate or "node.crt"),
            beside / (tls.key or "node.key"),
            certificates,
            ca=None if tls.ca is None else Path(tls.ca),
            run_id=nodes.run_id,
        )
        for peer in needed:
            stated = peers[peer].key
            found = [certificate.fingerprint for certificate in identity.peers[peer]]
            if stated is not None and found and stated not in found:
                raise InputError(f"nodes.peer.{peer}.key", stated, f"that of its certificate, {found[0]}")
        return identity

    def _listen(self) -> str:
        nodes, id = self.nodes, self.options.id
        if nodes.listen is not None:
            return nodes.listen
        own = next((peer.address for peer in nodes.peer if peer.id == id), None)
        if own is None:
            raise InputError("nodes.listen", None, f"given, or an entry of nodes.peer with id = {id}")
        host, port = split_address(own)
        return f"{host}:{port}" if host in ("127.0.0.1", "localhost") else f"0.0.0.0:{port}"

    async def _all(self, jobs: list[Job], folder: NodeFolder, identity: Identity) -> int:
        loop = asyncio.get_running_loop()
        self._drain = asyncio.Event()
        for number in available_signals():
            with suppress(NotImplementedError, RuntimeError, ValueError):  # other systems, other threads
                loop.add_signal_handler(number, self._stop, number)
        status = asyncio.create_task(self._report())
        log = Log(folder.path / EVENTS, self.options.id, self.options.say)
        for note in identity.notes():
            log.warn(note)
        code = 0
        try:
            for job in jobs:
                outcome = await self._one(job, folder, identity, log)
                if outcome.reason == "diverged":
                    log.warn(f"{job.title}: diverged at iteration {outcome.k:,}", event="diverged", k=outcome.k)
                    code = DIVERGED
                if outcome.reason == "draining":
                    return 128 + self._signal if self._signal else code
            self._tell(state="finished")
            return code
        finally:
            status.cancel()
            log.close()

    async def _one(self, job: Job, folder: NodeFolder, identity: Identity, log: Log) -> Outcome:
        about = {"run": job.run_id, "node": job.id, "config": digest(folder.tables)}
        files = CheckpointFiles(folder.path / CHECKPOINTS / job.header().name, about, self.config.checkpoint.keep)
        models = folder.writer(job.header())

        def transport(job: Job, runner: Runner) -> Transport:
            addresses = {peer.id: peer.address for peer in self.nodes.peer}
            made = TlsTransport(
                identity,
                self._neighbours,
                job.schema,
                runner,
                listen_at=self._listen(),
                addresses=addresses,
            )
            return made if self.options.wrap is None else self.options.wrap(made)

        score = own_score(self.options.data, job) if self._own_test and self.options.data is not None else None
        runner = self._runner = Runner(job, transport, files, models, log, score)
        assert self._drain is not None
        began = time.monotonic()
        try:
            outcome = await runner.run(self._drain)
        except InputError as error:
            if error.field == "nodes.listen":
                raise ListenError(str(error)) from None
            raise
        finally:
            models.close()
        log.write("ended", reason=outcome.reason, k=outcome.k, title=job.title, seconds=time.monotonic() - began)
        return outcome

    def _stop(self, number: int) -> None:
        """Drain at the first signal, exit at the second."""
        if self._signal:
            signal.signal(number, signal.SIG_DFL)
            signal.raise_signal(number)
        self._signal = number
        if self._drain is not None:
            self._drain.set()

    async def _report(self) -> None:
        while True:
            self._tell()
            await asyncio.sleep(_STATUS_SECONDS)

    def _tell(self, **more: Any) -> None:
        if self.options.status is not None:
            found = self._runner.status() if self._runner is not None and self._runner.ready else {}
            self.options.status({"node": self.options.id, **found, **more})
