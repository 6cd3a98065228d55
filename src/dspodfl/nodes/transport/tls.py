"""TLS 1.3 over TCP in an asyncio event loop; both ends show certificates, and there is no other mode.

The event loop says when a socket is ready; OpenSSL reads and writes the socket itself, so that a payload is decrypted
straight into the array that is handed over.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import socket
import ssl
import struct
from collections.abc import Mapping
from typing import Any

from dspodfl.errors import InputError
from dspodfl.nodes.identity import Identity, explained
from dspodfl.nodes.schema import Schema
from dspodfl.nodes.transport.base import (
    HELLO_SECONDS,
    Connection,
    Faults,
    Handler,
    RefusedError,
    Transport,
    split_address,
)
from dspodfl.nodes.wire import CHUNK, Wire

_RECORD = 1 << 14
"""Bytes of one record of TLS."""
_BURST = 1 << 20
"""Bytes that are read or written before other connections get their turn."""
_HANDSHAKES = 64
"""Connections that may be unknown at one time; beyond that the oldest gives way."""
_LINGER_SECONDS = 2.0
_AGAIN = (ssl.SSLWantReadError, ssl.SSLWantWriteError)
_NOTHING = memoryview(b"")


class TlsConnection(Connection):
    """One connection over TLS.

    Args:
        sock: The socket, after the handshake.
        wire: Its frames.
        handler: What is called.
        faults: What happens to its frames, for tests.
        hello_seconds: How long to wait for the peer's HELLO.
    """

    def __init__(
        self, sock: ssl.SSLSocket, wire: Wire, handler: Handler, faults: Faults | None, hello_seconds: float
    ) -> None:
        super().__init__(wire, handler, faults, hello_seconds)
        self._sock, self._fd = sock, sock.fileno()
        self._out = self._rest = _NOTHING
        self._writing = self._armed = self._drained = False

    def start(self, on_over: Any) -> None:
        """Begin to read, after the handler received the connection."""
        super().start(on_over)
        if not self.over:
            self._loop.add_reader(self._fd, self._read)
            self._loop.call_soon(self._read)  # what came with the handshake is in OpenSSL, and wakes no selector

    def socket_bytes(self) -> tuple[int, int] | None:
        """Return what the kernel counted for this connection, TLS and handshake included.

        Returns:
            Bytes sent and acknowledged, and bytes received; None where the system does not say.
        """
        if self.over or not hasattr(socket, "TCP_INFO") or not hasattr(socket, "SO_PEERCRED"):
            return None  # the layout below is that of Linux
        info = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 136)
        return struct.unpack_from("=QQ", info, 120) if len(info) == 136 else None

    def _flush(self) -> None:
        if not self._writing and not self.over and not self._drained:
            self._writing = True
            try:
                self._write()
            finally:
                self._writing = False

    def _writable(self) -> None:
        self._flush()
        self._progressed(sent=True)

    def _write(self) -> None:
        budget = _BURST
        while budget > 0:
            if not self._out and not self._next():
                return
            try:
                count = self._sock.send(self._out)
            except _AGAIN:
                break
            except (OSError, ValueError) as error:
                self.abort(explained(error))
                return
            budget -= count
            self._out = self._out[count:]
            if not self._out:
                self._out, self._rest = self._rest, _NOTHING
        self._arm(True)

    def _next(self) -> bool:
        """Take the next frame, its first bytes of payload in one record with the prefix; False: there is none."""
        frame = self._frame()
        if frame is None:
            if not self.over:
                self._arm(False)
                if self._finishing is not None:
                    self._end()
            return False
        head, body = frame
        first = max(0, _RECORD - len(head))
        self._out, self._rest = memoryview(b"".join((head, body[:first]))), body[first:]
        return True

    def _arm(self, on: bool) -> None:
        if on and not self._armed:
            self._loop.add_writer(self._fd, self._writable)
        elif not on and self._armed:
            self._loop.remove_writer(self._fd)
        self._armed = on

    def _read(self) -> None:
        if self.over:
            return
        if self._drained:
            self._discard()
            return
        budget = _BURST
        receiver = self.wire.receiver
        while budget > 0:
            view = receiver.buffer()
            try:
                count: int = self._sock.read(len(view), view)  # type: ignore[assignment]
            except _AGAIN:
                break
            except (OSError, ValueError) as error:
                self.abort(explained(error))
                return
            if count == 0:
                self.abort("the peer closed the connection")
                return
            budget -= count
            self._filled(count)
            if self._stopped():
                return
            if not self._sock.pending() and receiver.progress is None:
                return  # a frame ended: the selector says when there is more
        self._progressed()
        if budget <= 0 and not self.over and self._sock.pending():
            self._loop.call_soon(self._read)

    def _stopped(self) -> bool:
        """Whether a callback has ended the connection."""
        return self.over or self._drained

    def _end(self) -> None:
        """Say that nothing more will be written; then read until the peer has closed, so that it gets all of it."""
        self._drained = True
        with contextlib.suppress(OSError, ValueError):
            self._sock.unwrap()
        try:
            self._sock.shutdown(socket.SHUT_WR)
        except OSError:
            self.abort("")
            return
        self._timer.cancel()
        self._timer = self._loop.call_later(_LINGER_SECONDS, self.abort, "")

    def _discard(self) -> None:
        try:
            more = self._sock.recv(CHUNK)
        except (BlockingIOError, *_AGAIN):
            return
        except (OSError, ValueError):
            more = b""
        if not more:
            self.abort("")

    def _release(self) -> None:
        self._loop.remove_reader(self._fd)
        self._arm(False)
        self._out = self._rest = _NOTHING
        self._sock.close()


class TlsTransport(Transport):
    """A node on a real network.

    Args:
        identity: Who this node is, and whom it trusts.
        neighbours: Its neighbours in this run.
        schema: What payloads consist of.
        handler: What is called.
        listen_at: Where to listen, ``host:port``; port 0: any that is free.
        addresses: Where the neighbours of lower id are.
        hello_seconds: How long to wait for progress of the handshake and for HELLO.
    """

    def __init__(
        self,
        identity: Identity,
        neighbours: frozenset[int],
        schema: Schema,
        handler: Handler,
        *,
        listen_at: str,
        addresses: Mapping[int, str],
        hello_seconds: float = HELLO_SECONDS,
    ) -> None:
        super().__init__(identity.id, neighbours, schema, handler, hello_seconds)
        self._identity, self._listen_at, self.addresses = identity, listen_at, dict(addresses)
        self._listening: socket.socket | None = None
        self._handshakes: dict[asyncio.Task[None], None] = {}

    async def listen(self) -> str:
        """Accept connections from neighbours of higher id; see `Transport`."""
        host, port = split_address(self._listen_at)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, port, family=family, type=socket.SOCK_STREAM)
            listening = socket.create_server(found[0][4][:2], family=family, backlog=128)
        except OSError as error:
            why = os.strerror(error.errno) if isinstance(error.errno, int) and error.errno > 0 else error.strerror
            raise InputError("nodes.listen", self._listen_at, f"an address that is free here ({why})") from None
        listening.setblocking(False)
        self._listening = listening
        asyncio.get_running_loop().add_reader(listening.fileno(), self._accept)
        host, port = listening.getsockname()[:2]
        return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"

    def _accept(self) -> None:
        """Accept connections; each shakes hands in a task of its own."""
        assert self._listening is not None
        loop = asyncio.get_running_loop()
        for _ in range(_HANDSHAKES):
            try:
                sock, address = self._listening.accept()
            except BlockingIOError:
                return
            except OSError as error:  # too many open files: those that wait are accepted later
                self.handler.refused("the listening socket", str(error.strerror))
                loop.remove_reader(self._listening.fileno())
                loop.call_later(1.0, self._accept_again)
                return
            while len(self._handshakes) >= _HANDSHAKES:
                oldest = next(iter(self._handshakes))
                del self._handshakes[oldest]
                oldest.cancel()
            task = loop.create_task(self._welcome(sock, f"{address[0]}:{address[1]}"))
            self._handshakes[task] = None
            task.add_done_callback(lambda done, sock=sock: self._shaken(done, sock))  # type: ignore[misc]

    def _shaken(self, task: asyncio.Task[None], sock: socket.socket) -> None:
        self._handshakes.pop(task, None)
        sock.close()  # of a task that was cancelled before it began; else the connection has taken the descriptor over

    def _accept_again(self) -> None:
        if self._listening is not None:
            asyncio.get_running_loop().add_reader(self._listening.fileno(), self._accept)

    async def _welcome(self, sock: socket.socket, where: str) -> None:
        try:
            secure = await self._shake(sock, self._identity.server)
        except RefusedError as error:
            self.handler.refused(where, str(error))
            return
        try:
            peer = self._identity.who(secure)
            self.check_accept(peer)
        except RefusedError as error:
            self.handler.refused(where, str(error))
            secure.close()
            return
        self._open(secure, peer)

    async def dial(self, peer: int) -> Connection:
        """Connect to a neighbour of lower id; see `Transport`."""
        self.check_dial(peer)
        if peer not in self.addresses:
            raise RefusedError(f"there is no address of node {peer}")
        host, port = split_address(self.addresses[peer])
        sock = await self._connected(host, port)
        try:
            secure = await self._shake(sock, self._identity.client)
            try:
                found = self._identity.who(secure)
                if found != peer:
                    raise RefusedError(f"node {found} answers at {self.addresses[peer]}")
            except BaseException:
                secure.close()
                raise
        except RefusedError as error:
            self.handler.refused(f"node {peer} at {self.addresses[peer]}", str(error))
            raise
        return self._open(secure, peer)

    async def _connected(self, host: str, port: int) -> socket.socket:
        loop = asyncio.get_running_loop()
        failure: OSError = ConnectionRefusedError(f"{host} has no address")
        for family, kind, protocol, _, address in await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            sock.setblocking(False)
            try:
                async with asyncio.timeout(self._hello_seconds):
                    await loop.sock_connect(sock, address)
                return sock
            except OSError as error:  # a TimeoutError is one
                sock.close()
                failure = error
            except BaseException:
                sock.close()
                raise
        raise failure

    async def _shake(self, sock: socket.socket, context: ssl.SSLContext) -> ssl.SSLSocket:
        """Do the handshake; RefusedError where the other end is not to be trusted or does not speak TLS 1.3."""
        server = context is self._identity.server
        try:
            _tune(sock)
            secure = context.wrap_socket(sock, server_side=server, do_handshake_on_connect=False)
        except (OSError, ValueError) as error:
            sock.close()
            raise RefusedError(explained(error)) from None
        try:
            async with asyncio.timeout(6 * self._hello_seconds):  # whatever the progress: nobody is known yet
                while True:
                    try:
                        secure.do_handshake()
                        return secure
                    except ssl.SSLWantReadError:
                        await self._ready(secure, write=False)
                    except ssl.SSLWantWriteError:
                        await self._ready(secure, write=True)
        except TimeoutError:
            secure.close()
            raise RefusedError(f"no progress with the handshake for {self._hello_seconds:g} s") from None
        except (OSError, ValueError) as error:
            if not server and isinstance(error, ssl.SSLEOFError | ConnectionError):  # it left: nobody was refused
                secure.close()
                raise ConnectionResetError(errno.ECONNRESET, "closed during the handshake") from None
            secure.close()
            raise RefusedError(explained(error)) from None
        except BaseException:
            secure.close()
            raise

    async def _ready(self, sock: socket.socket, *, write: bool) -> None:
        loop = asyncio.get_running_loop()
        ready: asyncio.Future[None] = loop.create_future()
        add, remove = (loop.add_writer, loop.remove_writer) if write else (loop.add_reader, loop.remove_reader)
        add(sock.fileno(), lambda: None if ready.done() else ready.set_result(None))
        try:
            async with asyncio.timeout(self._hello_seconds):
                await ready
        finally:
            remove(sock.fileno())

    def _open(self, sock: ssl.SSLSocket, peer: int) -> Connection:
        wire, faults = self.new_wire(peer)
        connection = TlsConnection(sock, wire, self.handler, faults, self._hello_seconds)
        self.adopt(connection)
        return connection

    async def close(self) -> None:
        """Close every connection, and accept no more."""
        if self._listening is not None:
            asyncio.get_running_loop().remove_reader(self._listening.fileno())
            self._listening.close()
            self._listening = None
        for task in list(self._handshakes):
            task.cancel()
        await asyncio.gather(*self._handshakes, return_exceptions=True)
        await self.close_connections()


def _tune(sock: socket.socket) -> None:
    """Send small frames immediately, keep little unsent data in the kernel so that they overtake, notice dead hosts."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    lowat = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if lowat is not None:
        sock.setsockopt(socket.IPPROTO_TCP, lowat, CHUNK)
