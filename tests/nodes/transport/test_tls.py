"""TLS on loopback: who is refused, before a byte of payload; bytes at the socket; damaged frames from a neighbour."""

import asyncio
import contextlib
import resource
import socket
import ssl
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from benchmarks import nodes_fuzz
from tests.nodes.ends import Recorder, closing, identity, tls_node, until

from dspodfl.errors import InputError
from dspodfl.nodes import Identity, RefusedError, Schema, approve, new_ca, new_keys, request
from dspodfl.nodes import keys as keys_file
from dspodfl.protocol import State


@pytest.fixture
def expired(tmp_path, monkeypatch):
    """A folder with keys of node 1 that expired yesterday, and of node 2 that are valid from tomorrow on."""
    for node, days in ((1, -12), (2, 2)):
        monkeypatch.setattr(keys_file, "datetime", shifted(days))
        new_keys(tmp_path, [node], days=10 if days < 0 else 30)
    return tmp_path


def shifted(days):
    class Shifted(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime.now(tz) + timedelta(days=days)

    return Shifted


def without_dates(keys, id, peers, own, monkeypatch):
    """An identity whose own certificate is not valid now: its node would refuse to start."""
    monkeypatch.setattr("dspodfl.nodes.identity.clock_problem", lambda *_: None)
    found = Identity(id, own / f"{id}.crt", own / f"{id}.key", {peer: [keys / f"{peer}.crt"] for peer in peers})
    monkeypatch.undo()
    return found


async def met(server, client_transport, client):
    """Let a client try; what both handlers say."""
    low, server_transport = server
    address = await server_transport.listen()
    client_transport.addresses[0] = address
    async with closing(server_transport, client_transport):
        try:
            await client_transport.dial(0)
        except RefusedError:
            pass
        else:
            await until(lambda: client.reasons)
        await until(lambda: low.refusals or low.reasons)
    return low, client


def nothing_happened(low):
    return low.messages == [] and not any(connection.counters.received for connection in low.connections)


def test_an_unknown_certificate_is_refused(keys, tmp_path):
    new_keys(tmp_path, [1])

    async def talk():
        low, high = Recorder(), Recorder()
        stranger = Identity(1, tmp_path / "1.crt", tmp_path / "1.key", {0: [keys / "0.crt"]})
        await met((low, tls_node(keys, 0, {1}, low)), tls_node(keys, 1, {0}, high, who=stranger), high)
        assert "not one of those that are trusted here" in low.refusals[0] and nothing_happened(low)
        assert "refused this node's certificate" in high.reasons[0] and high.messages == []

    asyncio.run(talk())


def test_a_server_with_an_unknown_certificate_is_refused(keys, tmp_path):
    new_keys(tmp_path, [0])

    async def talk():
        low, high = Recorder(), Recorder()
        stranger = Identity(0, tmp_path / "0.crt", tmp_path / "0.key", {1: [keys / "1.crt"]})
        await met((low, tls_node(keys, 0, {1}, low, who=stranger)), tls_node(keys, 1, {0}, high), high)
        assert "not one of those that are trusted here" in high.refusals[0]
        assert high.messages == [] == high.connections and nothing_happened(low)

    asyncio.run(talk())


@pytest.mark.parametrize(("node", "words"), [(1, "has expired"), (2, "is not valid yet")])
def test_a_certificate_outside_its_dates_is_refused_and_the_clock_is_named(keys, expired, monkeypatch, node, words):
    async def talk():
        low, high = Recorder(), Recorder()
        server = Identity(0, keys / "0.crt", keys / "0.key", {node: [expired / f"{node}.crt"]})
        client = without_dates(keys, node, {0}, expired, monkeypatch)
        await met((low, tls_node(keys, 0, {node}, low, who=server)), tls_node(keys, node, {0}, high, who=client), high)
        assert words in low.refusals[0] and f"this machine's clock ({datetime.now(UTC):%Y-%m-%d}" in low.refusals[0]
        assert nothing_happened(low) and high.messages == []
        assert "clock" in high.reasons[0]

    asyncio.run(talk())


def test_a_neighbours_certificate_with_another_nodes_id_is_refused(keys):
    async def talk():
        low, high = Recorder(), Recorder()
        server = tls_node(keys, 0, {1, 2}, low)
        imposter = tls_node(keys, 2, {0}, high, who=identity(keys, 2, [0], own=1))
        await met((low, server), imposter, high)
        assert low.reasons == ["refused: it claims to be node 2, with the certificate of node 1"]
        assert low.messages == []  # nothing reached the protocol

    asyncio.run(talk())


def test_a_node_that_is_not_a_neighbour_in_this_run_is_refused(keys):
    async def talk():
        low, high = Recorder(), Recorder()
        server = tls_node(keys, 0, {1}, low, who=identity(keys, 0, [1, 2]))  # known, but no neighbour
        await met((low, server), tls_node(keys, 2, {0}, high), high)
        assert low.refusals == ["node 2 is not a neighbour of node 0 in this run"] and nothing_happened(low)

    asyncio.run(talk())


def test_a_neighbour_of_lower_id_does_not_dial(keys):
    async def talk():
        low, high = Recorder(), Recorder()
        server = tls_node(keys, 2, {1}, low)
        client = tls_node(keys, 1, {0}, high, who=identity(keys, 1, [0, 2]))
        client._identity._known = {**client._identity._known, next(iter(server._identity._known)): 0}
        await met((low, server), client, high)
        assert low.refusals == ["node 2 dials node 1: the higher id dials the lower"] and nothing_happened(low)

    asyncio.run(talk())


def test_another_neighbour_at_the_address_is_refused(keys):
    async def talk():
        low, high = Recorder(), Recorder()
        server = tls_node(keys, 1, {2}, low)
        client = tls_node(keys, 2, {0, 1}, high)
        address = await server.listen()
        client.addresses[0] = address
        async with closing(server, client):
            with pytest.raises(RefusedError, match="node 1 answers at"):
                await client.dial(0)
            assert "node 1 answers at" in high.refusals[0] and high.connections == []

    asyncio.run(talk())


def test_a_neighbour_without_an_address_is_not_dialled(keys):
    async def talk():
        with pytest.raises(RefusedError, match="there is no address of node 0"):
            await tls_node(keys, 1, {0}, Recorder()).dial(0)

    asyncio.run(talk())


def raw_client(context, address, data):
    """A client that writes bytes and returns all that comes back."""
    host, port = address.rsplit(":", 1)
    with socket.create_connection((host, int(port)), timeout=10) as plain:
        received = b""
        with plain if context is None else context.wrap_socket(plain) as sock, contextlib.suppress(OSError):
            sock.sendall(data)
            while part := sock.recv(65536):
                received += part
        return received


def no_certificate():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context


def old_version(keys):
    context = no_certificate()
    context.load_cert_chain(keys / "1.crt", keys / "1.key")
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


@pytest.mark.parametrize("data", [b"GET / HTTP/1.1\r\n\r\n", bytes(100), b"\x01" * 4000, b"hello"])
def test_plaintext_gets_nothing(keys, data):
    async def talk():
        low = Recorder()
        server = tls_node(keys, 0, {1}, low, hello_seconds=0.3)
        address = await server.listen()
        async with closing(server):
            received = await asyncio.to_thread(raw_client, None, address, data)
            assert received == b"" or (received[0] == 0x15 and len(received) <= 7)  # nothing, or an alert of TLS
            await until(lambda: low.refusals)
            assert nothing_happened(low) and low.connections == []

    asyncio.run(talk())


def test_a_client_without_certificate_or_with_an_older_tls_is_refused(keys):
    async def talk():
        low = Recorder()
        server = tls_node(keys, 0, {1}, low)
        address = await server.listen()
        async with closing(server):
            await asyncio.to_thread(raw_client, no_certificate(), address, b"x" * 100)
            with pytest.raises(ssl.SSLError):
                await asyncio.to_thread(raw_client, old_version(keys), address, b"x")
            await until(lambda: len(low.refusals) == 2)
            assert low.refusals[0] == "it shows no certificate" and "does not speak TLS 1.3" in low.refusals[1]
            assert nothing_happened(low)

    asyncio.run(talk())


def test_handshakes_that_hang_do_not_keep_neighbours_out(keys):
    async def talk():
        low, high = Recorder(), Recorder()
        server, client = tls_node(keys, 0, {1}, low), tls_node(keys, 1, {0}, high)
        client.addresses[0] = address = await server.listen()
        host, port = address.rsplit(":", 1)
        idle = [socket.create_connection((host, int(port))) for _ in range(80)]
        async with closing(server, client):
            await client.dial(0)
            await until(lambda: low.messages and high.messages)
            assert len(server._handshakes) <= 64
        for sock in idle:
            sock.close()

    asyncio.run(talk())


def test_a_port_that_is_taken_is_named(keys):
    async def talk():
        first, second = tls_node(keys, 0, {1}, Recorder()), tls_node(keys, 0, {1}, Recorder())
        second._listen_at = await first.listen()
        async with closing(first, second):
            with pytest.raises(InputError, match=r"nodes.listen = '127.*: must be .* \(Address already in use"):
                await second.listen()

    asyncio.run(talk())


def test_two_certificates_are_accepted_while_a_node_changes(keys, tmp_path):
    new_keys(tmp_path, [1])

    async def talk(folder):
        low, high = Recorder(), Recorder()
        server = Identity(0, keys / "0.crt", keys / "0.key", {1: [keys / "1.crt", tmp_path / "1.crt"]})
        client = Identity(1, folder / "1.crt", folder / "1.key", {0: [keys / "0.crt"]})
        nodes = tls_node(keys, 0, {1}, low, who=server), tls_node(keys, 1, {0}, high, who=client)
        nodes[1].addresses[0] = await nodes[0].listen()
        async with closing(*nodes):
            await nodes[1].dial(0)
            await until(lambda: low.messages and high.messages)

    asyncio.run(talk(keys))
    asyncio.run(talk(tmp_path))


def organisation(folder, ids, run_id="run"):
    new_ca(folder, overwrite=True)
    for id in ids:
        request(folder, id, run_id)
    approve([folder / f"{id}.csr" for id in ids], folder)
    return folder


def member(folder, id, run_id="run"):
    return Identity(id, folder / f"{id}.crt", folder / f"{id}.key", {}, ca=folder / "ca.pem", run_id=run_id)


def test_with_a_ca_the_id_is_that_of_the_certificate(tmp_path):
    folder = organisation(tmp_path, [0, 1, 2])

    async def talk(id, neighbours):
        low, high = Recorder(), Recorder()
        server = tls_node(None, 0, neighbours, low, who=member(folder, 0))
        client = tls_node(None, id, {0}, high, who=member(folder, id))
        client.addresses[0] = await server.listen()
        async with closing(server, client):
            await client.dial(0)
            await until(lambda: low.messages or low.refusals)
            return [peer for peer, *_ in low.messages], low.refusals

    assert asyncio.run(talk(1, {1})) == ([1], [])
    assert asyncio.run(talk(2, {1, 2})) == ([2], [])
    assert asyncio.run(talk(2, {1})) == ([], ["node 2 is not a neighbour of node 0 in this run"])


def test_with_a_ca_another_run_and_another_ca_are_refused(tmp_path):
    ours, others, strangers = tmp_path / "ours", tmp_path / "others", tmp_path / "strangers"
    organisation(ours, [0])
    request(others, 1, "another run")
    approve([others / "1.csr"], ours)
    organisation(strangers, [1])

    async def talk(who):
        low, high = Recorder(), Recorder()
        server = tls_node(None, 0, {1}, low, who=member(ours, 0))
        await met((low, server), tls_node(None, 1, {0}, high, who=who), high)
        assert nothing_happened(low)
        return low.refusals[0]

    other_run = Identity(1, others / "1.crt", others / "1.key", {}, ca=ours / "ca.pem", run_id="another run")
    other_run._run_id = "run"  # so that it does not refuse the server first
    assert asyncio.run(talk(other_run)) == "its certificate is not for dspodfl:run/<id>"
    stranger = Identity(1, strangers / "1.crt", strangers / "1.key", {}, ca=strangers / "ca.pem", run_id="run")
    stranger.client = member(ours, 0).client
    stranger.client.load_cert_chain(strangers / "1.crt", strangers / "1.key")
    assert "not one of those that are trusted here" in asyncio.run(talk(stranger))


async def relayed(address, counted):
    """A relay that counts the bytes between two sockets; its address."""

    async def carry(reader, writer):
        while part := await reader.read(1 << 16):
            counted.append(len(part))
            writer.write(part)
            await writer.drain()
        writer.close()

    async def accept(reader, writer):
        far_reader, far_writer = await asyncio.open_connection(*address.rsplit(":", 1))
        await asyncio.gather(carry(reader, far_writer), carry(far_reader, writer))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    return server, "{}:{}".format(*server.sockets[0].getsockname())


@pytest.mark.parametrize(("size", "swaps", "most"), [(31_400, 20, 1.02), (40_000_000, 1, 1.002)])
def test_bytes_on_the_wire_are_hardly_more_than_those_of_the_models(keys, size, swaps, most):
    schema = Schema.of([[("float32", (size // 4,))]])
    model = np.random.default_rng(0).standard_normal(size // 4, np.float32)

    async def talk():
        low, high, counted = Recorder(), Recorder(), []
        nodes = tls_node(keys, 0, {1}, low, schema), tls_node(keys, 1, {0}, high, schema)
        relay, nodes[1].addresses[0] = await relayed(await nodes[0].listen(), counted)
        async with closing(*nodes):
            await nodes[1].dial(0)
            await until(lambda: low.messages and high.messages)
            await asyncio.sleep(0.05)
            handshake = sum(counted)
            for k in range(swaps):
                low.connections[0].send(State(k, 0), model)
                high.connections[0].send(State(k, 0), model)
                await until(lambda k=k: len(low.messages) == len(high.messages) == k + 2)
            at_socket = low.connections[0].socket_bytes()
            if at_socket is not None:  # what the kernel of Linux counted is what went through the relay
                assert sum(at_socket) == sum(counted)
            assert 1 < (sum(counted) - handshake) / (2 * swaps * size) <= most
            assert low.messages[-1][2] == high.messages[-1][2] == model.tobytes()
        relay.close()

    asyncio.run(talk())


async def damaging_client(context, address, seed, count):
    """A neighbour with a valid key that sends damaged frames, one connection each."""
    draw = np.random.default_rng(seed)
    for _ in range(count):
        reader, writer = await asyncio.open_connection(*address.rsplit(":", 1), ssl=context)
        wire = nodes_fuzz.Wire(1, 0, nodes_fuzz.SCHEMA)
        own = nodes_fuzz.hello(1, draw.bytes(16))
        wire.put(own)
        ((other, _),), _ = nodes_fuzz.fed(wire, await reader.read(65536))
        frames = nodes_fuzz.valid_frames(own, other)
        case = nodes_fuzz.damaged(draw, frames)
        writer.write(b"".join([frames[0], *case.frames]))
        with contextlib.suppress(OSError):  # closed by the node, with bytes that it did not read
            if case.refused:
                assert await reader.read(1) == b"", case.kind
            writer.close()
            await writer.wait_closed()


def test_damaged_frames_over_tls_with_a_valid_neighbours_key(keys):
    total = 2000

    async def talk():
        low, seen = Recorder(), set()
        low.opened = lambda connection: connection.send(nodes_fuzz.hello(0))
        low.received = lambda connection, message, payload: seen.add(type(message))
        server = tls_node(keys, 0, {1}, low, nodes_fuzz.SCHEMA)
        address = await server.listen()
        context = identity(keys, 1, [0]).client
        async with closing(server):
            await damaging_client(context, address, 0, 100)
            before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            await damaging_client(context, address, 1, total - 100)
            await until(lambda: len(low.reasons) == total)
            growth = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert growth < 20_000  # in units of 1024 bytes
        refused = [reason for reason in low.reasons if reason.startswith("refused: ")]
        assert len(refused) > total // 2 and low.refusals == []
        assert server.connections == {} and not server._handshakes and len(seen) == 7

    asyncio.run(talk())
