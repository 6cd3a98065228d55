"""One run on one node: the protocol's state machine between a transport and a worker thread that trains.

The event loop carries messages and never blocks. The worker makes iterations; at each exchange it hands its messages to
the loop and waits for those of the neighbours. A third thread writes checkpoints.
"""

from __future__ import annotations

import asyncio
import os
import queue
import random
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from dspodfl.engine import ClientState
from dspodfl.engine import Message as ClientMessage
from dspodfl.errors import DataError
from dspodfl.nodes.checkpoint_files import CheckpointFiles
from dspodfl.nodes.job import SEPARATOR, Job, is_finite
from dspodfl.nodes.log import Log
from dspodfl.nodes.models_buffer import ModelsBuffer
from dspodfl.nodes.models_file import ModelsWriter, StoredModel
from dspodfl.nodes.payloads import finite_payloads
from dspodfl.nodes.transport import Connection, RefusedError, Transport
from dspodfl.protocol import (
    LOST,
    AnyMessage,
    Bye,
    Checkpoint,
    Close,
    Deliver,
    Done,
    Effect,
    Hello,
    LockstepNode,
    Message,
    Note,
    Send,
    Store,
)

_TICK_SECONDS = 0.2
_FIRST_BACKOFF, _LONGEST_BACKOFF, _REFUSED_BACKOFF = 0.05, 2.0, 10.0
"""Seconds before a neighbour is dialled again: at first, at most, and where it has refused this node."""

TransportMaker = Callable[[Job, "Runner"], Transport]


@dataclass(frozen=True)
class Outcome:
    """How a run ended on this node: reason ("finished", "diverged" or "draining"), and the iteration."""

    reason: str
    k: int


class _StopError(Exception):
    """The worker has nothing more to do."""


class _DivergedError(Exception):
    """A model, or what would be sent, is not finite."""


class Runner:
    """Runs one job; a `dspodfl.nodes.transport.Handler`.

    Args:
        job: The run, as this client.
        make_transport: Makes the transport; it gets the job and this runner.
        checkpoints: Where checkpoints are.
        models: Where models are written at evaluated iterations.
        log: Where events are written.
        own_score: Evaluates a model, (p,), on a test set of the node's own: loss and accuracy; None: there is none.
    """

    def __init__(
        self,
        job: Job,
        make_transport: TransportMaker,
        checkpoints: CheckpointFiles,
        models: ModelsWriter,
        log: Log,
        own_score: Callable[[np.ndarray], tuple[float, float]] | None = None,
    ) -> None:
        self.job, self.log = job, log
        self._make_transport, self._files, self._score = make_transport, checkpoints, own_score
        self._models = ModelsBuffer(models, log)
        self._inbox: queue.SimpleQueue[dict[int, Any] | None] = queue.SimpleQueue()
        self._connections: dict[int, Connection] = {}
        self._wait: dict[int, float] = {}
        self._lost: dict[int, asyncio.Event] = {}
        self._refused: set[int] = set()
        self._steps = self._uses = 0
        self._exchanged = self._unsaved = False
        self.ready = False
        self._failure: BaseException | None = None
        self._stopped = threading.Event()
        self._last_saved: float | None = None

    async def run(self, drain: asyncio.Event) -> Outcome:
        """Run until the job ends, or a drain is asked for.

        Args:
            drain: Set when the node is to stop: it saves a checkpoint and leaves.

        Returns:
            How it ended.

        Raises:
            DataError: The files of the node are of another run, or cannot be used.
            InputError: The address cannot be listened on, or ``nodes.retain`` is too small.
        """
        self._loop = loop = asyncio.get_running_loop()
        plan = self.job.plan()
        found = self._files.load()
        for note in found.notes:
            self.log.warn(note)
        if found.checkpoint is None:
            state = self.job.begin()
            checkpoint = Checkpoint(0, state)
        else:
            state = self.job.client.from_arrays(found.checkpoint.value)
            checkpoint = msgspec.structs.replace(found.checkpoint, value=state)
            self.log.write("resumed", k=checkpoint.k)
        self._done: asyncio.Future[Outcome] = loop.create_future()
        self.core = LockstepNode(plan, checkpoint, found.saved, now=loop.time())
        self.k = checkpoint.k
        self._disk = ThreadPoolExecutor(1, "checkpoints")
        self._transport = self._make_transport(self.job, self)
        try:
            address = await self._transport.listen()
            self.ready = True
            self.log.write("listening", address=address, run=self.job.title, k=checkpoint.k, pid=os.getpid())
            dialers = [asyncio.create_task(self._dial(peer)) for peer in plan.neighbours if peer < plan.id]
            tasks = [*dialers, asyncio.create_task(self._ticks()), asyncio.create_task(self._drained(drain))]
            for task in tasks:
                task.add_done_callback(self._task_ended)
            self._do(self.core.start(loop.time()))
            worker = threading.Thread(target=self._train, args=(state, checkpoint), name="training", daemon=True)
            worker.start()
            try:
                outcome = await self._done
            finally:
                self._stopped.set()
                self._inbox.put(None)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await self._transport.close()
                await loop.run_in_executor(None, worker.join, 60.0)
            if outcome.reason == "diverged":
                self._models.diverged(outcome.k)
            return outcome
        finally:
            self._disk.shutdown(wait=True)

    # --- what the network calls (in the event loop) ---------------------------------------------------------------

    def opened(self, connection: Connection) -> None:
        """Begin a session on a connection."""
        if connection.peer not in self.core.links:
            connection.close("it is not a neighbour in this run of the study")
            return
        self._connections[connection.peer] = connection
        self._do(self.core.opened(connection.peer, os.urandom(16), self._loop.time()))

    def received(self, connection: Connection, message: Message, payload: Any) -> None:
        """Take a message."""
        peer = connection.peer
        if self._connections.get(peer) is not connection:
            return
        if isinstance(message, Hello):
            mine = self.core.plan.run_id
            if message.run_id != mine and message.run_id.split(SEPARATOR)[0] == mine.split(SEPARATOR)[0]:
                connection.close("it is at another run of the study")
                return
            self._wait.pop(peer, None)
        self._do(self.core.received(peer, cast(AnyMessage, message), payload, self._loop.time()))
        if isinstance(message, Hello) and self.core.links[peer].live:
            self._refused.discard(peer)
            self.log.write("connected", peer=peer)
        elif isinstance(message, Bye) and message.reason == "refused" and message.text.endswith(LOST):
            lost = DataError(f"node {peer} refuses this node ({message.text}); it cannot be resumed")
            self._failure = self._failure or lost

    def progressed(self, connection: Connection, done: int, total: int) -> None:
        """Learn that a part of a payload arrived."""
        self.core.progressed(connection.peer, self._loop.time())

    def closed(self, connection: Connection, reason: str) -> None:
        """Learn that a connection is over."""
        if self._connections.get(connection.peer) is connection:
            del self._connections[connection.peer]
            self._lost.setdefault(connection.peer, asyncio.Event()).set()
            self._do(self.core.closed(connection.peer, self._loop.time()))
            if not self.core.done and reason:
                self.log.write("disconnected", peer=connection.peer, reason=reason)

    def refused(self, where: str, reason: str) -> None:
        """Learn that a connection was refused."""
        once = (where.rpartition(":")[0], reason)
        self.log.warn(f"refused {where}: {reason}", event="refused", once=once, where=where, reason=reason)

    # --- what the protocol asks for (in the event loop) -----------------------------------------------------------

    def _do(self, effects: list[Effect]) -> None:
        for effect in effects:
            if isinstance(effect, Send):
                connection = self._connections.get(effect.peer)
                if connection is not None:
                    connection.send(effect.message, effect.payload)
            elif isinstance(effect, Deliver):
                self._inbox.put(effect.payloads)
                if not self._exchanged:
                    self._exchanged = True
                    self.log.write("exchanged", k=effect.k)
            elif isinstance(effect, Store):
                self._store(effect.checkpoint)
            elif isinstance(effect, Close):
                if effect.refused:
                    self._refused.add(effect.peer)
                    text, once = f"node {effect.peer} is refused: {effect.reason}", (effect.peer, effect.reason)
                    self.log.warn(text, event="refused", once=once, peer=effect.peer)
                found = self._connections.get(effect.peer)
                if found is not None:
                    found.close(effect.reason)
            elif isinstance(effect, Note):
                self.log.warn(effect.text, event="note", once=(effect.peer, effect.text), peer=effect.peer)
            elif isinstance(effect, Done) and not self._done.done():
                self._done.set_result(Outcome(effect.reason, effect.k))

    def _store(self, checkpoint: Checkpoint) -> None:
        def write() -> None:
            state: ClientState = checkpoint.value
            arrays = Checkpoint(checkpoint.k, state.to_arrays(), checkpoint.kept, checkpoint.durable, checkpoint.end)
            self._models.sync()
            self._files.save(arrays)

        def ended(future: Any) -> None:
            error = future.exception()
            now = self._loop.time()
            if error is None:
                if self._unsaved:
                    self.log.warn("checkpoints are written again", event="saved", k=checkpoint.k)
                self._last_saved, self._unsaved = now, False
                self._do(self.core.saved(checkpoint.k, now))
                return
            reason, self._unsaved = getattr(error, "strerror", None) or str(error), True
            text = f"a checkpoint could not be written ({reason})"
            self.log.warn(text, event="unsaved", once="unsaved", k=checkpoint.k)
            self._do(self.core.unsaved(checkpoint.k, now))

        asyncio.wrap_future(self._disk.submit(write), loop=self._loop).add_done_callback(ended)

    async def _dial(self, peer: int) -> None:
        """Keep a connection to a neighbour of lower id."""
        while not self.core.done and not self.core.links[peer].farewell:
            if peer not in self._connections:
                try:
                    await self._transport.dial(peer)
                except (OSError, RefusedError) as error:
                    if peer not in self._wait:
                        reason = getattr(error, "strerror", None) or str(error) or type(error).__name__
                        self.log.write("unreachable", peer=peer, reason=reason)
                wait = self._wait[peer] = min(_LONGEST_BACKOFF, 2 * self._wait.get(peer, _FIRST_BACKOFF / 2))
                wait = _REFUSED_BACKOFF if peer in self._refused else wait
                await asyncio.sleep(wait * random.uniform(0.5, 1.0))  # noqa: S311 (jitter)
            else:
                lost = self._lost[peer] = asyncio.Event()
                await lost.wait()

    def _task_ended(self, task: asyncio.Task[None]) -> None:
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._done.done():
            self._done.set_exception(error)

    async def _ticks(self) -> None:
        while True:
            due = self.core.timer
            soon = _TICK_SECONDS if due is None else due - self._loop.time()
            await asyncio.sleep(min(max(soon, 0.01), _TICK_SECONDS))
            due = self.core.timer
            if due is not None and self._loop.time() >= due:
                self._do(self.core.on_timer(self._loop.time()))
            if self._failure is not None and not self._done.done():
                self._done.set_exception(self._failure)

    async def _drained(self, drain: asyncio.Event) -> None:
        await drain.wait()
        self.log.write("draining", k=self.k)
        self._do(self.core.drain(self._loop.time()))

    def status(self) -> dict[str, Any]:
        """Return what a person wants to know of the run."""
        now = self._loop.time()
        return {
            "run": self.job.title,
            "number": self.job.number,
            "k": self.k,
            "of": self.job.iterations,
            "steps": self._steps,
            "uses": self._uses,
            "waiting": self.core.waiting_for() if not self.core.done else [],
            "connected": len(self._connections),
            "neighbours": len(self.core.plan.neighbours),
            "saved": None if self._last_saved is None else now - self._last_saved,
            "at": now,
            "cpu": time.process_time(),
        }

    # --- the worker (in its own thread) ---------------------------------------------------------------------------

    def _train(self, state: ClientState, checkpoint: Checkpoint) -> None:
        try:
            torch.set_num_threads(1)
            if checkpoint.end is None:
                self._iterate(state)
        except _StopError:
            pass
        except _DivergedError as found:
            k = found.args[0]
            self._post(lambda: self._do(self.core.diverged(k, self._loop.time())))
        except BaseException as error:  # whatever it is, the event loop reports it
            self._failure = error

    def _iterate(self, state: ClientState) -> None:
        job, client, due = self.job, self.job.client, self.job.evaluated
        advanced: list[tuple[int, ClientState]] = []
        finite: Tensor | None = None

        def swap(phase: int, messages: Mapping[int, ClientMessage]) -> dict[int, ClientMessage]:
            payloads = finite_payloads(job.schema, phase, messages, finite)
            if payloads is None:
                raise _DivergedError(k)
            before, advanced[:] = advanced.copy(), []
            self._post(self._offer, before, k, phase, payloads)
            theirs = self._inbox.get()
            if theirs is None:
                raise _StopError
            self._uses += len(theirs)
            return {peer: client.unpacked(phase, payload) for peer, payload in theirs.items()}

        for k in range(state.k, job.iterations):
            if self._stopped.is_set():
                raise _StopError
            self._steps += client.steps(k)
            state = client.step(state, k, swap)
            if not is_finite(state.theta):
                self._flush(advanced)
                raise _DivergedError(k + 1)
            finite = state.theta
            if k + 1 in due:
                model, averaged = job.rows(state)
                score = None if self._score is None else self._score(model)
                note = self._models.append(k + 1, StoredModel(model, averaged, score))
                if note is not None:
                    self.log.warn(note)
            self.k = k + 1
            advanced.append((k + 1, state))
            if len(advanced) >= 16 or k + 1 == job.iterations:
                self._flush(advanced)

    def _flush(self, advanced: list[tuple[int, ClientState]]) -> None:
        before, advanced[:] = advanced.copy(), []
        self._post(self._advance, before)

    def _post(self, call: Callable[..., None], *given: Any) -> None:
        if self._stopped.is_set():
            raise _StopError
        self._loop.call_soon_threadsafe(self._guarded, call, *given)

    def _guarded(self, call: Callable[..., None], *given: Any) -> None:
        try:
            if not self.core.done:
                call(*given)
        except BaseException as error:  # the event loop reports it
            if not self._done.done():
                self._done.set_exception(error)

    def _advance(self, advanced: list[tuple[int, ClientState]]) -> None:
        for k, value in advanced:
            self._do(self.core.advance(k, value, self._loop.time()))

    def _offer(self, advanced: list[tuple[int, ClientState]], k: int, phase: int, payloads: Mapping[int, Any]) -> None:
        self._advance(advanced)
        self._do(self.core.offer(k, phase, payloads, self._loop.time()))
