"""Nodes of a small study in one event loop, over any transport, and the plain loop that they are compared with."""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

import torch

from dspodfl import Config
from dspodfl.engine import plain_loop
from dspodfl.nodes import LossyTransport, MemoryNetwork, MemoryTransport
from dspodfl.nodes.checkpoint_files import CheckpointFiles
from dspodfl.nodes.job import Job
from dspodfl.nodes.log import Log
from dspodfl.nodes.models_file import ModelsWriter, StoredModels
from dspodfl.nodes.process import restricted
from dspodfl.nodes.runner import Runner
from dspodfl.study import build


def config(algorithms="dspodfl", iterations=40, clients=4, **tables):
    """A study of a few clients that takes a second."""
    names = [algorithms] if isinstance(algorithms, str | dict) else algorithms
    base = {
        "seeds": 1,
        "algorithms": names,
        "clients": {"count": clients},
        "graph": {"kind": "ring"},
        "data": {"name": "synthetic", "partition": {"kind": "labels", "per_client": max(3, -(-10 // clients))}},
        "train": {"iterations": iterations, "learning_rate": 0.05, "batch_size": 4},
        "eval": {"every": 1},
        "checkpoint": {"every_iterations": 10},
    }
    for key, value in tables.items():
        base[key] = {**base[key], **value} if isinstance(value, dict) and key in base else value
    return Config(**base)


@dataclass
class World:
    """The nodes of one run of a study, which can be stopped and started again."""

    config: Config
    folder: Path
    number: int = 0
    make_transport: object = None
    notes: list = field(default_factory=list)

    def __post_init__(self):
        self.resolved, self.study = build(self.config)
        self.run = self.study.runs[self.number]
        self.network = MemoryNetwork()
        self.runners, self.tasks, self.drains = {}, {}, {}

    def memory(self, job, runner):
        return MemoryTransport(self.network, job.id, frozenset(job.client.neighbours), job.schema, runner)

    def job(self, i):
        study = restricted(self.resolved, self.study, i)
        return Job(self.resolved, study, self.number, i)

    def start(self, i):
        """Start node i, from its checkpoints if there are any."""
        job = self.job(i)
        folder = self.folder / str(i)
        files = CheckpointFiles(folder / "checkpoints", {"node": i}, self.resolved.checkpoint.keep)
        models = ModelsWriter(folder / "models", job.header())
        log = Log(folder / "events.jsonl", i, say=self.notes.append)
        runner = Runner(job, self.make_transport or self.memory, files, models, log)
        self.runners[i], self.drains[i] = runner, asyncio.Event()
        self.tasks[i] = asyncio.create_task(self._until_its_end(runner, self.drains[i], models, log))
        return runner

    async def _until_its_end(self, runner, drain, models, log):
        try:
            return await runner.run(drain)
        finally:
            log.close()
            models.close()

    def kill(self, i):
        """End node i without a word, as kill -9 does: nothing is written any more, connections are gone."""
        runner = self.runners[i]
        runner._stopped.set()
        runner._inbox.put(None)
        runner.core.done = True
        for connection in list(runner._connections.values()):
            connection.abort("killed")
        self.tasks[i].cancel()

    async def all(self):
        """Run all nodes to their end; their outcomes."""
        for i in range(self.run.clients):
            self.start(i)
        return await asyncio.gather(*self.tasks.values())

    def models(self, i):
        """Iteration -> the model that node i has written."""
        (path,) = (self.folder / str(i) / "models").glob("*.rows")
        stored = StoredModels.read(path)
        return {k: torch.from_numpy(stored.at(k).model.copy()) for k in stored.iterations}

    def plain(self):
        """The models of the plain loop after every iteration."""
        job = self.job(0)
        initial = self.study.initial([self.run])[0].expand(self.run.clients, -1).to(job.client.dtype)
        rule, batch = self.study.rules[self.number], self.study.batch_size
        torch.set_num_threads(1)
        return list(
            plain_loop(self.run, self.study.model, initial, iterations=job.iterations, batch_size=batch, rule=rule)
        )

    def assert_equal_to_the_plain_loop(self):
        plain = self.plain()
        for i in range(self.run.clients):
            found = self.models(i)
            assert sorted(found) == list(range(1, len(plain) + 1))
            for k, theta in enumerate(plain, start=1):
                assert torch.equal(found[k], theta[i]), (i, k)


def lossy(world, **faults):
    """Transports in memory that lose frames and cut connections."""
    return lambda job, runner: LossyTransport(world.memory(job, runner), **faults)
